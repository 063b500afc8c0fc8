"""Each fault of a real Redis with each public call: only our errors, and everything works afterwards."""

import re
from typing import Any

import pytest

from tests.faults.calls import CALLS, MODES
from tests.faults.faults import FAULTS, PASSWORD, Fault, FaultyServer
from tests.faults.harness import assert_recovers, broken_promises, caches_at, prepared, use_site_rules
from tests.support.steps import Clock

READS = {
    "peek", "reset", "counter.get", "counter.series", "counter.take", "counter.unique_count", "holders", "unban",
}  # fmt: skip
"""What needs to write nothing in these tests: a server that refuses writes alone answers it, and rightly."""

FREES = {"counter.pop", "refund", "release what was held before", "settle what was held before"}
"""What a full server does, too, since it takes memory from nobody."""

ANSWERED = {**dict.fromkeys(("read-only", "cannot-save", "no-replicas"), READS - {"reset"}), "full": READS | FREES}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_each_call_keeps_its_promise_during_a_fault_and_recovers(
    fault: Fault, server: FaultyServer, settings: Any
) -> None:
    settings.CACHES = caches_at(server.url, fault.timeout)
    use_site_rules(settings)
    clock = Clock()
    for mode in MODES[:1] if fault.name in ("hung", "loading") else MODES:  # under these each call waits
        server.client.flushall()
        states = [prepared(call) for call in CALLS]
        with fault.inject(server):
            found = broken_promises(mode, states, clock)
        said = found.pop("said")
        answered = ANSWERED.get(fault.name, set())
        assert {name: wrong for name, (wrong, ill) in found.items() if ill or name not in answered} == {}
        assert all(re.search(fault.words, words) and PASSWORD not in words for words in said), said
        assert_recovers(mode, clock)
