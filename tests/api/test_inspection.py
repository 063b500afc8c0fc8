"""What is known of a subject: read by name in a few trips, alike on both stores, and reset rule by rule."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from typing import Any
from unittest.mock import patch

import pytest
import redis
from django.http import HttpResponse
from django.urls import path

from django_quota import Rule, Subject, ban, check, check_all, concurrency, counter, limits_of, peek, quota, reset, slot
from django_quota.core.keys import digested
from django_quota.core.overrides import Override, OverrideMode
from django_quota.exceptions import RuleError
from django_quota.features.counters import calls
from django_quota.features.events import Event
from django_quota.features.resets import reset_found
from django_quota.features.subject_contents import HeldStatus, read_contents
from django_quota.limiting.flusher import flusher
from django_quota.limiting.overrides import overrides
from django_quota.models import QuotaOverride
from django_quota.operating import activity, inspection
from django_quota.operating.inspection import (
    LimitStatus,
    RuleChange,
    SubjectSnapshot,
    bans_begun,
    batches,
    counted_as,
    load_snapshot,
    longer_subjects,
    possible_tiers,
    preview_override,
    recent_refusals,
    rules_for,
    used_rules,
)
from django_quota.testing import freeze
from tests.support.counts import bans_of, limits_in, previews, status_of
from tests.support.overridden import override
from tests.support.steps import SECOND, START

SUBJECT = "ip:203.0.113.9"
LEASES = f"quota:1:{{{SUBJECT}}}:l:full"
BAN = {"after": "1/m", "for": ["1h", "2h"]}
any_subject = pytest.mark.parametrize("subject", ["{x}\n", "*", "x" * 10_000, "\ud800", "a b+c%d"])


@quota("7/m", key="ip", name="viewed")
@concurrency(2, key="ip", name="seats")
def viewed(request: Any) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("viewed/", viewed)]


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    tiered = {"anonymous": "5/m", "authenticated": "50/m"}
    settings.QUOTA = {"RULES": {
        "search": "10/m; 100/h", "banning": {"rate": "1/h", "ban": BAN}, "tiered": {"rate": tiered},
        "function": {"rate": lambda request: "5/m"}, "free": {"rate": None}, "broken": "10/month",
    }}  # fmt: skip


@pytest.mark.usefixtures("rules", "either_store")
class TestOnEitherStore:
    def test_the_limits_of_known_rules_are_read(self) -> None:
        with freeze(START):
            check("search", SUBJECT, 4)
            limits = status_of(SUBJECT)["limits"]

        names = ("rule", "tier", "rate", "used", "remaining")
        assert [tuple(limit[name] for name in names) for limit in limits] == [
            ("search", "", "10/m", 4, 6), ("search", "", "100/h", 4, 96), ("banning", "", "1/h", 0, 1),
            ("tiered", "anonymous", "5/m", 0, 5), ("tiered", "authenticated", "50/m", 0, 50),
            ("viewed", "", "7/m", 0, 7),
        ]  # fmt: skip

    def test_of_chosen_rules_only_their_bans_are_read(self) -> None:
        with freeze(START):
            ban("banning", SUBJECT, "1h")

            found = [[each.rule for each in load_snapshot(SUBJECT, [name]).bans] for name in ("search", "banning")]

        assert found == [[], ["banning"]]

    def test_rules_whose_limits_cannot_be_read_are_named(self) -> None:
        assert set(status_of(SUBJECT)["unread"]) == {"function", "free", "broken"}

    def test_reading_takes_nothing(self) -> None:
        with freeze(START):
            check("search", SUBJECT, 4)

            assert status_of(SUBJECT) == status_of(SUBJECT)
            assert check("search", SUBJECT).remaining == 5

    def test_a_plain_rate_is_found_by_daily_counts_with_any_algorithm(self) -> None:
        with freeze(START):
            check("5/30m", "user:1", 2)
            check("6/30m", "user:1", 3, algorithm="token_bucket")
            limits = status_of("user:1")["limits"]

        found = {(limit["rule"], limit["algorithm"]): limit["used"] for limit in limits if "/30m" in limit["rule"]}
        assert found == {("5/30m", "sliding_window"): 2, ("6/30m", "token_bucket"): 3}

    def test_a_plain_rate_may_be_written_in_words(self) -> None:
        with freeze(START):
            check("5/30m", "user:1", 2)
            limits = status_of("user:1", ["5 per 30 minutes", "search"])["limits"]

        assert [(limit["rule"], limit["used"]) for limit in limits] == [("5/30m", 2), ("search", 0), ("search", 0)]

    @pytest.fixture
    def overridden(self, either_store: None) -> Iterator[None]:
        """Hits under two rules, and then an override of one with a hit of its own."""
        with freeze(START):
            check("search", SUBJECT, 4)
            check("banning", SUBJECT)
            override("r 0 0 50/2h", "search")
            check("search", SUBJECT, 4)
            yield

    @pytest.mark.usefixtures("overridden")
    def test_a_reset_counts_what_it_forgets_of_the_rule_with_its_override(self) -> None:
        assert reset("search", SUBJECT) >= 2

    @pytest.mark.usefixtures("overridden")
    def test_a_reset_leaves_the_override(self) -> None:
        reset("search", SUBJECT)

        assert peek("search", SUBJECT).limit == 50

    @pytest.mark.usefixtures("overridden")
    @pytest.mark.parametrize(
        "clear", [bool, lambda: override("", "search")], ids=["of the override", "below the override"]
    )
    def test_a_reset_of_one_rule_forgets_the_counts(self, clear: Callable[[], object]) -> None:
        reset("search", SUBJECT)
        clear()

        used = {limit["rule"]: limit["used"] for limit in status_of(SUBJECT)["limits"]}
        assert (used["search"], used["banning"]) == (0, 1)


@pytest.mark.usefixtures("redis_cache")
def test_a_scan_of_redis_finds_the_keys_of_a_prefix_with_the_signs_of_a_pattern(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "PREFIX": "site[1]"}
    check("7/m", "org:7")

    found = load_snapshot("org:7", scan=True)

    assert [(limit.rule, limit.used) for limit in found.limits if limit.used] == [("7/m", 1)]


@pytest.mark.usefixtures("redis_cache")
class TestOnRedis:
    @pytest.fixture
    def commands_of_a_look(
        self, redis_cache: Any, raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> dict[str, int]:
        """How often each command ran, to read 150 limits."""
        monkeypatch.setattr(calls, "made", {})  # one more for each counter of the site, in the same round trip
        settings.QUOTA = {"RULES": {f"rule-{number}": "10/m" for number in range(150)}}
        with freeze(START):
            check("rule-7", "user:1", 3)
            status_of("user:1")
            raw.config_resetstat()
            assert len(status_of("user:1")["limits"]) == 150
        return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in raw.info("commandstats").items()}

    def test_it_scans_no_keys(self, commands_of_a_look: dict[str, int]) -> None:
        assert not {"scan", "keys", "hscan"} & commands_of_a_look.keys()

    def test_it_takes_few_trips(self, commands_of_a_look: dict[str, int]) -> None:
        assert commands_of_a_look["evalsha"] == 4  # a look, the days, and a peek a hundred rules

    def test_a_reset_by_keys_forgets_the_refusals_that_count_towards_a_ban(self, settings: Any) -> None:
        rules = {"patient": {"rate": "1/h", "ban": {"after": "3/h", "for": ["1h"]}}}
        settings.QUOTA = {**settings.QUOTA, "RULES": rules}
        with freeze(START):
            for _ in range(3):
                check("patient", SUBJECT)

            reset_found(["patient"], SUBJECT)

            assert [check("patient", SUBJECT).allowed for _ in range(3)] == [True, False, False]
            assert bans_of(SUBJECT) == []

    @pytest.mark.parametrize(
        ("later", "expected"),
        [(0, [("a b", (30.0,)), ("seats", (30.0, 50.0))]), (31, [("seats", (19.0,))])],
        ids=["at once", "after some have ended"],
    )
    def test_every_slot_that_is_held_has_the_end_of_its_lease(
        self, later: int, expected: list[Any], raw: redis.Redis
    ) -> None:
        with freeze(START):
            for seconds in (30, 50):
                slot("seats", 2, seconds, subject=SUBJECT).acquire()
            slot("a b", 3, 30, subject=SUBJECT).acquire()
        raw.zadd("quota:1:{!}:slots", {f"{SUBJECT} a%20b 3": START, "user:1 other 3": START})  # as `metrics` does

        with freeze(START + later * SECOND):
            leases = status_of(SUBJECT)["leases"]

        assert [(lease["name"], lease["ends_in"]) for lease in leases] == expected, "in the order of their names"

    @pytest.mark.parametrize(
        ("later", "number", "ends_in"),
        [(0, 130, [1 + n for n in range(100)]), (1, 129, [1 + n for n in range(100)]), (129, 1, [1])],
        ids=["all", "but the first", "the last"],
    )
    def test_of_many_leases_the_first_hundred_to_end_are_read(
        self, later: int, number: int, ends_in: list[int], raw: redis.Redis
    ) -> None:
        raw.zadd(LEASES, {f"token {n}": START + n * SECOND for n in range(131)})
        raw.zadd("few", {"token": START + 200 * SECOND})

        with freeze(START + later * SECOND):
            found = read_contents(SUBJECT, {"none": "none", LEASES: "full", "few": "few"})

        assert found.leases == [
            HeldStatus("full", tuple(map(float, ends_in)), LEASES, number),
            HeldStatus("few", (200.0 - later,), "few", 1),
        ]

    @any_subject
    def test_any_subject_can_be_inspected(self, subject: str) -> None:
        with freeze(START):
            name = check("search", subject, 3).subject

            assert {limit["used"] for limit in status_of(name)["limits"] if limit["rule"] == "search"} == {3}

    def test_the_newest_twenty_refusals_are_listed(self) -> None:
        for seconds in range(10, 35):
            check(f"0/{seconds}s", SUBJECT)

        assert [event.rule for event in recent_refusals(SUBJECT)] == [f"0/{seconds}s" for seconds in range(34, 14, -1)]

    @any_subject
    def test_the_slots_of_any_subject_are_found(self, subject: str) -> None:
        with freeze(START):
            slot("in a call", 2, 30, subject=subject).acquire()
            name = check("search", subject).subject
            flusher.flush()

            assert [lease["name"] for lease in status_of(name)["leases"]] == ["in a call"]

    @any_subject
    def test_any_subject_can_be_reset(self, subject: str) -> None:
        with freeze(START):
            name = check("search", subject, 3).subject
            reset("*", name)

            assert not any(limit["used"] for limit in status_of(name)["limits"])


def event(kind: str, rule: str, subject: str | None, until: int = 0) -> Event:
    return Event(f"{until}-0", kind, rule, subject, until, 1, 1, 0, 0.0, 1, None, "GET", "/")


def test_the_newest_ban_of_each_rule_is_the_one_that_has_begun() -> None:
    newest_first = [
        event("banned", "search", SUBJECT, 9),
        event("banned", "search", SUBJECT, 5),
        event("refused", "login", SUBJECT, 8),
        event("banned", "login", "user:7", 7),
        event("banned", "login", SUBJECT, 6),
    ]

    begun = bans_begun(SUBJECT, newest_first)

    assert {rule: each.until for rule, each in begun.items()} == {"search": 9, "login": 6}


def test_the_other_subjects_of_refused_requests_are_named_once() -> None:
    refused = [event("refused", "search", each) for each in ("ip:192.0.2.1", "user:7", None, SUBJECT, "ip:192.0.2.1")]

    assert counted_as("user:7", refused) == ["ip:192.0.2.1", SUBJECT]


BOTH = ["anonymous", "authenticated"]


@pytest.mark.parametrize(
    ("key", "subject", "last", "tiers"),
    [
        pytest.param("user", "user:1", "", ["authenticated"], id="a user is not anonymous"),
        pytest.param("user", SUBJECT, "", ["anonymous"], id="an address in place of a user is not signed in"),
        pytest.param("ip", SUBJECT, "", BOTH, id="an address may be of a user"),
        pytest.param(("ip", "user"), f"{SUBJECT}+user:1", "", ["authenticated"], id="a user at an address"),
        pytest.param(("ip", "user"), f"{SUBJECT}+{SUBJECT}", "", ["anonymous"], id="nobody at an address"),
        pytest.param("ip", SUBJECT, "authenticated", BOTH, id="an address, of which no tier is noted"),
        pytest.param("path", "path:/a", "authenticated", ["authenticated"], id="the last tier"),
        pytest.param("path", "path:/a", "gone", BOTH, id="a last tier that the rule no longer has"),
        pytest.param("ip", "users:7", "", BOTH, id="a kind that begins like a user"),
    ],
)
def test_tiers_that_a_subject_cannot_have_are_left_out(key: Any, subject: str, last: str, tiers: list[str]) -> None:
    rule = Rule.make("r", {"anonymous": "1/m", "authenticated": "2/m"}, key=key)

    assert list(possible_tiers(rule, subject, {"r": last, "other": "anonymous"})) == tiers


def test_a_subject_that_none_of_the_tiers_fits_has_all_of_them() -> None:
    rule = Rule.make("r", {"anonymous": "1/m"}, key="user", tier=lambda request: "anonymous")

    assert list(possible_tiers(rule, "user:1", {})) == ["anonymous"]


@pytest.mark.parametrize(
    ("number", "sizes"), [(0, []), (1, [1]), (100, [100]), (101, [100, 1]), (200, [100, 100])], ids=str
)
def test_a_call_reads_at_most_a_hundred_rules(number: int, sizes: list[int]) -> None:
    assert [len(batch) for batch in batches(range(number))] == sizes


def test_no_two_tiers_of_a_rule_are_read_in_one_call() -> None:
    assert list(batches(["a", "b"], [["c1", "c2"], ["d1"]])) == [["a", "b"], ["c1", "d1"], ["c2"]]


@pytest.mark.parametrize(
    ("kind", "subject", "user", "method", "is_found"),
    [
        pytest.param("refused", "user:7", None, "GET", True, id="a refusal"),
        pytest.param("banned", "user:7", "user:1", "", True, id="a ban that somebody set"),
        pytest.param("near", "user:7", None, "GET", False, id="another kind of event"),
        pytest.param("refused", SUBJECT, "user:7", "GET", True, id="a refusal of the user's address"),
        pytest.param("banned", SUBJECT, "user:7", "", False, id="a ban that the user set"),
        pytest.param("refused", SUBJECT, None, "GET", False, id="a refusal of another subject"),
        pytest.param("refused", SUBJECT, "user:8", "GET", False, id="a refusal of another user"),
    ],
)
def test_refusals_are_those_of_a_subject_and_of_the_requests_of_a_user(
    kind: str, subject: str, user: str | None, method: str, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = replace(event(kind, "search", subject), user=user, method=method, path=method and "/")
    monkeypatch.setattr(inspection, "newest_events", lambda *_: [newest])

    assert recent_refusals("user:7") == ([newest] if is_found else [])


@pytest.mark.usefixtures("memory_store")
class TestRulesThatCannotCountTheSubject:
    @pytest.fixture(autouse=True)
    def by_user(self, rules: None, memory_store: None, settings: Any) -> None:
        tiers = {"free": "5/m", "pro": None}
        settings.QUOTA["RULES"] = {"plans": {"rate": tiers, "tier": lambda _: "free", "key": "user"}, "all": "9/m"}

    def test_they_say_whom_they_count(self) -> None:
        found = load_snapshot("org:7")

        assert found.elsewhere == {"plans": "plans counts by user.", "viewed": "viewed counts by ip."}
        assert ([limit.rule for limit in found.limits], found.unread) == (["all"], {})

    def test_they_are_read_for_whom_they_count(self) -> None:
        found = load_snapshot("user:7")

        assert found.elsewhere == {"viewed": "viewed counts by ip."}
        assert [(limit.rule, limit.tier) for limit in found.limits] == [("plans", "free"), ("all", "")]
        assert found.unread == {"plans (pro)": "it is unlimited"}


def twentieth(subject: str) -> date:
    return date(2025, 1, 20)


def no_day(subject: str) -> Any:
    raise ValueError("no day")


@pytest.mark.usefixtures("memory_store")
def test_a_rule_says_why_its_periods_cannot_be_read(settings: Any) -> None:
    month = {"rate": "5/month", "algorithm": "calendar", "starts": f"{__name__}.no_day"}
    settings.QUOTA["RULES"] = {
        "month": month,
        "tiers": {**month, "rate": {"free": "5/month"}, "tier": lambda _: "free"},
    }

    assert load_snapshot("user:7").unread == {
        "month": "starts=: ValueError: no day",
        "tiers (free)": "starts=: ValueError: no day",
    }


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        pytest.param(
            ["search", "login"], "The rules are login, search. A rate, such as '10/m', is a rule too.", id="unlike any"
        ),
        pytest.param(["reports", "export"], "The rules are export, reports. Did you mean 'reports'?", id="near"),
        pytest.param([], "A rate, such as '10/m', is a rule too.", id="no rules"),
    ],
)
@pytest.mark.usefixtures("memory_store")
def test_a_name_that_is_not_a_rule_is_an_error(rules: list[str], problem: str, settings: Any) -> None:
    settings.ROOT_URLCONF = ()
    settings.QUOTA["RULES"] = dict.fromkeys(rules, "5/m")

    with pytest.raises(RuleError) as caught:
        load_snapshot("user:7", ["report"])

    assert str(caught.value) == f"There is no rule 'report'. {problem}"


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("blocked_for", "wait"), [(60, 3_600.0), (7_200, 7_200.0)], ids=["the limit for longer", "the block for longer"]
)
def test_a_block_and_a_limit_refuse_until_the_later_ends(blocked_for: int, wait: float) -> None:
    with freeze(START):
        check("banning", SUBJECT)
        override(f"b 0 {START + blocked_for * SECOND} ", "banning", SUBJECT)

        (limit,) = load_snapshot(SUBJECT, ["banning"]).limits

    assert (limit.why, limit.retry_after) == ("blocked", wait)


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("limits", [(3, 5), (5, 3)], ids=["the larger first", "the smaller first"])
def test_a_slot_has_the_largest_limit_that_was_asked_for(limits: tuple[int, int]) -> None:
    with freeze(START):
        for number in limits:
            with freeze(START + number):
                slot("export", number, subject=SUBJECT).acquire()
        slot("export", 9, subject="user:7").acquire()
        flusher.flush()

        (held,) = load_snapshot(SUBJECT).leases

    assert (held.name, held.limit, held.number) == ("export", 5, 2)


LIMIT = LimitStatus("search", "5/m", "sliding_window", 5, 0, 5, 0.0, 0.0, "", "key")


@pytest.mark.parametrize(
    ("more", "refuses"),
    [
        pytest.param({}, False, id="the next hit is admitted"),
        pytest.param({"retry_after": 0.5}, True, id="the next hit waits"),
        pytest.param({"retry_after": None}, True, id="no hit is admitted"),
        pytest.param({"retry_after": 0.5, "shadow": True}, False, id="it only reports"),
        pytest.param({"instead": "deny"}, True, id="nothing is admitted without the store"),
        pytest.param({"instead": "allow", "retry_after": 0.5}, False, id="all is admitted without the store"),
    ],
)
def test_a_limit_refuses_if_the_next_hit_is_refused(more: dict[str, Any], refuses: bool) -> None:
    assert replace(LIMIT, **more).refuses is refuses


def test_a_rule_is_used_if_one_of_its_limits_is() -> None:
    limits = [LIMIT, replace(LIMIT, rule="login", used=1)]

    assert used_rules([SubjectSnapshot("org:7", START, limits)]) == [("login", "org:7")]


@pytest.mark.parametrize(
    ("then", "problem", "is_same"),
    [
        pytest.param([LIMIT], "", True, id="the same limits"),
        pytest.param([replace(LIMIT, why="override")], "", True, id="the same limits by an override"),
        pytest.param([replace(LIMIT, why="exempt")], "", False, id="no limit applies"),
        pytest.param([replace(LIMIT, limit=6)], "", False, id="another limit"),
        pytest.param([], "It does not fit.", True, id="a problem"),
    ],
)
def test_a_change_without_a_difference_is_the_same(then: list[LimitStatus], problem: str, is_same: bool) -> None:
    assert RuleChange("search", [LIMIT], then, problem).is_same is is_same


@pytest.mark.parametrize(
    ("name", "found"),
    [
        pytest.param("*", {"search", "banning", "tiered", "function", "free", "broken", "viewed"}, id="all rules"),
        pytest.param("viewed", {"viewed"}, id="a rule"),
        pytest.param("10/m", {"10/m"}, id="a rate"),
        pytest.param("10 per minute", set(), id="a rate in words, which is the name of no rule"),
        pytest.param("gone", set(), id="an unknown name"),
    ],
)
def test_an_override_applies_to_the_rules_of_its_name(name: str, found: set[str]) -> None:
    assert set(rules_for(name)) == found


class TestThePreviewOfAnOverride:
    """What an override would do to a subject that has used four of ten."""

    @pytest.fixture(autouse=True)
    def used(self, rules: None, memory_store: None, at_one_time: None) -> None:
        check("search", SUBJECT, 4)

    @pytest.mark.parametrize("begins", [0, START + 3_600 * SECOND], ids=["from now on", "later"])
    @pytest.mark.parametrize(
        ("mode", "rates", "then"),
        [
            pytest.param("rate", "3/m", [("3/m", 4, 0, 60.0, "override")], id="a lower rate"),
            pytest.param("rate", "20/m", [("20/m", 4, 16, 0.0, "override")], id="a higher rate"),
            pytest.param(
                "exempt", "", [("10/m", 4, 6, 0.0, "exempt"), ("100/h", 4, 96, 0.0, "exempt")], id="no limit applies"
            ),
            pytest.param(
                "blocked", "", [("10/m", 4, 6, None, "blocked"), ("100/h", 4, 96, None, "blocked")], id="nothing passes"
            ),
        ],
    )
    def test_it_shows_the_limits_now_and_then(
        self, mode: OverrideMode, rates: str, then: list[Any], begins: int
    ) -> None:
        (change,) = previews(SUBJECT, "search", mode, rates, begins=begins).values()

        assert limits_in(change.now) == [("10/m", 4, 6, 0.0, ""), ("100/h", 4, 96, 0.0, "")]
        assert limits_in(change.then) == then
        assert (change.rule, change.problem) == ("search", "")

    def test_one_for_all_rules_leaves_a_rule_with_its_own(self) -> None:
        override("x 0 0 ", "search", SUBJECT)

        changes = previews(SUBJECT, "*", "blocked")

        assert list(changes) == ["search", "banning", "tiered", "viewed"]
        assert changes["search"].problem == "Nothing changes, since this rule has an override of its own."
        assert (changes["search"].then, changes["viewed"].problem) == ([], "")
        assert [limit.why for limit in changes["viewed"].then] == ["blocked"]

    @pytest.mark.parametrize("rows", [(), ("x 0 0 ",)], ids=["alone", "beside another"])
    def test_one_that_has_ended_changes_nothing(self, rows: tuple[str, ...]) -> None:
        for row in rows:
            override(row, "search", SUBJECT)

        (change,) = previews(SUBJECT, "search", "blocked", ends=START).values()

        assert change.problem == "Nothing changes, since this override has ended."
        assert change.then == []

    def test_the_saved_one_holds_neither_now_nor_then(self) -> None:
        override("r 0 0 3/m", "search", SUBJECT)

        (change,) = previews(SUBJECT, "search", "rate", "20/m").values()

        assert ([limit.limit for limit in change.now], [limit.limit for limit in change.then]) == ([10, 100], [20])

    def test_rates_that_a_rule_cannot_have_are_a_problem(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"search": {"rate": "10/m", "distinct": True}}}

        (change,) = previews(SUBJECT, "search", "rate", "2000000/m").values()

        assert change.then == []
        assert change.problem == (
            "'2000000/m' is not a rate: distinct= keeps every value, and so takes at most 10000 (at position 0). "
            "counter(...).unique() estimates larger numbers."
        )

    def test_one_for_a_rule_that_cannot_count_the_subject_shows_its_limits(self) -> None:
        assert list(previews("org:7", "viewed", "blocked")) == ["viewed"]

    def test_one_for_all_rules_leaves_a_rule_with_its_own_that_has_just_begun(self) -> None:
        override(f"x {START} 0 ", "search", SUBJECT)

        assert previews(SUBJECT, "*", "blocked")["search"].problem

    def test_an_exemption_shows_the_tier_that_a_user_may_have(self) -> None:
        change = previews("user:7", "tiered", "exempt")["tiered"]

        assert limits_in(change.then) == [("50/m", 0, 50, 0.0, "exempt")]

    def test_an_exemption_shows_the_tier_of_the_last_check(self, settings: Any) -> None:
        rates = {"free": "5/m", "pro": "50/m"}
        plan = {"rate": rates, "key": "path", "tier": lambda _: "pro", "daily": True}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"plan": plan}}
        check("plan", "path:/a", tier="pro")

        assert [limit.rate for limit in previews("path:/a", "plan", "exempt")["plan"].then] == ["50/m"]

    def test_an_exemption_shows_the_period_of_the_subject(self, settings: Any) -> None:
        month = {"rate": "5/month", "algorithm": "calendar", "starts": f"{__name__}.twentieth"}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"month": month}}
        check("month", SUBJECT)

        (change,) = previews(SUBJECT, "month", "exempt").values()

        assert [limit.reset_after for limit in change.then] == [limit.reset_after for limit in change.now]

    def test_an_unknown_rule_is_reported(self) -> None:
        found = preview_override(SUBJECT, Override(7, SUBJECT, "gone", "exempt", ""))

        assert (found.is_unknown, found.changes) == (True, [])

    def test_a_rule_whose_rate_is_a_function_has_a_reason(self) -> None:
        found = preview_override(SUBJECT, Override(7, SUBJECT, "function", "exempt", ""))

        assert (found.is_unknown, found.changes) == (False, [])
        assert found.unread == {"function": "its rates are functions of the request"}


class TestLongerSubjects:
    """The subjects that have an address as a part: it is counted together with a name."""

    @pytest.fixture(autouse=True)
    def pairs(self, rules: None, at_one_time: None, settings: Any) -> None:
        login = {"rate": "1/h", "key": ("ip", "post:username"), "ban": {"after": "9/m", "for": "1h"}}
        settings.QUOTA = {
            "STORE": "memory",
            "RULES": {"login": login, "names": {"rate": "1/h", "key": "post:username"}},
        }

    def name(self, letter: str) -> str:
        return f"post.username:{letter * 32}"

    def refuse(self, subject: str, rule: str = "login") -> None:
        for _ in range(2):
            check(rule, subject)

    def found(self, *given: Any) -> list[tuple[str, str | None]]:
        """Return what was found for the address, each with the rule that refuses it."""
        return [(each.subject, each.refusal and each.refusal.rule) for each in longer_subjects(SUBJECT, *given)]

    def test_those_refused_now_come_first(self) -> None:
        free, refused = (f"{SUBJECT}+{self.name(letter)}" for letter in "ab")
        self.refuse(free)
        self.refuse(free)
        self.refuse(refused)
        reset("login", free)

        assert self.found() == [(refused, "login"), (free, None)]

    def test_to_look_at_them_takes_nothing(self) -> None:
        pair = f"{SUBJECT}+{self.name('a')}"
        self.refuse(pair)
        reset("login", pair)

        assert self.found() == [(pair, None)]
        assert check("login", pair).allowed

    def test_subjects_of_others_are_left_out(self) -> None:
        self.refuse(f"ip:198.51.100.7+{self.name('a')}")
        self.refuse(SUBJECT)

        assert self.found() == []

    def test_one_that_was_refused_yesterday_is_found(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}  # a busy site soon forgets them
        pair = f"{SUBJECT}+{self.name('a')}"
        with freeze(START - 24 * 3_600 * SECOND):
            self.refuse(pair)
            flusher.flush()

        assert self.found() == [(pair, None)]

    def test_another_name_of_the_subject_is_found_if_it_is_refused(self) -> None:
        one, other = self.name("a"), self.name("b")
        self.refuse(one, "names")

        assert self.found([one, other]) == [(one, "names")]

    def test_what_is_counted_with_another_name_is_found(self) -> None:
        pair = f"ip:198.51.100.7+{self.name('a')}"
        self.refuse(pair)

        assert self.found([self.name("a")]) == [(pair, "login")]

    def test_subjects_as_which_it_was_refused_are_there_once(self) -> None:
        pair = f"{SUBJECT}+{self.name('a')}"
        self.refuse(pair)

        assert self.found([], ["org:7", pair]) == [(pair, "login"), ("org:7", None)]

    def test_a_shadow_refuses_none_of_them(self, settings: Any) -> None:
        login = {**settings.QUOTA["RULES"]["login"], "shadow": True}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"login": login}}
        pair = f"{SUBJECT}+{self.name('a')}"
        self.refuse(pair)

        assert self.found([], [pair]) == [(pair, None)]

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param("10/month", id="wrong"),
            pytest.param({"rate": None}, id="without a limit"),
            pytest.param({"rate": lambda _: "5/m"}, id="with a function as its rate"),
            pytest.param(
                {"rate": "0/month", "algorithm": "calendar", "starts": f"{__name__}.no_day"}, id="without a day"
            ),
            pytest.param({"rate": "0/m", "key": "user"}, id="of another key"),
        ],
    )
    def test_a_rule_that_cannot_be_asked_for_them_is_left_out(self, other: Any, settings: Any) -> None:
        pair = f"{SUBJECT}+{self.name('a')}"
        key = {"key": ("ip", "post:username")}
        rule = {**key, **other} if isinstance(other, dict) else other
        settings.QUOTA = {**settings.QUOTA, "RULES": {**settings.QUOTA["RULES"], "other": rule}}
        self.refuse(pair)

        assert self.found([], [pair]) == [(pair, "login")]

    def test_those_as_which_it_was_refused_are_among_the_twenty(self) -> None:
        for number in range(20):
            self.refuse(f"{SUBJECT}+{self.name(str(number))}")

        assert "org:7" in dict(self.found([], ["org:7"]))

    def test_at_most_twenty_are_read(self) -> None:
        assert len(self.found([], [f"org:{number}" for number in range(21)])) == 20


@pytest.mark.usefixtures("redis_cache")
def test_a_banned_subject_is_found_by_a_part_of_it_when_its_event_is_gone(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = {"rate": "1/h", "key": ("ip", "post:username"), "ban": BAN}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"login": login}}
    monkeypatch.setattr(activity, "newest_events", lambda *_: [])
    pair = f"{SUBJECT}+post.username:{'a' * 32}"
    ban("login", pair, "1h")

    found = longer_subjects(SUBJECT)

    assert [(each.subject, each.refusal and each.refusal.rule) for each in found] == [(pair, "login")]


@pytest.mark.usefixtures("redis_cache")
def test_a_banned_subject_of_which_only_a_digest_is_known_is_left_out() -> None:
    ban("banning", f"org:{'é' * 90}", "1h")

    assert longer_subjects(SUBJECT) == []


@pytest.mark.usefixtures("either_store")
class TestAnOrganization:
    """Its members are logged in, which its name does not tell."""

    @pytest.fixture(autouse=True)
    def members_only(self, either_store: None, settings: Any) -> None:
        rates = {"anonymous": "5/s", "authenticated": "50/s"}
        burst = {"rate": rates, "key": lambda _: Subject("org", 7), "daily": True}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"burst": burst}}

    def tiers(self) -> list[str]:
        return [limit["tier"] for limit in status_of("org:7")["limits"] if limit["rule"] == "burst"]

    def test_before_its_first_request_it_may_have_any_tier(self) -> None:
        assert self.tiers() == ["anonymous", "authenticated"]

    @pytest.mark.parametrize("tier", ["anonymous", "authenticated"])
    def test_only_the_tier_of_its_last_request_is_shown(self, tier: str) -> None:
        check("burst", "org:7", tier="anonymous")
        check("burst", "org:7", tier=tier)

        assert self.tiers() == [tier]

    def test_the_tier_of_its_last_request_is_marked_as_such(self) -> None:
        def marks() -> list[bool]:
            return [limit.is_last_tier for limit in load_snapshot("org:7").limits if limit.rule == "burst"]

        before = marks()
        check("burst", "org:7", tier="authenticated")

        assert (before, marks()) == ([False, False], [True])

    def test_its_limits_are_those_of_its_last_request(self) -> None:
        check("burst", "org:7", tier="authenticated")

        (outcome,) = [each for each in limits_of("org:7").outcomes if each.rule == "burst"]
        assert str(outcome.rate) == "50/s"


@pytest.mark.parametrize(
    ("held", "limit", "is_full"),
    [
        pytest.param(2, 3, False, id="one is free"),
        pytest.param(3, 3, True, id="none is free"),
        pytest.param(4, 3, True, id="more than the limit"),
        pytest.param(9, None, False, id="the limit is not known"),
    ],
)
def test_a_slot_is_full_if_the_next_caller_is_refused(held: int, limit: int | None, is_full: bool) -> None:
    assert HeldStatus("export", (), "key", held, limit).is_full is is_full


@pytest.mark.usefixtures("either_store")
def test_of_many_leases_the_first_hundred_to_end_are_listed() -> None:
    for seconds in range(102):
        with freeze(START + seconds * SECOND):
            slot("export", 102, lease="10m").acquire()

    with freeze(START + 600 * SECOND):  # when the first ends
        (held,) = read_contents("global", {"quota:1:{global}:l:export": "export"}).leases

    assert (held.name, held.number) == ("export", 101)
    assert held.ends_in == tuple(float(seconds) for seconds in range(1, 101))


@pytest.mark.usefixtures("either_store")
def test_a_ban_that_ends_at_this_moment_is_not_listed() -> None:
    with freeze(START):
        ban("banning", SUBJECT, 600)
        ban(Rule.make("longer", "1/h", ban=BAN), SUBJECT, 601)

    with freeze(START + 600 * SECOND):
        assert [(each.rule, each.ends_in) for each in read_contents(SUBJECT).bans()] == [("longer", 1.0)]


@pytest.mark.usefixtures("memory_store")
class TestRulesThatOnlyCallsName:
    def test_of_too_many_the_first_by_name_are_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inspection, "MAX_RULES_NAMED", 2)
        for rate in ("7/30m", "5/30m", "6/30m"):
            check(rate, "user:7")

        found = load_snapshot("user:7").limits

        assert [limit.rule for limit in found if limit.used] == ["5/30m", "6/30m"]

    def test_one_that_has_banned_the_subject_is_named(self) -> None:
        ban(Rule.make("longer", "1/h", ban=BAN), SUBJECT, "1h")

        assert "longer" in load_snapshot(SUBJECT).unread


@pytest.mark.usefixtures("memory_store")
def test_a_counter_whose_units_a_request_has_asked_for_is_not_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "made", {})
    check_all([("5/30m", "user:7"), (counter("credits"), "user:7", 1)])

    found = load_snapshot("user:7")

    assert "credits" not in {*found.unread, *found.elsewhere}
    assert [(each.counter, each.total) for each in found.counters] == [("credits", 0)]


@pytest.mark.django_db
@pytest.mark.usefixtures("memory_store")
def test_an_override_that_another_process_has_saved_is_known() -> None:
    load_snapshot(SUBJECT)

    with patch.object(overrides, "change"):  # this process is not told
        QuotaOverride.objects.create(mode="exempt", subject=SUBJECT, rule="search")

    assert [each.rule for each in load_snapshot(SUBJECT).overrides] == ["search"]


@pytest.mark.usefixtures("memory_store")
def test_slots_are_listed_by_name() -> None:
    with freeze(START):
        for name in ("upload", "export"):
            slot(name, 2, subject=SUBJECT).acquire()
        flusher.flush()

        assert [held.name for held in load_snapshot(SUBJECT).leases] == ["export", "upload"]


@pytest.mark.usefixtures("memory_store")
class TestRulesThatAFunctionCounts:
    """What a rule is known to have counted says which kinds of subjects it counts."""

    @pytest.fixture(autouse=True)
    def by_function(self, rules: None, memory_store: None, settings: Any) -> None:
        settings.ROOT_URLCONF = ()
        units = {"rate": "5/m", "key": lambda _: Subject("org", 7)}
        settings.QUOTA["RULES"] = {"units": units, "names": {"rate": lambda _: "5/m", "key": "user"}, "names b": None}

    def test_subjects_of_another_kind_are_not_among_them(self) -> None:
        assert set(load_snapshot("user:7", known=[("units", "org:7")]).elsewhere) == {"units"}

    def test_subjects_of_the_same_kind_are_among_them(self) -> None:
        assert [limit.rule for limit in load_snapshot("org:8", known=[("units", "org:7")]).limits] == ["units"]

    def test_a_rule_that_cannot_be_read_is_left_out_by_its_whole_name(self) -> None:
        assert set(load_snapshot("org:7").unread) == {"names b"}


@pytest.mark.usefixtures("redis_cache")
def test_a_refusal_is_found_though_others_were_refused_after_it() -> None:
    with freeze(START):
        check("0/m", SUBJECT)
    for number in range(1, 41):
        with freeze(START + number * SECOND):
            check("0/m", f"user:{number}")

    assert [event.subject for event in recent_refusals(SUBJECT)] == [SUBJECT]


FULL = "OOM command not allowed when used memory > 'maxmemory'."
READS = "READONLY You can't write against a read only replica."


@pytest.mark.usefixtures("redis_cache")
class TestStoreThatRefusesWrites:
    """What decides the next hit under a rule, while the store can be read and not written."""

    @pytest.mark.parametrize(
        ("options", "refusal", "instead"),
        [
            pytest.param({}, FULL, "local", id="a full store"),
            pytest.param({}, READS, "allow", id="a replica"),
            pytest.param({"on_unavailable": "deny"}, FULL, "deny", id="what the rule says"),
            pytest.param({"key": "post:name"}, READS, "local", id="a rule by the body"),
            pytest.param({"shadow": True}, READS, "", id="a shadow, which only reports"),
        ],
    )
    def test_each_rule_says_what_decides(
        self, options: dict[str, Any], refusal: str, instead: str, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"search": {"rate": "5/m", **options}}}
        monkeypatch.setattr(inspection, "refused_change", lambda *_: refusal)

        (limit,) = load_snapshot("post.name:a", ["search"]).limits

        assert limit.instead == instead

    @pytest.mark.parametrize(
        "decided",
        [
            pytest.param(lambda: check("banning", SUBJECT), id="used up"),
            pytest.param(lambda: override("x 0 0 ", "banning", SUBJECT), id="exempt"),
        ],
    )
    def test_a_limit_that_has_decided_keeps_its_answer(
        self, decided: Callable[[], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        decided()
        monkeypatch.setattr(inspection, "refused_change", lambda *_: READS)

        (limit,) = load_snapshot(SUBJECT, ["banning"]).limits

        assert limit.instead == ""


@pytest.mark.usefixtures("memory_store")
def test_a_limit_that_never_admits_refuses_for_ever_though_a_block_ends() -> None:
    with freeze(START):
        override(f"b 0 {START + 60 * SECOND} ", "0/m", SUBJECT)

        (limit,) = load_snapshot(SUBJECT, ["0/m"]).limits

    assert (limit.why, limit.retry_after) == ("blocked", None)


@pytest.mark.usefixtures("memory_store")
def test_a_ban_of_a_rule_with_a_long_name_has_its_name(settings: Any) -> None:
    settings.QUOTA["RULES"] = {"r" * 300: {"rate": "1/h", "ban": BAN}}
    ban("r" * 300, SUBJECT, "1h")

    assert [each.rule for each in load_snapshot(SUBJECT).bans] == ["r" * 300]


@pytest.mark.usefixtures("memory_store")
def test_a_slot_of_which_only_a_digest_is_known_is_left_out() -> None:
    for name in ("s" * 300, "export"):
        slot(name, 2, subject=SUBJECT).acquire()
    flusher.flush()

    assert [held.name for held in load_snapshot(SUBJECT).leases] == ["export"]


@pytest.mark.usefixtures("redis_cache")
def test_a_scan_names_a_slot_with_a_long_name_by_its_digest() -> None:
    slot("s" * 300, 2, subject=SUBJECT).acquire()

    assert [held.name for held in load_snapshot(SUBJECT, scan=True).leases] == [f"l:{digested('s' * 300)}"]
