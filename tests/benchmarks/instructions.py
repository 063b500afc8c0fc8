"""How many instructions a check takes in the client, by callgrind: figures that no other load on the machine moves.

They repeat within about 1 %, on the same Python and the same packages. Waiting for Redis takes none.
"""

import gc
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django_quota.testing import server_programs
from tests.benchmarks.measure import SUBJECTS, Work, fresh_ip, fresh_ips
from tests.benchmarks.processes import configure, in_process, redis_over_tcp

NEEDED = "valgrind", "callgrind_control"
FEW, MANY = 80, 320
"""Calls of two runs. Their difference is shown, so that what starts and ends the counting does not matter."""
NEW_SUBJECTS = 10_000
"""New subjects that come before those that are counted: more than any of the caches holds."""


def are_countable() -> bool:
    return all(map(shutil.which, NEEDED))


def count(few: int = FEW, many: int = MANY, new: int = NEW_SUBJECTS) -> list[dict[str, Any]]:
    """Count the instructions of all rows, in a process that callgrind runs, on a Redis of their own."""
    with tempfile.TemporaryDirectory() as folder, redis_over_tcp(server_programs()[0]) as url:
        options = ["-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        given = (url, folder, few, many, new)
        counted: list[dict[str, Any]] = in_process(
            "tests.benchmarks.instructions:rows", *given, under=["valgrind", *options]
        )
    return counted


# --- in the process that is counted -----------------------------------------------------------------------------------


def rows(url: str, folder: str, few: int, many: int, new: int) -> list[dict[str, Any]]:
    """Count each row.

    Counting makes calls fifty times slower, so what is done once a second would count too much. The flusher sleeps, and
    the overrides are read once, as those of any database in memory.
    """
    configure(url)
    from django_quota.limiting.flusher import flusher
    from tests.benchmarks.limiters import counted_rows, verify_overrides

    flusher.is_woken = True  # as if it were: its thread never starts
    told = []
    for row in counted_rows(url):
        ips = itertools.cycle(fresh_ips())
        row.work.warm([fresh_ip() for _ in range(new)] if row.is_new else list(itertools.islice(ips, SUBJECTS)))
        warm, *counted = (
            [row.work.make_input(fresh_ip() if row.is_new else next(ips)) for _ in range(calls)]
            for calls in (many, few, many)
        )
        row.work.answers(warm)
        gc.collect()
        gc.freeze()
        less, more = (_count(row.work, inputs, Path(folder)) for inputs in counted)
        found = {"id": row.id, "package": row.package, "label": row.label, "over": list(row.over), "most": row.most}
        told.append(found | {"instructions": (more - less) / (many - few)})
    verify_overrides()
    return told


def _count(work: Work, inputs: Sequence[Any], folder: Path) -> int:
    gc.collect()
    _control("--instr=on")
    answers = work.answers(inputs)
    _control("--instr=off")
    _control("--dump")
    work.verify(answers)
    newest = max(folder.glob("out.*"), key=lambda path: int(path.suffix[1:]))
    return int(re.findall(r"^(?:totals|summary): (\d+)", newest.read_text(), re.MULTILINE)[-1])


def _control(command: str) -> None:
    subprocess.run(["callgrind_control", command, str(os.getpid())], check=True, capture_output=True)
