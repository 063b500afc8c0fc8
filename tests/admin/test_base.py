"""What the pages of the admin share: URLs, columns, names of users, the warning before a block, another admin site."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.contrib.admin import site as default_site
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import RequestFactory
from django.urls import path

from django_quota import check
from django_quota.admin.base import admin_url, hidden_names_hint, labelled, lockout_of, names_among
from django_quota.admin.users import links_of
from django_quota.models import QuotaOverride
from tests.admin.operators import operator, superuser

MINE = "192.0.2.50"

staff, bare = AdminSite(name="staff"), AdminSite(name="bare")
for model, registered in default_site._registry.items():
    staff.register(model, type(registered))
bare.register(User)
urlpatterns = [path("admin/", default_site.urls), path("staff/", staff.urls), path("bare/", bare.urls)]
"""Three sites; the last of them has none of our pages."""


@pytest.fixture
def three_sites(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__


def request_of(user: User, address: str = MINE) -> HttpRequest:
    request = RequestFactory().get("/", REMOTE_ADDR=address)
    request.user = user
    return request


# --- URLs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "page", "args", "query", "url"),
    [
        pytest.param("admin", "subject_changelist", (), {}, "/admin/django_quota/subject/", id="a page"),
        pytest.param(
            "admin", "quotaoverride_change", (7,), {}, "/admin/django_quota/quotaoverride/7/change/", id="a row"
        ),
        pytest.param(
            "admin",
            "subject_changelist",
            (),
            {"subject": "user:a b&c"},
            "/admin/django_quota/subject/?subject=user%3Aa+b%26c",
            id="a query",
        ),
        pytest.param(
            "admin",
            "subject_changelist",
            (),
            {"subject": "\ud800"},
            "/admin/django_quota/subject/?subject=%3F",
            id="what no URL can hold",
        ),
        pytest.param("staff", "subject_changelist", (), {}, "/staff/django_quota/subject/", id="another site"),
        pytest.param("bare", "subject_changelist", (), {"subject": "a"}, "", id="a site without the page"),
        pytest.param("admin", "subject_nothing", (), {"subject": "a"}, "", id="a page that there is not"),
    ],
)
@pytest.mark.usefixtures("three_sites")
def test_a_page_has_the_url_of_its_site(
    site: str, page: str, args: tuple[Any, ...], query: dict[str, str], url: str
) -> None:
    assert admin_url(site, f"django_quota_{page}", *args, **query) == url


OF_ANN = "django_quota/{}?subject=user%3A7"


@pytest.mark.parametrize(
    ("site", "links"),
    [
        pytest.param(
            "admin",
            [
                (f"/admin/{OF_ANN.format('subject/')}", "Quota"),
                (f"/admin/{OF_ANN.format('dailycounter/usage/')}", "Usage"),
            ],
            id="the default site",
        ),
        pytest.param(
            "staff",
            [
                (f"/staff/{OF_ANN.format('subject/')}", "Quota"),
                (f"/staff/{OF_ANN.format('dailycounter/usage/')}", "Usage"),
            ],
            id="another site",
        ),
        pytest.param("bare", [], id="a site without our pages"),
    ],
)
@pytest.mark.usefixtures("three_sites")
def test_the_links_of_a_user_stay_on_the_site(site: str, links: list[tuple[str, str]]) -> None:
    request = request_of(User(is_active=True, is_superuser=True))
    request.current_app = site  # as Django's admin does

    assert links_of(request, User(pk=7)) == links


@pytest.mark.parametrize("user", [None, User()], ids=["nobody", "a user who is not saved"])
def test_a_user_without_a_key_has_no_links(user: User | None) -> None:
    assert links_of(request_of(User(is_active=True, is_superuser=True)), user) == []


PAGES = [
    "",
    "django_quota/ban/",
    "django_quota/ban/set/",
    "django_quota/dailycounter/",
    "django_quota/dailycounter/usage/",
    "django_quota/dailycounter/usage/?subject=user:7",
    "django_quota/knownrule/",
    "django_quota/overview/",
    "django_quota/overview/content/",
    "django_quota/overview/events/",
    "django_quota/quotaoverride/",
    "django_quota/quotaoverride/add/",
    "django_quota/quotaoverride/rule/?name=api",
    "django_quota/subject/",
    "django_quota/subject/?subject=user:7",
    "django_quota/subject/action/block/?subject=user:7",
]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("three_sites", "memory_store")
def test_the_links_of_a_page_stay_on_its_site(page: str, database: Any) -> None:
    QuotaOverride.objects.create(subject="user:7", mode="blocked")
    check("0/m", "user:7", name="api")

    shown = superuser().get(f"/staff/{page}").content.decode()

    assert '"/staff/' in shown
    assert '"/admin/' not in shown


@pytest.mark.parametrize(
    ("page", "form", "location"),
    [
        ("subject/", {"find": "user:7"}, "subject/?subject=user%3A7"),
        ("dailycounter/usage/", {"find": "user:7"}, "dailycounter/usage/?subject=user%3A7"),
        ("ban/", {"find": "user:7", "rule": "api"}, "ban/?subject=user%3A7&rule=api"),
        ("overview/events/", {"find": "user:7"}, "overview/events/?subject=user%3A7"),
        ("subject/action/reset/", {"subject": "user:7", "confirmed": "yes"}, "subject/?subject=user%3A7"),
        ("subject/action/reset/", {"subject": "", "confirmed": "yes"}, "subject/"),
        ("ban/lift/", {"rule": "api"}, "ban/?rule=api"),
        ("ban/set/", {"subject": "user:7", "reason": "spam", "span": "1d"}, "ban/"),
    ],
    ids=["subject", "usage", "bans", "events", "action", "action on nobody", "lift", "ban"],
)
@pytest.mark.usefixtures("three_sites", "memory_store")
def test_a_form_leads_to_a_page_of_its_site(page: str, form: dict[str, str], location: str, database: Any) -> None:
    answer = superuser().post(f"/staff/django_quota/{page}", form)

    assert answer["Location"] == f"/staff/django_quota/{location}"


# --- columns and names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param(1_234_567, "1,234,567", id="a number"),
        pytest.param(0, "0", id="zero"),
        pytest.param("", "-", id="an empty string"),
        pytest.param(None, "-", id="nothing"),
        pytest.param("<b>", "&lt;b&gt;", id="markup"),
        pytest.param(
            SimpleNamespace(is_authenticated=True, pk=1, get_username=lambda: 1_234),
            "1234",
            id="a name that is a number",
        ),
    ],
)
def test_a_cell_has_the_label_of_its_column(value: object, shown: str) -> None:
    column = labelled("units", "units & more")

    assert column(SimpleNamespace(units=value)) == f'<span class="quota-label">units &amp; more</span> {shown}'


def test_a_column_is_sorted_by_its_field() -> None:
    column: Any = labelled("units", "what it cost")

    assert (column.__name__, column.short_description, column.admin_order_field) == ("units", "what it cost", "units")


@pytest.mark.parametrize(
    ("subject", "sees_users", "words"),
    [
        pytest.param("ann", False, "You may not see users, so no name is looked up.", id="a name"),
        pytest.param("ann", True, "", id="who may see users"),
        pytest.param("user:7", False, "", id="a user"),
        pytest.param("*", False, "", id="everybody"),
        pytest.param("global", False, "", id="the site"),
    ],
)
def test_whoever_may_not_see_users_is_told_that_no_name_was_looked_up(
    subject: str, sees_users: bool, words: str
) -> None:
    assert hidden_names_hint(subject, sees_users=sees_users) == words


@pytest.mark.parametrize(
    ("permission", "names"),
    [
        pytest.param("auth.view_user", {"user:7": "ann"}, id="to view users"),
        pytest.param("auth.change_user", {"user:7": "ann"}, id="to change users"),
        pytest.param("auth.add_user", {}, id="to add users"),
    ],
)
def test_a_permission_shows_the_names_of_users(permission: str, names: dict[str, str], database: Any) -> None:
    User.objects.create_user("ann", pk=7)
    operator(permission)
    request = request_of(User.objects.get(username="operator"))

    assert names_among(request, ["user:7"]) == names


def test_users_are_named_in_each_part_of_a_subject(database: Any) -> None:
    User.objects.create_user("ann", pk=7)
    request = request_of(User(is_active=True, is_superuser=True))

    assert names_among(request, ["ip:192.0.2.1+user:7", None, "", "user:8"]) == {"user:7": "ann"}


# --- locking oneself out ----------------------------------------------------------------------------------------------

LIFT = "If you lock yourself out, this command lifts it: manage.py quota_override clear"
OF_USER = "This blocks you: your own requests count for user:7."


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        pytest.param([("", "user:7")], f"{OF_USER} {LIFT} user:7", id="you"),
        pytest.param([("*", "user:7")], f"{OF_USER} {LIFT} user:7", id="you under all rules"),
        pytest.param([("api", "user:7")], f"{OF_USER} {LIFT} user:7 --rule api", id="you under a rule"),
        pytest.param([("*", "user:*")], f"{OF_USER} {LIFT} 'user:*'", id="all users"),
        pytest.param(
            [("api", "ip:192.0.2.0/24")],
            f"This blocks you: your own requests count for ip:{MINE}. {LIFT} ip:192.0.2.0/24 --rule api",
            id="your network",
        ),
        pytest.param([("*", "*")], f"This blocks everybody, and so you. {LIFT} '*'", id="everybody"),
        pytest.param(
            [("a", "user:8"), ("b", "user:7"), ("c", "*")], f"{OF_USER} {LIFT} user:7 --rule b", id="the first of two"
        ),
        pytest.param([("*", "user:8"), ("*", "ip:192.0.2.51")], "", id="others"),
        pytest.param([], "", id="nobody"),
    ],
)
def test_a_block_of_yourself_says_what_lifts_it(blocks: list[tuple[str, str]], words: str) -> None:
    assert lockout_of(request_of(User(pk=7)), blocks) == words


def test_a_block_of_yourself_is_seen_where_requests_have_no_address() -> None:
    assert lockout_of(request_of(User(pk=7), address=""), [("*", "user:7")]) == f"{OF_USER} {LIFT} user:7"
