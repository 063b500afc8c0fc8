"""What is measured in processes of its own: servers, spinners and imports."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
from django.conf import settings

from django_quota.testing import running_redis
from tests.support.ports import free_port

PARSERS = {"hiredis": "", "python": "import sys; sys.modules['hiredis'] = None; "}
"""How a process that measures starts, by what reads the replies: the C extension, or redis-py without it."""

PATIENT = {"SOCKET_TIMEOUT": 60, "SOCKET_CONNECT_TIMEOUT": 60}
"""Seconds. The other limiters wait for ever; a busy machine must not make ours decide without Redis."""

SITE = {"site": {"rate": "1000000/m", "key": "ip", "match": "/bench/"}}
"""The rule that the middleware applies to the requests of the bench."""

_SPIN = """
import os, sys
os.nice(19)
core, parent = map(int, sys.argv[1:])
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {core})
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def awake_cores() -> Iterator[None]:
    """Keep each core from falling asleep, with a process of the lowest priority.

    Else the time that an idle core takes to wake up hides everything else.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    spinners = [subprocess.Popen([sys.executable, "-c", _SPIN, str(core), str(os.getpid())]) for core in cores]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


@contextmanager
def redis_over_tcp(program: Path) -> Iterator[str]:
    port = str(free_port())
    with running_redis(program, "--port", port, "--bind", "127.0.0.1"):
        yield f"redis://127.0.0.1:{port}/0"


def in_process(function: str, *given: object, parser: str = "hiredis", under: Sequence[str] = ()) -> Any:
    """Call a function (`module:name`) in a new process, and return what it returned, as JSON.

    `under`: the program that runs the process, with its options.
    """
    module, _, name = function.partition(":")
    code = f"{PARSERS[parser]}import json, {module} as m; print(json.dumps(m.{name}(*{list(given)!r})))"
    # Sets of words take another order in each process, and so another number of instructions.
    environment = os.environ | ({"PYTHONHASHSEED": "0"} if under else {})
    command = [*under, sys.executable, "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout)


def configure(url: str, database: dict[str, Any] | None = None, store: str = "redis") -> None:
    """Set Django up with all the limiters on the same server."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
    settings.configure(
        SECRET_KEY="bench",
        ALLOWED_HOSTS=["testserver"],
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.auth",
            "django_quota",
            "django_smart_ratelimit",
            "rest_framework",
        ],
        DATABASES={"default": database or {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        CACHES={"default": cache, "patient": {**cache, "OPTIONS": PATIENT}},
        QUOTA={"STORE": store, "CACHE": "patient", "RULES": SITE},
        ROOT_URLCONF="tests.benchmarks.limiters",
        RATELIMIT_BACKEND="django_smart_ratelimit.backends.redis_backend.RedisBackend",
        RATELIMIT_REDIS={"url": url},
        USE_TZ=True,
    )
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)  # ours reads its overrides, some others ask it


# --- the rows ---------------------------------------------------------------------------------------------------------


def rows(url: str, laps: int, others: bool, facts: bool, each: int) -> dict[str, Any]:
    """Measure all rows, or those of the goals; with `facts` also bytes and races."""
    configure(url)
    from tests.benchmarks import limiters
    from tests.benchmarks.facts import admitted_in_a_race, worst_window
    from tests.benchmarks.measure import Server, time_rows

    server, all_rows = Server(url), limiters.rows(url, others=others)
    time_rows(all_rows, server, laps, each)
    limiters.verify_overrides()
    for row in all_rows:
        if facts and row.fill is not None:
            row.bytes = server.bytes_a_subject(row.fill)
    found = [
        {"package": one.package, "race": admitted_in_a_race(one), "worst": worst_window(one)}
        for one in (limiters.contenders(url) if facts else ())
    ]
    return {"facts": found, "redis": server.version, "rows": [row.as_json() for row in all_rows]}


# --- starting ---------------------------------------------------------------------------------------------------------

_START = """
import sys, time
began = time.process_time()
import django
from django.conf import settings
apps = ["admin", "auth", "contenttypes", "sessions", "messages", "staticfiles"]
settings.configure(
    INSTALLED_APPS=[*(f"django.contrib.{app}" for app in apps), *sys.argv[1:]],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:6379/0"}},
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
for name in sys.argv[1:]:
    __import__(name)
django.setup()
from django.core.cache import cache
cache.client
print(time.process_time() - began)
"""
"""A project as `startproject` makes it, with a cache on Redis: `django.setup()`, and the cache made."""


def start(times: int) -> dict[str, float]:
    """Return the least CPU time, in seconds, that Django takes to start with us and without."""
    pairs = [(_start("django_quota"), _start()) for _ in range(times + 1)][1:]  # the first ones compile
    return {"with": min(pair[0] for pair in pairs), "without": min(pair[1] for pair in pairs)}


def _start(*apps: str) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", _START, *apps]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout)
