"""The meters of stalls: a process that is not given its turn is seen, and one that waits by itself is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.chaos.records import Stall
from tests.chaos.stalls import measured_of
from tests.support.commands import wait_until

pytestmark = pytest.mark.thorough("chaos")

tells = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not tell")
AT_WORK = "print(flush=True)\nwhile True: pass"
IDLE = "import time\nprint(flush=True)\ntime.sleep(600)"


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ}) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


@tells
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be kept to one CPU")
def test_a_process_that_shares_its_cpu_is_seen_to_wait_and_one_that_sleeps_is_not() -> None:
    stalls: dict[int, list[Stall]] = {}
    with running(IDLE) as idle, ExitStack() as rivals:
        # So many that a turn of each of the others, a few milliseconds, adds up to more than what is noted.
        (busy, *others) = (rivals.enter_context(running(AT_WORK)) for _ in range(12))
        for process in (busy, *others):
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        with measured_of(lambda: [busy.pid, idle.pid], stalls):
            wait_until(lambda: len(stalls.get(busy.pid, [])) > 3)
    assert set(stalls) == {busy.pid}
