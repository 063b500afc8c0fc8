"""A Redis that is out of memory now and then. The memory store repeats what Redis has done, for comparison."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.engine.codec import PER_LIMIT
from django_quota.engine.plans import Plan, PlanMode
from django_quota.exceptions import StoreUnavailable
from django_quota.stores.base import Store
from django_quota.testing import RedisServer, running_redis
from tests.support.inputs import inputs
from tests.support.steps import SECOND, START
from tests.support.stores import UnsweptMemory, caches, current_store, named, programs

STEPS = 40
KINDS: list[PlanMode] = ["check", "check", "check", "peek", "refund", "adjust", "adjust"]
ALGORITHMS: list[Any] = ["fixed_window", "sliding_window", "token_bucket", "leaky_bucket"]


@pytest.fixture(scope="module", params=programs(), ids=named)
def its_own(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with running_redis(request.param) as server:
        yield server


def decided(store: Store, plan: Plan, mode: PlanMode, now: int) -> list[int]:
    """Return what a store says of the limits of a plan."""
    reply: list[int] = store.run(plan.operation(now, mode), now)
    assert plan.read(reply) is not None
    return reply[: 2 + PER_LIMIT * sum(len(hit.limits) for hit in plan.hits)]


@given(st.randoms(use_true_random=True))  # what Hypothesis would rather try is too seldom adjusted
@inputs(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_full_redis_decides_correctly_or_changes_nothing(its_own: RedisServer, settings: Any, chance: Random) -> None:
    settings.CACHES = caches(its_own)
    rules = [
        Rule.make(
            f"r{number}", *chance.choice([("6/m",), ("6/m", "20/h"), ("300/m",)]),
            algorithm=chance.choice(ALGORITHMS), shadow=chance.random() < 0.15, block=chance.random() < 0.8,
        )
        for number in range(chance.randint(1, 3))
    ]  # fmt: skip
    store, model, now = current_store(), UnsweptMemory(), START
    taken: list[Plan] = []
    with redis.Redis.from_url(its_own.url) as client:
        client.flushall()
        try:
            for _ in range(STEPS):
                now += chance.choice([0, SECOND // 2, SECOND, 5 * SECOND, 20 * SECOND])
                mode, cost = chance.choice(KINDS), chance.choice([0, 1, 1, 2, 3])
                asked = rules if mode in ("check", "peek") else [chance.choice(rules)]
                plans = [Plan("quota", asked=[(rule, "ip:192.0.2.1", cost, "") for rule in asked]) for _ in range(2)]
                if mode == "adjust":
                    if not taken:
                        continue
                    settled = chance.choice(taken)
                    actual = [chance.choice([0, 1, 5])] * len(settled.asked)
                    plans = [settled.settled(settled.taken, actual) for _ in range(2)]
                is_full = chance.random() < 0.5
                client.config_set("maxmemory", int(is_full))
                try:
                    said = decided(store, plans[0], mode, now)
                except StoreUnavailable:
                    assert is_full
                    continue
                assert said == decided(model, plans[1], mode, now)
                if mode == "adjust":
                    taken.remove(settled)
                elif mode == "check" and plans[0].taken:
                    taken.append(plans[0])
        finally:
            client.config_set("maxmemory", 0)
            model.close()
