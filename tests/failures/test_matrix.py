"""Each failure of a real Redis, met by each public call: never an exception but ours, and all is well afterwards."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.failures.calls import CALLS, WAYS
from tests.failures.harms import HARMS, PASSWORD, Harm, Place
from tests.failures.places import Clock, caches_at, goes_on, prepared, with_site, wrongs_without_redis

READS = {
    "peek", "reset", "settle", "cancel", "counter.get", "counter.series", "counter.take", "counter.unique_count",
    "holders",
}  # fmt: skip
"""What needs to write nothing in these tests: a server that refuses writes alone answers it, and rightly."""

FREES = {"counter.pop", "refund", "release what was held before", "settle what was held before"}
"""What a full server does, too, since it takes memory from nobody."""

ANSWERED = {
    "read-only": READS - {"reset"},
    "cannot-save": READS - {"reset"},
    "no-replicas": READS - {"reset"},
    "full": READS | FREES,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.name)
def test_every_call_keeps_its_promise_and_goes_on_by_itself(
    harm: Harm, way: str, place: Place, settings: Any, request: pytest.FixtureRequest
) -> None:
    if not harm.suits(place):
        pytest.skip(f"{request.node.callspec.id}: this version cannot be brought into the state, see harms.py")
    place.client.flushall()
    settings.CACHES = caches_at(place.anonymous_url if harm.is_anonymous else place.url, harm.patience)
    with_site(settings)
    clock = Clock()
    states = [prepared(call) for call in CALLS]
    with harm.do(place):
        found = wrongs_without_redis(way, states, clock)
    said = found.pop("said")
    answered = ANSWERED.get(harm.name, set())
    assert {name: wrong for name, (wrong, ill) in found.items() if ill or name not in answered} == {}
    assert all(re.search(harm.words, words) and PASSWORD not in words for words in said), said
    goes_on(way, clock)
