"""A Redis that is out of memory now and then. The memory store repeats what Redis has done, for comparison."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.engine.codec import PER_LIMIT, HoldId, Mode, PlainMode, Reservation, Settle
from django_quota.engine.plans import Plan
from django_quota.exceptions import StoreUnavailable
from django_quota.stores.base import Store
from django_quota.stores.memory import MemoryStore
from django_quota.testing import RedisServer, running_redis
from tests.support.inputs import inputs
from tests.support.steps import SECOND, START, include_holds
from tests.support.stores import caches, current_store, named, programs

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


@pytest.fixture(scope="module", params=programs(), ids=named)
def its_own(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with running_redis(request.param) as server:
        yield server


_PLAIN: dict[str, PlainMode] = {"check": "check", "peek": "peek", "refund": "refund"}


def decided(
    store: Store, rules: list[Rule], cost: int, mode: Mode, now: int, reservation: Reservation | None = None
) -> tuple[Plan, list[int]]:
    """Return a plan of these rules as the store has decided it, and what was said of its limits."""
    plan = Plan("quota")
    for rule in rules:
        plan.add(rule, SUBJECT, cost)
    if isinstance(mode, Settle):
        include_holds(plan)
    if reservation is not None:
        plan.reserve(reservation)
    while True:
        reply = store.run(plan.operation(now, mode), now)
        if plan.read(reply) is not None:
            return plan, reply[: 2 + PER_LIMIT * sum(len(hit.limits) for hit in plan.hits)]
        plan.revise(reply)


@given(st.randoms(use_true_random=True))  # what Hypothesis would rather try is too seldom a hold that is due
@inputs(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_full_redis_decides_correctly_or_changes_nothing(its_own: RedisServer, settings: Any, chance: Random) -> None:
    settings.CACHES = caches(its_own)
    rules = rules_of(chance)
    store, model, now = current_store(), MemoryStore(sweep_interval=3_600), START
    held: list[tuple[Rule, HoldId]] = []
    with redis.Redis.from_url(its_own.url) as client:
        client.flushall()
        try:
            for number in range(STEPS):
                now += chance.choice([0, SECOND // 2, SECOND, 5 * SECOND, 20 * SECOND])
                kind, cost, ttl = chance.choice(KINDS), chance.choice([0, 1, 1, 2, 3]), chance.choice([2, 6]) * SECOND
                asked, settled, reservation = [chance.choice(rules)], None, None
                mode: Mode = _PLAIN.get(kind, "check")
                if kind in ("check", "peek"):
                    asked = rules
                elif kind == "reserve":
                    cost, reservation = max(1, cost), Reservation(str(number), ttl)
                elif kind == "settle":
                    if not held:
                        continue
                    settled = chance.choice(held)
                    asked, cost, mode = [settled[0]], 1, Settle.of([settled[1]], [chance.choice([0, 1, 5])])
                is_full = chance.random() < 0.5
                client.config_set("maxmemory", int(is_full))
                try:
                    plan, said = decided(store, asked, cost, mode, now, reservation)
                except StoreUnavailable:
                    assert is_full
                    continue
                assert said == decided(model, asked, cost, mode, now, reservation)[1]
                if settled is not None:
                    held.remove(settled)
                if kind == "reserve" and (name := plan.holds[0]):
                    held.append((asked[0], name))
        finally:
            client.config_set("maxmemory", 0)
            model.close()
