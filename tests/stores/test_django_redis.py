"""An alias of django-redis: what the limits read of it, and a Cluster as a cache, by clients that the tests play."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from django_redis.exceptions import ConnectionInterrupted
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, ResponseError, SlotNotCoveredError

from django_quota.stores import cluster
from django_quota.stores.redis import django_redis
from django_quota.stores.redis.aliases import redis_of_alias
from django_quota.stores.redis.django_redis import (
    ClusterClient,
    ClusterConnectionFactory,
    DjangoRedisCluster,
    address_in,
)
from django_quota.stores.redis.settings import NAME_A_REDIS, Address
from tests.support.stores import CLUSTER_CLIENT

BACKEND = "django_redis.cache.RedisCache"
LOCATIONS = ["redis://:x@a:1/0", "redis://b"]


@pytest.fixture
def alias(settings: Any) -> Callable[..., Any]:
    """Return what the limits read of an alias with these options."""

    def alias(location: Any = LOCATIONS, **options: Any) -> Any:
        settings.CACHES = {"default": {"BACKEND": BACKEND, "LOCATION": location, "OPTIONS": options}}
        return redis_of_alias("default")

    return alias


class TestAnAlias:
    @pytest.mark.parametrize(
        ("client", "is_cluster"),
        [
            (CLUSTER_CLIENT, True),
            ("django_redis.client.DefaultClient", False),
            ("no.such.Client", False),
            ("os.path.join", False),
            (None, False),
        ],
        ids=["of a Cluster", "of one server", "wrong", "not a class", "not given"],
    )
    def test_is_of_a_cluster_if_its_client_is(self, client: str | None, is_cluster: bool, alias: Any) -> None:
        assert alias(**({} if client is None else {"CLIENT_CLASS": client})).is_cluster is is_cluster

    def test_has_the_options_of_its_pool(self, alias: Any) -> None:
        found = alias(CONNECTION_POOL_KWARGS={"max_connections": 3})

        assert (found.option("max_connections"), found.option("timeout")) == (3, None)

    def test_has_no_options_of_its_pool_where_none_are_given(self, alias: Any) -> None:
        assert alias().option("max_connections") is None

    def test_writes_to_its_first_server(self, alias: Any) -> None:
        options = alias().new_pool().connection_kwargs

        assert (options["host"], options["port"], options["password"]) == ("a", 1, "x")

    def test_of_a_cluster_writes_to_its_first_server(self, alias: Any) -> None:
        options = alias(CLIENT_CLASS=CLUSTER_CLIENT).new_pool().connection_kwargs

        assert (options["host"], options["port"]) == ("a", 1)

    def test_has_a_pool_that_the_cache_does_not_use(self, alias: Any) -> None:
        found = alias()

        assert found.new_pool() is not found.new_pool()

    def test_of_a_cluster_asks_all_its_servers_for_the_others(self, alias: Any) -> None:
        addresses, _ = alias(CLIENT_CLASS=CLUSTER_CLIENT).cluster()

        assert addresses == [Address("a", 1), Address("b", 6379)]

    def test_of_a_cluster_has_the_options_of_each_connection(self, alias: Any) -> None:
        _, options = alias(
            CLIENT_CLASS=CLUSTER_CLIENT,
            SOCKET_TIMEOUT=5,
            CONNECTION_POOL_KWARGS={"max_connections": 3},
            REDIS_CLIENT_KWARGS={"address_remap": max},
        ).cluster()

        found = [options[name] for name in ("password", "socket_timeout", "max_connections", "address_remap")]
        assert found == ["x", 5, 3, max]

    def test_of_a_cluster_takes_an_option_of_the_url_first_and_then_one_of_the_pool(self, alias: Any) -> None:
        pool = {"password": "of the pool", "socket_timeout": 1}

        _, options = alias(
            CLIENT_CLASS=CLUSTER_CLIENT, PASSWORD="of the alias", SOCKET_TIMEOUT=5, CONNECTION_POOL_KWARGS=pool
        ).cluster()

        assert (options["password"], options["socket_timeout"]) == ("x", 1)

    def test_of_a_cluster_maps_no_addresses_unless_it_says(self, alias: Any) -> None:
        _, options = alias(CLIENT_CLASS=CLUSTER_CLIENT).cluster()

        assert options["address_remap"] is None

    @pytest.mark.parametrize(
        ("location", "is_wrong"),
        [(LOCATIONS, False), ("redis://a/1", True), (["redis://a", "redis://b/1"], True), ("unix:///run/a.sock", True)],
        ids=["servers", "another database", "another database at the second", "a socket file"],
    )
    def test_of_a_cluster_names_servers_with_database_0(self, location: Any, is_wrong: bool, alias: Any) -> None:
        problem = alias(location, CLIENT_CLASS=CLUSTER_CLIENT).place_problem()

        words = (
            'The LOCATION of CACHES["default"] names no host, or another database than 0, the only one of a Cluster.'
        )
        hint = 'Name one or several servers, for example ["redis://10.0.0.1:6379/0", "redis://10.0.0.2:6379/0"].'
        assert problem == (("E004", words, hint, "") if is_wrong else None)

    @pytest.mark.parametrize(
        ("given", "is_wrong"),
        [
            ({}, True),
            ({"SENTINELS": [("a", 1)]}, True),
            ({"CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory"}, True),
            ({"CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory", "SENTINELS": [("a", 1)]}, False),
        ],
        ids=["neither", "no factory", "no sentinels", "both"],
    )
    def test_of_sentinels_needs_a_factory_for_them(self, given: dict[str, Any], is_wrong: bool, alias: Any) -> None:
        problem = alias("redis://m/0", CLIENT_CLASS="django_redis.client.SentinelClient", **given).place_problem()

        words = 'CACHES["default"] uses the SentinelClient, but sets no CONNECTION_FACTORY, or no SENTINELS.'
        hint = (
            'Use, for example, "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory" and "SENTINELS": '
            '[("10.0.0.1", 26379)] in its OPTIONS.'
        )
        assert problem == (("E004", words, hint, "") if is_wrong else None)

    def test_of_sentinels_may_have_the_factory_of_all_aliases(self, alias: Any, settings: Any) -> None:
        settings.DJANGO_REDIS_CONNECTION_FACTORY = "django_redis.pool.SentinelConnectionFactory"

        found = alias("redis://m/0", CLIENT_CLASS="django_redis.client.SentinelClient", SENTINELS=[("a", 1)])

        assert found.place_problem() is None

    @pytest.mark.parametrize(
        ("client", "why"),
        [
            ("no.such.Client", "No module named 'no'"),
            ("django_redis.cache", "issubclass() arg 1 must be a class"),
            ("os.sep", "issubclass() arg 1 must be a class"),
        ],
    )
    def test_whose_client_cannot_be_used_says_so(self, client: str, why: str, alias: Any) -> None:
        problem = alias(CLIENT_CLASS=client).place_problem()

        words = f'The CLIENT_CLASS of CACHES["default"] cannot be used: {why}.'
        assert problem == ("E004", words, NAME_A_REDIS, "")

    def test_that_spreads_keys_itself_cannot_serve(self, alias: Any) -> None:
        name, hint = (
            'CACHES["default"]',
            "Use an alias with the DefaultClient, the SentinelClient or the ClusterClient.",
        )
        words = f"{name} uses the ShardClient, which spreads keys over servers by itself: a script has no single home."

        assert alias(CLIENT_CLASS="django_redis.client.ShardClient").place_problem() == ("E005", words, hint, "")

    def test_whose_url_is_wrong_says_so_first(self, alias: Any) -> None:
        problem = alias("nonsense", CLIENT_CLASS="no.such.Client").place_problem()

        assert problem.message.startswith('The LOCATION of CACHES["default"] has no scheme')

    def test_whose_options_are_wrong_says_what_to_write(self, alias: Any) -> None:
        assert alias(CONNECTION_POOL_KWARGS={"no_such_option": 1}).problem().hint == (
            "Give CONNECTION_POOL_KWARGS options of redis.Connection, paths that lead to classes, and SENTINELS as "
            '[("10.0.0.1", 26379)]. For TLS behind Sentinel, use redis:// with "CONNECTION_POOL_KWARGS": {"ssl": True}.'
        )


@pytest.mark.parametrize(
    ("url", "address"), [("redis://a:1/0", Address("a", 1)), ("rediss://[::1]", Address("::1", 6379))]
)
def test_the_server_in_a_url(url: str, address: Address) -> None:
    assert address_in(url) == address


# --- a Cluster as a cache ---------------------------------------------------------------------------------------------


def caused_by(cause: Exception | None, text: str = "x") -> RedisClusterException:
    error = RedisClusterException(text)
    error.__cause__ = cause
    return error


AS_OUTAGES = [
    caused_by(RedisConnectionError("refused")),
    caused_by(None, "Redis Cluster cannot be connected. Please provide at least one reachable node"),
    SlotNotCoveredError("Slot 5 not covered"),
]
AS_THEY_ARE = [caused_by(None, "all keys must map to the same key slot"), caused_by(ValueError("x"))]
HOW = ["a command", "a pipeline", "its execution"]


class TestTheClientOfACluster:
    @pytest.fixture
    def ask(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Exception], Any]:
        """Ask a client that fails at this point."""

        def ask(how: str, error: Exception) -> Any:
            fails = Mock(side_effect=error)
            made = Mock(execute=fails)
            monkeypatch.setattr(RedisCluster, "execute_command", fails)
            monkeypatch.setattr(RedisCluster, "pipeline", fails if how == "a pipeline" else Mock(return_value=made))
            client = object.__new__(DjangoRedisCluster)
            return client.execute_command("GET", "a") if how == "a command" else client.pipeline().execute()

        return ask

    @pytest.mark.parametrize("how", HOW)
    @pytest.mark.parametrize("error", AS_OUTAGES, ids=str)
    def test_raises_what_django_redis_expects_if_no_server_answers(self, error: Exception, how: str, ask: Any) -> None:
        with pytest.raises(RedisConnectionError) as caught:
            ask(how, error)
        assert (str(caught.value), caught.value.__cause__) == (str(error), error)

    @pytest.mark.parametrize("how", HOW)
    @pytest.mark.parametrize("error", AS_THEY_ARE, ids=str)
    def test_raises_a_misuse_as_it_is(self, error: Exception, how: str, ask: Any) -> None:
        with pytest.raises(RedisClusterException) as caught:
            ask(how, error)
        assert caught.value is error

    def test_passes_on_what_it_is_given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        command = Mock(return_value=b"x")
        monkeypatch.setattr(RedisCluster, "execute_command", command)

        assert object.__new__(DjangoRedisCluster).execute_command("GET", "a", keys=["a"]) == b"x"
        command.assert_called_once_with("GET", "a", keys=["a"])

    def test_passes_on_what_its_pipeline_is_given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        execute = Mock(return_value=[b"x"])
        monkeypatch.setattr(RedisCluster, "pipeline", pipeline := Mock(return_value=Mock(execute=execute)))

        made = object.__new__(DjangoRedisCluster).pipeline(False, "hint")

        assert made.execute(raise_on_error=False) == [b"x"]
        pipeline.assert_called_once_with(False, "hint")
        execute.assert_called_once_with(raise_on_error=False)

    def test_that_is_closed_leaves_other_threads_their_connections(self, monkeypatch: pytest.MonkeyPatch) -> None:
        used = Mock()
        nodes = [SimpleNamespace(redis_connection=used), SimpleNamespace(redis_connection=None)]
        monkeypatch.setattr(RedisCluster, "get_nodes", lambda _: nodes)

        object.__new__(DjangoRedisCluster).disconnect()

        used.connection_pool.disconnect.assert_called_once_with(inuse_connections=False)


class TestTheFactory:
    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
        """Make clients that connect to nothing; yields what they were made of."""
        found: list[Any] = []

        def make(**given: Any) -> Any:
            found.append(given)
            return Mock()

        monkeypatch.setattr(django_redis, "DjangoRedisCluster", make)
        monkeypatch.setattr(ClusterConnectionFactory, "_clusters", {})
        yield found
        ClusterConnectionFactory.forget()

    def factory(self, **options: Any) -> Any:
        return ClusterConnectionFactory(options=options)

    def test_makes_one_client_of_a_location(self, made: list[Any]) -> None:
        clients = [self.factory().connect_to(urls) for urls in (LOCATIONS, LOCATIONS, LOCATIONS[:1])]

        assert clients[0] is clients[1] is not clients[2]
        assert len(made) == 2

    def test_closes_the_client_of_a_thread_that_was_slower(self, made: list[Any]) -> None:
        class Slower(ClusterConnectionFactory):
            def _made(self, urls: list[str]) -> Any:
                first.append(ClusterConnectionFactory(options={}).connect_to(urls))  # another thread
                closed.append(super()._made(urls))
                return closed[0]

        first, closed = list[Any](), list[Any]()

        found: Any = Slower(options={}).connect_to(LOCATIONS)

        assert found is first[0]
        closed[0].disconnect.assert_called_once_with()
        found.disconnect.assert_not_called()

    def test_names_all_servers_of_a_location(self, made: list[Any]) -> None:
        self.factory().connect_to(LOCATIONS)

        assert [(node.host, node.port) for node in made[0]["startup_nodes"]] == [("a", 1), ("b", 6379)]

    def test_gives_a_client_the_options_of_the_alias(self, made: list[Any]) -> None:
        options = {
            "CONNECTION_POOL_KWARGS": {"max_connections": 3},
            "REDIS_CLIENT_KWARGS": {"read_from_replicas": True},
        }

        self.factory(SOCKET_TIMEOUT=5, **options).connect_to(LOCATIONS)

        found = [made[0][name] for name in ("url", "socket_timeout", "max_connections", "read_from_replicas")]
        assert found == [LOCATIONS[0], 5, 3, True]

    def test_leaves_a_client_its_own_parser(self, made: list[Any]) -> None:
        self.factory(CONNECTION_POOL_KWARGS={"parser_class": object}).connect_to(LOCATIONS)

        assert "parser_class" not in made[0]

    def test_raises_what_django_redis_expects_if_no_server_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(django_redis, "DjangoRedisCluster", Mock(side_effect=AS_OUTAGES[1]))

        with pytest.raises(RedisConnectionError):
            self.factory().connect_to(["redis://nobody"])

    def test_makes_a_new_client_after_it_has_forgotten_all(self, made: list[Any]) -> None:
        first = self.factory().connect_to(LOCATIONS)

        ClusterConnectionFactory.forget()

        first.disconnect.assert_called_once_with()
        assert self.factory().connect_to(LOCATIONS) is not first

    def test_closes_a_client_that_is_disconnected(self) -> None:
        client = Mock()

        self.factory().disconnect(client)

        client.disconnect.assert_called_once_with()


class TestTheCache:
    @pytest.fixture
    def cache(self) -> Any:
        return ClusterClient("redis://a:1/0, redis://b", {}, SimpleNamespace(key_prefix="", version=1, key_func=None))

    def test_needs_the_factory_of_a_cluster(self) -> None:
        options = {"OPTIONS": {"CONNECTION_FACTORY": "django_redis.pool.ConnectionFactory"}}

        with pytest.raises(ImproperlyConfigured) as caught:
            ClusterClient("redis://a", options, None)
        assert str(caught.value) == "ClusterClient needs the ClusterConnectionFactory, which is its default."

    def test_keeps_its_other_options(self) -> None:
        cache: Any = ClusterClient("redis://a", {"OPTIONS": {"SOCKET_TIMEOUT": 5}}, None)

        assert cache._options["SOCKET_TIMEOUT"] == 5

    def test_asks_all_servers_of_its_location(self, cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        cache.connection_factory.connect_to = Mock(return_value="client")

        assert cache.connect() == "client"
        cache.connection_factory.connect_to.assert_called_once_with(["redis://a:1/0", "redis://b"])

    @pytest.mark.parametrize("error", [RedisConnectionError("x"), caused_by(None)], ids=type)
    def test_is_interrupted_if_no_server_answers(self, error: Exception, cache: Any) -> None:
        cache.connection_factory.connect_to = Mock(side_effect=error)

        with pytest.raises(ConnectionInterrupted) as caught:
            cache.connect()
        assert (caught.value.connection, caught.value.__cause__) == (None, error)

    @pytest.mark.parametrize("write", [True, False])
    def test_has_one_client_for_reads_as_for_writes(self, write: bool, cache: Any) -> None:
        assert cache.get_next_client_index(write=write) == 0

    @pytest.fixture
    def asked(self, cache: Any) -> Any:
        """A client whose pipeline finds these values, or fails."""
        cache.make_key = lambda key, version=None: f"{version}:{key}"
        cache.decode = lambda value: value.decode()
        pipeline = MagicMock()
        pipeline.__enter__.return_value = pipeline
        pipeline.__exit__.return_value = None
        client = SimpleNamespace(pipeline=lambda: pipeline, its=pipeline)
        cache.get_client = lambda write: client
        return client

    def test_reads_many_keys_of_a_version(self, cache: Any, asked: Any) -> None:
        asked.its.execute.return_value = [b"1", None, b""]

        assert cache.get_many(["a", "b", "c"], version=2) == {"a": "1", "c": ""}
        assert [each.args[0] for each in asked.its.get.call_args_list] == ["2:a", "2:b", "2:c"]

    def test_takes_no_answer_for_that_to_another_key(self, cache: Any, asked: Any) -> None:
        asked.its.execute.return_value = [b"1"]

        with pytest.raises(ValueError, match="shorter"):
            cache.get_many(["a", "b"])

    def test_asks_nobody_for_no_keys(self, cache: Any, asked: Any) -> None:
        assert cache.get_many([]) == {}
        asked.its.execute.assert_not_called()

    @pytest.mark.parametrize(
        "error", [RedisConnectionError("x"), ResponseError("x"), caused_by(None), OSError("x")], ids=type
    )
    def test_is_interrupted_if_many_keys_cannot_be_read(self, error: Exception, cache: Any, asked: Any) -> None:
        asked.its.execute.side_effect = error

        with pytest.raises(ConnectionInterrupted) as caught:
            cache.get_many(["a"])
        assert (caught.value.connection.its, caught.value.__cause__) == (asked.its, error)

    def test_asks_the_client_that_it_is_given(self, cache: Any, asked: Any) -> None:
        given, cache.get_client = asked, Mock(side_effect=AssertionError)
        asked.its.execute.return_value = [b"1"]

        assert cache.get_many(["a"], client=given) == {"a": "1"}

    def test_lists_the_keys_that_match_a_pattern(self, cache: Any) -> None:
        cache.iter_keys = Mock(return_value=iter(["a", "b"]))

        assert cache.keys("a*", version=2, client="client") == ["a", "b"]
        cache.iter_keys.assert_called_once_with("a*", version=2, client="client")


class TestTheModuleThatSettingsName:
    def test_has_the_client_of_a_cluster(self) -> None:
        assert cluster.ClusterClient is ClusterClient

    def test_has_nothing_else(self) -> None:
        with pytest.raises(AttributeError) as caught:
            _ = cluster.NoSuchName
        assert str(caught.value) == "module 'django_quota.stores.cluster' has no attribute 'NoSuchName'"
        assert cluster.__all__ == ["ClusterClient"]
