"""The admin page of a subject: search, figures, and actions that hold at once."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpRequest
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_quota import ban, check, peek
from django_quota.adapters import digest
from django_quota.admin.wording import local_moment
from django_quota.models import QuotaOverride
from django_quota.testing import freeze
from tests.admin.operators import operator, superuser

pytestmark = pytest.mark.usefixtures("database")

PAGE = "/admin/django_quota/subject/"
SUBJECT = "user:42"


def tier(request: HttpRequest) -> str:
    return "free"


BY_USER: dict[str, Any] = {
    "search": {"rate": "10/m; 500/h", "key": "user"},
    "tiered": {"rate": {"anonymous": "5/m", "authenticated": "50/m"}, "key": "user"},
    "odd": {"rate": lambda request: "1/m", "key": "user"},
    "signup": {"rate": "5/m", "key": "ip"},
}
LOGIN = {"rate": "2/h", "ban": {"after": "1/m", "for": ["10m", "1h"]}}


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory", "RULES": {**BY_USER, "login": LOGIN}}


def override(subject: str = SUBJECT, **given: Any) -> QuotaOverride:
    return QuotaOverride.objects.create(**{"subject": subject, "mode": "blocked", **given})


def page(client: Client, subject: str = SUBJECT) -> str:
    answer = client.get(PAGE, {"subject": subject})
    assert answer.status_code == 200
    return answer.content.decode()


def verdict(shown: str) -> str:
    """Return the text of the section that says what refuses now."""
    section = shown[shown.index("<h2>Right now</h2>") :]
    return re.sub(r"<[^>]*>", "", section[: section.index("</section>")])


def ask(client: Client, name: str, rule: str = "*", subject: str = SUBJECT, **given: str) -> Any:
    return client.post(f"{PAGE}action/{name}/", {"subject": subject, "on": rule, **given})


def act(client: Client, name: str, rule: str = "*", subject: str = SUBJECT, **given: str) -> Any:
    words = {"confirmed": "yes", "span": "1d", "reason": "spam", "factor": "2", **given}
    return ask(client, name, rule, **{"subject": subject, **words})


def found(client: Client, text: str) -> str:
    answer = client.post(PAGE, {"find": text})
    assert answer.status_code == 302, answer.content.decode()
    (subject,) = parse_qs(urlsplit(answer.url).query)["subject"]  # type: ignore[attr-defined]
    return subject


def check_as_user(rule: str) -> None:
    """Check a rule by a request of the subject, which has a tier."""
    request = RequestFactory().get("/")
    request.user = User(pk=42)
    check(rule, request)


def test_a_search_leads_to_a_subject_offers_several_or_says_what_is_wrong() -> None:
    client, ann = superuser(), User.objects.create_user("ann", "Ann@example.org")
    for text, subject in {
        " ann@EXAMPLE.org ": f"user:{ann.pk}",
        "ip:::1+post:phone=+1555": f"ip:::/64+post.phone:{digest('+1555')}",
    }.items():
        assert found(client, text) == subject
    bob = User.objects.create_user("bob", "ann@example.org")
    shown = client.post(PAGE, {"find": "ann@example.org"}).content.decode()
    assert all(f'{PAGE}?subject=user%3A{user.pk}"' in shown and str(user) in shown for user in (ann, bob))
    for text in ("", "login:typo=marked"):
        shown = client.post(PAGE, {"find": text}).content.decode()
        assert "errornote" in shown
        assert "marked" not in shown


@pytest.mark.parametrize("text", ["ann", "ann@example.org"])
def test_without_the_permission_to_view_users_a_name_finds_no_user(text: str) -> None:
    user, client = User.objects.create_user("ann", "ann@example.org"), operator("view_subject")
    assert found(client, text) == text
    shown = page(client, text)
    assert f"user:{user.pk}" not in shown
    assert "user:&lt;key&gt;" in shown  # the hint says how to write a user instead


class TestPage:
    def test_it_shows_limits_overrides_bans_and_their_reasons(self) -> None:
        User.objects.create_user("ann", pk=42)
        ends = timezone.now() + timedelta(days=1)
        override(rule="search", mode="rate", rate="20/m", reason="an import", created_by="ann", expires=ends)
        override(rule="tiered", mode="exempt", reason="once")
        override("*", rule="search", mode="exempt")
        check("search", SUBJECT, 20)
        ban(SUBJECT, "login", "10m")
        shown = page(superuser())
        for words in (
            *("20/m by sliding window", "20 of 20 used, 0 left", "the next hit is admitted in", "by an override"),
            *("an import", "by ann", "ban 1", "authenticated:", "its rates are functions of the request"),
            *("unused rule", "Override: <strong>20/m", "no rule: another override takes precedence"),
        ):
            assert words in shown, words
        assert "signup" not in shown  # which never limits a user
        assert shown.count("action/clear/") == 2  # of its own overrides, not of everybody's

    def test_a_bar_is_red_only_if_nothing_is_left_and_a_moment_has_one_name(self, settings: Any) -> None:
        rates = {"none": 0, "one": 1, "three": 3, "six": 6, "ten": 10, "many": 5000}
        settings.QUOTA = {**settings.QUOTA, "RULES": {name: f"{rate}/h" for name, rate in rates.items()}}
        for name, cost in (("one", 1), ("three", 2), ("six", 6), ("ten", 9), ("many", 1234)):
            check(name, SUBJECT, cost)
        shown = page(superuser())
        bars = re.findall(r'<meter min="0" max="(\d+)" value="(\d+)" low="([\d.]+)" high="(\d+)" optimum="0"', shown)
        is_red = {int(most): int(value) > max(float(low), int(high)) for most, value, low, high in bars}
        assert is_red == {1: True, 3: False, 6: True, 9: False, 10: False, 5000: False}
        assert all(float(low) > 0 for _, _, low, _ in bars)  # else a browser takes the middle for the best
        assert "1,234 of 5,000 used, 3,766 left" in shown
        midnight = 1_796_083_200_000_000
        for now in range(midnight - 2_500_000_000_001, midnight, 123_456_789_123):
            assert f"{local_moment(now, (midnight - now) / 1_000_000):%b %d %H:%M:%S}" == "Dec 01 00:00:00"

    def test_it_begins_with_the_limits_that_refuse_now(self, settings: Any) -> None:
        rules = {**settings.QUOTA["RULES"], "quiet": {"rate": "1/h", "shadow": True}, "closed": "0/h"}
        settings.QUOTA = {**settings.QUOTA, "RULES": rules}
        client = superuser()
        for rule, cost in (("quiet", 1), ("quiet", 1), ("search", 10)):
            check(rule, SUBJECT, cost)
        shown = page(client)
        assert "closed, 0/h: 0 of 0 used, 0 left; no hit is admitted" in verdict(shown)
        assert "search, 10/m: 10 of 10 used, 0 left; the next hit is admitted in 60 seconds," in verdict(shown)
        assert "quiet" not in verdict(shown)
        assert "(a shadow rule: it only reports)" in shown
        override(reason="spam")
        shown = page(client)
        assert "search, 10/m: blocked by an override; no hit is admitted" in verdict(shown)
        assert shown.count('<p class="quota-reason">') == 1  # of all rules, once
        QuotaOverride.objects.all().delete()
        settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "99/m"}}
        assert "No limit on this page refuses the next hit." in verdict(page(client))

    def test_it_answers_until_when_a_ban_lasts_and_lifts_it(self) -> None:
        client = superuser()
        with freeze(datetime(2030, 1, 31, 2, 15, 12, tzinfo=UTC)):
            ban(SUBJECT, "login", "10m")
            answer = page(client).split("<h2>Right now</h2>")[1].split("</div>")[0]
            assert "<strong>Refused by login until 02:25:12 UTC (ban 1).</strong>" in answer
            assert f'value="login" formaction="{PAGE}action/lift/"' in answer
            override(mode="exempt")
            assert "Refused by" not in verdict(page(client))

    @pytest.mark.parametrize(("subject", "hint"), [("nobody", "No request has the"), ("user:joe", "no user with")])
    def test_a_text_that_is_nobody_gets_a_hint_and_no_buttons(self, subject: str, hint: str) -> None:
        client = superuser()
        shown = page(client, subject)
        assert hint in shown
        assert ("formaction" in shown) is ("Right now" in shown) is (subject == "user:joe")
        check("search", subject)
        shown = page(client, subject)
        assert ("formaction" in shown, hint in shown) == (True, False)

    def test_a_tier_refuses_only_those_who_are_in_it(self, settings: Any) -> None:
        rule = {"rate": {"free": "0/h", "pro": "9/h"}, "tier": tier, "key": "user"}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"api": rule}}
        client = superuser()
        first = verdict(page(client))
        assert "api (if its tier is free), 0/h: 0 of 0 used" in first
        assert "Refused by" not in first
        check_as_user("api")
        first = verdict(page(client))
        assert "api (tier free), 0/h: 0 of 0 used" in first
        assert "Refused by api for good." in first

    def test_names_links_and_buttons_need_their_permissions(self) -> None:
        User.objects.create_user("ann<b>", pk=42)
        ban(SUBJECT, "login", "10m")
        parts = ("ann&lt;b&gt; (user:42)", "dailycounter/usage/?subject=", "quotaoverride/rule/?name=", "action/block/")
        for permissions, shown in {
            ("auth.change_user",): [True, False, False, False],
            ("view_dailycounter",): [False, True, False, False],
            ("add_quotaoverride", "change_quotaoverride"): [False, False, True, True],
        }.items():
            text = page(operator("view_subject", *permissions, name="-".join(permissions)))
            assert [part in text for part in parts] == shown
            assert "ann<b>" not in text


def test_refusals_are_shown_in_few_trips_and_without_a_scan(redis_cache: Any, raw: redis.Redis, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "STORE": "redis"}
    client = superuser()
    check("search", SUBJECT, 4)
    for _ in range(3):
        check("2/h", SUBJECT, name="transfer")
    section = page(client).split("Recent refusals")[1]
    assert '<td data-label="Rule">transfer</td>' in section
    assert '<td data-label="Limit">2</td>' in section
    raw.config_resetstat()
    with CaptureQueriesContext(connection) as queries:
        page(client)
    stats = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in raw.info("commandstats").items()}
    assert not {"scan", "keys", "hscan"} & stats.keys()
    assert stats["evalsha"] <= 5
    assert len(queries) <= 8


@pytest.mark.parametrize("subject", ["a\x00b\n\x1b[31m", "ключ:日本語:🎈"])
def test_any_subject_has_a_page_actions_and_a_log_whose_entries_lead_to_it(subject: str) -> None:
    client = superuser()
    check("search", subject, 4)
    assert "4 of 10 used, 6 left" in page(client, subject)
    assert ask(client, "reset", "search", subject).status_code == 200
    assert act(client, "reset", "search", subject).status_code == 302
    answer: Any = client.get(LogEntry.objects.get().get_admin_url() or "")
    assert answer.url.startswith(f"{PAGE}?subject=")
    shown = client.get(answer.url).content.decode()
    assert "4 of 10 used" not in shown
    assert "What was counted under rule &quot;search&quot; was forgotten." in shown.split("History")[1]


def test_without_the_store_the_page_still_shows_overrides(settings: Any) -> None:
    settings.QUOTA = {name: value for name, value in settings.QUOTA.items() if name != "STORE"}
    client = superuser()
    act(client, "block", "search", reason="abuse")
    shown = page(client)
    assert "The limits cannot be read now." in shown
    assert "abuse" in shown
    assert "unavailable" in act(client, "reset").content.decode()
    assert LogEntry.objects.count() == 1  # of the block alone


class TestActions:
    def test_a_raise_holds_from_the_next_request_and_expires(self) -> None:
        client = superuser()
        check("search", SUBJECT, 10)
        shown = ask(client, "raise", "search").content.decode()
        assert re.findall(r">(x\d+: [^<]*)<", shown) == ["x2: 20/m; 1000/h", "x5: 50/m; 2500/h", "x10: 100/m; 5000/h"]
        assert not QuotaOverride.objects.exists()
        assert act(client, "raise", "search", reason="an import").status_code == 302
        assert check("search", SUBJECT).limit == 20
        row = QuotaOverride.objects.get()
        assert row.expires is not None
        assert timedelta(hours=23) < row.expires - timezone.now() <= timedelta(days=1)
        assert (row.reason, row.created_by) == ("an import", "root")

    @pytest.mark.parametrize(
        ("name", "given"), [("raise", {"factor": "3"}), ("raise", {"factor": "many"}), ("block", {"reason": ""})]
    )
    def test_a_wrong_value_is_an_error_of_its_field(self, name: str, given: dict[str, str]) -> None:
        assert "errorlist" in act(superuser(), name, **given).content.decode()
        assert not QuotaOverride.objects.exists()
        assert not LogEntry.objects.exists()

    def test_each_holds_at_once_and_is_logged_and_shown(self) -> None:
        client = superuser()
        check("search", SUBJECT, 2)
        for _ in range(4):
            check("login", SUBJECT)
        act(client, "lift", "login")
        decision = peek("login", SUBJECT, cost=0)
        assert (decision.allowed, decision.remaining) == (True, 0)
        act(client, "reset", "login")
        assert (peek("search", SUBJECT).remaining, peek("login", SUBJECT).remaining) == (8, 2)
        act(client, "block", "login", span="")
        assert check("login", SUBJECT).outcomes[0].why == "blocked"
        assert QuotaOverride.objects.get().expires is None
        assert check("search", SUBJECT)
        act(client, "clear", "login")
        assert check("login", SUBJECT)
        act(client, "block")
        assert not check("search", SUBJECT)
        act(client, "exempt", reason="why not")
        assert check("search", SUBJECT, 1_000)
        assert LogEntry.objects.filter(object_id=SUBJECT).count() == 6
        shown = page(client).split("History")[1]
        for words in ("1 ban was lifted", "was forgotten", "Block: login blocked", "Cleared", "(why not)"):
            assert words in shown


class TestRaising:
    """Raising multiplies the rates of each rule, and neither replaces nor hides another override."""

    @pytest.fixture(autouse=True)
    def rules(self, settings: Any) -> None:
        rules = {
            **BY_USER,
            "plans": {"rate": {"free": "5/m", "pro": "90/m", "own": None}, "key": "user", "tier": tier},
            "closed": {"rate": "0/m", "key": "user"},
            "free": {"rate": None, "key": "user"},
        }
        settings.QUOTA = {**settings.QUOTA, "STORE": "memory", "RULES": rules}

    def rates(self) -> dict[str, str]:
        rows = QuotaOverride.objects.filter(subject=SUBJECT, mode="rate").values_list("rule", "rate")
        return {rule: rate for rule, rate in rows if "whoami" not in rule}

    def test_all_rules_are_raised_whatever_the_plan_of_the_user_and_again(self) -> None:
        client = superuser()
        assert act(client, "raise", factor="5").status_code == 302
        assert self.rates() == dict.fromkeys(("search", "tiered", "odd", "plans"), "x5")
        check_as_user("plans")
        assert [check("plans", SUBJECT, tier=plan).limit for plan in ("free", "pro", "own")] == [25, 450, None]
        shown = page(client)
        assert "closed (it admits nothing)" in shown
        assert "free (it is unlimited)" in shown
        assert "signup" not in LogEntry.objects.get().change_message  # which never limits a user
        shown = ask(client, "raise", "plans").content.decode()
        assert ">x2: free 10/m, pro 180/m, own unlimited<" in shown
        act(client, "raise", "plans", factor="2")
        assert self.rates() == {**dict.fromkeys(("search", "tiered", "odd"), "x5"), "plans": "x2"}

    @pytest.mark.parametrize(
        ("values", "why"),
        [
            ({"rate": "40/m"}, "an override is in force: 40/m"),
            ({"rate": "+5"}, "an override is in force: +5"),
            ({"rate": "x2"}, ""),
            ({"rate": "40/m", "expires": timezone.now()}, ""),
            ({"mode": "blocked"}, "an override is in force: blocked"),
            ({"subject": "user:*", "rate": "40/m"}, "an override is in force: 40/m"),
            ({"subject": "*", "rule": "*", "mode": "exempt"}, "an override is in force: exempt"),
            ({"rate": "15/m", "starts": timezone.now() + timedelta(1)}, "its own override would be lost: 15/m"),
        ],
    )
    def test_no_other_override_is_replaced_or_hidden(self, values: dict[str, Any], why: str) -> None:
        made, client = override(**{"rule": "search", "mode": "rate", **values}), superuser()
        answer = act(client, "raise", "search", factor="5")
        if why:
            for shown in (answer, ask(client, "raise", "search")):
                assert f"Not raised: search ({why})." in shown.content.decode()
            made.refresh_from_db()
            assert made.rate == values.get("rate", "")
        else:
            assert self.rates() == {"search": "x5"}
