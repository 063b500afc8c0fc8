"""What `check()` takes on PostgreSQL beside Redis, each in a process of its own: the wait, and trips to the server."""

import time
from typing import Any

import django
from django.conf import settings

from django_quota.testing import server_programs
from tests.benchmarks.measure import EACH, MICRO, fresh_ips
from tests.benchmarks.processes import PATIENT, in_process, redis_over_tcp
from tests.support.databases import postgres_programs, running_postgres

RATE = "1000000/m"


def beside_redis(laps: int) -> dict[str, float] | None:
    """Return the trips of a check on PostgreSQL, and its wait over that on Redis; None without PostgreSQL."""
    programs = postgres_programs()
    if programs is None:
        return None
    with running_postgres(programs) as database, redis_over_tcp(server_programs()[0]) as url:
        ours: dict[str, Any] = in_process("tests.benchmarks.postgresql:checks", "database", database, url, laps)
        theirs: dict[str, Any] = in_process("tests.benchmarks.postgresql:checks", "redis", database, url, laps)
    return {"trips": ours["trips"], "ratio": ours["wall"] / theirs["wall"]}


def checks(store: str, database: dict[str, Any], url: str, laps: int) -> dict[str, float]:
    """Measure one store: the lower quartile of the wait of batches, microseconds a check."""
    settings.configure(
        SECRET_KEY="bench",
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_quota"],
        DATABASES={"default": database},
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": PATIENT}},
        QUOTA={"STORE": store},
        USE_TZ=True,
    )
    django.setup()
    from django.core.management import call_command

    from django_quota import check
    from django_quota.stores.database.postgresql import _Psycopg3

    call_command("migrate", verbosity=0)
    sent, send = [0], _Psycopg3.__call__

    def counted(self: Any, statements: str) -> Any:
        sent[0] += 1
        return send(self, statements)

    _Psycopg3.__call__ = counted  # type: ignore[method-assign]
    walls, made = [], 0
    for lap in range(laps + 1):
        subjects = [f"ip:{ip}" for ip in fresh_ips()]
        for subject in subjects:
            check(RATE, subject)
        before, began = sent[0], time.perf_counter()
        for _ in range(EACH):
            for subject in subjects:
                check(RATE, subject)
        walls.append((time.perf_counter() - began) / (EACH * len(subjects)) * MICRO)
        made = sent[0] - before if lap == laps else made
    return {"wall": sorted(walls[1:])[laps // 4], "trips": made / (EACH * len(subjects))}
