"""Every way to name a Redis: `QUOTA["REDIS"]` as a URL, as options and as a function, and Django's own cache."""

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import redis
from django.core.cache import caches
from django.core.management import CommandError, call_command
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota import check
from django_quota.exceptions import ConfigurationError, StoreUnavailable
from django_quota.limiting.registry import get_limiter
from django_quota.stores.redis.settings import read_server, read_url
from django_quota.testing import RedisServer, running_redis, server_programs
from django_quota.testing import redis_server as starting
from tests.support.calls import RAISING_CALLS, remaining_both_ways
from tests.support.clusters import Cluster
from tests.support.findings import findings
from tests.support.inputs import inputs
from tests.support.ports import free_port
from tests.support.stores import redis_store, replace_store

PASSWORD = "5ENTINEL/of:a@password"
IN_A_URL = "5ENTINEL%2Fof%3Aa%40password"
SLOW = {"socket_timeout": 60, "socket_connect_timeout": 60}
"""A busy machine must not look like a Redis that is gone."""
QUERY = "socket_timeout=60&socket_connect_timeout=60"
DJANGO = "django.core.cache.backends.redis.RedisCache"


def test_a_server_that_ends_at_its_start_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        assert len(naps) < 500, "it waits"
        sleep(seconds)

    monkeypatch.setattr(starting, "time", SimpleNamespace(sleep=nap, monotonic=lambda: 0.0))

    with pytest.raises(RuntimeError, match="did not start"), running_redis(server_programs()[0], "--no-such-option"):
        pytest.fail("it runs")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A Redis with a password, on a port; nothing else of these tests is configured there."""
    port = free_port()
    with running_redis(server_programs()[0], "--port", str(port)):
        yield port


@pytest.fixture
def server(port: int) -> Iterator[Any]:
    """A client of that Redis, which is empty."""
    with redis.Redis(port=port) as client:
        client.flushall()
        client.config_set("requirepass", PASSWORD)
        yield client
        client.config_set("requirepass", "")


class Credentials:
    """Names the Redis; its password may change. It counts how often it is asked."""

    asked = 0

    def __init__(self, named: object) -> None:
        self.named = named

    def __call__(self) -> object:
        self.asked += 1
        if isinstance(self.named, Exception):
            raise self.named
        return self.named


def options_of(port: int) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": port, "db": 3, "password": PASSWORD, **SLOW}


FORMS: dict[str, Callable[[int], object]] = {
    "url": lambda port: f"redis://:{IN_A_URL}@127.0.0.1:{port}/3?{QUERY}",
    "url of a function": lambda port: Credentials(f"redis://default:{IN_A_URL}@127.0.0.1:{port}/3?{QUERY}"),
    "options": options_of,
    "options of a function": lambda port: Credentials({**options_of(port), "username": "default"}),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_server_by_its_port(form: str, port: int, server: Any, settings: Any) -> None:
    named = FORMS[form](port)
    assert {each.id for each in findings({"REDIS": named})} == {"django_quota.W012"}  # the tests wait for long
    settings.QUOTA = {"REDIS": named}
    assert remaining_both_ways() == [4, 3]
    store = redis_store()
    assert "5ENTINEL" not in repr([store, store.which, store.server, store.server.pool, vars(get_limiter())])
    with store.commands() as client:
        assert client.connection_pool.connection_kwargs["db"] == 3
        assert client.dbsize() > 0
    call_command("quota_sweep", stdout=StringIO())


at_the_socket = Credentials(None)


@pytest.mark.parametrize("form", ["url", "function"])
def test_a_server_by_its_socket(form: str, redis_server: RedisServer, raw: redis.Redis, settings: Any) -> None:
    at_the_socket.named = {"unix_socket_path": redis_server.url.removeprefix("unix://"), **SLOW}
    named = f"{redis_server.url}?{QUERY}" if form == "url" else "tests.stores.test_any_redis.at_the_socket"
    settings.QUOTA = {"REDIS": named}

    assert remaining_both_ways() == [4, 3]
    assert raw.dbsize()


def test_time_outs_are_short_unless_they_are_given(settings: Any) -> None:
    assert findings({"REDIS": "redis://127.0.0.1:1/0"}) == []
    settings.QUOTA = {"REDIS": "redis://127.0.0.1:1/0"}
    assert redis_store().server.pool._source.options["socket_timeout"] == 0.25
    settings.QUOTA = {"REDIS": {"host": "127.0.0.1", "socket_timeout": 1.5, "max_connections": 3, "timeout": 7}}
    pool = redis_store().server.pool
    assert [pool._source.options[f"socket_{each}"] for each in ("timeout", "connect_timeout")] == [1.5, 0.25]
    assert (pool._permits.qsize(), pool._patience) == (3, 7)


def test_a_function_is_asked_for_the_password_of_each_new_connection(port: int, server: Any, settings: Any) -> None:
    of_site = Credentials(options_of(port))
    settings.QUOTA = {"REDIS": of_site}
    assert remaining_both_ways() == [4, 3]

    server.config_set("requirepass", "another")
    of_site.named = f"redis://:another@127.0.0.1:{port}/3"
    replace_store()
    redis_store()  # asks which kind of Redis it is
    asked = of_site.asked
    assert remaining_both_ways() == [2, 1]
    assert of_site.asked == asked + 2

    assert remaining_both_ways()[0] == 0
    assert of_site.asked == asked + 3  # only the loop of the second call is new


class TestAFunctionThatFails:
    @pytest.fixture(autouse=True)
    def of_site(self, port: int, server: Any, settings: Any) -> None:
        settings.QUOTA = {"REDIS": (of_site := Credentials(options_of(port)))}
        redis_store()
        of_site.named = ValueError(PASSWORD)  # from now on it fails

    @pytest.mark.parametrize("call", RAISING_CALLS, ids=["sync", "async"])
    def test_is_an_outage_that_names_it_without_its_secrets(self, call: Callable[[], object]) -> None:
        with pytest.raises(StoreUnavailable, match="Credentials, raised ValueError") as caught:
            call()
        assert "5ENTINEL" not in str(caught.value)

    def test_leaves_the_decision_to_on_unavailable(self) -> None:
        assert check("5/m", "user:1").degraded

    def test_is_named_by_a_command(self, short_pauses: None) -> None:
        with pytest.raises(CommandError, match=r'It is the Redis of QUOTA\["REDIS"\]'):
            call_command("quota_sweep")


@pytest.mark.parametrize("form", ["url", "options"])
def test_the_primary_of_sentinels(form: str, sentinel_port: int, settings: Any) -> None:
    options = {"sentinels": [("127.0.0.1", sentinel_port)], "service_name": "quotas", "db": 2, **SLOW}
    url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel_port}/quotas/2?{QUERY}"
    settings.QUOTA = {"REDIS": url if form == "url" else options}
    assert remaining_both_ways() == [4, 3]
    with redis_store().commands() as client:
        assert client.dbsize() > 0
        assert client.connection_pool.connection_kwargs["db"] == 2


@pytest.mark.parametrize("form", ["url", "function"])
def test_a_cluster(form: str, cluster: Cluster, settings: Any) -> None:
    hosts = [f"127.0.0.1:{server.port}" for server in cluster.servers]
    url = f"redis+cluster://{','.join(hosts)}?{QUERY}"
    options = {"startup_nodes": [("127.0.0.1", server.port) for server in cluster.servers], **SLOW}
    settings.QUOTA = {"REDIS": url if form == "url" else Credentials(options)}
    assert findings(settings.QUOTA)[0].id == "django_quota.W012"

    for number in range(6):
        check("5/m", f"user:{number}")

    assert remaining_both_ways() == [3, 2]
    assert len({cluster.owner(key).port for key in iter(cluster.keys()) if "{user:" in key}) > 1
    assert sorted(redis_store().servers()) == sorted(hosts)
    call_command("quota_sweep", stdout=StringIO())


def test_the_error_at_one_server_of_a_cluster_names_the_form_for_a_cluster(cluster: Cluster, settings: Any) -> None:
    settings.QUOTA = {"REDIS": cluster.location[0]}
    elsewhere = next(f"user:{n}" for n in range(100) if cluster.owner(f"{{user:{n}}}") is not cluster.servers[0])

    with pytest.raises(ConfigurationError, match=r"redis\+cluster://"):
        check("5/m", elsewhere)


class TestTheRedisOfDjangosOwnCache:
    @pytest.fixture
    def alias(self, redis_server: RedisServer, raw: Any) -> dict[str, Any]:
        return {"BACKEND": DJANGO, "LOCATION": redis_server.url, "OPTIONS": {"db": 5, **SLOW}}

    def test_keeps_the_limits_beside_the_cache(self, alias: dict[str, Any], raw: Any, settings: Any) -> None:
        settings.CACHES = {"default": alias}
        caches["default"].set("a", 1)
        location = f"{alias['LOCATION']};redis://127.0.0.1:1,redis://127.0.0.1:1"  # limits write to the first
        settings.CACHES = {"default": {**alias, "LOCATION": location}}

        assert remaining_both_ways() == [4, 3]
        assert raw.info("keyspace")["db5"]["keys"] > 1
        with redis_store().commands() as client:
            assert client.dbsize() > 1

    def test_gives_its_pool_to_the_limits(self, alias: dict[str, Any], settings: Any) -> None:
        options = {"pool_class": "redis.BlockingConnectionPool", "max_connections": 2, "timeout": 9, "db": 5, **SLOW}
        settings.CACHES = {"default": {**alias, "OPTIONS": options}}

        pool = redis_store().server.pool

        assert (pool._permits.qsize(), pool._patience) == (2, 9)
        assert remaining_both_ways() == [4, 3]

    def test_is_checked_for_long_time_outs(self, alias: dict[str, Any]) -> None:
        options = {"socket_timeout": 0.2, "socket_connect_timeout": 5}

        (found,) = findings({}, {"default": {**alias, "OPTIONS": options}})

        assert found.id == "django_quota.W012"
        assert "socket_connect_timeout of CACHES" in found.msg


async def _async() -> str:
    return ""


WRONG_VALUES: list[tuple[Any, str, str, str]] = [
    (b"redis://:5ENTINEL@h", "E002", 'QUOTA["REDIS"] is bytes.', "Use a URL"),
    (_async, "E002", 'QUOTA["REDIS"] is an async function.', "a sync function"),
    ("nowhere.redis", "E002", "cannot be imported", "the path of a function"),
    ("5ENTINEL@h:6379", "E030", 'QUOTA["REDIS"] has no scheme', "redis://127.0.0.1:6379/0"),
    (f"redis://:{PASSWORD}@h", "E030", 'QUOTA["REDIS"] begins with "redis://", and cannot be read', "%2F"),
    ("", "E030", 'QUOTA["REDIS"] is empty.', "redis://127.0.0.1:6379/0"),
    ("redis://:5ENTINEL@h/zero", "E030", "names a database that is not a number", "redis://127.0.0.1:6379/0"),
    ("redis://:pa/5ENTINEL@h", "E030", "cannot be read as the URL", "%2F"),
    ("redis+cluster://:5ENTINEL@h/1", "E030", 'begins with "redis+cluster://"', "redis+cluster://10.0.0.1"),
    ({"password": "5ENTINEL"}, "E030", "does not name one of host", '"host": "10.0.0.1"'),
    ({"startup_nodes": [("h", 1)], "db": 2}, "E030", "names another database than 0", "Remove db."),
    (Credentials(None), "E030", "neither a URL nor a dict", "redis://127.0.0.1:6379/0"),
    (Credentials({"host": "h", "port": "x", "password": PASSWORD}), "E014", "'x'", "Use redis-py's options"),
    (Credentials(ValueError(PASSWORD)), "W033", "any_redis.Credentials, raised ValueError.", "manage.py shell"),
    ({"sentinels": [("h", 1)]}, "E014", "'service_name'", '"mymaster"'),
    ({"startup_nodes": 5}, "E014", "iterable", '("10.0.0.1", 6379)'),
    ({"host": "h", "pasword": "5ENTINEL"}, "E014", "'pasword'", "Use redis-py's options"),
    ({"host": "h", "socket_timeout": 9}, "W012", 'socket_timeout of QUOTA["REDIS"] is 9', "0.25"),
    (
        {"sentinels": [("h", 1)], "service_name": "m", "sentinel_kwargs": {"socket_timeout": 0}},
        "E013", 'socket_timeout of the sentinels of QUOTA["REDIS"] is 0', "a number of seconds",
    ),
]  # fmt: skip


class TestAWrongValue:
    @pytest.mark.parametrize(("named", "code", "words", "hint"), WRONG_VALUES)
    def test_is_named_by_a_check(self, named: Any, code: str, words: str, hint: str, caplog: Any) -> None:
        (found,) = findings({"REDIS": named})

        assert found.id == f"django_quota.{code}"
        assert words in found.msg
        assert hint in str(found.hint)
        assert "5ENT" not in f"{found.msg} {found.hint} {found!r} {caplog.text}"

    @pytest.mark.parametrize("call", RAISING_CALLS, ids=["sync", "async"])
    @pytest.mark.parametrize("named", [named for named, code, *_ in WRONG_VALUES if code != "W012"])  # a warning
    def test_is_named_by_an_error(self, call: Callable[[], object], named: Any, settings: Any, caplog: Any) -> None:
        (found,) = findings({"REDIS": named})
        settings.QUOTA = {"REDIS": named}

        with pytest.raises(ConfigurationError) as caught:
            call()

        assert (caught.value.problem, caught.value.hint) == (found.msg, found.hint)
        (_, *frames) = traceback.walk_tb(caught.value.__traceback__)  # the first is that of this test
        ours = [frame.f_locals for frame, _ in frames if "django_quota" in frame.f_code.co_filename]
        assert ours
        assert "5ENT" not in f"{ours!r} {caught.value.__cause__!r} {caplog.text}"


_SCRIPT = """
import sys
from django.conf import settings
from django.core.management import call_command
from django.test import override_settings

settings.configure(SECRET_KEY="x", USE_TZ=True, CACHES={}, QUOTA={"STORE": "database"},
                   INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_quota"],
                   DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
import django
django.setup()
from django_quota import check

def imported(name):
    assert check("5/m", "user:1").remaining == 4
    call_command("check", tags=["django_quota"])
    return [each for each in sys.modules if each.partition(".")[0] == name]

assert not imported("redis")
for url in sys.argv[1:]:
    with override_settings(QUOTA={"REDIS": url}):
        assert not imported("django_redis")
"""


@pytest.mark.thorough("slow")
def test_a_redis_package_is_imported_only_for_settings_that_name_it(port: int, server: Any, cluster: Cluster) -> None:
    urls = [str(FORMS["url"](port)), f"redis+cluster://127.0.0.1:{cluster.servers[0].port}?{QUERY}"]
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    subprocess.run([sys.executable, "-c", _SCRIPT, *urls], check=True, env=environment, cwd=Path(__file__).parents[2])


# --- URLs -------------------------------------------------------------------------------------------------------------

SENTINEL = "5ENTINEL"


def options_in(url: str) -> Any:
    try:
        return read_url(url)
    except ValueError:
        return None


UNREADABLE = [
    "redis://:p@ss#w@redis.example", "redis://:12#w", "redis://:12/w@redis.example/0", "redis://:12?w@redis.example",
    "redis://u:12?a=b@redis.example/0", "redis://:[w]@redis.example", "redis://a,b", "redis://h:x", "redis://h:99999",
    "redis://h/cache", "redis://h/0x", "redis://h?db=x", "unix:/x", "unix://x", "redis://h?socket_timeout=w",
    "http://h", ":w@h:6379", "localhost", "", "redis+sentinel://h:26379", "redis+sentinel://h/m/x",
    "redis+sentinel://h:0/m", "redis+sentinel://h,/m", "redis+sentinel://:5/4@h/m", "redis+sentinel://h/m?db=x",
    "redis+cluster://h/1", "redis+cluster://h:70000", "redis+cluster://", "unix+cluster://h",
]  # fmt: skip


def test_what_redis_py_would_read_otherwise_cannot_be_read() -> None:
    assert [url for url in UNREADABLE if options_in(url) is not None] == []


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://:6379/0", {"port": 6379, "db": 0}), ("redis:///3", {"db": 3}), ("redis://h", {"host": "h"}),
        ("redis://h/12?db=3", {"host": "h", "db": 3}), ("redis://[::1]:6379/", {"host": "::1", "port": 6379}),
        ("redis://:p@ss@h/0", {"host": "h", "db": 0, "password": "p@ss"}),
        ("redis://h?client_name=a@b", {"host": "h", "client_name": "a@b"}),
        ("redis://h?password=a@b&username=c@d", {"host": "h", "username": "c@d", "password": "a@b"}),
        ("rediss://h?ssl_ca_certs=/etc/a@b.pem", {"host": "h", "ssl": True, "ssl_ca_certs": "/etc/a@b.pem"}),
        ("redis://u:%23%2F%3F%40@h:1", {"host": "h", "port": 1, "username": "u", "password": "#/?@"}),
        ("redis+sentinel://a,b:5/m", {"sentinels": [("a", 26379), ("b", 5)], "service_name": "m"}),
        ("redis+sentinel://:p%2F@a/m/3/?socket_timeout=1",
         {"sentinels": [("a", 26379)], "service_name": "m", "db": 3, "password": "p/", "socket_timeout": 1.0}),
        ("rediss+sentinel://:p@[::1]:5/m?ssl_ca_certs=x",
         {"sentinels": [("::1", 5)], "service_name": "m", "password": "p", "ssl": True, "ssl_ca_certs": "x",
          "sentinel_kwargs": {"ssl": True, "ssl_ca_certs": "x"}}),
        ("redis+cluster://u:p@[::1]:7000,b/0?max_connections=4",
         {"startup_nodes": [("::1", 7000), ("b", 6379)], "username": "u", "password": "p", "max_connections": 4}),
        ("rediss+cluster://b", {"startup_nodes": [("b", 6379)], "ssl": True}),
    ],
)  # fmt: skip
def test_the_options_in_a_url(url: str, expected: dict[str, Any]) -> None:
    assert options_in(url) == expected
    options = read_server("unix://:p@/run/a@b.sock?db=1")
    assert (options["path"], options["db"], options["password"]) == ("/run/a@b.sock", 1, "p")


@given(st.text("a1:/?#@[]=&,;+. ", min_size=1, max_size=12), st.sampled_from(["", "u"]))
@example("p@ss#w", "").via("found by a stranger")
@example("1?a=a", "u")
def test_a_password_is_read_unchanged_or_not_at_all(password: str, user: str) -> None:
    found = options_in(f"redis://{user}:{password}@redis.example:7/0")
    if found is not None:
        assert (found["host"], found["port"], found["password"]) == ("redis.example", 7, password)
    assert read_server(f"redis://{user}:{quote(password, safe='')}@redis.example:7/0")["password"] == password


SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster", "http")
HOSTS = ("h", "h:1", "a:1,b", "[::1]:7000", "", ":", "h:99999999")


@inputs(60)
@given(
    st.sampled_from(SCHEMES), st.text("a1:/?#@[]=&,;+. ℀", max_size=8), st.sampled_from(HOSTS),
    st.sampled_from(["", "/", "/0", "/m", "/m/0", "/m/0?db=1"]),
)  # fmt: skip
@example("redis+cluster", "?a=a", "h", "")
@example("redis+sentinel", "]", "[::1", "/m")
def test_no_check_raises_or_shows_a_password(scheme: str, sign: str, hosts: str, path: str) -> None:
    url = f"{scheme}://:{SENTINEL}{sign}{SENTINEL}@{hosts}{path}"
    alias = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}

    found = findings({"REDIS": url}) + findings({}, {"default": alias})

    assert [each for each in found if not str(each.id).startswith("django_quota.")] == []
    assert [each for each in found if SENTINEL in f"{each.msg} {each.hint}"] == []
