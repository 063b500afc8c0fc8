"""The clients that find the servers of a Cluster: none is dropped with its connections open."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock, call

import pytest
from redis.exceptions import RedisClusterException

from django_quota.core.flow import run_sync
from django_quota.exceptions import ConfigurationError
from django_quota.stores.breaker import Breaker
from django_quota.stores.cluster import clients
from django_quota.stores.cluster.clients import AsyncSide, ClusterSettings, SyncSide
from django_quota.stores.cluster.store import ClusterStore
from django_quota.stores.redis.settings import ANSWER_TIMEOUT, PLAIN_TIMEOUT, Address

OF_THREADS, OF_TASKS = clients._SyncCluster, clients._AsyncCluster

THREADS = 4


class Client:
    """redis-py's client of a Cluster, as far as it is used here."""

    made: list["Client"]
    together: Any = None

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.is_closed = False
        self.nodes_manager = SimpleNamespace(initialize=self.read, startup_nodes={}, slots_cache={})
        self.made.append(self)
        if self.together is not None:
            self.together.wait()

    def read(self) -> None:
        raise RedisClusterException("no server")

    def close(self) -> None:
        self.is_closed = True

    async def initialize(self) -> None:
        await asyncio.sleep(60)

    async def aclose(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """All clients of a test."""
    found: list[Client] = []
    monkeypatch.setattr(Client, "made", found, raising=False)
    for name in ("_SyncCluster", "_AsyncCluster"):
        monkeypatch.setattr(clients, name, Client)
    return found


@pytest.fixture
def settings_of_cluster() -> Any:
    return SimpleNamespace(addresses=[], options={})


def test_threads_that_connect_at_once_keep_one_client(
    made: list[Client], settings_of_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = SyncSide(settings_of_cluster)
    monkeypatch.setattr(Client, "together", Barrier(THREADS))

    with ThreadPoolExecutor(THREADS) as threads:
        returned = {each.result() for each in [threads.submit(side.connect) for _ in range(THREADS)]}

    assert returned == {side.client}
    assert [each for each in made if not each.is_closed] == [side.client]


def test_a_client_asks_no_server_a_second_time(made: list[Client], settings_of_cluster: Any) -> None:
    async def connect() -> None:
        side = AsyncSide(settings_of_cluster)
        connecting = asyncio.ensure_future(side.connect())
        await asyncio.sleep(0)
        connecting.cancel()
        await side.aclose()

    SyncSide(settings_of_cluster).connect()
    asyncio.run(connect())

    assert [each.options["retry"]._retries for each in made] == [0, 0]


def test_a_client_begins_at_the_servers_of_the_settings(made: list[Client], settings_of_cluster: Any) -> None:
    settings_of_cluster.addresses = [Address("a", 1), Address("b", 2)]
    settings_of_cluster.options = {"protocol": 2}

    async def connect() -> None:
        connecting = asyncio.ensure_future(AsyncSide(settings_of_cluster).connect())
        await asyncio.sleep(0)
        connecting.cancel()

    SyncSide(settings_of_cluster).connect()
    asyncio.run(connect())

    of_threads, of_tasks = (each.options for each in made)
    assert [(node.host, node.port) for node in of_threads["startup_nodes"]] == [("a", 1), ("b", 2)]
    assert of_tasks["startup_nodes"] == settings_of_cluster.addresses
    assert (of_threads["protocol"], of_tasks["protocol"]) == (2, 2)


def test_the_connections_to_a_server_report_to_its_breaker(settings_of_cluster: Any) -> None:
    settings_of_cluster.sync_pool, settings_of_cluster.async_wire = Mock(), Mock()
    server, breaker = Address("a", 1), Breaker()

    SyncSide(settings_of_cluster).pool(server, breaker)
    AsyncSide(settings_of_cluster).pool(server, breaker)

    settings_of_cluster.sync_pool.assert_called_once_with(server, breaker)
    settings_of_cluster.async_wire.assert_called_once_with(server, breaker)


def test_the_client_of_all_threads_reads_the_slots_again(settings_of_cluster: Any) -> None:
    side: Any = SyncSide(settings_of_cluster)
    side.client = Mock()
    side.client.get_nodes.return_value = []

    side.read_slots()

    side.client.nodes_manager.initialize.assert_called_once_with()
    side.client.close.assert_not_called()


def test_a_side_without_a_client_reads_no_slots(settings_of_cluster: Any) -> None:
    SyncSide(settings_of_cluster).read_slots()
    asyncio.run(AsyncSide(settings_of_cluster).read_slots())


class Leaving(Client):
    """It knows one server, as long as it lives."""

    def read(self) -> None: ...

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(host="a", port="1")]


class ReachingClient(Client):
    """A client that reaches its servers, and counts how often it has read the slots."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._initialize = True
        self.reads = 0

    async def initialize(self) -> None:
        await asyncio.sleep(0)
        self.reads += self._initialize
        self._initialize = False

    def get_nodes(self) -> list[Any]:
        return []


class TestTheClientOfALoop:
    @pytest.fixture
    def side(self, settings_of_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setattr(clients, "_AsyncCluster", ReachingClient)
        settings_of_cluster.async_wire = lambda *_: Mock()
        return AsyncSide(settings_of_cluster)

    def test_is_shared_by_the_tasks(self, side: Any, made: list[Client]) -> None:
        async def connect() -> list[Any]:
            return await asyncio.gather(*(side.connect() for _ in range(3)))

        assert asyncio.run(connect()) == made * 3
        assert [side.client] == made

    def test_has_read_the_slots(self, side: Any) -> None:
        assert asyncio.run(side.connect()).reads == 1

    def test_is_made_anew_after_it_was_left(self, side: Any, made: list[Client]) -> None:
        async def connect_again() -> None:
            await side.leave(await side.connect())
            assert side.client is None
            await side.connect()

        asyncio.run(connect_again())

        assert [each.is_closed for each in made] == [True, False]
        assert side.client is made[-1]

    def test_stays_left_if_it_was_closed_while_it_connected(self, side: Any) -> None:
        async def close() -> None:
            connecting = asyncio.ensure_future(side.connect())
            await asyncio.sleep(0)
            await side.aclose()
            await connecting

        asyncio.run(close())

        assert side.client is None

    def test_reads_the_slots_again(self, side: Any) -> None:
        async def read_again() -> None:
            await side.connect()
            await side.read_slots()

        asyncio.run(read_again())

        assert side.client.reads == 2

    def test_asks_no_server_for_its_commands(self, side: Any) -> None:
        assert asyncio.run(side.connect()).commands_parser is not None

    def test_has_a_wire_to_each_server(self, side: Any) -> None:
        wires = [side.pool(Address(host, 1), Breaker()) for host in "aab"]

        assert (wires[0] is wires[1], wires[0] is wires[2]) == (True, False)

    def test_has_a_wire_beside_it_for_what_takes_long(self, side: Any) -> None:
        wire = side.pool(Address("a", 1), Breaker())

        assert side.pool(Address("a", 1), Breaker(), is_slow=True) is wire.beside.return_value

    def test_lets_one_task_send_a_script(self, side: Any) -> None:
        async def send() -> list[bool]:
            is_first_by_another = await side.is_loaded_by_another("script")
            second = asyncio.ensure_future(side.is_loaded_by_another("script"))
            await asyncio.sleep(0)
            side.loaded("script")
            return [is_first_by_another, await second, await side.is_loaded_by_another("script")]

        assert asyncio.run(send()) == [False, True, False]


def test_a_pause_holds_up_a_thread_or_a_task() -> None:
    assert (SyncSide.pause, AsyncSide.pause) == (time.sleep, asyncio.sleep)


def test_each_thread_sends_a_script_itself(settings_of_cluster: Any) -> None:
    assert SyncSide(settings_of_cluster).is_loaded_by_another(("a:1", "script")) is False


class TestServersThatHaveLeft:
    def test_are_closed_for_threads(self, settings_of_cluster: Any) -> None:
        side: Any = SyncSide(settings_of_cluster)
        side.client, stays, leaves = Leaving(), Mock(), Mock()
        side._pools = {Address("a", 1): stays, Address("b", 2): leaves}

        side.read_slots()

        assert list(side._pools) == [Address("a", 1)]
        leaves.close.assert_called_once_with()
        stays.close.assert_not_called()

    def test_are_closed_for_tasks(self, settings_of_cluster: Any) -> None:
        side: Any = AsyncSide(settings_of_cluster)
        side.client, stays, leaves = Leaving(), AsyncMock(), AsyncMock()
        side.client.initialize = AsyncMock()
        side._pools = {Address("a", 1): stays, Address("b", 2): leaves}

        asyncio.run(side.read_slots())

        assert list(side._pools) == [Address("a", 1)]
        leaves.aclose.assert_awaited_once_with()
        stays.aclose.assert_not_awaited()


class TestAClosedSide:
    def test_leaves_no_client_open_that_reads_the_slots(self, settings_of_cluster: Any) -> None:
        """Reading them opens connections again."""
        side: Any = SyncSide(settings_of_cluster)
        side.client = Leaving()
        side.close()
        side.client.is_closed = False

        side.read_slots()

        assert side.client.is_closed

    def test_closes_the_connections_to_a_server_that_is_first_used_now(self, settings_of_cluster: Any) -> None:
        pool = Mock()
        settings_of_cluster.sync_pool = lambda *_: pool
        side = SyncSide(settings_of_cluster)
        side.close()

        assert side.pool(Address("a", 1), Breaker()) is pool
        pool.close.assert_called_once_with()

    def test_has_closed_the_connections_to_each_server(self, settings_of_cluster: Any) -> None:
        pool = Mock()
        settings_of_cluster.sync_pool = lambda *_: pool
        side = SyncSide(settings_of_cluster)
        side.pool(Address("a", 1), Breaker())
        pool.close.assert_not_called()

        side.close()

        pool.close.assert_called_once_with()

    def test_has_closed_its_client(self, settings_of_cluster: Any) -> None:
        side: Any = SyncSide(settings_of_cluster)
        client = side.connect()

        side.close()

        assert client.is_closed

    def test_of_tasks_has_closed_its_client(self, made: list[Client], settings_of_cluster: Any) -> None:
        async def use() -> None:
            side: Any = AsyncSide(settings_of_cluster)
            side.client, side._pools = Client(), {Address("a", 1): (wire := AsyncMock())}
            await side.aclose()
            wire.aclose.assert_awaited_once_with()
            assert (side.client, side._pools) == (None, {})

        asyncio.run(use())

        assert [each.is_closed for each in made] == [True]


def test_a_client_that_another_has_replaced_stays_replaced(settings_of_cluster: Any) -> None:
    old: Any = Client()
    side, tasks = SyncSide(settings_of_cluster), AsyncSide(settings_of_cluster)
    side.client = tasks.client = "new"

    side.leave(old)
    asyncio.run(tasks.leave(old))

    assert (side.client, tasks.client, old.is_closed) == ("new", "new", True)


class WatchedSide(SyncSide):
    """Notes each change of its client, which has to be made under its lock."""

    changed: list[object]

    def __setattr__(self, name: str, value: object) -> None:
        if name == "client" and hasattr(self, "changed"):
            assert self._lock.locked()
            self.changed.append(value)
        super().__setattr__(name, value)


class TestTheClientOfAllThreads:
    def test_is_made_known_under_a_lock(self, settings_of_cluster: Any) -> None:
        side = WatchedSide(settings_of_cluster)
        side.changed = []

        client = side.connect()

        assert side.changed == [client]

    def test_is_left_under_a_lock(self, settings_of_cluster: Any) -> None:
        side = WatchedSide(settings_of_cluster)
        client = side.connect()
        side.changed = []

        side.leave(client)

        assert side.changed == [None]


class AskedMeanwhile(Client):
    """While it reads the slots, another thread asks for them, too."""

    reads = 0

    def read(self) -> None:
        self.reads += 1
        if self.reads < 3:
            self.nodes_manager.initialize()


def test_a_client_of_all_threads_is_asked_for_the_slots_by_one_of_them(
    settings_of_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_SyncCluster", AskedMeanwhile)
    client = SyncSide(settings_of_cluster).connect()

    client.nodes_manager.initialize()

    assert client.reads == 1


def test_one_thread_reads_the_slots_at_a_time() -> None:
    read: list[int] = []

    def read_again() -> None:
        read.append(1)
        alone()  # as another thread would meanwhile

    alone = clients._alone(read_again)

    alone()
    alone()

    assert len(read) == 2


def test_the_arguments_of_redis_py_reach_the_reading_of_the_slots() -> None:
    clients._alone(read := Mock())("a", last=True)

    read.assert_called_once_with("a", last=True)


def test_the_slots_can_be_read_after_that_failed() -> None:
    alone = clients._alone(read := Mock(side_effect=RedisClusterException("no server")))

    for _ in range(2):
        with pytest.raises(RedisClusterException):
            alone()

    assert read.call_count == 2


class TestTheClientOfTasks:
    @pytest.fixture
    def client(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        """A client that reads no slots: `reads` notes each reading, which ends as `ends` says."""
        made: Any = object.__new__(OF_TASKS)
        made._initialize, made.nodes_manager = True, AsyncMock(slots_cache={})
        made.reads, made.ends = [], lambda: None

        async def read(self: Any, **options: Any) -> None:
            self.reads.append(options)
            await asyncio.sleep(0)
            self.ends()

        monkeypatch.setattr("redis.asyncio.RedisCluster.initialize", read)
        yield made
        made._initialize = True  # else redis-py warns that it was not closed

    def initialized(self, client: Any, tasks: int = 3) -> list[Any]:
        async def initialize() -> list[Any]:
            return await asyncio.gather(*(client.initialize() for _ in range(tasks)), return_exceptions=True)

        return asyncio.run(initialize())

    def test_reads_the_slots_once_for_all_tasks(self, client: Any) -> None:
        assert self.initialized(client) == [client] * 3
        assert len(client.reads) == 1

    def test_raises_the_error_of_a_reading_in_all_tasks(self, client: Any) -> None:
        client.ends = Mock(side_effect=RedisClusterException("no server"))

        assert [type(each) for each in self.initialized(client)] == [RedisClusterException] * 3
        assert len(client.reads) == 1

    def test_reads_the_slots_again_after_that_failed(self, client: Any) -> None:
        client.ends = Mock(side_effect=[RedisClusterException("no server"), None])

        self.initialized(client)

        assert self.initialized(client) == [client] * 3

    def test_reads_no_slots_if_that_is_not_due(self, client: Any) -> None:
        client._initialize = False

        assert self.initialized(client) == [client] * 3
        assert client.reads == []

    def test_lets_tasks_go_on_that_know_the_slots_while_they_are_read_again(self, client: Any) -> None:
        client.nodes_manager.slots_cache = {1: ["a"]}

        async def initialize() -> None:
            first = asyncio.ensure_future(client.initialize())
            await asyncio.sleep(0)
            await client.initialize()
            assert not first.done()
            await first

        asyncio.run(initialize())

    def test_is_read_to_its_end_though_a_task_is_cancelled(self, client: Any) -> None:
        async def initialize() -> None:
            first, second = (asyncio.ensure_future(client.initialize()) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            assert await second is client

        asyncio.run(initialize())

    def test_closes_all_connections(self, client: Any) -> None:
        client._initialize = False

        asyncio.run(client.aclose())

        assert client.nodes_manager.aclose.await_args_list == [call(), call("startup_nodes")]
        assert client._initialize


def test_a_client_asks_no_server_for_its_commands() -> None:
    assert OF_THREADS.command(Mock()) == {}


class TestTheSettingsOfACluster:
    @pytest.fixture
    def made_of(self) -> Callable[..., ClusterSettings]:
        def made_of(**given: Any) -> ClusterSettings:
            which: Any = SimpleNamespace(raise_problem=Mock(), cluster=lambda: ([Address("a", 1)], given))
            return ClusterSettings(which)

        return made_of

    def test_that_are_wrong_raise_their_problem(self) -> None:
        which: Any = SimpleNamespace(raise_problem=Mock(side_effect=ConfigurationError("x")), cluster=Mock())

        with pytest.raises(ConfigurationError):
            ClusterSettings(which)

    def test_give_the_clients_short_time_outs(self, made_of: Any) -> None:
        options = made_of(socket_timeout=3).options

        assert (options["socket_timeout"], options["socket_connect_timeout"]) == (3, ANSWER_TIMEOUT)

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("decode_responses", False),
            ("protocol", 2),
            ("require_full_coverage", False),
            ("reinitialize_steps", 0),
            ("address_remap", None),
        ],
    )
    def test_have_a_default_for_each_client(self, option: str, value: Any, made_of: Any) -> None:
        assert made_of().options[option] == value

    def test_give_the_clients_no_other_options(self, made_of: Any) -> None:
        assert sorted(made_of(password="x").options) == [
            "address_remap", "decode_responses", "max_connections", "password", "protocol", "reinitialize_steps",
            "require_full_coverage", "socket_connect_timeout", "socket_timeout",
        ]  # fmt: skip

    def test_give_the_clients_what_maps_addresses(self, made_of: Any) -> None:
        assert made_of(address_remap=max).options["address_remap"] is max

    @pytest.mark.parametrize(
        "option", ["host", "port", "db", "startup_nodes", "parser_class", "connection_class", "queue_class", "retry",
                   "retry_on_error", "retry_on_timeout", "timeout"],
    )  # fmt: skip
    def test_keep_from_the_clients_what_they_have_themselves(self, option: str, made_of: Any) -> None:
        assert option not in made_of(**{option: 7}).options

    def test_never_let_a_client_raise_for_want_of_connections(self, made_of: Any) -> None:
        assert made_of(max_connections=3).options["max_connections"] == 2**31

    def test_limit_the_connections_to_each_server(self, made_of: Any) -> None:
        pool = made_of(max_connections=3, timeout=9).sync_pool(Address("a", 1), Breaker())

        assert (pool._permits.qsize(), pool._patience) == (3, 9)

    def test_lead_each_connection_to_its_server(self, made_of: Any) -> None:
        options = made_of(password="x").sync_pool(Address("b", 2), Breaker())._source.options

        assert (options["host"], options["port"], options["password"], options["protocol"]) == ("b", 2, "x", 2)

    def test_lead_the_connection_of_a_loop_to_its_server(self, made_of: Any) -> None:
        async def wire_to(server: Address) -> Any:
            return made_of(timeout=9).async_wire(server, Breaker())

        wire = asyncio.run(wire_to(Address("b", 2)))

        options = wire._source.options
        assert (options["host"], options["port"], options["protocol"], wire._patience) == ("b", 2, 2, 9)

    def test_lead_plain_commands_to_their_server(self, made_of: Any) -> None:
        given = {"socket_timeout": 9, "max_connections": 3, "address_remap": max, "timeout": 5, "db": 0}

        pool = made_of(**given).plain_client("2001:db8::1:7000").connection_pool

        options = pool.connection_kwargs
        assert (options["host"], options["port"]) == ("2001:db8::1", 7000)
        assert (options["socket_timeout"], options["socket_connect_timeout"]) == (9, PLAIN_TIMEOUT)
        assert not {"address_remap", "timeout", "db"} & options.keys()
        assert pool.max_connections > 3


def test_a_client_that_reaches_no_server_is_closed(settings_of_cluster: Any) -> None:
    side, store = SyncSide(settings_of_cluster), object.__new__(ClusterStore)
    client = side.connect()

    run_sync(store._read_slots_again(side, client), lambda call: call())

    assert (side.client, client.is_closed) == (None, True)


def test_a_thread_that_still_uses_a_closed_store_leaves_no_client_open(
    made: list[Client], settings_of_cluster: Any
) -> None:
    side = SyncSide(settings_of_cluster)
    side.close()

    side.connect()

    assert [each.is_closed for each in made] == [True]


def test_a_client_that_is_still_connecting_is_closed_with_its_event_loop(
    made: list[Client], settings_of_cluster: Any
) -> None:
    async def cancelled() -> None:
        side = AsyncSide(settings_of_cluster)
        connecting = asyncio.ensure_future(side.connect())
        await asyncio.sleep(0)
        connecting.cancel()
        await side.aclose()

    asyncio.run(cancelled())

    assert [each.is_closed for each in made] == [True]


def test_a_server_that_did_not_answer_is_asked_for_the_slots_last(settings_of_cluster: Any) -> None:
    side, store = SyncSide(settings_of_cluster), object.__new__(ClusterStore)
    manager = side.connect().nodes_manager
    manager.startup_nodes = {"silent": 1, "well": 2}

    run_sync(store._read_slots_again(side, side.client, "silent"), lambda call: call())

    assert list(manager.startup_nodes) == ["well", "silent"]
