"""`quota_status` shows what is known of a subject, `quota_reset` forgets it, `quota_bans` has its bans."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from functools import partial
from io import StringIO
from itertools import takewhile
from typing import Any
from unittest.mock import Mock, patch

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import DatabaseError, ProgrammingError
from django.http import HttpResponse
from django.test import RequestFactory
from django.urls import path

from django_quota import ban, check, check_all, counter, peek, quota, reserve, slot
from django_quota.adapters import digest
from django_quota.conf import current
from django_quota.contrib.auth import LoginRefused
from django_quota.core.overrides import ALL_RULES
from django_quota.exceptions import QuotaExceeded
from django_quota.features.bans import ActiveBan, bans_in_force
from django_quota.features.counters import calls
from django_quota.features.events import newest_events
from django_quota.limiting.flusher import flusher
from django_quota.limiting.override_rows import DatabaseRows
from django_quota.limiting.overrides import overrides
from django_quota.limiting.registry import get_limiter
from django_quota.management.commands import quota_bans, quota_status
from django_quota.models import DailyCounter, QuotaOverride
from django_quota.subjects.subject import login_subject
from django_quota.testing import freeze
from tests.support.commands import said
from tests.support.events import event_fields
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.steps import SECOND, START

SUBJECT = "ip:203.0.113.9"
USER = "user:42"


@quota("7/m", key="ip", name="viewed")
def viewed(request: Any) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("viewed/", viewed)]


@pytest.fixture(autouse=True)
def rules(redis_cache: Any, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    banning = {"rate": "1/h", "ban": {"after": "1/m", "for": "1h"}}
    settings.QUOTA = {"RULES": {"search": "10/m; 100/h", "banning": banning, "free": None}}


def saved(mode: str, rule: str, subject: str = SUBJECT) -> None:
    QuotaOverride.objects.create(subject=subject, rule=rule, mode=mode)


def run(*words: str) -> Any:
    with freeze(START):
        return said(*words)


@pytest.mark.django_db
class TestLimits:
    @pytest.mark.parametrize(
        ("command", "words"), [("quota_status", "search: 10/m"), ("quota_reset", f"Reset search for {USER}")]
    )
    def test_a_site_without_urls_has_the_rules_of_its_settings(self, command: str, words: str, settings: Any) -> None:
        del settings.ROOT_URLCONF
        with freeze(START):
            check("search", USER)

        assert words in run(command, USER)

    def test_a_rule_that_cannot_be_read_may_count_a_subject(self, settings: Any) -> None:
        settings.QUOTA = {"RULES": {"broken": {"rate": "often"}}}

        found = run("quota_status", "org:7").splitlines()

        assert found[:2] == ["org:7", "  Nothing is used."]

    @pytest.mark.parametrize(
        ("rule", "lines"),
        [
            pytest.param(
                "search",
                [
                    "  Refused by search for 1 minute",
                    "  search: 10/m by sliding_window",
                    "    ████████████████████ 10 of 10 used, 0 left; the next hit is admitted in 1 minute",
                    f"    from quota:1:{{{SUBJECT}}}:r:search:sw.60s",
                    "  search: 100/h by sliding_window",
                    "    ██░░░░░░░░░░░░░░░░░░ 10 of 100 used, 90 left; the next hit is admitted",
                    f"    from quota:1:{{{SUBJECT}}}:r:search:sw.3600s",
                ],
                id="used",
            ),
            pytest.param(
                "viewed",
                [
                    "  Blocked under viewed, without an end",
                    "  viewed: 7/m by sliding_window",
                    "    ░░░░░░░░░░░░░░░░░░░░ 0 of 7 used, 7 left; no hit is admitted (blocked)",
                    f"    from quota:1:{{{SUBJECT}}}:r:viewed:sw.60s",
                    "  override  viewed: blocked",
                ],
                id="blocked by an override",
            ),
        ],
    )
    def test_limits_are_shown_with_their_use_above_the_overrides(self, rule: str, lines: list[str]) -> None:
        with freeze(START):
            saved("blocked", "viewed")
            check("search", SUBJECT, 10)

        shown = run("quota_status", SUBJECT, "--rule", rule)

        assert shown.splitlines() == [SUBJECT, *lines]

    def test_a_rate_can_be_named_in_another_spelling(self) -> None:
        for _ in range(2):
            check("1/m", SUBJECT)

        shown = run("quota_status", SUBJECT, "--rule", "1 per minute", "--json")

        assert [(limit["rule"], limit["used"]) for limit in shown["limits"]] == [("1/m", 1)]
        assert [event["rule"] for event in shown["refused"]] == ["1/m"]

    def test_several_rules_can_be_named(self) -> None:
        shown = run("quota_status", SUBJECT, "--rule", "search", "--rule", "viewed", "--json")

        assert [limit["rule"] for limit in shown["limits"]] == ["search", "search", "viewed"]

    @pytest.mark.parametrize(
        ("part", "expected"),
        [
            pytest.param(
                "limits",
                {
                    "rule": "search",
                    "rate": "20/m",
                    "algorithm": "sliding_window",
                    "limit": 20,
                    "used": 10,
                    "remaining": 10,
                    "retry_after": 0.0,
                    "reset_after": 60.0,
                    "why": "override",
                    "source": f"quota:1:{{{SUBJECT}}}:r:search:sw.60s",
                    "tier": "",
                    "is_last_tier": False,
                    "instead": "",
                    "shadow": False,
                    "taken_ahead": 0,
                    "prefetch": 0.0,
                },
                id="a limit",
            ),
            pytest.param(
                "overrides",
                {
                    "subject": SUBJECT,
                    "rule": "search",
                    "mode": "rate",
                    "rates": "20/m",
                    "starts": None,
                    "expires": "2025-12-04T00:00:00+00:00",
                },
                id="an override",
            ),
            pytest.param(
                "leases",
                {
                    "name": "seats",
                    "number": 1,
                    "ends_in": [30.0],
                    "source": f"quota:1:{{{SUBJECT}}}:l:seats",
                    "limit": None,
                },
                id="slots in use",
            ),
        ],
    )
    def test_what_is_shown_is_an_object_in_json(self, part: str, expected: dict[str, Any]) -> None:
        ends = datetime(2025, 12, 4, tzinfo=UTC)
        QuotaOverride.objects.create(subject=SUBJECT, rule="search", mode="rate", rate="20/m", expires=ends)
        with freeze(START):
            check("search", SUBJECT, 10)
            slot("seats", 3, 30, subject=SUBJECT).acquire()

        assert run("quota_status", SUBJECT, "--rule", "search", "--json")[part] == [expected]

    @pytest.mark.parametrize(
        ("words", "offered"), [([], True), (["--all"], False)], ids=["by default", "not beside --all"]
    )
    def test_beside_used_limits_it_says_that_all_shows_more(self, words: list[str], offered: bool) -> None:
        with freeze(START):
            check("search", SUBJECT)

        assert ("--all also shows" in run("quota_status", SUBJECT, *words)) == offered

    def test_unused_limits_are_left_out(self) -> None:
        assert "  Nothing is used.\n  --all also shows unused limits" in run("quota_status", SUBJECT)

    @pytest.mark.parametrize(
        "line",
        [
            pytest.param("viewed: 7/m", id="a rule of a view"),
            pytest.param("  tiered (anonymous): 5/m by", id="the first tier"),
            pytest.param("  tiered (authenticated): 50/m by", id="the second tier"),
        ],
    )
    def test_all_also_shows_unused_limits(self, line: str, settings: Any) -> None:
        settings.QUOTA = {"RULES": {"tiered": {"rate": {"anonymous": "5/m", "authenticated": "50/m"}}}}

        shown = run("quota_status", SUBJECT, "--all")

        assert line in shown
        assert "Nothing is used" not in shown

    def test_a_shadow_rule_is_shown_as_one_that_only_reports(self, settings: Any) -> None:
        settings.QUOTA = {"RULES": {"quiet": {"rate": "1/m", "shadow": True}}}
        with freeze(START):
            check("quiet", SUBJECT)

        shown = run("quota_status", SUBJECT)

        assert "the next hit is admitted in 1 minute (a shadow rule: it only reports)" in shown


NOWHERE = "neither the settings nor the views have this name, and it does not contain the rate and options"
BOTH = "1 allowed 1 refused"


@pytest.mark.django_db
class TestWhatElseIsKnown:
    @pytest.fixture(autouse=True)
    def a_user_with_a_ban_slots_days_and_refusals(self, rules: None) -> None:
        """The rule `transfer` is declared nowhere; it also refuses somebody else."""
        with freeze(START):
            for lease in (30, 50):
                check("banning", USER)
                slot("seats", 3, lease, subject=USER).acquire()
                check("1/h", USER, name="transfer")
                check("1/h", SUBJECT, name="transfer")

    @pytest.mark.parametrize(
        "line",
        [
            pytest.param("  ban       from banning, for another 1 hour", id="a ban"),
            pytest.param("  in use    seats: 2 slots; the first is free in 30 seconds, from quota:1:", id="slots"),
            pytest.param("banning 1 allowed 1 refused, transfer 1 allowed 1 refused", id="counts of today"),
            pytest.param(
                "  transfer: something is counted, but neither the settings nor the views have this name",
                id="an unknown rule",
            ),
            pytest.param(", by transfer (limit 1)", id="a recent refusal"),
            pytest.param(", until 2025-11-21 05:40:00Z, by banning", id="a recent ban"),
        ],
    )
    def test_it_is_shown_below_the_limits(self, line: str) -> None:
        assert line in run("quota_status", USER)

    def test_all_of_it_comes_in_one_order(self) -> None:
        """The times of events are replaced: they come from the clock of the store, which the test cannot stop."""
        begins, ends = datetime(2025, 11, 21, tzinfo=UTC), datetime(2025, 12, 4, tzinfo=UTC)
        more = {"mode": "rate", "rate": "20/m", "starts": begins, "expires": ends}
        QuotaOverride.objects.create(subject=USER, rule="search", **more)
        for ago, units in ((24 * 3_600, 3), (0, 2)):
            with freeze(START - ago * SECOND):
                check("search", USER, units)

        shown = re.sub(
            r"^(  (?:refused|banned) +)\S+ \S+Z", r"\1now", run("quota_status", USER, "--all"), flags=re.MULTILINE
        )

        assert shown.splitlines() == [
            "user:42",
            "  Banned from banning for another 1 hour",
            "  search: 20/m by sliding_window",
            "    ██░░░░░░░░░░░░░░░░░░ 2 of 20 used, 18 left; the next hit is admitted (by an override)",
            "    from quota:1:{user:42}:r:search:sw.60s",
            "  banning: 1/h by sliding_window",
            "    ████████████████████ 1 of 1 used, 0 left; the next hit is admitted in 1 hour (banned)",
            "    from quota:1:{user:42}:r:banning:sw.3600s",
            f"  transfer: something is counted, but {NOWHERE}",
            "  override  search: rate 20/m from 2025-11-21 00:00:00Z until 2025-12-04 00:00:00Z",
            "  ban       from banning, for another 1 hour",
            "  in use    seats: 2 slots; the first is free in 30 seconds, from quota:1:{user:42}:l:seats",
            "  refused   now, until 2025-11-21 05:40:00Z, by transfer (limit 1)",
            "  banned    now, until 2025-11-21 05:40:00Z, by banning (limit 1)",
            "  2025-11-20  search 1 allowed (3 units) 0 refused",
            f"  2025-11-21  banning {BOTH}, search 1 allowed (2 units) 0 refused, transfer {BOTH}",
            "  not read  free: it is unlimited",
            "  others    viewed counts by ip.",
        ]

    @pytest.mark.parametrize("of", [counter("minutes"), counter("pooled", group="shop")], ids=["no group", "a group"])
    def test_what_is_left_by_grant_is_shown(self, of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(calls, "made", {(of.name, of.group, None): of} if of.group else {})
        with freeze(START):
            of.grant(USER, 1_500, id="order-17", expires="1h")
            of.incr(USER, -200)

            shown = run("quota_status", USER)

        assert f"  counter   {of.name}: 1,300 left\n" in shown
        assert "            1,300 of 1,500 until 2025-11-21 05:40:00Z, order-17\n" in shown

    def test_a_grant_whose_id_is_lost_is_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(calls, "made", {})
        with freeze(START):
            counter("minutes").grant(USER, 1_500, id="order-17", expires="1h")
            monkeypatch.setattr(calls, "named", lambda _: None)

            shown = run("quota_status", USER)

        assert "            1,500 of 1,500 until 2025-11-21 05:40:00Z, of an unknown grant\n" in shown

    def test_a_balance_that_does_not_expire_is_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        prepaid = counter("prepaid")
        monkeypatch.setattr(calls, "made", {("prepaid", None, None): prepaid})
        prepaid.grant(USER, 700, id="order-18")

        assert "  counter   prepaid: 700\n" in run("quota_status", USER)

    def test_a_counter_that_refused_is_no_rule_that_cannot_be_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        prepaid = counter("prepaid")
        monkeypatch.setattr(calls, "made", {("prepaid", None, None): prepaid})
        check_all([(prepaid, USER, 5)])

        shown = run("quota_status", USER)

        assert "  counter   prepaid: 0\n" in shown
        assert "prepaid: something is counted" not in shown

    def test_json_has_what_is_left_by_grant(self) -> None:
        with freeze(START):
            counter("minutes").grant(USER, 1_500, id="order-17", expires="1h")

            counters = run("quota_status", USER, "--json")["counters"]
        (found,) = [each for each in counters if each["counter"] == "minutes"]

        grant = {"id": "order-17", "granted": 1_500, "left": 1_500, "expires": "2025-11-21T05:40:00+00:00"}
        assert found == {"counter": "minutes", "total": 1_500, "grants": [grant]}

    def test_a_named_rule_leaves_out_the_refusals_of_others(self) -> None:
        assert "by transfer" not in run("quota_status", USER, "--rule", "search")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            pytest.param("subject", USER, id="subject"),
            pytest.param("overrides", [], id="overrides"),
            pytest.param("bans", {"banning": 3_600.0}, id="bans"),
        ],
    )
    def test_json_has_the_same(self, name: str, value: Any) -> None:
        assert run("quota_status", USER, "--json")[name] == value

    def test_json_has_unused_limits_too(self) -> None:
        limits = run("quota_status", USER, "--json")["limits"]

        assert {limit["rule"] for limit in limits} == {"search", "banning"}

    def test_json_says_which_rules_count_others(self) -> None:
        assert run("quota_status", USER, "--json")["elsewhere"] == {"viewed": "viewed counts by ip."}

    def test_json_has_the_refusals_of_this_subject_alone(self) -> None:
        refused = run("quota_status", USER, "--json")["refused"]

        assert {(event["rule"], event["subject"]) for event in refused} == {("banning", USER), ("transfer", USER)}

    def test_the_newest_refusal_comes_first(self) -> None:
        refused = run("quota_status", USER, "--json")["refused"]

        assert [event["rule"] for event in refused] == ["transfer", "banning"]

    def test_json_has_the_counts_of_each_day(self) -> None:
        (today,) = run("quota_status", USER, "--json")["days"].values()

        assert today["banning"] == {"allowed": 1, "refused": 1, "units": 1}

    def test_the_counts_of_days_come_in_their_order(self) -> None:
        with freeze(START - 24 * 3_600 * SECOND):
            check("search", USER, 3)

        days = re.findall("  (2025-11-2[01])  (.*)", run("quota_status", USER))

        assert [day for day, _ in days] == ["2025-11-20", "2025-11-21"]
        assert days[0][1] == "search 1 allowed (3 units) 0 refused"

    @pytest.mark.parametrize("line", ["  not read  free: it is unlimited\n", "  others    viewed counts by ip.\n"])
    @pytest.mark.parametrize("words", [(), ("--all",)], ids=["by default", "--all"])
    def test_only_with_all_it_says_what_has_no_limits(self, words: tuple[str, ...], line: str) -> None:
        assert (line in run("quota_status", USER, *words)) is bool(words)

    def test_with_all_a_rule_that_has_counted_is_named_once(self) -> None:
        assert "not read  transfer" not in run("quota_status", USER, "--all")

    def test_what_an_unknown_rule_has_counted_is_use(self) -> None:
        with freeze(START):
            check("1/h", "user:7", name="transfer")

        assert "Nothing is used." not in run("quota_status", "user:7")

    def test_a_ban_that_has_ended_is_left_out(self) -> None:
        with freeze(START + 3_600 * SECOND):
            assert said("quota_status", USER, "--json")["bans"] == {}


@pytest.mark.django_db
class TestOverrides:
    @pytest.mark.parametrize("command", [("quota_status", SUBJECT), ("quota_rules",)], ids=lambda words: words[0])
    @pytest.mark.parametrize(
        ("rule", "is_noted"),
        [pytest.param(ALL_RULES, True, id="from all rules"), pytest.param("search", False, id="from one rule")],
    )
    def test_a_note_says_that_an_override_exempts_everybody_from_all_rules(
        self, command: tuple[str, ...], rule: str, is_noted: bool
    ) -> None:
        saved("exempt", rule, subject="*")

        note = "An override exempts everybody from all rules, so nothing is limited."
        assert (note in run(*command)) is is_noted

    def test_those_that_concern_the_subject_are_printed_the_most_specific_first(self) -> None:
        for whose in ("*", "ip:*", "ip:203.0.0.0/16", "ip:203.0.113.0/24", SUBJECT, "ip:192.0.2.0/24", "user:*"):
            saved("shadow", "search", whose)
        saved("blocked", ALL_RULES, "ip:203.0.113.0/24")

        printed = run("quota_status", SUBJECT).splitlines()

        assert [line for line in printed if line.startswith("  override")] == [
            "  override  search: shadow",
            "  override  search for ip:203.0.113.0/24: shadow",
            "  override  * for ip:203.0.113.0/24: blocked",
            "  override  search for ip:203.0.0.0/16: shadow",
            "  override  search for ip:*: shadow",
            "  override  search for *: shadow",
        ]

    def test_one_is_printed_with_its_first_moment_above_its_last(self) -> None:
        begins, ends = datetime(2126, 1, 1, tzinfo=UTC), datetime(2126, 1, 31, 12, tzinfo=UTC)
        QuotaOverride.objects.create(subject=USER, mode="blocked", starts=begins, expires=ends)

        line = "  override  *: blocked from 2126-01-01 00:00:00Z until 2126-01-31 12:00:00Z\n"
        assert line in run("quota_status", USER)

    def test_an_override_of_all_rules_is_printed_once(self) -> None:
        saved("blocked", ALL_RULES)

        assert run("quota_status", SUBJECT).splitlines()[-1] == "  override  *: blocked"
        assert run("quota_status", SUBJECT).count("override") == 1

    def test_an_unused_limit_that_an_override_changes_is_shown(self) -> None:
        saved("blocked", "viewed")

        assert (
            "  viewed: 7/m by sliding_window\n    " + "░" * 20 + " 0 of 7 used, 7 left; no hit is admitted (blocked)"
            in (run("quota_status", SUBJECT))
        )

    def test_an_unused_limit_that_an_override_of_all_rules_changes_is_not_shown(self) -> None:
        saved("shadow", ALL_RULES)

        assert "viewed: 7/m" not in run("quota_status", SUBJECT)

    def test_an_unused_limit_under_a_ban_is_shown_beside_an_override_of_all_rules(self) -> None:
        QuotaOverride.objects.create(subject=SUBJECT, rule=ALL_RULES, mode="rate", rate="5/m")
        with freeze(START):
            ban("banning", SUBJECT, 600)

        shown = run("quota_status", SUBJECT)

        assert "0 of 5 used, 5 left; the next hit is admitted in 10 minutes (banned)" in shown
        assert "search: 5/m" not in shown

    def test_one_on_all_rules_blocks_the_unused_limits_too(self) -> None:
        saved("blocked", ALL_RULES)

        assert "0 of 7 used, 7 left; no hit is admitted (blocked)" in run("quota_status", SUBJECT, "--all")

    def test_a_note_says_why_they_could_not_be_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Away(DatabaseRows):
            def read_here(self, work: Callable[[], None]) -> None:
                raise DatabaseError("the connection is closed")

        monkeypatch.setattr(overrides, "rows", Away())

        assert "Note: The overrides could not be read: the connection is closed.\n" in run("quota_status", SUBJECT)
        assert run("quota_status", SUBJECT, "--json")["overrides_problem"] == "the connection is closed"


@pytest.mark.django_db
class TestRedisThatTakesNoChanges:
    """Refusals are known, since it can be read; `on_unavailable` decides about hits that it would count."""

    @pytest.fixture(autouse=True)
    def full_redis(self, rules: None, raw: redis.Redis, settings: Any) -> Iterator[None]:
        asked = {how: {"rate": "10/m", "on_unavailable": how} for how in ("deny", "allow", "local")}
        settings.QUOTA = {"RULES": {**asked, "used": "1/m", "free": "10/m"}}
        with freeze(START):
            check("used", SUBJECT)
            override("x 0 0 ", "free")
        raw.config_set("maxmemory", 1)
        yield
        raw.config_set("maxmemory", 0)

    @pytest.mark.parametrize(
        ("rule", "words", "is_allowed"),
        [
            ("deny", "no hit is admitted while Redis refuses writes", False),
            ("allow", "the next hit is admitted, and not counted", True),
            ("local", "each process decides by itself while Redis refuses writes", True),
            ("used", "the next hit is admitted in 1 minute", False),
            ("free", "the next hit is admitted (exempt)", True),
        ],
        ids=["denied", "allowed", "decided in memory", "used up before", "exempt"],
    )
    def test_the_status_says_what_happens_to_the_next_hit(self, rule: str, words: str, is_allowed: bool) -> None:
        shown = run("quota_status", SUBJECT, "--rule", rule)

        assert [line.partition("; ")[2] for line in shown.splitlines() if " left; " in line] == [words]
        with freeze(START):
            assert check(rule, SUBJECT).allowed is is_allowed

    def test_what_redis_says_is_repeated(self) -> None:
        printed, value = (run("quota_status", SUBJECT, *words) for words in ([], ["--json"]))

        said = value["refuses"]
        assert "command not allowed when used memory > 'maxmemory'" in said
        assert printed.endswith(f"\nNote: Redis takes no changes, so nothing is counted. It says: {said}\n")


@pytest.mark.django_db
class TestRedisThatRefusesWritesWithMemoryLeft:
    """A rule that guards a password, a code or money still counts in each process; others follow the setting."""

    @pytest.fixture(autouse=True)
    def redis_without_its_replicas(
        self, rules: None, raw: redis.Redis, settings: Any, database: dict[str, Any]
    ) -> Iterator[None]:
        settings.QUOTA = {
            "RULES": {
                "code": {"rate": "10/m", "key": "json:phone"},
                "search": {"rate": "10/m", "key": "ip"},
                "quiet": {"rate": "10/m", "shadow": True, "on_unavailable": "deny"},
                "month": {"rate": "10/month", "algorithm": "calendar", "store": "database", "on_unavailable": "deny"},
                "closed": {"rate": "0/m", "on_unavailable": "deny"},
                "exempt": {"rate": "10/m", "on_unavailable": "deny"},
            }
        }
        QuotaOverride.objects.create(subject=SUBJECT, mode="exempt", rule="exempt")
        raw.config_set("min-replicas-to-write", 1)
        yield
        raw.config_set("min-replicas-to-write", 0)

    @pytest.mark.parametrize(
        ("rule", "instead"),
        [
            pytest.param("code", "local", id="a rule that reads the body"),
            pytest.param("search", "allow", id="a rule by address"),
            pytest.param("quiet", "", id="a shadow rule"),
            pytest.param("month", "", id="a rule that counts in the database"),
            pytest.param("closed", "", id="a rule that admits nothing anyway"),
            pytest.param("exempt", "", id="a rule from which the subject is exempt"),
        ],
    )
    def test_the_status_says_who_decides_the_next_hit(self, rule: str, instead: str) -> None:
        (limit,) = run("quota_status", SUBJECT, "--rule", rule, "--json")["limits"]

        assert limit["instead"] == instead


@pytest.mark.django_db
class TestStoreThatDoesNotAnswer:
    """The status says why there are no figures, then what that means for the site."""

    @pytest.fixture(params=["allow", "deny"])
    def notes(self, request: pytest.FixtureRequest, rules: None, settings: Any) -> tuple[str, str]:
        """How rules decide meanwhile, and what the command notes."""
        settings.QUOTA = {**settings.QUOTA, "ON_UNAVAILABLE": request.param}
        notes = StringIO()
        with no_answer(), pytest.raises(CommandError, match="it is gone"):
            call_command("quota_status", SUBJECT, stdout=StringIO(), stderr=notes)
        return request.param, notes.getvalue()

    def test_a_note_says_that_nothing_is_limited_if_that_is_so(self, notes: tuple[str, str]) -> None:
        how, noted = notes

        assert ("The store fails, so nothing is limited" in noted) == (how == "allow")


@pytest.mark.django_db
def test_json_of_a_subject_that_nothing_is_known_of_has_the_same_names() -> None:
    assert run("quota_status", "org:7", "--rule", "free", "--json") == {
        "subject": "org:7", "limits": [], "overrides": [], "bans": {}, "leases": [], "counters": [], "days": {},
        "unread": {"free": "it is unlimited"}, "elsewhere": {}, "refuses": None, "overrides_problem": None,
        "refused": [], "longer": {}, "related": [],
    }  # fmt: skip


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("limit", "line"),
    [
        pytest.param(
            2, "  Refused by seats, whose slots are full: 2 of 2 are in use, for 30 seconds at most\n", id="full"
        ),
        pytest.param(3, "  in use    seats: 2 slots of 3; the first is free in 30 seconds", id="not full"),
    ],
)
def test_slots_are_among_what_refuses_if_they_are_full(limit: int, line: str) -> None:
    with freeze(START):
        for lease in (30, 50):
            slot("seats", limit, lease, subject=USER).acquire()
        flusher.flush()

    printed = run("quota_status", USER)

    assert line in printed
    assert ("whose slots are full" in printed) == (limit == 2)


@pytest.mark.usefixtures("database")
class TestUserRefusedByAddress:
    @pytest.fixture(autouse=True)
    def refused(self, rules: None) -> None:
        request = RequestFactory().get("/viewed/", REMOTE_ADDR="203.0.113.9")
        request.user = User(pk=42)
        with freeze(START):
            for _ in range(8):
                viewed(request)

    @pytest.mark.parametrize(
        "line",
        [
            pytest.param(
                rf"  refused   \S+ \S+, until \S+ \S+, by viewed \(limit 7\), as {SUBJECT}\n", id="what was refused"
            ),
            pytest.param(rf"  together  {SUBJECT} is refused by viewed\n", id="what still refuses"),
        ],
    )
    def test_a_refusal_by_address_is_shown_to_who_asks_for_the_user(self, line: str) -> None:
        assert re.search(line, run("quota_status", USER))


@pytest.mark.usefixtures("database")
class TestSubjectOfSeveralParts:
    TYPED = f"{SUBJECT}+post:username=ann"
    HIDDEN = f"{SUBJECT}+post.username:{digest('ann')}"

    @pytest.fixture(autouse=True)
    def a_refused_login(self, rules: None, settings: Any) -> None:
        settings.QUOTA = {"RULES": {"login": {"rate": "2/h", "key": ("ip", "post:username")}}}
        with freeze(START):
            for _ in range(3):
                check("login", RequestFactory().post("/", {"username": "ann"}, REMOTE_ADDR="203.0.113.9"))

    def test_plain_values_find_what_was_counted(self) -> None:
        shown = run("quota_status", self.TYPED)

        assert shown.startswith(f"{self.HIDDEN}\n")
        assert "2 of 2 used" in shown

    def test_the_plain_value_is_not_repeated(self) -> None:
        assert "=ann" not in run("quota_status", self.TYPED)

    def test_one_part_shows_what_is_refused_together_with_it(self) -> None:
        assert f"  together  {self.HIDDEN} is refused by login\n" in run("quota_status", SUBJECT)

    def test_json_has_what_is_refused_together_with_one_part(self) -> None:
        assert run("quota_status", SUBJECT, "--json")["longer"] == {self.HIDDEN: "login"}

    def test_one_part_shows_no_refusal_of_others(self) -> None:
        with freeze(START):
            check("0/m", "ip:198.51.100.7+user:7", name="other")

        assert "user:7" not in run("quota_status", SUBJECT)

    def test_plain_values_can_be_blocked(self) -> None:
        run("quota_override", "set", self.TYPED, "blocked")

        assert "no hit is admitted (blocked)" in run("quota_status", self.TYPED, "--rule", "login")

    def test_the_list_of_overrides_does_not_repeat_the_plain_value(self) -> None:
        run("quota_override", "set", self.TYPED, "blocked")

        listed = run("quota_override", "list", "--subject", self.TYPED)

        assert "blocked" in listed
        assert "=ann" not in listed

    def test_plain_values_clear_an_override(self) -> None:
        run("quota_override", "set", self.TYPED, "blocked")

        assert "blocked" in run("quota_override", "clear", self.TYPED)
        assert "blocked" not in run("quota_status", self.TYPED, "--rule", "login")

    def test_plain_values_can_be_reset(self) -> None:
        assert run("quota_reset", self.TYPED) == f"Reset login for {self.HIDDEN}\n"


IS_A_NETWORK = 'No request has the subject "{}": it is a network. Use one address. IPv6 addresses count by their /64.'


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(
            ["quota_status", "ip:nowhere"],
            "'ip:nowhere' is not an IP address. Use, for example, 'ip:203.0.113.9'.",
            id="no address",
        ),
        pytest.param(
            ["quota_status", "ip:2001:db8::/32"], IS_A_NETWORK.format("ip:2001:db8::/32"), id="an IPv6 network"
        ),
        pytest.param(["quota_status", "ip:10.0.0.0/8"], IS_A_NETWORK.format("ip:10.0.0.0/8"), id="a network"),
        pytest.param(
            ["quota_status", USER, "--rule", "serach"],
            "There is no rule 'serach'. The rules are banning, free, search, viewed. Did you mean 'search'?",
            id="a misspelled rule",
        ),
        pytest.param(
            ["quota_status", USER, "--rule", "%"],
            "There is no rule '%'. The rules are banning, free, search, viewed. A rate, such as '10/m', is a rule too.",
            id="a rule unlike any",
        ),
        pytest.param(
            ["quota_bans", "set", "search", SUBJECT, "10m"],
            "Rule 'search' has no ban=, so its checks do not look for bans. Give it ban=, or block the subject by an "
            "override: `manage.py quota_override set <subject> blocked`.",
            id="a rule that bans nobody",
        ),
        pytest.param(
            ["quota_bans", "set", "bannign", SUBJECT, "10m"],
            "'bannign' is not a rate, nor a rule of the settings or the views. Did you mean 'banning'? For a rule that "
            "only a call names, pass it: Rule.make('bannign', rate).",
            id="a misspelled ban",
        ),
        pytest.param(
            ["quota_bans", "set", "banning", SUBJECT, "soon"],
            "SPAN='soon' is not a duration above 0 and up to 366 days. Use, for example, 60 (seconds), '10m' or '7d'.",
            id="no duration",
        ),
        pytest.param(["quota_bans", "lift"], "Error: the following arguments are required: subject", id="no subject"),
    ],
)
def test_wrong_input_is_a_clear_error(words: list[str], says: str) -> None:
    with pytest.raises(CommandError) as caught:
        run(*words)

    assert str(caught.value) == says


@pytest.mark.parametrize(
    "words",
    [["quota_reset", SUBJECT], ["quota_status", SUBJECT], ["quota_bans", "list"]],
    ids=["quota_reset", "quota_status", "quota_bans"],
)
def test_a_command_does_not_look_into_the_memory_of_another_process(words: list[str], settings: Any) -> None:
    settings.QUOTA = {"STORE": "memory"}

    with pytest.raises(CommandError, match=r'other processes cannot see|is "memory"'):
        run(*words)


@pytest.mark.usefixtures("database")
class TestBans:
    @pytest.fixture
    def two_bans(self, rules: None) -> None:
        with freeze(START):
            ban("banning", SUBJECT, 600)
            ban("banning", "user:7", 1_200)

    def test_an_empty_list_says_so(self) -> None:
        assert run("quota_bans", "list") == "Nobody is banned.\n"

    def test_a_ban_that_is_set_is_reported(self) -> None:
        printed = run("quota_bans", "set", "banning", SUBJECT, "10m")

        assert printed == f"Banned {SUBJECT} from banning for 10 minutes.\n"

    @pytest.mark.usefixtures("two_bans")
    def test_a_ban_that_lasts_longer_already_stays(self) -> None:
        printed = run("quota_bans", "set", "banning", "user:7", "10m")

        assert printed.startswith("Banned user:7 from banning for 20 minutes.\n")
        assert run("quota_bans", "set", "banning", "user:7", "10m", "--json")["ends_in"] == 1_200

    def test_a_ban_of_a_rule_whose_name_is_too_long_to_keep_is_not_one_of_another_rule(self, settings: Any) -> None:
        banning = {"rate": "1/h", "ban": {"after": "1/m", "for": "1h"}}
        settings.QUOTA = {"RULES": {"banning": banning, "é" * 200: banning}}
        run("quota_bans", "set", "é" * 200, SUBJECT, "10m")
        settings.QUOTA = {"RULES": {"banning": banning}}

        assert run("quota_bans", "list").startswith(f"{SUBJECT} from a name too long to keep until ")
        assert run("quota_bans", "list", "--rule", "banning") == "Nobody is banned from banning.\n"

    def test_a_rule_with_the_name_of_a_rate_may_be_written_in_words(self, settings: Any) -> None:
        settings.QUOTA = {"RULES": {"5/m": {"rate": "1/h", "ban": {"after": "1/m", "for": "1h"}}}}
        run("quota_bans", "set", "5 per minute", SUBJECT, "10m")

        assert run("quota_bans", "list", "--rule", "5 per minute").startswith(f"{SUBJECT} from 5/m until ")

    def test_a_ban_that_is_set_refuses(self) -> None:
        run("quota_bans", "set", "banning", SUBJECT, "10m")

        with freeze(START):
            assert not peek("banning", SUBJECT)

    def test_a_ban_that_is_set_is_an_object_in_json(self) -> None:
        printed = run("quota_bans", "set", "banning", "user:7", "20m", "--json")

        assert printed == {"subject": "user:7", "rule": "banning", "ends_in": 1200}

    def test_a_quiet_command_bans_and_says_nothing(self) -> None:
        assert run("quota_bans", "set", "banning", SUBJECT, "10m", "--verbosity", "0") == ""
        with freeze(START):
            assert not peek("banning", SUBJECT)

    @pytest.mark.usefixtures("two_bans")
    def test_a_quiet_list_is_printed(self) -> None:
        assert run("quota_bans", "list", "--verbosity", "0").count("\n") == 2

    @pytest.mark.parametrize(
        "verb", [["set", "banning", "203.0.113.9", "10m"], ["lift", "203.0.113.9"]], ids=["set", "lift"]
    )
    def test_a_note_says_what_an_address_is_taken_for(self, verb: list[str]) -> None:
        assert "Note: '203.0.113.9' is taken for 'ip:203.0.113.9'.\n" in run("quota_bans", *verb)

    @pytest.mark.parametrize(
        ("verb", "is_noted"),
        [
            pytest.param(["set", "banning", "ann", "10m"], True, id="set"),
            pytest.param(["lift", "ann"], False, id="lift"),
            pytest.param(["list", "--subject", "ann"], False, id="list"),
        ],
    )
    def test_a_note_says_that_no_request_has_the_subject_that_is_banned(self, verb: list[str], is_noted: bool) -> None:
        assert ('No request has the subject "ann".' in run("quota_bans", *verb)) is is_noted

    @pytest.mark.usefixtures("two_bans")
    def test_a_dry_run_says_so_in_json(self) -> None:
        assert run("quota_bans", "lift", "user:7", "--dry-run", "--json")["dry_run"] is True

    @pytest.mark.usefixtures("two_bans")
    def test_a_dry_run_of_a_user_is_not_in_the_log_of_the_admin(self) -> None:
        User.objects.create_user("ann")

        run("quota_bans", "lift", SUBJECT, "--dry-run", "--by", "ann")

        assert not LogEntry.objects.exists()

    def test_it_says_that_there_is_no_ban_to_lift(self) -> None:
        assert run("quota_bans", "lift", SUBJECT) == f"No such ban of {SUBJECT} is in force.\n"

    @pytest.mark.usefixtures("two_bans")
    def test_names_that_were_too_long_to_keep_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = ActiveBan("", "", START + 600 * SECOND)
        monkeypatch.setattr(quota_bans, "bans_in_force", lambda: (1, [found]))

        assert run("quota_bans", "list") == (
            "a name too long to keep from a name too long to keep until 2025-11-21 04:50:00Z\n"
        )

    def test_the_bans_of_a_user_name_are_lifted_at_each_address(self, settings: Any) -> None:
        settings.QUOTA = {"RULES": {"banning": {"rate": "1/h", "ban": {"after": "1/m", "for": "1h"}}}}
        name = login_subject("ann")
        with freeze(START):
            for address in ("192.0.2.1", "192.0.2.2"):
                ban("banning", f"{name}+ip:{address}", 600)

        lifted = run("quota_bans", "lift", "login:username=ann", "--json")

        assert [each["subject"] for each in lifted["bans"]] == [f"{name}+ip:192.0.2.{number}" for number in (1, 2)]
        assert run("quota_bans", "list", "--json") == []

    def test_each_subject_of_a_user_name_is_named_by_the_line_and_the_log_of_its_ban(self, settings: Any) -> None:
        User.objects.create_user("ann")
        whole = f"{login_subject('ann')}+ip:192.0.2.1"
        with freeze(START):
            ban("banning", whole, 600)

        printed = run("quota_bans", "lift", "login:username=ann", "--by", "ann")

        assert printed == f"Lifted the ban of {whole} from banning\n"
        assert LogEntry.objects.get().object_id == whole

    def test_the_event_of_a_ban_that_is_set_says_who_set_it_with_the_reason(self) -> None:
        run("quota_bans", "set", "banning", SUBJECT, "10m", "--reason", "spam", "--by", "the watchdog")

        (event,) = newest_events(get_limiter().store, current().prefix, 9)
        assert (event.user, event.reason) == ("the watchdog", "spam")

    @pytest.mark.parametrize(
        ("words", "logged"),
        [
            pytest.param(["set", "banning", SUBJECT, "20m", "--reason", "spam"], "Ban: banning, until", id="set"),
            pytest.param(["lift", SUBJECT], "Lift ban: banning", id="lift"),
        ],
    )
    def test_the_log_of_the_admin_has_the_bans_that_a_user_sets_or_lifts(self, words: list[str], logged: str) -> None:
        ann = User.objects.create_user("ann")
        with freeze(START):
            ban("banning", SUBJECT, 600)

        run("quota_bans", *words, "--by", "ann")

        entry = LogEntry.objects.get()
        assert (entry.object_id, entry.user) == (SUBJECT, ann)
        assert entry.change_message.startswith(logged)

    @pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
    def test_a_note_says_that_a_ban_has_no_effect_while_limiting_is_off(self, is_on: bool, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": is_on}

        printed = run("quota_bans", "set", "banning", SUBJECT, "10m")

        note = "Note: the ban has no effect now. Allowed: nothing limits this.\n"
        assert printed == f"Banned {SUBJECT} from banning for 10 minutes.\n{'' if is_on else note}"

    def test_a_ban_from_a_rule_whose_view_answers_itself_has_an_effect(self, settings: Any) -> None:
        own = {"rate": "1/h", "block": False, "ban": {"after": "1/m", "for": "1h"}}
        settings.QUOTA = {"RULES": {"banning": own}}

        assert run("quota_bans", "set", "banning", SUBJECT, "10m") == f"Banned {SUBJECT} from banning for 10 minutes.\n"

    @pytest.mark.usefixtures("two_bans")
    @pytest.mark.parametrize("words", [["list"], ["lift", SUBJECT]], ids=["list", "lift"])
    def test_a_rule_that_is_gone_gets_no_hint_while_its_bans_are_there(self, words: list[str], settings: Any) -> None:
        settings.QUOTA = {"RULES": {"bannings": "9/m"}}

        printed = run("quota_bans", *words, "--rule", "banning")

        assert SUBJECT in printed
        assert "Note" not in printed

    def test_names_that_were_too_long_to_keep_are_null_in_json(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(quota_bans, "bans_in_force", lambda: (1, [ActiveBan(None, None, START)]))

        (row,) = run("quota_bans", "list", "--json")

        assert (row["subject"], row["rule"]) == (None, None)

    @pytest.mark.usefixtures("two_bans")
    @pytest.mark.parametrize(
        ("options", "subjects"),
        [
            pytest.param([], [SUBJECT, "user:7"], id="all"),
            pytest.param(["--subject", "user:7"], ["user:7"], id="of a subject"),
            pytest.param(["--rule", "banning"], [SUBJECT, "user:7"], id="of a rule"),
            pytest.param(["--rule", "search"], [], id="of another rule"),
        ],
    )
    def test_bans_are_listed(self, options: list[str], subjects: list[str]) -> None:
        assert [row["subject"] for row in run("quota_bans", "list", *options, "--json")] == subjects

    @pytest.mark.usefixtures("two_bans")
    def test_a_line_of_the_list_says_until_when(self) -> None:
        assert run("quota_bans", "list", "--subject", "user:7") == "user:7 from banning until 2025-11-21 05:00:00Z\n"

    @pytest.mark.parametrize(
        "options", [[], ["--subject", SUBJECT], ["--rule", "é" * 40]], ids=["all", "of one", "rule"]
    )
    def test_a_rule_whose_name_is_too_long_for_a_key_is_named(self, options: list[str], settings: Any) -> None:
        settings.QUOTA = {"RULES": {"é" * 40: {"rate": "1/h", "ban": {"after": "1/m", "for": "1h"}}}}
        with freeze(START):
            ban("é" * 40, SUBJECT, 600)

        printed = run("quota_bans", "list", *options)

        assert printed == f"{SUBJECT} from {'é' * 40} until 2025-11-21 04:50:00Z\n"

    @pytest.mark.usefixtures("two_bans")
    def test_a_listed_ban_is_an_object_in_json(self) -> None:
        (row,) = run("quota_bans", "list", "--subject", "user:7", "--json")

        assert row == {"subject": "user:7", "rule": "banning", "until": "2025-11-21T05:00:00+00:00"}

    @pytest.mark.usefixtures("two_bans")
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            pytest.param(["--subject", "user:9"], "user:9 is not banned.", id="of a subject"),
            pytest.param(["--rule", "search"], "Nobody is banned from search.", id="from a rule"),
            pytest.param(
                ["--subject", "user:7", "--rule", "search"],
                "user:7 is not banned from search.",
                id="of a subject from a rule",
            ),
        ],
    )
    def test_it_says_that_there_is_no_such_ban(self, options: list[str], says: str) -> None:
        assert run("quota_bans", "list", *options) == f"{says}\n"

    @pytest.mark.parametrize("verb", [["list"], ["lift", SUBJECT]], ids=["list", "lift"])
    def test_a_misspelled_rule_gets_a_hint(self, verb: list[str]) -> None:
        assert 'Did you mean "banning"?' in run("quota_bans", *verb, "--rule", "bannign")

    @pytest.mark.usefixtures("two_bans")
    def test_a_note_says_that_there_are_more_bans_than_are_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(quota_bans, "bans_in_force", partial(bans_in_force, 1))

        listed = run("quota_bans", "list")

        assert listed == (
            f"{SUBJECT} from banning until 2025-11-21 04:50:00Z\n"
            "Note: of 2 bans, only the 1 that end first are looked at.\n"
        )

    @pytest.mark.usefixtures("two_bans")
    def test_without_events_there_is_no_list_of_all(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}

        with pytest.raises(CommandError) as caught:
            run("quota_bans", "list")

        assert str(caught.value) == 'QUOTA["EVENTS"] is 0, so there is no list of bans. Give --subject.'

    @pytest.mark.usefixtures("two_bans")
    def test_without_events_those_of_a_subject_are_listed(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}

        assert "user:7 from banning" in run("quota_bans", "list", "--subject", "user:7")

    @pytest.mark.usefixtures("two_bans")
    def test_a_dry_run_lifts_nothing(self) -> None:
        printed = run("quota_bans", "lift", SUBJECT, "--dry-run")

        assert printed == f"Would lift the ban of {SUBJECT} from banning\n"
        with freeze(START):
            assert not peek("banning", SUBJECT)

    @pytest.mark.usefixtures("two_bans")
    def test_a_ban_from_another_rule_is_not_lifted(self) -> None:
        assert "No such ban" in run("quota_bans", "lift", SUBJECT, "--rule", "search")
        with freeze(START):
            assert not peek("banning", SUBJECT)

    @pytest.mark.usefixtures("two_bans")
    def test_a_ban_that_is_lifted_no_longer_refuses(self) -> None:
        assert run("quota_bans", "lift", SUBJECT) == f"Lifted the ban of {SUBJECT} from banning\n"
        with freeze(START):
            assert peek("banning", SUBJECT)

    @pytest.mark.usefixtures("two_bans")
    def test_a_ban_that_is_lifted_is_an_object_in_json(self) -> None:
        lifted = run("quota_bans", "lift", "user:7", "--json")

        assert lifted == {"bans": [{"subject": "user:7", "rule": "banning", "ends_in": 1200.0}], "dry_run": False}

    @pytest.mark.parametrize("options", [(), ("--subject", SUBJECT)], ids=["all", "of a subject"])
    @pytest.mark.parametrize("name", ["a b", "a:b", "100%", "für alle"])
    def test_a_ban_from_a_rule_of_any_name_is_listed_until_it_is_lifted(
        self, name: str, options: tuple[str, ...], settings: Any
    ) -> None:
        settings.QUOTA = {"RULES": {name: {"rate": "1/h", "ban": {"after": "1/m", "for": "1h"}}}}
        run("quota_bans", "set", name, SUBJECT, "10m")
        listed = run("quota_bans", "list", *options, "--json")

        run("quota_bans", "lift", SUBJECT, "--rule", name)

        assert [row["rule"] for row in listed] == [name]
        assert run("quota_bans", "list", *options, "--json") == []

    @pytest.mark.usefixtures("two_bans")
    def test_a_ban_that_has_just_ended_by_itself_is_not_in_the_log_of_the_admin(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        User.objects.create_user("ann")
        monkeypatch.setattr(quota_bans, "lift_bans", lambda *_: 0)

        run("quota_bans", "lift", SUBJECT, "--by", "ann")

        assert not LogEntry.objects.exists()

    def test_lifting_where_there_is_no_ban_is_an_empty_list_in_json(self) -> None:
        assert run("quota_bans", "lift", SUBJECT, "--json") == {"bans": [], "dry_run": False}


class TestReset:
    RULES = ("5/30m", "9/d", "banning", "search")

    @pytest.fixture
    def counted(self, rules: None) -> None:
        """Something is counted under each of `RULES`, and `banning` has banned."""
        with freeze(START):
            check("search", SUBJECT, 10)
            check("5/30m", SUBJECT)
            check("banning", SUBJECT)
            check("banning", SUBJECT)
            reserve("9/d", SUBJECT, 3)

    @pytest.mark.usefixtures("counted")
    def test_a_dry_run_lists_what_would_be_forgotten(self) -> None:
        printed = run("quota_reset", SUBJECT, "--dry-run")

        assert printed == "".join(f"Would reset {name} for {SUBJECT}\n" for name in self.RULES)

    @pytest.mark.usefixtures("counted")
    def test_a_dry_run_changes_nothing(self, raw: redis.Redis) -> None:
        before = {key: raw.dump(key) for key in raw.scan_iter()}

        run("quota_reset", SUBJECT, "--dry-run")

        assert {key: raw.dump(key) for key in raw.scan_iter()} == before

    @pytest.mark.usefixtures("counted")
    def test_it_names_each_rule_that_it_forgets(self) -> None:
        assert run("quota_reset", SUBJECT) == "".join(f"Reset {name} for {SUBJECT}\n" for name in self.RULES)

    @pytest.mark.usefixtures("counted")
    def test_it_forgets_what_was_counted(self) -> None:
        run("quota_reset", SUBJECT)

        with freeze(START):
            assert peek("search", SUBJECT).used == 0

    @pytest.mark.usefixtures("counted")
    def test_it_lifts_bans(self, raw: redis.Redis) -> None:
        run("quota_reset", SUBJECT)

        assert raw.zcard("quota:1:{!}:bans") == 0
        with freeze(START):
            assert check("banning", SUBJECT)

    @pytest.mark.usefixtures("counted")
    def test_it_leaves_overrides(self) -> None:
        override("r 0 0 50/m", "search")

        run("quota_reset", SUBJECT)

        with freeze(START):
            assert check("search", SUBJECT).limit == 50

    @pytest.mark.usefixtures("counted")
    def test_a_named_rule_is_forgotten_alone(self) -> None:
        done = run("quota_reset", SUBJECT, "--rule", "search", "--json")

        assert done == {"subject": SUBJECT, "rules": ["search"], "deleted": 2, "dry_run": False}
        with freeze(START):
            assert peek("9/d", SUBJECT).used == 3

    @pytest.mark.usefixtures("counted")
    def test_a_rule_of_a_call_is_named_by_its_rate(self) -> None:
        assert run("quota_reset", SUBJECT, "--rule", "5 per 30m") == f"Reset 5/30m for {SUBJECT}\n"

    def test_a_misspelled_rule_gets_a_hint(self) -> None:
        assert 'Did you mean "search"?' in run("quota_reset", SUBJECT, "--rule", "serch")

    @pytest.mark.parametrize(
        ("words", "under"),
        [
            ((), ""),
            (("--rule", "search"), " under search"),
            (("--rule", "search", "--rule", "viewed"), " under search, viewed"),
        ],
        ids=["all rules", "a rule", "two rules"],
    )
    def test_it_says_that_nothing_was_counted(self, words: tuple[str, ...], under: str) -> None:
        assert run("quota_reset", SUBJECT, *words) == f"Nothing was counted for {SUBJECT}{under}.\n"

    @pytest.mark.usefixtures("counted")
    def test_a_dry_run_says_so_in_json(self) -> None:
        done = run("quota_reset", SUBJECT, "--rule", "search", "--dry-run", "--json")

        assert done == {"subject": SUBJECT, "rules": ["search"], "deleted": 0, "dry_run": True}

    def test_the_rules_of_a_name_are_reset_at_each_address(self, database: Any) -> None:
        User.objects.create_user("root")
        name = login_subject("ann")
        with freeze(START):
            for subject in (name, f"{name}+ip:192.0.2.1"):
                check("search", subject)

        done = run("quota_reset", "login:username=ann", "--json", "--by", "root")

        assert done == {"subject": name, "rules": ["search"], "deleted": 4, "dry_run": False}
        assert {entry.object_id for entry in LogEntry.objects.all()} == {name, f"{name}+ip:192.0.2.1"}

    @pytest.mark.parametrize(
        "name", ["a b", "a:b", "100%", "für alle", pytest.param("é" * 40, id="too long for a key")]
    )
    @pytest.mark.parametrize("is_named", [False, True], ids=["all rules", "a rule"])
    def test_a_rule_of_any_name_is_reset_by_its_name(self, is_named: bool, name: str, settings: Any) -> None:
        settings.QUOTA = {"RULES": {name: "1/h"}}
        with freeze(START):
            check(name, SUBJECT)

        done = run("quota_reset", SUBJECT, "--json", *(["--rule", name] if is_named else []))

        assert done == {"subject": SUBJECT, "rules": [name], "deleted": 1, "dry_run": False}
        with freeze(START):
            assert peek(name, SUBJECT).used == 0

    @pytest.mark.usefixtures("counted")
    def test_a_rule_that_was_reset_gets_no_hint(self) -> None:
        assert run("quota_reset", SUBJECT, "--rule", "9/d") == f"Reset 9/d for {SUBJECT}\n"

    def test_a_quiet_reset_says_nothing(self) -> None:
        assert run("quota_reset", SUBJECT, "--verbosity", "0") == ""

    @pytest.mark.usefixtures("counted", "database")
    def test_the_log_of_the_admin_has_what_a_user_resets(self) -> None:
        ann = User.objects.create_user("ann")

        run("quota_reset", SUBJECT, "--rule", "search", "--by", "ann")

        entry = LogEntry.objects.get()
        assert (entry.object_id, entry.user, entry.change_message) == (SUBJECT, ann, "Reset: search")

    @pytest.mark.usefixtures("counted", "database")
    def test_the_log_of_the_admin_has_each_rule_that_a_user_resets(self) -> None:
        User.objects.create_user("ann")

        run("quota_reset", SUBJECT, "--by", "ann")

        assert LogEntry.objects.get().change_message == "Reset: 5/30m, 9/d, banning, search"

    @pytest.mark.usefixtures("counted", "database")
    @pytest.mark.parametrize(
        "words",
        [
            pytest.param(["--dry-run", "--by", "ann"], id="if nothing is changed"),
            pytest.param(["--rule", "serch", "--by", "ann"], id="of a rule that counted nothing"),
            pytest.param(["--by", "the watchdog"], id="by nobody who has an account"),
            pytest.param([], id="by nobody"),
        ],
    )
    def test_the_log_of_the_admin_has_no_reset(self, words: list[str]) -> None:
        User.objects.create_user("ann")

        run("quota_reset", SUBJECT, *words)

        assert not LogEntry.objects.exists()

    @pytest.mark.usefixtures("counted")
    def test_a_subject_whose_name_only_begins_alike_is_left(self) -> None:
        with freeze(START):
            check("search", f"{SUBJECT}9")

            run("quota_reset", SUBJECT)

            assert peek("search", f"{SUBJECT}9").used == 1


@pytest.mark.parametrize("command", ["quota_status", "quota_reset"])
@pytest.mark.django_db
class TestNotes:
    """A string that is no subject as it is typed, and what else may be meant by it."""

    def test_the_hint_is_a_note(self, command: str) -> None:
        *_, note = run(command, "ann").splitlines()

        assert note.startswith("Note: Nobody's name or e-mail begins with 'ann'. No request has the subject \"ann\".")

    def test_a_bare_address_is_taken_for_that_client(self, command: str) -> None:
        assert "Note: '203.0.113.9' is taken for 'ip:203.0.113.9'.\n" in run(command, "203.0.113.9")

    @pytest.mark.parametrize("network", ["10.0.0.0/8", "10.0.0.1/x", "2001:db8::/32", "10.0.0.0/8/8"])
    def test_a_network_is_an_error(self, command: str, network: str) -> None:
        with pytest.raises(CommandError, match=r"is a network\. Use one address"):
            run(command, network)

    def test_a_bare_ipv6_address_is_taken_for_its_network(self, command: str) -> None:
        assert "'ip:2001:db8::/64'" in run(command, "2001:DB8::7")

    def test_a_value_that_is_stored_as_a_digest_is_not_repeated(self, command: str) -> None:
        assert "+1555" not in run(command, "post:phone=+1555")

    def test_a_user_name_gets_a_hint_with_the_subject_of_the_user(self, command: str) -> None:
        ann = User.objects.create_user("ann")

        assert f"user:{ann.pk}" in run(command, "ann")

    def test_an_override_of_everybody_makes_no_name_a_known_subject(self, command: str) -> None:
        ann = User.objects.create_user("ann")
        override("s 0 0 ", "search", "*")

        assert f"user:{ann.pk}" in run(command, "ann")

    @pytest.mark.parametrize("known", ["an address", "a user", "a counted name"])
    def test_a_known_subject_gets_no_hint(self, command: str, known: str) -> None:
        ann = User.objects.create_user("ann")
        with freeze(START):
            check("search", "ann")

        typed = {"an address": SUBJECT, "a user": f"user:{ann.pk}", "a counted name": "ann"}[known]
        assert "Note" not in run(command, typed)


@pytest.mark.django_db
def test_a_name_that_the_daily_counters_have_gets_no_hint() -> None:
    DailyCounter.objects.create(subject="ann", rule="search", day=date(2025, 11, 20), allowed=1)

    assert "Note" not in run("quota_status", "ann")


@pytest.mark.django_db
def test_a_banned_name_gets_no_hint_though_no_event_has_it(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}
    with freeze(START):
        ban("banning", "ann", "10m")

    assert "Note" not in run("quota_status", "ann")


@pytest.mark.django_db
class TestWhatMatters:
    """The lines below the subject."""

    @pytest.fixture
    def ann(self) -> User:
        return User.objects.create_user("ann")

    def headlines(self, *words: str) -> list[str]:
        """Return the lines between the subject and its limits."""
        _, *lines = run("quota_status", *words).splitlines()
        return list(takewhile(lambda line: re.match("  [A-Z]", line) and line != "  Nothing is used.", lines))

    @pytest.mark.parametrize(
        ("fields", "line"),
        [
            pytest.param({}, "  Blocked, without an end", id="all that is known"),
            pytest.param(
                {"expires": datetime(2025, 12, 4, tzinfo=UTC), "reason": "spam", "created_by": "root"},
                "  Blocked until 2025-12-04 00:00:00Z (spam, by root)",
                id="an end, a reason and who",
            ),
            pytest.param({"reason": "spam"}, "  Blocked, without an end (spam)", id="a reason"),
            pytest.param({"created_by": "root"}, "  Blocked, without an end (by root)", id="who"),
            pytest.param({"rule": "search"}, "  Blocked under search, without an end", id="one rule"),
            pytest.param({"subject": "user:*"}, "  Blocked as user:*, without an end", id="a kind"),
            pytest.param({"mode": "exempt"}, "  Exempt, without an end", id="exempt"),
            pytest.param(
                {"mode": "exempt", "rule": "search"}, "  Exempt from search, without an end", id="exempt from one"
            ),
        ],
    )
    def test_it_says_which_override_is_in_force(self, database: Any, fields: dict[str, Any], line: str) -> None:
        QuotaOverride.objects.create(**{"subject": USER, "mode": "blocked", **fields})

        assert self.headlines(USER) == [line]

    def test_a_ban_names_the_user_who_set_it(self, ann: User) -> None:
        run("quota_bans", "set", "banning", USER, "10m", "--by", "ann")

        assert self.headlines(USER) == ["  Banned from banning for another 10 minutes (by ann)"]

    def test_it_says_so_on_a_site_whose_settings_have_no_rules(self, database: Any, settings: Any) -> None:
        settings.ROOT_URLCONF, settings.QUOTA = (), {}
        QuotaOverride.objects.create(subject=USER, mode="blocked")

        assert self.headlines(USER)[0] == "  Blocked, without an end"

    def test_it_knows_the_override_that_another_process_saved(self, database: Any) -> None:
        run("quota_status", USER)

        with patch.object(overrides, "change"):  # this process is not told
            QuotaOverride.objects.create(subject=USER, mode="blocked")

        assert self.headlines(USER) == ["  Blocked, without an end"]

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"starts": datetime(2030, 1, 1, tzinfo=UTC)}, id="not yet begun"),
            pytest.param({"mode": "shadow"}, id="shadow"),
            pytest.param({"subject": "user:7"}, id="of another subject"),
        ],
    )
    def test_it_leaves_out_an_override_that_is_not_in_force(self, database: Any, fields: dict[str, Any]) -> None:
        QuotaOverride.objects.create(**{"subject": USER, "mode": "blocked", **fields})

        assert self.headlines(USER) == []

    def test_a_more_specific_override_takes_precedence(self, database: Any) -> None:
        QuotaOverride.objects.create(subject="user:*", mode="blocked")
        QuotaOverride.objects.create(subject=USER, mode="exempt")

        assert self.headlines(USER) == ["  Exempt, without an end"]

    @pytest.mark.parametrize(
        ("said", "shown"),
        [
            pytest.param({}, "", id="all that is known"),
            pytest.param({"reason": "spam"}, " (spam)", id="a reason"),
            pytest.param({"by": "guard"}, " (by guard)", id="who"),
            pytest.param({"reason": "spam", "by": "guard"}, " (spam, by guard)", id="a reason from somebody"),
        ],
    )
    def test_a_ban_is_told_with_its_end_author_reason(self, said: dict[str, str], shown: str) -> None:
        with freeze(START):
            ban("banning", USER, 600, **said)

        assert self.headlines(USER) == [f"  Banned from banning for another 10 minutes{shown}"]

    def test_a_ban_has_the_name_of_the_user_who_set_it(self, database: Any) -> None:
        with freeze(START):
            ban("banning", USER, 600, reason="spam", by=User.objects.create_user("mod"))

        assert self.headlines(USER) == ["  Banned from banning for another 10 minutes (spam, by mod)"]

    def test_who_set_a_ban_is_beside_its_event(self) -> None:
        with freeze(START):
            ban("banning", USER, 600, by="guard")

        shown = run("quota_status", USER)

        assert shown.endswith(", until 2025-11-21 04:50:00Z, by banning (by guard)\n")

    def test_a_ban_of_a_user_is_told_without_a_table_of_users(
        self, database: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with freeze(START):
            ban("banning", USER, 600, by=(mod := User.objects.create_user("mod")))
        monkeypatch.setattr(quota_status, "user_names", Mock(side_effect=ProgrammingError("no such table")))

        assert self.headlines(USER) == [f"  Banned from banning for another 10 minutes (by user:{mod.pk})"]

    def test_a_later_ban_of_the_address_of_a_user_hides_no_reason(self, database: Any, settings: Any) -> None:
        settings.QUOTA["RULES"]["banning"]["key"] = "ip"
        request = RequestFactory().get("/viewed/", REMOTE_ADDR="203.0.113.9")
        request.user = User(pk=42)
        with freeze(START):
            ban("banning", USER, 600, reason="spam")
            for _ in range(3):
                check("banning", request)

        shown = self.headlines(USER)

        assert "  Banned from banning for another 10 minutes (spam)" in shown

    @pytest.mark.parametrize(
        ("typed", "subject"), [("203.0.113.9", SUBJECT), ("user:7", "user:7")], ids=["an address", "a subject"]
    )
    def test_what_is_a_subject_is_not_the_name_of_a_user(self, typed: str, subject: str) -> None:
        User.objects.create_user(typed)

        assert run("quota_status", typed).splitlines()[0] == subject

    def test_a_quiet_command_prints_what_was_asked_for(self) -> None:
        assert run("quota_status", USER, "--verbosity", "0").splitlines()[0] == USER

    def test_it_says_that_a_limit_admits_nothing(self, settings: Any) -> None:
        settings.QUOTA["RULES"]["never"] = "0/m"

        shown = run("quota_status", USER, "--rule", "never")

        assert "  Refused by never for good\n" in shown
        assert "    ████████████████████ 0 of 0 used, 0 left; no hit is admitted\n" in shown

    @pytest.mark.parametrize(
        ("rates", "says"),
        [
            pytest.param("1/m; 1/h", "for 1 hour", id="the second"),
            pytest.param("1/h; 1/m", "for 1 hour", id="the first"),
            pytest.param("1/m; 0/d", "for good", id="the second, which admits nothing"),
            pytest.param("0/d; 1/m", "for good", id="the first, which admits nothing"),
        ],
    )
    def test_of_two_limits_the_longer_wait_counts(self, rates: str, says: str, settings: Any) -> None:
        settings.QUOTA["RULES"]["search"] = "1/m; 1/h"
        with freeze(START):
            check("search", USER)
        settings.QUOTA = {**settings.QUOTA, "RULES": {"search": rates}}

        assert self.headlines(USER) == [f"  Refused by search {says}"]

    def test_it_says_which_limit_refuses(self) -> None:
        with freeze(START):
            check("search", USER, 10)

        assert self.headlines(USER) == ["  Refused by search for 1 minute"]

    def test_a_name_that_only_events_have_is_a_known_subject(self, ann: User, raw: redis.Redis) -> None:
        written: Any = event_fields(kind="refused", rule="search", subject="ann", until=0, capacity=10)
        raw.xadd("quota:1:{!}:events", written)

        shown = run("quota_status", "ann")

        assert shown.startswith("ann\n")
        assert "Note" not in shown

    def test_it_takes_the_name_of_a_user(self, ann: User) -> None:
        with freeze(START):
            check("search", ann, 10)

        shown = run("quota_status", "ann")

        assert shown.startswith(f"user:{ann.pk} (ann)\n  Refused by search for 1 minute\n")
        assert f"Note: 'ann' is taken for 'user:{ann.pk}'.\n" in shown

    def test_a_named_rule_of_a_user_leaves_out_others(self, ann: User) -> None:
        for rule in ("search", "banning"):
            check(rule, ann)

        limits = run("quota_status", "ann", "--rule", "banning", "--json")["limits"]

        assert {limit["rule"] for limit in limits} == {"banning"}

    def test_a_name_of_several_users_is_an_error(self) -> None:
        first, second = (User.objects.create_user(name, "one@example.org") for name in ("ann", "bob"))

        with pytest.raises(CommandError) as caught:
            run("quota_status", "one@example.org")

        assert str(caught.value) == (f"'one@example.org' may be user:{first.pk}, user:{second.pk}. Use one of them.")

    @pytest.fixture
    def locked_out(self, ann: User, settings: Any) -> None:
        """Ann, at one address."""
        settings.AUTHENTICATION_BACKENDS = [
            "django_quota.contrib.auth.LoginQuotaBackend",
            "django.contrib.auth.backends.ModelBackend",
        ]
        login = RequestFactory().post("/", REMOTE_ADDR="203.0.113.9")
        with freeze(START):
            for _ in range(6):
                with suppress(LoginRefused):
                    authenticate(login, username="ann", password="wrong")

    @pytest.mark.usefixtures("locked_out")
    def test_it_says_that_a_login_is_locked(self) -> None:
        assert self.headlines("ann") == ["  Login of ann is locked at 203.0.113.9 for 10 minutes"]

    @pytest.mark.usefixtures("ann")
    def test_it_says_that_a_login_is_locked_everywhere(self, settings: Any) -> None:
        settings.AUTHENTICATION_BACKENDS = [
            "django_quota.contrib.auth.LoginQuotaBackend",
            "django.contrib.auth.backends.ModelBackend",
        ]
        settings.QUOTA = {**settings.QUOTA, "LOGIN": {"1/h": "username"}}
        with freeze(START):
            for _ in range(2):
                with suppress(QuotaExceeded):
                    authenticate(username="ann", password="wrong")

        assert self.headlines("ann") == ["  Login of ann is locked for 1 hour"]

    @pytest.mark.usefixtures("locked_out")
    def test_it_says_that_a_login_is_locked_without_an_end(self) -> None:
        override("b 0 0 ", "*", f"{login_subject('ann')}+{SUBJECT}")

        assert self.headlines("ann") == ["  Login of ann is locked at 203.0.113.9"]

    @pytest.mark.usefixtures("locked_out")
    def test_an_address_shows_what_is_together_with_it_after_the_refusal(self) -> None:
        with freeze(START + 601 * SECOND):
            shown = said("quota_status", "203.0.113.9")

        assert f"  together  {login_subject('ann')}+{SUBJECT} is not refused now\n" in shown

    @pytest.mark.usefixtures("locked_out")
    def test_a_headline_about_a_login_is_not_repeated_below(self) -> None:
        assert "together" not in run("quota_status", "ann")

    @pytest.mark.usefixtures("locked_out")
    def test_no_login_is_locked_where_logins_are_not_limited_any_more(self, settings: Any) -> None:
        settings.AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend"]

        assert self.headlines("ann") == []

    @pytest.mark.usefixtures("locked_out")
    def test_a_login_is_no_longer_locked_after_its_window(self) -> None:
        with freeze(START + 601 * SECOND):
            assert "is locked" not in said("quota_status", "ann")

    def test_a_named_rule_leaves_out_the_overrides_of_others(self, database: Any) -> None:
        for rule in ("search", "viewed", "*"):
            QuotaOverride.objects.create(subject=USER, mode="shadow", rule=rule)

        shown = run("quota_status", USER, "--rule", "search")

        assert re.findall("override  (.*):", shown) == ["search", "*"]

    def test_an_unknown_rule_names_the_known_ones(self) -> None:
        says = "There is no rule 'reports'. The rules are banning, free, search, viewed. A rate, such as '10/m', is a"

        with pytest.raises(CommandError, match=re.escape(says)):
            run("quota_status", USER, "--rule", "reports")


@pytest.mark.django_db
def test_a_refusal_whose_names_were_too_long_to_keep_is_shown(raw: redis.Redis) -> None:
    written: Any = event_fields(
        kind="refused", rule="", subject="", user=USER, until=0, capacity=10, method="GET", path="/"
    )
    raw.xadd("quota:1:{!}:events", written)

    assert "by a rule with a very long name (limit 10), as a subject with a very long name\n" in run(
        "quota_status", USER
    )
