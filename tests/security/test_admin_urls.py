"""Every address of our admin, by the URL resolver: changes take a POST, its token and its permission; a look none."""

from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client

from django_quota import check, slot
from django_quota.models import QuotaOverride
from tests.admin.operators import operator, superuser
from tests.security.pages import ROOT, SUBJECT, addresses, patterns, seen, state
from tests.support.counts import count_what_waits
from tests.support.selection import thorough

pytestmark = pytest.mark.django_db(transaction=True)

ASKED = {"subject": SUBJECT, "on": '["login"]', "sizes": "1"}
CHANGES = {
    **ASKED, "confirmed": "yes", "rate": "9/m", "for": "1d", "reason": "x", "action": "delete_selected",
    "_selected_action": "1", "post": "yes", "_save": "1", "rule": "*", "mode": "exempt",
}  # fmt: skip
"""What would change something, were it posted with a token."""


@pytest.fixture(autouse=True)
def played(one_redis: Any) -> None:
    """A subject that is limited, banned, overridden, and holds a slot: so that there is something to change."""
    for _ in range(3):
        check("1/h", SUBJECT, name="login", ban={"after": "1/h", "for": ["1h"]})
    check("5/h", SUBJECT, name="search")
    slot("export", 2, subject=SUBJECT, lease=3_600).acquire()
    QuotaOverride.objects.create(subject=SUBJECT, rule="login", rate="5/m", reason="marked-reason")
    count_what_waits()  # the overview sends what this process has counted


def test_the_walk_finds_every_address() -> None:
    pages = addresses()

    parts = ("overview/content/", "dailycounter/usage/csv/", "quotaoverride/preview/<int:key>/")
    assert [part for part in parts if f"django_quota/{part}" not in patterns()] == []
    assert len([each for each in pages if "/action/" in each]) >= 6
    assert len(patterns()) >= 26


QUESTIONS = {"nothing": {}, "a subject": ASKED, "what would change something": CHANGES}
"""What a look at a page may carry."""


few_questions = pytest.mark.parametrize(
    "asked",
    [
        pytest.param(asked, id=name, marks=() if asked == ASKED else pytest.mark.thorough("variants"))
        for name, asked in QUESTIONS.items()
    ],
)
methods = pytest.mark.parametrize(
    "method", ["get", *(thorough("variants", name) for name in ("head", "options", "put", "patch", "delete", "trace"))]
)


def look_at_all(method: str, asked: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield each address of the admin, and what it answers."""
    root = superuser()
    root.raise_request_exception = True
    question = {"data": asked} if method in ("get", "head") else {"query_params": asked}
    for address in addresses():
        reply = getattr(root, method)(address, **question)
        assert reply.status_code < 500, address
        yield address, reply
        reply.close()


@pytest.mark.parametrize("asked", QUESTIONS.values(), ids=QUESTIONS)
@methods
def test_no_method_but_post_changes_anything(method: str, asked: dict[str, str], one_redis: Any) -> None:
    addresses()  # which makes the rows that it needs
    call_command("quota_rollup", stdout=StringIO())  # the usage page moves counts too, and shows the same
    before = state(one_redis)
    assert len(before) > 6

    changed = []
    for address, _ in look_at_all(method, asked):
        after = state(one_redis)
        if after != before:
            changed.append(address)
        before = after

    assert changed == []


@few_questions
@methods
def test_no_page_may_be_framed(method: str, asked: dict[str, str]) -> None:
    framed = [
        address for address, reply in look_at_all(method, asked) if getattr(reply, "xframe_options_exempt", False)
    ]

    assert framed == []


@few_questions
def test_no_page_has_an_inline_style_or_script(asked: dict[str, str]) -> None:
    inline = {
        address: seen(reply).inline
        for address, reply in look_at_all("get", asked)
        if not reply.streaming and "html" in reply.headers["Content-Type"]
    }

    assert len(inline) > 13
    assert {address: found for address, found in inline.items() if found} == {}


def test_a_post_without_a_token_is_forbidden(one_redis: Any) -> None:
    root, pages = superuser(enforce_csrf_checks=True), addresses()
    before = state(one_redis)

    statuses = {address: root.post(address, CHANGES).status_code for address in pages}

    assert {address: status for address, status in statuses.items() if status != 403} == {}
    assert state(one_redis) == before


@pytest.mark.parametrize("name", ["reset", "block", "clear"])
def test_a_post_with_its_token_changes_something(name: str, one_redis: Any) -> None:
    root, address = superuser(enforce_csrf_checks=True), f"{ROOT}django_quota/subject/action/{name}/"
    token = str(root.get(address, ASKED).context["csrf_token"])
    before = state(one_redis)

    reply = root.post(address, {**CHANGES, "csrfmiddlewaretoken": token})

    assert reply.status_code in (200, 302)
    assert state(one_redis) != before


def member() -> Client:
    """Return the client of a user who is not staff."""
    client = Client()
    client.force_login(User.objects.create_user("member"))
    return client


def staff_of_other_apps() -> Client:
    """Return the client of a member of staff who has all permissions but ours."""
    client = operator()
    others = Permission.objects.exclude(content_type__app_label="django_quota")
    User.objects.get(username="operator").user_permissions.set(others)
    return client


STRANGERS = {"nobody": Client, "member": member, "staff": operator, "staff of other apps": staff_of_other_apps}
WHO = [*(thorough("variants", who) for who in ("nobody", "member", "staff")), "staff of other apps"]


@pytest.fixture(params=WHO)
def stranger(request: pytest.FixtureRequest) -> Client:
    """The client of somebody who has no permission of ours."""
    return STRANGERS[request.param]()


def replies_to(client: Client, address: str) -> list[Any]:
    return [client.get(address), client.get(address, CHANGES), client.post(address, CHANGES)]


def test_a_stranger_sees_nothing(stranger: Client) -> None:
    def is_shut(reply: Any, address: str) -> bool:
        if reply.status_code == 302:  # Django's own redirect leads to another of these
            return reply.url.partition("?")[0] in ("/admin/login/", f"{address}change/")
        return reply.status_code in (403, 404, 405) and SUBJECT.encode() not in reply.content

    replies = [(address, reply) for address in addresses() for reply in replies_to(stranger, address)]

    assert [(address, reply) for address, reply in replies if not is_shut(reply, address)] == []
    assert [address for address, reply in replies if b"marked-reason" in reply.content] == []


def test_a_stranger_changes_nothing(stranger: Client, one_redis: Any) -> None:
    pages = addresses()
    before = state(one_redis)

    for address in pages:
        replies_to(stranger, address)

    assert state(one_redis) == before


@pytest.mark.parametrize("permissions", [[], ["auth.view_user"]], ids=["no permission", "one of another app"])
def test_the_index_hides_our_section_from_staff_without_our_permissions(permissions: list[str]) -> None:
    assert b"Quotas" not in operator(*permissions).get(ROOT).content


def test_the_index_hides_our_section_from_staff_with_all_permissions_of_other_apps() -> None:
    assert b"Quotas" not in staff_of_other_apps().get(ROOT).content
