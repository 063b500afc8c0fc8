"""Lua and specification are driven with the same random operations, costs and times, and must never differ.

After every step the laws hold: every key has a TTL, and a refused or peeked operation has changed nothing.
"""

from __future__ import annotations

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from django_quota.clock import SECOND
from django_quota.operations.base import DictStates
from django_quota.operations.decide import ALLOWED, Decide, Mode
from django_quota.operations.forget import Forget
from django_quota.plans import Plan
from django_quota.rules import Rule
from django_quota.stores.memory import MemoryStore
from django_quota.stores.redis import RedisStore
from django_quota.testing import RedisServer
from tests.steps import START, answers, decided

RULES = [
    Rule.make("exact", "5/m"),
    Rule.make("slices", "40/m; 150/h", precision=7),
    Rule.make("packed", "250/m"),
    Rule.make("huge", f"{10**12}/d"),
    Rule.make("none", "0/m"),
    Rule.make("counted", "6/m", count_refused=True),
    Rule.make("fixed", "9/m", algorithm="fixed_window"),
    Rule.make("fixed-counted", "9/m", algorithm="fixed_window", count_refused=True),
    Rule.make("calendar", "9/m; 40/d; 90/month", algorithm="calendar", tz="Europe/Berlin"),
    Rule.make("bucket", "7/m", algorithm="token_bucket"),
    Rule.make("burst", "7/m", algorithm="token_bucket", burst=20),
    Rule.make("burst-counted", "7/m", algorithm="token_bucket", burst=3, count_refused=True),
    Rule.make("leaky", "11/m", algorithm="leaky_bucket"),
    Rule.make("shadow", "4/m; 10/h", shadow=True),
    Rule.make("aside", "4/m", algorithm="fixed_window", block=False),
]
GAPS = st.one_of(
    st.integers(0, 3), st.integers(0, 90 * SECOND), st.sampled_from([60 * SECOND, 60 * SECOND - 1, 3_600 * SECOND])
)
COSTS = st.one_of(st.integers(0, 12), st.sampled_from([100, 10**12]))


class Twins(RuleBasedStateMachine):
    """One plan after another, through real Redis, the memory store and the bare specification."""

    store: RedisStore
    raw: redis.Redis

    @initialize(phase=st.integers(0, 86_400 * SECOND))
    def begin(self, phase: int) -> None:
        self.raw.flushall()
        self.memory = MemoryStore(shards=3, sweep_every=3_600)
        self.states = DictStates()
        self.now = START + phase

    def teardown(self) -> None:
        if hasattr(self, "memory"):
            self.memory.close()

    @rule(gap=GAPS)
    def time_passes(self, gap: int) -> None:
        self.now += gap

    @rule(gap=st.integers(1, 2 * SECOND))
    def the_clock_steps_back(self, gap: int) -> None:
        self.now -= gap

    @rule(gap=GAPS)
    def the_memory_store_sweeps(self, gap: int) -> None:
        self.now += gap
        self.memory.sweep(self.now - 2 * SECOND)  # no further than the clock may step back

    @rule(
        mode=st.sampled_from(["check", "check", "check", "peek", "refund"]),
        asked=st.lists(
            st.tuples(st.sampled_from(RULES), st.sampled_from(["ip:1.2.3.4", "user:1"]), COSTS),
            min_size=1,
            max_size=3,
            unique_by=lambda hit: (hit[0].name, hit[1]),  # one rule asks one subject once, in a plan
        ),
        stale=st.integers(0, 40),
    )
    def a_plan_is_decided(self, mode: Mode, asked: list[tuple[Rule, str, int]], stale: int) -> None:
        plan = Plan("quota")
        for its_rule, subject, cost in asked:
            plan.add(its_rule, subject, cost)
        steps = plan.steps(self.now - (0 if stale else 3 * 86_400 * SECOND))
        before = self.dump()
        reply = decided(self.store, steps, mode, self.now)
        assert reply == Decide(steps, mode).run(self.states, self.now)
        assert reply == decided(self.memory, steps, mode, self.now)
        self.every_key_has_a_ttl()
        for step, answer in zip(steps, answers(reply), strict=False):
            assert not answer.ok or answer.wait == 0 or step.limit.algorithm.name == "leaky_bucket"
        after = self.dump()
        refused = {step.group for step, answer in zip(steps, answers(reply), strict=False) if not answer.ok}
        for step in steps:
            changes_nothing = mode == "peek" or (mode == "check" and (reply[1] != ALLOWED or step.group in refused))
            if changes_nothing and not (mode == "check" and step.limit.options.count_refused):
                assert after.get(step.key.encode()) == before.get(step.key.encode())

    @rule(its_rule=st.sampled_from(RULES), subject=st.sampled_from(["ip:1.2.3.4", "user:1"]))
    def a_rule_is_reset(self, its_rule: Rule, subject: str) -> None:
        plan = Plan("quota")
        plan.add(its_rule, subject, 0)
        there = self.raw.exists(*plan.keys)
        assert self.store.run(Forget(plan.keys)) == there
        self.memory.run(Forget(plan.keys))
        for key in plan.keys:
            self.states.drop(key)

    def dump(self) -> dict[bytes, bytes | None]:
        return {key: self.raw.dump(key) for key in self.raw.scan_iter()}

    def every_key_has_a_ttl(self) -> None:
        assert all(self.raw.pttl(key) > 0 for key in self.raw.scan_iter())


@pytest.mark.usefixtures("redis_cache")
def test_lua_and_specification_never_differ(raw: redis.Redis, redis_server: RedisServer) -> None:
    Twins.store = RedisStore("default")
    Twins.raw = raw
    run_state_machine_as_test(
        Twins,
        settings=settings(
            max_examples=200, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    Twins.store.close()
