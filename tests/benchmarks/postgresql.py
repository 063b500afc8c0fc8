"""What `check()` takes on PostgreSQL beside Redis, each in a process of its own: the wait, and trips to the server."""

import time
from typing import Any

from django_quota.testing import server_programs
from tests.benchmarks.measure import EACH, MICRO, fresh_ips
from tests.benchmarks.processes import configure, in_process, redis_over_tcp
from tests.support.databases import postgres_programs, running_postgres

RATE = "1000000/m"


def beside_redis(laps: int) -> dict[str, float] | None:
    """Return the trips of a check on PostgreSQL, and its wait over that on Redis; None without PostgreSQL."""
    programs = postgres_programs()
    if programs is None:
        return None
    with running_postgres(programs) as database, redis_over_tcp(server_programs()[0]) as url:
        ours, theirs = (
            in_process("tests.benchmarks.postgresql:checks", store, database, url, laps)
            for store in ("database", "redis")
        )
    return {"trips": ours["trips"], "ratio": ours["wall"] / theirs["wall"]}


def checks(store: str, database: dict[str, Any], url: str, laps: int) -> dict[str, float]:
    """Measure one store: the lower quartile of the wait of batches, microseconds a check."""
    configure(url, database, store)
    from django_quota import check
    from django_quota.stores.database.postgresql import _Pipeline

    sent, send = [0], _Pipeline.__call__

    def counted(self: Any, *asked: Any) -> Any:
        sent[0] += 1
        return send(self, *asked)

    _Pipeline.__call__ = counted  # type: ignore[assignment, method-assign]
    walls, made = [], 0
    for _ in range(laps + 1):
        subjects = [f"ip:{ip}" for ip in fresh_ips()]
        for subject in subjects:
            check(RATE, subject)
        before, began = sent[0], time.perf_counter()
        for subject in subjects * EACH:
            check(RATE, subject)
        walls.append((time.perf_counter() - began) / (EACH * len(subjects)) * MICRO)
        made = sent[0] - before
    return {"wall": sorted(walls[1:])[laps // 4], "trips": made / (EACH * len(subjects))}
