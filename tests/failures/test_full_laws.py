"""A Redis that is full now and then: what it decides is right, and what it does not changes nothing.

Beside it, the memory store does what Redis has done.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota.algorithms import NUMBERS
from django_quota.clock import SECOND
from django_quota.exceptions import StoreUnavailable
from django_quota.limiter import get_limiter
from django_quota.operations.decide import reserving, settling
from django_quota.plans import Plan
from django_quota.rules import Rule
from django_quota.stores.base import Store
from django_quota.stores.memory import MemoryStore
from django_quota.testing import RedisServer, running_redis, server_programs
from tests.conftest import _named, caches
from tests.inputs import inputs
from tests.steps import START

SUBJECT = "ip:192.0.2.1"
ALGORITHMS = ["fixed_window", "sliding_window", "token_bucket", "leaky_bucket"]


STEPS = 40
KINDS = ["check", "check", "check", "peek", "refund", "reserve", "settle"]


def rules_of(chance: Random) -> list[Rule]:
    return [
        Rule.make(
            f"r{number}",
            *chance.choice([("6/m",), ("6/m", "20/h"), ("300/m",)]),
            algorithm=chance.choice(ALGORITHMS),
            shadow=chance.random() < 0.15,
            block=chance.random() < 0.8,
        )
        for number in range(chance.randint(1, 3))
    ]


@pytest.fixture(scope="module", params=server_programs(), ids=_named)
def its_own(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with running_redis(request.param) as server:
        yield server


def decided(store: Store, rules: list[Rule], cost: int, mode: str, now: int) -> tuple[Plan, list[int]]:
    """Return a plan of these rules as the store has decided it, and what was said of its limits."""
    plan = Plan("quota")
    for rule in rules:
        plan.add(rule, SUBJECT, cost)
    if mode.startswith(("reserve", "settle")):
        plan.holding()
    while True:
        reply = store.run(plan.operation(now, mode), now)
        if plan.read(reply) is not None:
            return plan, reply[: 2 + NUMBERS * sum(len(hit.limits) for hit in plan.hits)]
        plan.revise(reply)


@given(st.randoms(use_true_random=True))  # what Hypothesis would rather try is too seldom a hold that is due
@inputs(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_full_redis_decides_is_right_and_what_it_does_not_changes_nothing(
    its_own: RedisServer, settings: Any, chance: Random
) -> None:
    settings.CACHES = caches(its_own)
    rules = rules_of(chance)
    store, model, now = get_limiter().store, MemoryStore(sweep_every=3_600), START
    held: list[tuple[Rule, str]] = []
    with redis.Redis.from_url(its_own.url) as client:
        client.flushall()
        try:
            for number in range(STEPS):
                now += chance.choice([0, SECOND // 2, SECOND, 5 * SECOND, 20 * SECOND])
                kind, cost, ttl = chance.choice(KINDS), chance.choice([0, 1, 1, 2, 3]), chance.choice([2, 6]) * SECOND
                asked, mode, settled = [chance.choice(rules)], kind, None
                if kind in ("check", "peek"):
                    asked = rules
                elif kind == "reserve":
                    cost, mode = max(1, cost), reserving(str(number), ttl)
                elif kind == "settle":
                    if not held:
                        continue
                    settled = chance.choice(held)
                    asked, cost, mode = [settled[0]], 1, settling(settled[1], chance.choice([0, 1, 5]))
                is_full = chance.random() < 0.5
                client.config_set("maxmemory", int(is_full))
                try:
                    plan, said = decided(store, asked, cost, mode, now)
                except StoreUnavailable:
                    assert is_full
                    continue
                assert said == decided(model, asked, cost, mode, now)[1]
                if settled is not None:
                    held.remove(settled)
                if kind == "reserve" and (name := plan.held(str(number), ttl)):
                    held.append((asked[0], name))
        finally:
            client.config_set("maxmemory", 0)
            model.close()
