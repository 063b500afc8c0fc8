"""`quota_status` shows what is known of a subject, and `quota_reset` forgets it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import DatabaseError
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from django.urls import path

from django_quota import check, quota, reserve, reset_subject, slot
from django_quota.adapters import digest
from django_quota.conf import rule_of
from django_quota.core.overrides import ALL_RULES
from django_quota.limiting.known_rules import known_rules
from django_quota.limiting.override_rows import DatabaseRows
from django_quota.limiting.overrides import overrides
from django_quota.operating.inspection import SubjectSnapshot, load_snapshot, possible_tiers, recent_refusals
from django_quota.testing import RedisServer, freeze
from tests.support.overridden import override
from tests.support.steps import SECOND, START

SUBJECT = "ip:203.0.113.9"
BAN = {"after": "1/m", "for": "1h"}


def one_more(request: Any) -> str:
    return "1"


@quota("7/m", key="ip", name="viewed")
def viewed(request: Any) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("viewed/", viewed)]

pytestmark = pytest.mark.usefixtures("redis_cache")


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.QUOTA = {
        "RULES": {
            "search": {"rate": "10/m; 100/h"},
            "banning": {"rate": "1/h", "ban": BAN},
            "tier": {"rate": lambda request: "5/m"},
            "free": {"rate": None},
            "broken": {"rate": "10/month"},
        }
    }


def run(*words: str) -> str:
    out = StringIO()
    with freeze(START):
        call_command(*words, stdout=out)
    return out.getvalue()


def bans(snapshot: SubjectSnapshot) -> dict[str, float]:
    return {ban.rule: ban.ends_in for ban in snapshot.bans}


def test_known_rules_are_those_of_settings_and_views() -> None:
    known = known_rules()
    assert set(known) == {"search", "banning", "tier", "free", "broken", "viewed"}
    assert "month" in str(known["broken"])


def test_every_limit_has_its_figures_and_their_source() -> None:
    with freeze(START):
        check("search", SUBJECT, 4)
        status = load_snapshot(SUBJECT, scan=True)
    minute, hour = (limit for limit in status.limits if limit.rule == "search")
    assert (minute.rate, minute.limit, minute.used, minute.remaining, minute.retry_after) == ("10/m", 10, 4, 6, 0.0)
    assert (hour.rate, hour.used, hour.reset_after) == ("100/h", 4, 3_600.0)
    assert minute.source == f"quota:1:{{{SUBJECT}}}:r:search:sw.60s"
    assert status.unread == {
        "tier": "its rates are functions of the request",
        "free": "it is unlimited",
        "broken": status.unread["broken"],
    }


def test_a_rule_with_tiers_has_limits_for_each_tier(settings: Any) -> None:
    settings.QUOTA = {"RULES": {"tiered": {"rate": {"anonymous": "5/m", "authenticated": None}}}}
    status = load_snapshot(SUBJECT, ["tiered"], scan=True)
    assert [(limit.rule, limit.tier, limit.limit) for limit in status.limits] == [("tiered", "anonymous", 5)]
    assert status.unread == {"tiered (authenticated)": "it is unlimited"}


def test_a_scan_finds_what_a_plain_rate_has_counted() -> None:
    with freeze(START):
        check("5/30m", SUBJECT)
        limits = {limit.rule: limit.used for limit in load_snapshot(SUBJECT, scan=True).limits}
    assert limits["5/30m"] == 1


def test_inspecting_changes_nothing(raw: redis.Redis) -> None:
    with freeze(START):
        check("search", SUBJECT, 4)
        before = {key: raw.dump(key) for key in raw.scan_iter()}
        load_snapshot(SUBJECT, scan=True)
        assert {key: raw.dump(key) for key in raw.scan_iter()} == before


def test_a_ban_has_its_own_end_and_a_limit_the_time_of_the_next_hit() -> None:
    used = "ip:198.51.100.7"
    for subject in (SUBJECT, used):
        with freeze(START - 1_800 * SECOND):
            check("banning", subject)
            if subject == used:
                check("1/d", subject, name="banning")
        with freeze(START - 1):
            check("banning", subject)
    with freeze(START):
        override("r 0 0 1/d", "banning")
        override("r 0 0 1/d", "banning", used)
        found = [load_snapshot(subject, ["banning"], scan=True) for subject in (SUBJECT, used)]
    assert [bans(each) for each in found] == [{"banning": 3_600.0 - 1e-6}] * 2
    assert [limit.retry_after for each in found for limit in each.limits] == [3_600.0 - 1e-6, 84_600.0]


def test_overrides_bans_and_days_are_part_of_a_snapshot() -> None:
    with freeze(START):
        override(f"r 0 {START + 60 * SECOND} 50/m", "search")
        check("banning", SUBJECT)
        check("banning", SUBJECT)
        check("search", "user:42")
        status, user = load_snapshot(SUBJECT, scan=True), load_snapshot("user:42", scan=True)
    assert [(each.rule, each.rates) for each in status.overrides] == [("search", "50/m")]
    assert [limit.limit for limit in status.limits if limit.rule == "search"] == [50]
    assert bans(status) == {"banning": 3_600.0}
    ((counts),) = user.days.values()
    assert counts["search"].allowed == 1


def test_the_command_says_what_is_in_use() -> None:
    with freeze(START):
        slot("seats", 3, 30, subject=SUBJECT).acquire()
        slot("seats", 3, 50, subject=SUBJECT).acquire()
    shown = run("quota_status", SUBJECT)
    assert "  in use    seats: 2 slots; the first is free in 30 seconds, from quota:1:" in shown


def test_the_command_says_that_a_shadow_rule_refuses_nobody(settings: Any) -> None:
    settings.QUOTA = {"RULES": {"quiet": {"rate": "1/m", "shadow": True}}}
    with freeze(START):
        check("quiet", SUBJECT)
    assert "1 of 1 used, 0 left; the next hit is admitted in 1 minute (a shadow rule: it only reports)" in run(
        "quota_status", SUBJECT
    )


def test_the_command_prints_limits_and_overrides() -> None:
    with freeze(START):
        override("b 0 0 ", "viewed")
        check("search", SUBJECT, 10)
    shown = run("quota_status", SUBJECT, "--rule", "search", "--rule", "viewed")
    assert shown.splitlines() == [
        SUBJECT,
        "  search: 10/m by sliding_window",
        "    ████████████████████ 10 of 10 used, 0 left; the next hit is admitted in 1 minute",
        f"    from quota:1:{{{SUBJECT}}}:r:search:sw.60s",
        "  search: 100/h by sliding_window",
        "    ██░░░░░░░░░░░░░░░░░░ 10 of 100 used, 90 left; the next hit is admitted",
        f"    from quota:1:{{{SUBJECT}}}:r:search:sw.3600s",
        "  viewed: 7/m by sliding_window",
        "    ░░░░░░░░░░░░░░░░░░░░ 0 of 7 used, 7 left; no hit is admitted (blocked)",
        f"    from quota:1:{{{SUBJECT}}}:r:viewed:sw.60s",
        "  override  viewed: blocked",
    ]


def test_a_rate_is_read_in_any_spelling() -> None:
    with freeze(START):
        for _ in range(2):
            check("1/m", SUBJECT)
    words = ("--rule", "1 per minute")
    assert "by 1/m (limit 1)" in run("quota_status", SUBJECT, *words)
    assert "1/m" in run("quota_events", *words)
    assert "Looked at 1 key, 1 sorted set to sweep" in run("quota_sweep", *words)


@pytest.mark.django_db(transaction=True)
def test_an_override_of_a_rate_has_the_name_of_the_rate() -> None:
    run("quota_override", "set", SUBJECT, "5/m", "--rule", "10 per minute")
    assert run("quota_override", "list", "--rule", "10 per minute").startswith(f"{SUBJECT}, 10/m: ")


def test_unused_limits_are_shown_with_all() -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
    last = run("quota_status", SUBJECT).splitlines()[-1]
    assert last == "  --all also shows 2 unused limits and 3 rules that cannot be read"
    assert "viewed: 7/m" in run("quota_status", SUBJECT, "--all")
    assert "Nothing is used" in run("quota_status", "ip:192.0.2.77")


def test_an_override_of_all_rules_is_printed_once() -> None:
    with freeze(START):
        override("b 0 0 ", ALL_RULES)
        check("search", "ip:192.0.2.1")
    assert run("quota_status", SUBJECT).splitlines() == [
        SUBJECT,
        "  Nothing is used.",
        "  --all also shows 4 unused limits and 3 rules that cannot be read",
        "  override  *: blocked",
    ]
    assert "0 of 7 used, 7 left; no hit is admitted (blocked)" in run("quota_status", SUBJECT, "--all")
    with freeze(START):
        override("x 0 0 ", "viewed")
    assert [line for line in run("quota_status", SUBJECT).splitlines() if " by sliding_window" in line] == [
        "  viewed: 7/m by sliding_window"
    ]


def test_every_override_that_concerns_the_subject_is_printed_the_most_specific_first() -> None:
    for whose in ("*", "ip:*", "ip:203.0.0.0/16", "ip:203.0.113.0/24", SUBJECT, "ip:192.0.2.0/24", "user:*"):
        override("s 0 0 ", "search", whose)
    override("b 0 0 ", ALL_RULES, "ip:203.0.113.0/24")
    assert [line for line in run("quota_status", SUBJECT).splitlines() if line.startswith("  override")] == [
        "  override  search: shadow",
        "  override  search for ip:203.0.113.0/24: shadow",
        "  override  * for ip:203.0.113.0/24: blocked",
        "  override  search for ip:203.0.0.0/16: shadow",
        "  override  search for ip:*: shadow",
        "  override  search for *: shadow",
    ]
    assert [each["subject"] for each in json.loads(run("quota_status", "user:*", "--json"))["overrides"]] == [
        "user:*",
        "*",
    ]


@pytest.mark.django_db
def test_an_override_of_everybody_does_not_make_a_subject_known() -> None:
    override("s 0 0 ", "search", "*")
    assert 'No request has the subject "nobody"' in noted("quota_status", "nobody")


def test_the_command_says_that_overrides_could_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(run("quota_status", SUBJECT, "--json"))["overrides_problem"] is None

    class Away(DatabaseRows):
        def latest(self) -> tuple[int, int]:
            raise DatabaseError("the connection is closed")

    monkeypatch.setattr(overrides, "rows", Away())
    assert noted("quota_status", SUBJECT) == "Note: The overrides could not be read: the connection is closed.\n"
    assert json.loads(run("quota_status", SUBJECT, "--json"))["overrides_problem"] == "the connection is closed"


class TestSubjectsOfSeveralParts:
    """You may write their plain values."""

    WHOLE = "ip:203.0.113.9+post:username=ann"

    @pytest.fixture(autouse=True)
    def _rule(self, rules: None, settings: Any) -> None:
        settings.QUOTA = {
            "RULES": {
                "login": {"rate": "2/h", "key": ("ip", "post:username")},
                "devices": {"rate": "2/h", "key": ["path", "header:X-Device", "user", one_more]},
                "search": "10/m",
            }
        }

    def hit(self, times: int = 1) -> None:
        request = RequestFactory().post("/login/", {"username": "ann"}, REMOTE_ADDR="203.0.113.9")
        with freeze(START):
            for _ in range(times):
                check("login", request)

    @pytest.mark.parametrize("asked", [WHOLE, "203.0.113.9+post:username=ann", "ip:203.0.113.9+post: username =ann"])
    def test_status_and_reset_find_them(self, asked: str) -> None:
        self.hit()
        shown = run("quota_status", asked)
        assert shown.startswith(f"ip:203.0.113.9+post.username:{digest('ann')}\n")
        assert "1 of 2 used" in shown
        assert "=ann" not in shown
        assert run("quota_reset", asked).startswith("Reset login for ip:203.0.113.9+post.username:")

    @pytest.mark.django_db(transaction=True)
    def test_an_override_is_set_for_them_and_holds(self) -> None:
        run("quota_override", "set", self.WHOLE, "blocked")
        assert "no hit is admitted (blocked)" in run("quota_status", self.WHOLE, "--rule", "login")
        assert "=ann" not in run("quota_override", "list", "--subject", self.WHOLE)
        assert "blocked" in run("quota_override", "clear", self.WHOLE)

    def test_one_part_alone_names_the_rules_that_count_it_with_others(self) -> None:
        shown = run("quota_status", SUBJECT)
        assert f"  composite login counts this together with more: ask for '{SUBJECT}+post:username=<value>'" in shown
        said = json.loads(run("quota_status", "user:7", "--json"))["composite"]
        assert said == {"devices": f"path:<path>+header:X-Device=<value>+user:7+key.{__name__}.one_more:<value>"}
        assert json.loads(run("quota_status", "header:X-Device=a", "--json"))["composite"].keys() == {"devices"}
        assert json.loads(run("quota_status", self.WHOLE, "--json"))["composite"] == {}
        assert json.loads(run("quota_status", "global", "--json"))["composite"] == {}


def test_the_command_prints_json() -> None:
    with freeze(START):
        override(f"x 0 {START + SECOND} ", "search")
        check("search", "user:42")
    said = json.loads(run("quota_status", "user:42", "--json"))
    assert said["subject"] == "user:42"
    assert said["overrides"] == []  # that one is the address'
    assert {limit["rule"] for limit in said["limits"]} == {"search", "banning", "viewed"}
    assert list(said["days"].values()) == [{"search": {"allowed": 1, "refused": 0, "units": 1}}]


def test_a_site_without_urls_has_the_rules_of_its_settings(settings: Any) -> None:
    del settings.ROOT_URLCONF
    with freeze(START):
        check("search", "user:42")
    assert "search" in run("quota_status", "user:42")
    assert "Reset search for user:42" in run("quota_reset", "user:42")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ip:nowhere"], "is not an IP address"),
        ([""], "An empty text is not a subject"),
        (["user:1", "--rule", "serach"], "'serach' is not the name of a rule. Did you mean 'search'"),
        (["user:1", "--rule", "10/x"], "'10/x' is not a rate: 'x' is not a unit"),
    ],
)
def test_wrong_input_is_a_clear_error(words: list[str], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        run("quota_status", *words)


@pytest.mark.parametrize("subject", ["group:*", "group:[1]", "a?b", "x\\y", "{group:1}", "a\nb\x1b[31m"])
def test_special_characters_of_redis_and_terminals_are_escaped(subject: str) -> None:
    with freeze(START):
        check("search", subject, 3)
        check("search", "group:1", 5)
    shown = run("quota_status", subject, "--rule", "search")
    assert "3 of 10 used" in shown
    assert "\x1b" not in shown
    assert shown.count("\n") == 7


class TestReset:
    def test_at_verbosity_0_it_prints_json_alone(self) -> None:
        check("search", SUBJECT)
        assert run("quota_reset", SUBJECT, "--verbosity", "0") == ""
        assert json.loads(run("quota_reset", SUBJECT, "--verbosity", "0", "--json"))["rules"] == []

    def test_it_forgets_all_that_was_counted_and_lifts_bans(self, raw: redis.Redis) -> None:
        with freeze(START):
            check("search", SUBJECT, 10)
            check("5/30m", SUBJECT)
            check("banning", SUBJECT)
            check("banning", SUBJECT)
            reserve("9/d", SUBJECT, 3)
            override("r 0 0 50/m", "search")
            assert reset_subject(SUBJECT, scan=True, dry_run=True).rules == ["5/30m", "9/d", "banning", "search"]
        shown = run("quota_reset", SUBJECT)
        assert shown.splitlines() == [f"Reset {name} for {SUBJECT}" for name in ("5/30m", "9/d", "banning", "search")]
        assert raw.zcard("quota:1:{!}:bans") == 0
        with freeze(START):
            assert check("banning", SUBJECT)
            assert check("search", SUBJECT).limit == 50  # an override stays

    def test_it_resets_only_the_named_rules(self) -> None:
        with freeze(START):
            check("search", SUBJECT, 10)
            check("banning", SUBJECT)
        assert json.loads(run("quota_reset", SUBJECT, "--rule", "search", "--json")) == {
            "subject": SUBJECT,
            "rules": ["search"],
            "dropped": 2,
            "dry_run": False,
        }
        assert reset_subject(SUBJECT, scan=True, dry_run=True).rules == ["banning"]

    def test_a_rate_is_read_in_any_spelling(self) -> None:
        with freeze(START):
            check("10/m", SUBJECT)
        assert run("quota_reset", SUBJECT, "--rule", "10 per minute") == f"Reset 10/m for {SUBJECT}\n"

    def test_a_dry_run_changes_nothing(self, raw: redis.Redis) -> None:
        with freeze(START):
            check("search", SUBJECT, 10)
        before = {key: raw.dump(key) for key in raw.scan_iter()}
        assert run("quota_reset", SUBJECT, "--dry-run") == f"Would reset search for {SUBJECT}\n"
        assert {key: raw.dump(key) for key in raw.scan_iter()} == before

    def test_it_says_if_nothing_was_counted(self) -> None:
        assert run("quota_reset", SUBJECT) == f"Nothing was counted for {SUBJECT}.\n"

    def test_a_subject_with_a_longer_name_is_not_reset(self) -> None:
        with freeze(START):
            check("search", "user:1")
            check("search", "user:12")
        run("quota_reset", "user:1")
        assert reset_subject("user:12", scan=True, dry_run=True).rules == ["search"]


@override_settings(QUOTA={"STORE": "memory"})
def test_the_commands_refuse_the_memory_store() -> None:
    for command in ("quota_reset", "quota_status"):
        with pytest.raises(CommandError, match='is "memory"'):
            run(command, SUBJECT)


@pytest.mark.usefixtures("memory_store")
def test_the_memory_store_is_inspected_by_name() -> None:
    with freeze(START):
        check("5/m", SUBJECT, name="one")
        limits = load_snapshot(SUBJECT, scan=True).limits
    assert [limit.used for limit in limits if limit.rule == "viewed"] == [0]


TIERS = {"anonymous": "5/m", "authenticated": "50/m", "pro": "500/m"}


@pytest.mark.parametrize(
    ("key", "subject", "tiers"),
    [
        ("user", "user:1", ["authenticated", "pro"]),
        ("user", "ip:192.0.2.1", ["anonymous", "pro"]),
        (("user", "path"), "user:1+path:/", ["authenticated", "pro"]),
        (("user", "path"), "ip:192.0.2.1+path:/", ["anonymous", "pro"]),
        ("ip", "ip:192.0.2.1", ["anonymous", "authenticated", "pro"]),
        ("ip", "user:1", ["authenticated", "pro"]),
    ],
)
def test_impossible_tiers_are_left_out(key: Any, subject: str, tiers: list[str]) -> None:
    rule = rule_of(TIERS, {"key": key, "tier": lambda request: "pro", "name": "tiered"})
    assert list(possible_tiers(rule, subject, {})) == tiers


def test_all_tiers_are_returned_if_none_is_possible() -> None:
    rule = rule_of({"anonymous": "5/m"}, {"key": "user", "tier": lambda request: None, "name": "tiered"})
    assert list(possible_tiers(rule, "user:1", {})) == ["anonymous"]


def noted(*words: str) -> str:
    """Return what a command writes to stderr."""
    printed = StringIO()
    with freeze(START):
        call_command(*words, stdout=StringIO(), stderr=printed)
    return printed.getvalue()


class TestReadOnlyRedis:
    """It can be read, so refusals are known; `on_unavailable` decides about hits that it would count."""

    @pytest.fixture(autouse=True, params=["full", "replica"])
    def _halted(
        self, request: pytest.FixtureRequest, redis_cache: RedisServer, rules: None, raw: redis.Redis, settings: Any
    ) -> Iterator[None]:
        settings.QUOTA = {
            "ON_UNAVAILABLE": "deny",
            "RULES": {
                "search": {"rate": "10/m"},
                "open": {"rate": "10/m", "on_unavailable": "allow"},
                "own": {"rate": "10/m", "on_unavailable": "local"},
                "used": {"rate": "1/m"},
                "free": {"rate": "10/m"},
            },
        }
        with freeze(START):
            assert check("used", SUBJECT)
            override("x 0 0 ", "free")
        if request.param == "full":
            raw.config_set("maxmemory", 1)
        else:
            raw.replicaof("127.0.0.1", 1)
        yield
        raw.config_set("maxmemory", 0)
        raw.replicaof("NO", "ONE")

    def test_each_rule_shows_what_happens_to_a_hit(self, raw: redis.Redis) -> None:
        names = ("search", "open", "own", "used", "free")
        shown = run("quota_status", SUBJECT, *(word for name in names for word in ("--rule", name)))
        printed = dict(zip(names, [line for line in shown.splitlines() if " left; " in line], strict=True))
        with freeze(START):
            assert not check("search", SUBJECT)
            assert check("open", SUBJECT)
            assert check("own", SUBJECT)
            assert not check("used", SUBJECT)
        assert printed["search"].endswith("; no hit is admitted while Redis takes no changes")
        assert printed["open"].endswith("; the next hit is admitted, and not counted")
        assert printed["own"].endswith("; each process decides by itself while Redis takes no changes")
        assert printed["used"].endswith("; the next hit is admitted in 1 minute")
        assert printed["free"].endswith("; the next hit is admitted (exempt)")
        assert list(raw.scan_iter("*probe*")) == []

    def test_it_prints_why(self) -> None:
        assert "Note: Redis takes no changes, so nothing is counted. It says: " in noted("quota_status", SUBJECT)
        assert json.loads(run("quota_status", SUBJECT, "--json"))["refuses"]


class TestHints:
    def test_the_newest_refusal_comes_first(self) -> None:
        with freeze(START):
            for rule in ("first", "second", "third"):
                assert not check("0/h", SUBJECT, name=rule)
        assert [event.rule for event in recent_refusals(SUBJECT)] == ["third", "second", "first"]

    def test_a_refusal_by_a_rule_of_a_call_is_printed(self) -> None:
        with freeze(START):
            for _ in range(3):
                check("2/h", SUBJECT, name="transfer")
                check("2/h", "ip:192.0.2.1", name="transfer")
        (event,) = recent_refusals(SUBJECT)
        assert (event.rule, event.capacity, event.kind) == ("transfer", 2, "refused")
        shown = run("quota_status", SUBJECT)
        assert "transfer: something is counted over 3600s, but only the code knows its rate" in shown
        assert ", by transfer (limit 2)" in shown
        assert ", until 2" in shown
        assert "Nothing is used" not in shown
        assert json.loads(run("quota_status", SUBJECT, "--json"))["refused"] == [event.as_json()]
        assert "by transfer" not in run("quota_status", SUBJECT, "--rule", "search")

    def test_tiers_have_names(self, settings: Any) -> None:
        settings.QUOTA = {"RULES": {"tiered": {"rate": {"anonymous": "5/m", "authenticated": "50/m"}}}}
        shown = run("quota_status", SUBJECT, "--all")
        assert "  tiered (anonymous): 5/m by" in shown
        assert "  tiered (authenticated): 50/m by" in shown

    @pytest.mark.parametrize("command", ["quota_status", "quota_reset"])
    def test_a_note_names_the_subject_of_a_bare_address(self, command: str) -> None:
        assert noted(command, "203.0.113.9") == "Note: '203.0.113.9' is taken for 'ip:203.0.113.9'.\n"
        assert noted(command, SUBJECT) == ""
        assert "'ip:2001:db8::/64'" in noted(command, "2001:db8::7")
        assert run(command, "203.0.113.9") == run(command, SUBJECT)

    @pytest.mark.parametrize("network", ["10.0.0.0/8", "10.0.0.1/x", "2001:db8::/32", "10.0.0.0/8/8"])
    @pytest.mark.parametrize("command", [("quota_status",), ("quota_reset",), ("quota_reset", "--dry-run")])
    def test_a_note_says_that_a_network_is_no_subject(self, command: tuple[str, ...], network: str) -> None:
        assert "is a network. Use one address" in noted(*command, network)
        try:
            printed = noted(*command, f"ip:{network}")
        except CommandError as error:
            printed = str(error)
        assert "is a network. Use one address" in printed

    @pytest.mark.parametrize("command", ["quota_status", "quota_reset"])
    @pytest.mark.django_db
    def test_a_note_names_the_subject_of_a_user_name(self, command: str) -> None:
        ann = User.objects.create_user("ann")
        assert f'"user:{ann.pk}"' in noted(command, "ann")
        assert f'"user:{ann.pk}"' in noted(command, "user:ann")
        assert 'No request has the subject "nobody"' in noted(command, "nobody")
        assert noted(command, f"user:{ann.pk}") == ""
        with freeze(START):
            check("search", "ann")
        assert noted(command, "ann") == ""

    @pytest.mark.parametrize("words", [("quota_reset", SUBJECT), ("quota_sweep",)])
    def test_a_note_names_a_rule_similar_to_an_unknown_one(self, words: tuple[str, ...]) -> None:
        assert 'Did you mean "search"?' in noted(*words, "--rule", "serch")
        assert noted(*words, "--rule", "search") == ""
