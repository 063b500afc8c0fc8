"""What overrides decide before a store is asked, and the hits that are left for it."""

from typing import Any

import pytest

from django_quota import Rule, counter
from django_quota.core.clock import DAY
from django_quota.core.overrides import Override, OverrideMode, OverrideTable
from django_quota.engine import resolving
from django_quota.engine.asks import Ask, Asked, Place
from django_quota.engine.compiled import compiled
from django_quota.engine.events import NO_LOG
from django_quota.engine.resolving import Resolved, Scope, event_log_of, hits_of, resolve, rule_under
from django_quota.exceptions import RuleError
from tests.support.steps import MINUTE, START

USER = "user:1"
PLAIN, NAMESAKE = Rule.make("plain", "5/m; 9/h"), Rule.make("plain", "99/d")
SHADOW, ASIDE = Rule.make("shadow", "5/m", shadow=True), Rule.make("aside", "5/m", block=False)
UNLIMITED = Rule.make("unlimited", {"free": "5/m", "staff": None}, tier=lambda _: "staff").tiers["staff"]
CREDITS = counter("credits").as_take


def under(override: OverrideMode, /, *rules: Asked, ends: int = 0, **options: Any) -> Resolved:
    """Resolve a hit of each rule while an override of all rules applies to the subject."""
    table = OverrideTable([Override(1, USER, "*", override, "7/m" if override == "rate" else "", ends=ends)])
    return resolve([Ask(rule, USER, 2) for rule in rules], table, START, **options)


@pytest.mark.parametrize(
    ("override", "mode", "is_asked"),
    [
        ("blocked", "check", False), ("blocked", "peek", False), ("blocked", "force", True),
        ("blocked", "refund", True), ("exempt", "check", False), ("exempt", "peek", False), ("exempt", "force", False),
        ("exempt", "refund", False), ("rate", "check", True), ("shadow", "check", True),
    ],
)  # fmt: skip
def test_a_store_is_asked_about_what_an_override_does_not_decide(override: Any, mode: Any, is_asked: bool) -> None:
    resolved = under(override, PLAIN, mode=mode)

    assert [ask.place for ask in resolved.for_store] == [Place("plain", USER)] * is_asked
    assert resolved.skipped == (set() if is_asked else {Place("plain", USER)})


@pytest.mark.parametrize("override", ["blocked", "exempt"])
@pytest.mark.parametrize(("settled", "is_asked"), [("plain", True), ("other", False)], ids=["this hit", "another hit"])
def test_a_store_is_asked_about_a_hit_that_is_settled_whatever_the_override(
    override: Any, settled: str, is_asked: bool
) -> None:
    resolved = under(override, PLAIN, taken={Place(settled, USER)})

    assert bool(resolved.for_store) is is_asked
    assert len(resolved.decided_by_overrides()) == (not is_asked)


@pytest.mark.parametrize("override", ["blocked", "exempt", "rate", "shadow"])
def test_a_counter_has_no_override(override: Any) -> None:
    resolved = under(override, CREDITS)

    assert (list(resolved.for_store), list(resolved.by_override)) == ([Ask(CREDITS, USER, 2)], [])


def test_while_limits_are_off_only_counters_are_asked_for() -> None:
    resolved = under("blocked", PLAIN, CREDITS, counters_only=True)

    assert ([ask.rule for ask in resolved.for_store], resolved.is_blocked) == ([CREDITS], False)


def test_only_another_rate_is_shown_as_an_override() -> None:
    assert [under(mode, PLAIN).overridden for mode in ("rate", "shadow")] == [{Place("plain", USER)}, set()]


@pytest.mark.parametrize("in_database", [False, True], ids=["the first store", "the database"])
def test_each_store_knows_whose_rate_is_another_one(in_database: bool) -> None:
    asked = PLAIN.but(store="database") if in_database else PLAIN

    part = under("rate", asked, SHADOW.but(store=None if in_database else "database")).part(in_database=in_database)

    assert [ask.place for ask in part.for_store] == [Place("plain", USER)]
    assert Place("plain", USER) in part.overridden


def test_what_was_asked_stays_known_whatever_is_counted_instead() -> None:
    resolved = under("rate", PLAIN, mode="force")

    assert [ask.rule for ask in resolved.asked] == [PLAIN]
    assert [ask.rule for ask in resolved.for_store] == [PLAIN.but(block=False).with_rates("7/m")]


class TestOutcomes:
    def test_an_exempt_subject_has_all_of_each_limit(self) -> None:
        decision = under("exempt", PLAIN).decision_by_overrides()

        found = [(each.limit, each.remaining, each.cost, each.why) for each in decision.outcomes]
        assert found == [(5, 5, 2, "exempt"), (9, 9, 2, "exempt")]
        assert {(each.retry_after, each.reset_after, each.next_after) for each in decision.outcomes} == {
            (0.0, 0.0, None)
        }

    @pytest.mark.parametrize(
        ("ends", "retry", "reset"), [(START + MINUTE, 60.0, 60.0), (0, None, 0.0)], ids=["for a minute", "for good"]
    )
    def test_a_blocked_subject_waits_until_the_override_ends(self, ends: int, retry: Any, reset: float) -> None:
        decision = under("blocked", PLAIN, ends=ends).decision_by_overrides()

        assert [(each.limit, each.remaining, each.cost, each.why) for each in decision.outcomes] == [
            (5, 0, 2, "blocked"), (9, 0, 2, "blocked"),
        ]  # fmt: skip
        assert {(each.retry_after, each.reset_after, each.next_after) for each in decision.outcomes} == {
            (retry, reset, retry)
        }

    def test_a_subject_without_a_limit_is_blocked_too(self) -> None:
        (outcome,) = under("blocked", UNLIMITED).decision_by_overrides().outcomes

        assert (outcome.rule, outcome.limit, outcome.allowed) == ("unlimited", 0, False)

    def test_an_exemption_from_no_limit_decides_nothing(self) -> None:
        resolved = under("exempt", UNLIMITED)

        assert (resolved.decided_by_overrides(), resolved.decision_by_overrides()) == ([], resolved.unlimited())

    def test_a_block_decides_though_the_subject_has_no_limit(self) -> None:
        assert [each.ask.rule for each in under("blocked", UNLIMITED).decided_by_overrides()] == [UNLIMITED]

    def test_rules_of_one_name_have_the_outcomes_of_all_their_limits(self) -> None:
        decision = under("blocked", PLAIN, NAMESAKE).decision_by_overrides()

        assert [each.limit for each in decision.outcomes] == [5, 9, 99]

    def test_a_rule_that_is_asked_twice_has_one_outcome_for_each_limit(self) -> None:
        resolved = under("blocked", PLAIN, PLAIN)

        assert [each.limit for each in resolved.decision_by_overrides().outcomes] == [5, 9]
        assert len(resolved.decided_by_overrides()) == 1


@pytest.mark.parametrize(
    ("override", "rules", "allowed", "enforced"),
    [
        pytest.param("blocked", [PLAIN], False, True, id="a rule"),
        pytest.param("blocked", [SHADOW], True, False, id="a shadow"),
        pytest.param("blocked", [ASIDE], False, False, id="a rule that does not block"),
        pytest.param("blocked", [PLAIN, SHADOW], False, True, id="a rule before a shadow"),
        pytest.param("blocked", [SHADOW, PLAIN], False, True, id="a rule after a shadow"),
        pytest.param("blocked", [PLAIN, ASIDE], False, True, id="a rule before one that does not block"),
        pytest.param("blocked", [SHADOW, ASIDE], False, False, id="neither of two blocks"),
        pytest.param("exempt", [PLAIN], True, False, id="an exemption"),
        pytest.param("exempt", [ASIDE], True, False, id="an exemption from a rule that does not block"),
    ],
)
def test_overrides_decide_a_request_by(override: Any, rules: list[Asked], allowed: bool, enforced: bool) -> None:
    resolved = under(override, *rules)

    decision = resolved.decision_by_overrides()

    assert (decision.allowed, decision.enforced, resolved.is_blocked) == (allowed, enforced, enforced)
    assert {each.enforced for each in decision.outcomes} == {rule.block and not rule.shadow for rule in rules}


class TestWithoutAStore:
    @pytest.mark.parametrize(
        ("refusing", "name", "allowed", "enforced"),
        [
            pytest.param([PLAIN], "plain", False, True, id="a rule"),
            pytest.param([ASIDE], "aside", False, False, id="a rule that does not block"),
            pytest.param([ASIDE, PLAIN], "plain", False, True, id="preferably one that blocks"),
            pytest.param([SHADOW], "aside", True, False, id="no shadow"),
            pytest.param([UNLIMITED], "aside", True, False, id="no rule without a limit"),
            pytest.param([], "aside", True, False, id="none"),
        ],
    )
    def test_the_request_is_refused_by(self, refusing: Any, name: str, allowed: bool, enforced: bool) -> None:
        asks = [Ask(rule, USER, 1) for rule in (ASIDE, PLAIN, SHADOW, UNLIMITED)]

        decision = resolve(asks, OverrideTable(), START).without_store(refusing)

        assert (decision.rule, decision.allowed, decision.enforced, decision.degraded) == (
            name, allowed, enforced, True,
        )  # fmt: skip

    @pytest.mark.parametrize("degraded", [False, True])
    @pytest.mark.parametrize(("rules", "name"), [([PLAIN, ASIDE], "plain"), ([], "")], ids=["two rules", "no rule"])
    def test_a_request_that_nothing_limits_has_the_name_of_its_first_rule(
        self, rules: list[Asked], name: str, degraded: bool
    ) -> None:
        resolved = resolve([Ask(rule, USER, 1) for rule in rules], OverrideTable(), START)

        decision = resolved.unlimited(degraded=degraded)

        assert (decision.allowed, decision.rule, decision.degraded) == (True, name, degraded)


SCOPE = Scope("site", database_prefix="shared")


class TestHits:
    def test_a_rule_counts_in_the_database_under_the_prefix_of_the_database(self) -> None:
        rules = [PLAIN, Rule.make("month", "5/week", store="database")]

        hits = hits_of([Ask(rule, USER, 1) for rule in rules], SCOPE, START)

        assert [hit.base for hit in hits] == ["site:1:{user:1}:", "shared:1:{user:1}:"]

    def test_without_a_prefix_of_its_own_the_database_has_that_of_the_site(self) -> None:
        (hit,) = hits_of([Ask(Rule.make("month", "5/week", store="database"), USER, 1)], Scope("site"), START)

        assert hit.base == "site:1:{user:1}:"

    def test_each_rule_that_decides_alone_is_a_group_of_its_own(self) -> None:
        hits = hits_of([Ask(rule, USER, 1) for rule in (SHADOW, PLAIN, ASIDE)], SCOPE, START)

        assert [hit.group for hit in hits] == [1, 0, 2]

    @pytest.mark.parametrize("cost", [0, 1])
    def test_a_hit_of_a_different_value_costs_one_or_asks_whether_there_is_room(self, cost: int) -> None:
        ask = Ask(Rule.make("devices", "3/m", distinct=True), USER, cost, "a1")

        assert [hit.cost for hit in hits_of([ask], SCOPE, START)] == [cost]

    def test_a_hit_of_a_different_value_that_costs_more_is_an_error(self) -> None:
        ask = Ask(Rule.make("devices", "3/m", distinct=True), USER, 2, "a1")

        with pytest.raises(RuleError, match="'devices' counts different values: a hit costs 1, not 2"):
            hits_of([ask], SCOPE, START)

    @pytest.mark.parametrize("change", [{"cost": 2}, {"is_estimate": True}, {"value": "a1"}], ids=str)
    def test_rules_of_one_name_that_ask_for_different_hits_are_an_error(self, change: Any) -> None:
        with pytest.raises(RuleError, match="a name of its own"):
            hits_of([Ask(PLAIN, USER, 1), Ask(NAMESAKE, USER, 1)._replace(**change)], SCOPE, START)

    def test_rules_of_one_name_make_one_hit(self) -> None:
        assert len(hits_of([Ask(PLAIN, USER, 1), Ask(NAMESAKE, USER, 1)], SCOPE, START)) == 1

    @pytest.mark.parametrize(
        ("rule", "moment"),
        [
            pytest.param(Rule.make("a", "5/m", daily=False), None, id="a window"),
            pytest.param(Rule.make("a", "5/m", daily=True), START, id="a day is counted"),
            pytest.param(Rule.make("a", "5/d", algorithm="calendar", daily=False), START, id="a period"),
        ],
    )
    def test_a_hit_has_a_moment_if_anything_depends_on_it(self, rule: Rule, moment: int | None) -> None:
        (hit,) = hits_of([Ask(rule, USER, 1)], SCOPE, START)

        assert hit.moment == moment
        assert hit.at(START + DAY, "UTC").moment == (moment if moment is None else START + DAY)


def test_the_rates_of_overrides_that_a_rule_remembers_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "MAX_RATES", 3)
    rule = Rule.make("remembering", "5/m")

    found = [rule_under(rule, Override(1, USER, "*", "rate", f"{count}/m")).limits[0].capacity for count in range(1, 9)]

    assert (found, len(compiled(rule).under)) == ([*range(1, 9)], 3)


def test_events_are_on_if_any_may_be_kept() -> None:
    assert event_log_of("site", 1, 3) == (["site:1:{!}:events", "site:1:{!}:bans"], 1, 3 * DAY)


def test_events_are_off_if_none_may_be_kept() -> None:
    assert event_log_of("site", 0, 3) is NO_LOG
