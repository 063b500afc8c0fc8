"""Limits that count organisations: what the pages of a user say of them, and what `QUOTA["RELATED"]` adds."""

import re
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.core.management.base import CommandError
from django.http import HttpRequest
from django.template import engines
from django.test import Client, RequestFactory

from django_quota import Subject, ban, check
from django_quota.models import DailyCounter, QuotaOverride
from django_quota.operating.lookup import override_problems
from tests.admin.operators import operator, superuser
from tests.support.commands import said
from tests.support.pages import marked

PAGE = "/admin/django_quota/subject/"
EVENTS = "/admin/django_quota/overview/events/"
USER = "user:42"
ORGANIZATION = "org:7"


def organization(request: HttpRequest) -> Any:
    return Subject("org", 7)


def subjects_of(user: Any) -> list[str]:
    return [Subject("org", 7)]


def owner_of(user: Any) -> list[str]:
    return ["user:43"]


def failing(user: Any) -> list[str]:
    raise LookupError("no such account")


def wrong(user: Any) -> list[Any]:
    return [7]


UNITS = {"rate": "3/h", "key": f"{__name__}.organization", "ban": {"after": "9/m", "for": ["10m"]}}
RULES: dict[str, Any] = {"units": UNITS, "search": {"rate": "10/m", "key": "user"}}
LINE = f"units counts by {__name__}.organization."


@pytest.fixture(autouse=True)
def ann(database: Any, settings: Any) -> User:
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory", "RULES": RULES}
    return User.objects.create_user("ann", pk=42)


def plan(request: HttpRequest) -> str:
    return "free"


@pytest.fixture
def refused_organization(ann: User) -> None:
    check("units", ORGANIZATION, 3)
    check("units", ORGANIZATION)


@pytest.fixture
def related(ann: User, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RELATED": f"{__name__}.subjects_of"}


def page(client: Client, subject: str = USER) -> str:
    return str(client.get(PAGE, {"subject": subject}).content.decode())


def verdict(shown: str) -> str:
    """Return the section that says what refuses now."""
    section = shown[shown.index('<section class="module quota-answer') :]
    return section[: section.index("</section>")]


def words_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def rules_of(shown: str, subject: str) -> str:
    """Return the form with the rules of a subject."""
    forms: list[str] = re.findall(r"<form method=\"post\">.*?</form>", shown, re.DOTALL)
    return next(form for form in forms if f'name="subject" value="{subject}"' in form and "quota-limits" in form)


class TestWithoutRelated:
    @pytest.mark.usefixtures("refused_organization")
    def test_a_rule_that_has_counted_other_kinds_has_a_line_with_an_example(self) -> None:
        assert f"<li>{LINE} Subjects look like org:7.</li>" in page(superuser())

    @pytest.mark.usefixtures("refused_organization")
    def test_a_rule_that_has_counted_other_kinds_has_no_buttons(self) -> None:
        assert 'value="units"' not in page(superuser())

    @pytest.mark.usefixtures("refused_organization")
    def test_a_rule_that_has_counted_other_kinds_has_figures_for_a_subject_of_theirs(self) -> None:
        assert 'value="units"' in page(superuser(), "org:8")

    @pytest.mark.usefixtures("refused_organization")
    def test_a_subject_that_is_counted_keeps_its_figures(self) -> None:
        check("units", USER)

        assert "1 of 3 used" in page(superuser())

    def test_a_function_that_has_counted_nobody_may_count_any_subject(self) -> None:
        assert 'value="units"' in page(superuser())

    @pytest.mark.parametrize(
        "model",
        [
            lambda: DailyCounter.objects.create(subject="org:9", rule="units", day="2026-11-01", allowed=1),
            lambda: QuotaOverride.objects.create(subject="org:9", rule="units", mode="exempt"),
        ],
        ids=["usage", "overrides"],
    )
    def test_rows_show_what_a_rule_counts(self, model: Any) -> None:
        model()

        assert f"<li>{LINE} Subjects look like org:9.</li>" in page(superuser())

    def test_an_override_of_a_group_shows_no_subject(self) -> None:
        QuotaOverride.objects.create(subject="org:*", rule="units", mode="exempt")

        assert "Subjects look like" not in page(superuser())

    def test_a_rule_by_address_has_a_line_without_an_example(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"signup": {"rate": "1/m", "key": "ip"}}}

        assert "<li>signup counts by ip.</li>" in page(superuser())

    @pytest.mark.parametrize(
        ("subject", "is_green"),
        [("get.token:0123456789abcdef0123456789abcdef", False), ("ip:203.0.113.9", True)],
        ids=["not counted", "counted"],
    )
    def test_only_a_subject_that_some_rule_counts_gets_the_all_clear(
        self, subject: str, is_green: bool, settings: Any
    ) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"signup": {"rate": "1/m", "key": "ip"}}}

        shown = verdict(page(superuser(), subject))

        assert ("quota-answer-yes" in shown, "No rule counts this subject." in shown) == (is_green, not is_green)


class TestRelated:
    @pytest.fixture(autouse=True)
    def site(self, related: None) -> None:
        """The site sets RELATED."""

    @pytest.mark.usefixtures("refused_organization")
    def test_the_verdict_says_that_the_organization_is_refused(self) -> None:
        shown = verdict(page(superuser()))

        assert "quota-answer-no" in shown
        assert "org:7 : refused by units until" in words_of(shown)

    @pytest.mark.usefixtures("refused_organization")
    def test_the_verdict_does_not_say_that_nothing_on_the_page_refuses(self) -> None:
        assert "No limit on this page" not in verdict(page(superuser()))

    def test_the_organization_of_a_refused_request_is_named_once_in_the_verdict(self) -> None:
        request = RequestFactory().get("/")
        request.user = User.objects.get(pk=42)
        check("units", request, 3)
        check("units", request)

        assert words_of(verdict(page(superuser()))).count("org:7") == 1

    def test_the_verdict_says_that_nothing_refuses_the_organization(self) -> None:
        check("units", ORGANIZATION)

        assert "org:7 : not refused now" in words_of(verdict(page(superuser())))

    def test_a_related_user_is_named(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RELATED": f"{__name__}.owner_of"}
        User.objects.create_user("bob", pk=43)

        assert "bob (user:43) : not refused now" in words_of(verdict(page(superuser())))

    def test_the_verdict_says_that_the_organization_is_refused_in_some_tiers(self, settings: Any) -> None:
        tiers = {**UNITS, "rate": {"free": "0/h", "pro": "9/h"}, "tier": plan}
        settings.QUOTA = {**settings.QUOTA, "RULES": {**RULES, "units": tiers}}
        DailyCounter.objects.create(subject="org:9", rule="units", day="2026-11-01", allowed=1)  # so it counts no user

        shown = page(superuser())

        assert "org:7 : refused in some tiers" in words_of(verdict(shown))
        assert "quota-answer-yes" not in shown

    def test_the_figures_of_the_organization_have_buttons_of_its_own(self) -> None:
        check("units", ORGANIZATION, 2)

        shown = rules_of(page(superuser()), ORGANIZATION)

        assert "2 of 3 used" in words_of(shown)
        assert 'value="units"' in shown

    def test_what_the_organization_has_used_shows_that_the_rule_does_not_count_users(self) -> None:
        check("units", ORGANIZATION)

        shown = page(superuser())

        assert f"{LINE} Subjects look like org:7." in shown
        assert 'value="units"' not in rules_of(shown, USER)

    def test_a_ban_of_the_organization_can_be_lifted(self) -> None:
        ban("units", ORGANIZATION, "10m")

        shown = rules_of(page(superuser()), ORGANIZATION)

        assert "banned from units for 10 minutes" in words_of(shown)
        assert "action/lift/" in shown

    def test_the_events_of_both_are_linked(self) -> None:
        assert f"{EVENTS}?subject=user%3A42&amp;subject=org%3A7" in page(superuser())

    def test_somebody_who_may_not_see_users_sees_only_the_subject(self) -> None:
        assert ORGANIZATION not in page(operator("view_subject"))

    def test_a_search_of_events_by_name_has_those_of_the_organization(self) -> None:
        answer = superuser().post(EVENTS, {"find": "ann"})

        assert parse_qs(urlsplit(answer.url).query)["subject"] == [USER, ORGANIZATION]  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        ("function", "words"),
        [
            (failing, "raised LookupError for user:42: no such account"),
            (wrong, "returned 7 for user:42. Return subjects"),
        ],
        ids=["raises", "returns something else"],
    )
    def test_a_function_that_fails_is_named_on_the_page(self, function: Any, words: str, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RELATED": function}

        shown = page(superuser())

        assert f"{__name__}.{function.__name__}" in shown
        assert words in shown


def test_the_documentation_shows_a_function_of_a_user() -> None:
    subjects_of_page = marked("docs/admin.md", "related")["subjects_of"]
    memberships = SimpleNamespace(all=lambda: [SimpleNamespace(organization_id=7)])

    assert subjects_of_page(SimpleNamespace(memberships=memberships)) == [ORGANIZATION]


class TestCommands:
    @pytest.fixture(autouse=True)
    def on_redis(self, related: None, redis_cache: Any, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "STORE": "redis"}

    @pytest.fixture
    def refused(self, on_redis: None) -> None:
        check("units", ORGANIZATION, 3)
        check("units", ORGANIZATION)

    @pytest.mark.parametrize(
        "line",
        ["  Refused by units for 1 hour, as org:7", "org:7 (counts for user:42)", "  units: 3/h by sliding_window"],
        ids=["what refuses", "who else", "the limits"],
    )
    @pytest.mark.usefixtures("at_one_time", "refused")
    def test_the_status_of_a_user_has_the_organization(self, line: str) -> None:
        assert line in said("quota_status", "ann").splitlines()

    def test_the_status_shows_the_organization_once(self, ann: User, rf: RequestFactory) -> None:
        request = rf.get("/")
        request.user = ann
        for _ in range(4):
            check("units", request)

        shown = said("quota_status", "ann")

        assert shown.count("\norg:7 (counts for user:42)\n") == 1
        assert "together" not in shown

    @pytest.mark.usefixtures("refused")
    def test_the_status_as_json_has_the_organization(self) -> None:
        (shown,) = said("quota_status", "ann", "--json")["related"]

        assert (shown["subject"], [limit["rule"] for limit in shown["limits"]]) == (ORGANIZATION, ["units"])

    @pytest.mark.usefixtures("refused")
    def test_the_status_says_by_what_a_rule_counts(self) -> None:
        assert f"  others    {LINE} Subjects look like org:7." in said("quota_status", "ann", "--all").splitlines()

    def test_the_status_says_that_no_rule_counts_a_subject(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"signup": {"rate": "1/m", "key": "ip"}}}

        assert "  No rule counts this subject." in said("quota_status", "org:9").splitlines()

    def test_a_function_that_fails_leaves_the_status_of_the_user(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RELATED": failing}

        shown = said("quota_status", USER)

        assert "user:42 (ann)" in shown
        assert "raised LookupError for user:42: no such account" in shown

    @pytest.mark.usefixtures("refused")
    def test_events_of_a_name_have_those_of_the_organization(self) -> None:
        assert "org:7" in said("quota_events", "--subject", "ann")

    @pytest.mark.usefixtures("refused")
    def test_an_override_of_a_subject_that_the_rule_never_counts_is_refused(self) -> None:
        with pytest.raises(CommandError, match=r"Subjects look like org:7\. It would have no effect\. Add --force"):
            said("quota_override", "set", USER, "blocked", "--rule", "units")

    @pytest.mark.usefixtures("refused")
    def test_an_override_that_is_forced_is_saved(self) -> None:
        said("quota_override", "set", USER, "blocked", "--rule", "units", "--force")

        assert QuotaOverride.objects.filter(subject=USER, rule="units").exists()


@pytest.mark.usefixtures("refused_organization")
class TestOverrideForm:
    def test_a_subject_that_the_rule_never_counts_needs_a_tick(self) -> None:
        given = {"subject": USER, "rule": "units", "mode": "blocked", "reason": "spam"}

        shown = superuser().post("/admin/django_quota/quotaoverride/add/", given).content.decode()

        assert "Subjects look like org:7." in shown
        assert not QuotaOverride.objects.exists()

    def test_a_subject_of_the_kind_that_the_rule_counts_has_no_problem(self) -> None:
        assert override_problems("units", "org:8") == []


def test_a_template_without_a_request_links_no_pages_of_a_user() -> None:
    template = engines["django"].from_string("{% load quota_users %}{% quota_user_links user as links %}{{ links }}")

    assert template.render({"user": User(pk=42)}) == "[]"
