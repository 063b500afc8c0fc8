"""Where a Cluster redirects a command, and what is known of its servers: by servers that the tests play."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ClusterError,
    MovedError,
    NoScriptError,
    RedisClusterException,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota.core.errors import StoreConnectionLost, StoreUnavailable
from django_quota.core.flow import run_sync
from django_quota.features.bans import BanSubject
from django_quota.features.counters.operations import Get
from django_quota.stores.breaker import Breaker
from django_quota.stores.cluster.clients import node_address
from django_quota.stores.cluster.store import (
    ANY,
    NO_SERVER,
    SYSTEM_TAG,
    ClusterStore,
    slot_of,
)
from django_quota.stores.redis.async_wire import ByLoop
from django_quota.stores.redis.settings import Address
from tests.support.counts import keys_of
from tests.support.outages import fail
from tests.support.processes import forks, in_child
from tests.support.steps import Clock

A, B, NEW = Address("a", 1), Address("b", 2), Address("new", 3)
OPERATION = Get(keys_of("quota:1:{user:1}:c:x"))
SLOT = slot_of(OPERATION.keys[0])
REPLY: Any = [1, b"5", 0]


def node(address: Address) -> Any:
    return SimpleNamespace(host=address.host, port=address.port, name=f"{address.host}:{address.port}")


class Client:
    """redis-py's client of a Cluster with two servers; A has the slot of the operation."""

    def __init__(self) -> None:
        self.primaries = [node(A), node(B)]
        self.nodes_manager = SimpleNamespace(
            slots_cache={SLOT: [self.primaries[0]]},
            startup_nodes={"a:1": 1, "b:2": 2},
            remap_host_port=lambda host, port: (host.removeprefix("inside-"), port),
        )

    def get_primaries(self) -> list[Any]:
        return self.primaries


class Side:
    """The connections to the servers; `said`: what each call gets, in order."""

    def __init__(self, *said: Any) -> None:
        self.said = list(said)
        self.calls: list[tuple[Address, bool]] = []
        self.commands: list[Any] = []
        self.breakers: list[Breaker] = []
        self.how: list[tuple[bool, bool]] = []
        """Whether each call was slow, and whether it gave back."""
        self.client: Any = Client()
        self.pauses: list[float] = []
        self.read_slots = Mock(return_value=None)
        self.leave = Mock(return_value=None)
        self.loaded = Mock(return_value=None)
        self.is_loaded_by_another = Mock(return_value=False)

    def connect(self) -> Any:
        self.client = Client()
        return self.client

    def pool(self, server: Address, breaker: Breaker, *, is_slow: bool) -> Any:
        def execute(command: Any, *, gives_back: bool, is_asking: bool) -> Any:
            self.calls.append((server, is_asking))
            self.commands.append(command)
            self.breakers.append(breaker)
            self.how.append((is_slow, gives_back))
            said = self.said.pop(0) if len(self.said) > 1 else self.said[0]
            if isinstance(said, BaseException):
                raise said
            return said

        return SimpleNamespace(execute=execute)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
def store() -> ClusterStore:
    made = object.__new__(ClusterStore)
    made._is_closed = False
    made.after_fork()
    return made


Ask = Callable[..., Side]


@pytest.fixture
def ask(store: ClusterStore) -> Ask:
    """Run an operation on servers that say this; returns them. The last thing is said again and again."""

    def ask(*said: Any, error: type[Exception] | None = None) -> Side:
        side: Any = Side(*said)
        store._sides[""] = side
        (found,) = store.try_all([OPERATION], None)
        if error is None:
            assert found == REPLY
        else:
            assert type(found) is error
        return side  # type: ignore[no-any-return]

    return ask


def moved(to: Address, host: str = "") -> MovedError:
    return MovedError(f"{SLOT} {host or to.host}:{to.port}")


def asks(to: Address) -> AskError:
    return AskError(f"{SLOT} {to.host}:{to.port}")


class TestACommand:
    def test_goes_to_the_server_that_has_its_slot(self, ask: Ask) -> None:
        assert ask(REPLY).calls == [(A, False)]

    def test_follows_its_slot_that_has_moved(self, ask: Ask) -> None:
        assert ask(moved(B), REPLY).calls == [(A, False), (B, False)]

    def test_follows_a_key_that_is_moving(self, ask: Ask) -> None:
        assert ask(asks(B), REPLY).calls == [(A, False), (B, True)]

    def test_asks_no_longer_once_its_slot_has_moved(self, ask: Ask) -> None:
        assert ask(asks(B), moved(A), REPLY).calls == [(A, False), (B, True), (A, False)]

    def test_is_reported_to_the_breaker_of_each_server(self, store: ClusterStore, ask: Ask) -> None:
        side = ask(moved(B), REPLY)

        assert side.breakers == [store._breaker("a:1"), store._breaker("b:2")]

    @pytest.mark.parametrize("is_slow", [False, True], ids=["fast", "slow"])
    @pytest.mark.parametrize("gives_back", [False, True], ids=["takes", "gives back"])
    def test_waits_its_turn_as_its_operation_says(
        self, is_slow: bool, gives_back: bool, store: ClusterStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Get, "is_slow", is_slow)
        monkeypatch.setattr(Get, "gives_back", gives_back)
        side: Any = Side(NoScriptError("x"), REPLY)
        store._sides[""] = side

        store.run(OPERATION)

        assert side.how == [(is_slow, gives_back)] * 2

    def test_has_the_time_that_is_passed_in(self, store: ClusterStore) -> None:
        side: Any = Side(NoScriptError("x"), REPLY)
        store._sides[""] = side

        store.run(OPERATION, 7)

        assert side.commands == [OPERATION.command(7), OPERATION.in_full(7)]

    def test_goes_to_where_the_settings_map_a_server(self, ask: Ask) -> None:
        assert ask(moved(B, "inside-b"), REPLY).calls == [(A, False), (B, False)]

    def test_is_sent_again_while_its_keys_are_on_both_sides(self, ask: Ask) -> None:
        assert ask(TryAgainError("x"), REPLY).calls == [(A, False)] * 2

    def test_pauses_only_where_a_move_takes_long(self, ask: Ask) -> None:
        side = ask(*[TryAgainError("x")] * 10, REPLY)

        assert side.pauses == [0.05]

    @pytest.mark.parametrize("said", [TryAgainError("x"), asks(B), moved(B)], ids=type)
    def test_is_given_up_after_many_redirections(self, said: Exception, ask: Ask) -> None:
        side = ask(said, error=StoreUnavailable)

        assert len(side.calls) == 16

    def test_that_is_given_up_names_the_last_server(self, store: ClusterStore, ask: Ask) -> None:
        ask(asks(B), error=StoreUnavailable)

        (found,) = store.try_all([OPERATION], None)

        assert found.reason == (
            "a slot is moving to another server: its servers keep redirecting a command, the last to b:2"
        )

    @pytest.mark.parametrize(
        ("said", "error"),
        [
            (RedisConnectionError("Connection closed by server."), StoreConnectionLost),
            (RedisTimeoutError("late"), StoreUnavailable),
            (ClusterDownError("CLUSTERDOWN"), StoreUnavailable),
        ],
        ids=["cut", "late", "down"],
    )
    def test_that_was_not_answered_is_not_sent_again(self, said: Exception, error: type[Exception], ask: Ask) -> None:
        assert len(ask(said, error=error).calls) == 1


class TestAScriptThatAServerHasForgotten:
    def test_is_sent_whole(self, ask: Ask) -> None:
        side = ask(NoScriptError("x"), REPLY)

        assert side.commands == [OPERATION.command(None), OPERATION.in_full(None)]

    @pytest.mark.parametrize(
        ("said", "error"), [(REPLY, None), (RedisTimeoutError("x"), StoreUnavailable)], ids=["well", "in vain"]
    )
    def test_was_sent_whether_that_succeeded_or_not(self, said: Any, error: Any, ask: Ask) -> None:
        side = ask(NoScriptError("x"), said, error=error)

        side.loaded.assert_called_once_with(("a:1", OPERATION.script.sha))

    @pytest.mark.parametrize(
        ("said", "sent"),
        [([REPLY], [OPERATION.command(None)]),
         ([NoScriptError("x"), REPLY], [OPERATION.command(None), OPERATION.in_full(None)])],
        ids=["sent by another task", "forgotten again"],
    )  # fmt: skip
    def test_is_called_again_after_another_task_has_sent_it(
        self, said: list[Any], sent: list[Any], store: ClusterStore
    ) -> None:
        side: Any = Side(NoScriptError("x"), *said)
        side.is_loaded_by_another = Mock(return_value=True)
        store._sides[""] = side

        assert store.try_all([OPERATION], None) == [REPLY]
        assert side.commands[1:] == sent
        side.loaded.assert_not_called()


class TestTheSlotTable:
    def test_is_not_read_again_for_a_slot_that_moved_to_a_known_server(self, ask: Ask) -> None:
        side = ask(moved(B), REPLY)

        side.read_slots.assert_not_called()
        assert [node_address(each) for each in side.client.nodes_manager.slots_cache[SLOT]] == [B]

    def test_is_read_again_for_a_slot_that_moved_to_a_new_server(self, ask: Ask) -> None:
        ask(moved(NEW), REPLY).read_slots.assert_called_once_with()

    @pytest.mark.parametrize("said", [asks(NEW), TryAgainError("x")], ids=type)
    def test_is_not_read_again_for_a_key_that_is_moving(self, said: Exception, ask: Ask) -> None:
        ask(said, REPLY).read_slots.assert_not_called()

    @pytest.mark.parametrize(
        "said", [RedisConnectionError("x"), RedisTimeoutError("x"), ClusterDownError("x")], ids=type
    )
    def test_is_read_again_after_a_server_did_not_answer(self, said: Exception, ask: Ask) -> None:
        side = ask(said, error=StoreUnavailable)

        side.read_slots.assert_called_once_with()
        assert list(side.client.nodes_manager.startup_nodes) == ["b:2", "a:1"]

    @pytest.mark.parametrize("error", [RedisConnectionError("x"), OSError("x")], ids=type)
    def test_may_be_read_in_vain(self, error: Exception, store: ClusterStore) -> None:
        side: Any = Side(RedisTimeoutError("late"))
        side.read_slots.side_effect = error
        store._sides[""] = side

        (found,) = store.try_all([OPERATION], None)

        assert "late" in found.reason
        side.leave.assert_not_called()

    @pytest.mark.parametrize("error", [None, RedisConnectionError("x"), OSError("x")], ids=repr)
    def test_is_read_by_a_new_client_where_the_old_one_reaches_no_server(
        self, error: Exception | None, store: ClusterStore
    ) -> None:
        side: Any = Side(RedisTimeoutError("late"))
        side.read_slots.side_effect = RedisClusterException("no server")
        side.leave.side_effect = error
        store._sides[""] = side

        (found,) = store.try_all([OPERATION], None)

        assert "late" in found.reason
        side.leave.assert_called_once_with(side.client)

    def test_is_read_where_it_names_no_server_of_a_slot(self, store: ClusterStore) -> None:
        side: Any = Side(REPLY)
        side.client.nodes_manager.slots_cache.clear()
        store._sides[""] = side

        (found,) = store.try_all([OPERATION], None)

        assert found.reason == f"SlotNotCoveredError: no server of the Cluster has slot {SLOT}"
        side.read_slots.assert_called_once_with()

    def test_is_read_by_a_new_client_where_there_is_none(self, store: ClusterStore) -> None:
        side: Any = Side(REPLY)
        side.client = None
        store._sides[""] = side

        assert store.try_all([OPERATION], None) == [REPLY]
        assert store._known() == ["a:1", "b:2"]

    def test_is_not_read_again_by_a_client_that_was_replaced_meanwhile(self, store: ClusterStore) -> None:
        side: Any = Side(RedisTimeoutError("late"))
        store._sides[""], old = side, side.client

        run_sync(store._read_slots_again(side, Client()), lambda call: call())

        side.read_slots.assert_not_called()
        assert side.client is old

    @pytest.mark.parametrize(
        ("name", "spoil"),
        [
            ("the Cluster", lambda side: setattr(side, "client", None)),
            ("no server", lambda side: side.client.nodes_manager.slots_cache.clear()),
        ],
        ids=["no client", "no server"],
    )
    def test_is_not_read_while_its_breaker_is_open(self, name: str, spoil: Any, store: ClusterStore) -> None:
        side: Any = Side(REPLY)
        spoil(side)
        store._sides[""] = side
        fail(store._breaker(name))

        (found,) = store.try_all([OPERATION], None)

        assert found.reason == f"{name} has failed several times in a row, and is asked again in a moment"
        side.read_slots.assert_not_called()


class TestOperationsThatAreTried:
    def test_go_on_after_one_that_failed(self, store: ClusterStore) -> None:
        side: Any = Side(RedisTimeoutError("x"), REPLY)
        store._sides[""] = side

        failed, reply = store.try_all([OPERATION, OPERATION], None)

        assert (type(failed), reply) == (StoreUnavailable, REPLY)

    def test_may_have_one_key(self, store: ClusterStore) -> None:
        side: Any = Side([9, 1])
        store._sides[""] = side

        assert store.try_all([BanSubject("quota:1:{user:1}:s", "api", 1, 1)], None) == [[9, 1]]

    def test_raise_the_error_where_all_must_be_well(self, store: ClusterStore) -> None:
        side: Any = Side(RedisTimeoutError("x"))
        store._sides[""] = side

        with pytest.raises(StoreUnavailable):
            store.run(OPERATION)


# --- in an event loop -------------------------------------------------------------------------------------------------


class SideOfALoop(Side):
    """The connections of an event loop."""

    is_closed = False

    def pool(self, server: Address, breaker: Breaker, *, is_slow: bool) -> Any:
        execute = super().pool(server, breaker, is_slow=is_slow).execute

        async def executed(*given: Any, **options: Any) -> Any:
            return execute(*given, **options)

        return SimpleNamespace(execute=executed)

    async def aclose(self) -> None:
        self.is_closed = True


class TestAnEventLoop:
    def test_gets_the_reply_of_the_server_that_has_the_slot(self, store: ClusterStore) -> None:
        side = SideOfALoop(REPLY)
        store._by_loop = ByLoop(lambda: side)

        assert asyncio.run(store.arun(OPERATION)) == REPLY
        assert (side.calls, side.is_closed) == ([(A, False)], True)

    def test_has_the_time_that_is_passed_in(self, store: ClusterStore) -> None:
        side = SideOfALoop(REPLY)
        store._by_loop = ByLoop(lambda: side)

        asyncio.run(store.arun(OPERATION, 7))

        assert side.commands == [OPERATION.command(7)]

    def test_gets_the_error_of_a_server(self, store: ClusterStore) -> None:
        store._by_loop = ByLoop(lambda: SideOfALoop(RedisTimeoutError("x")))

        with pytest.raises(StoreUnavailable):
            asyncio.run(store.arun(OPERATION))


# --- plain commands ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("plain_client")
class TestPlainCommands:
    @pytest.fixture
    def plain_client(self, store: ClusterStore) -> Mock:
        """What makes the clients for plain commands; the server A has the slot of the system keys."""
        side: Any = Side(REPLY)
        side.client.nodes_manager.slots_cache[slot_of(SYSTEM_TAG)] = [side.client.primaries[0]]
        side.client.nodes_manager.initialize = Mock()
        side.close = Mock()
        store._sides[""] = side
        plain_client = Mock(side_effect=lambda name: Mock(named=name))
        vars(store)["_settings"] = Mock(plain_client=plain_client)
        return plain_client

    @pytest.mark.parametrize(("server", "asked"), [(None, "a:1"), ("b:2", "b:2")], ids=["of the system", "named"])
    def test_go_to_the_server_that_is_asked_for(self, server: str | None, asked: str, store: ClusterStore) -> None:
        with store.commands(server) as client:
            assert client.named == asked  # type: ignore[attr-defined]

    def test_go_over_one_client_of_each_server(self, store: ClusterStore, plain_client: Mock) -> None:
        for server in ("a:1", "b:2", "a:1"):
            with store.commands(server):
                pass

        assert [call.args for call in plain_client.call_args_list] == [("a:1",), ("b:2",)]

    def test_are_not_sent_to_a_server_whose_breaker_is_open(self, store: ClusterStore) -> None:
        fail(store._breaker("b:2"))

        with pytest.raises(StoreUnavailable) as caught, store.commands("b:2"):
            pass
        assert caught.value.reason == "b:2 has failed several times in a row, and is asked again in a moment"

    @pytest.mark.parametrize("error", [RedisConnectionError("x"), OSError("x")], ids=type)
    def test_raise_store_unavailable_for_an_error_of_the_connection(
        self, error: Exception, store: ClusterStore
    ) -> None:
        with pytest.raises(StoreUnavailable), store.commands("b:2"):
            raise error
        assert store._breaker("b:2").has_failed

    def test_raise_an_error_of_a_cluster_as_one(self, store: ClusterStore) -> None:
        with pytest.raises(StoreUnavailable, match="a slot is moving"), store.commands("b:2"):
            raise ClusterError("x")

    def test_leave_an_error_of_the_caller_as_it_is(self, store: ClusterStore) -> None:
        with pytest.raises(ValueError, match="of the caller"), store.commands("b:2"):
            raise ValueError("of the caller")

    def test_can_go_to_all_primaries_which_are_listed_in_order_after_the_slots_are_read(
        self, store: ClusterStore
    ) -> None:
        client = store._sides[""].client
        client.primaries.reverse()

        assert store.servers() == ["a:1", "b:2"]
        client.nodes_manager.initialize.assert_called_once_with()

    def test_of_a_closed_store_have_no_connection_left(self, store: ClusterStore) -> None:
        with store.commands("b:2") as client:
            pass

        store.close()

        client.connection_pool.disconnect.assert_called_once_with()  # type: ignore[attr-defined]
        store._sides[""].close.assert_called_once_with()  # type: ignore[attr-defined]


class TestANewStore:
    @pytest.fixture
    def new(self) -> ClusterStore:
        which: Any = SimpleNamespace(raise_problem=Mock(), cluster=lambda: ([A], {}))
        return ClusterStore(which)

    def test_is_open(self, new: ClusterStore) -> None:
        assert not new._sync._is_closed

    def test_reads_where_its_cluster_is_when_it_is_first_used(self, new: ClusterStore) -> None:
        assert new._sync.settings.addresses == [A]

    def test_has_one_side_for_all_threads(self, new: ClusterStore) -> None:
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(lambda: new._sync).result() is new._sync

    @forks
    def test_begins_anew_in_a_child_process(self, new: ClusterStore) -> None:
        before = new._sync

        assert in_child(lambda: int(new._sync is not before)) == 1

    def test_that_is_closed_keeps_no_connection(self, new: ClusterStore) -> None:
        new.close()

        assert new._sync._is_closed


# --- what is known of the servers -------------------------------------------------------------------------------------


class TestTheBreakers:
    @pytest.fixture
    def known(self, store: ClusterStore) -> ClusterStore:
        """A store that has used its client."""
        store._latest = Client()
        return store

    def open(self, store: ClusterStore, *names: str) -> None:
        for name in names:
            fail(store._breaker(name))

    @pytest.mark.parametrize(
        ("opened", "is_refusing"),
        [((), False), (("a:1",), False), (("a:1", "b:2"), True), ((ANY,), True), ((NO_SERVER,), False)],
        ids=["none", "of one server", "of all servers", "of the Cluster", "of no server"],
    )
    def test_refuse_all_callers_only_if_no_server_can_be_asked(
        self, opened: tuple[str, ...], is_refusing: bool, known: ClusterStore
    ) -> None:
        self.open(known, *opened)

        assert known.is_refusing() is is_refusing

    def test_refuse_nobody_before_a_server_is_known(self, store: ClusterStore) -> None:
        assert not store.is_refusing()

    def test_ask_again_after_a_while(self, known: ClusterStore) -> None:
        clock = Clock()
        for name in ("a:1", "b:2"):
            known._breakers[name] = Breaker(clock=clock)
            fail(known._breakers[name])

        clock.now += 1

        assert not known.is_refusing()

    @pytest.mark.parametrize(
        ("failed", "are_healthy"),
        [((), True), (("b:2",), False), (("another:9",), True), ((ANY,), True)],
        ids=["none", "one", "a server that has left", "the Cluster"],
    )
    def test_say_whether_all_servers_are_healthy(
        self, failed: tuple[str, ...], are_healthy: bool, known: ClusterStore
    ) -> None:
        for name in failed:
            fail(known._breaker(name), 1)

        assert known.all_nodes_healthy is are_healthy

    def test_are_one_for_each_server(self, store: ClusterStore) -> None:
        assert store._breaker("a:1") is store._breaker("a:1")
        assert store._breaker("a:1") is not store._breaker("b:2")


class TestTheKeysOfTheSystem:
    @pytest.fixture
    def of_two(self, store: ClusterStore) -> ClusterStore:
        """A store on two servers: A has the slots of even numbers, and so that of the system keys or not."""
        side: Any = Side(REPLY)
        nodes = side.client.primaries
        side.client.nodes_manager.slots_cache = {slot: [nodes[slot % 2]] for slot in range(16_384)}
        store._sides[""] = side
        return store

    def test_keep_their_name_at_the_server_that_has_them(self, of_two: ClusterStore) -> None:
        server = of_two.server_of(SYSTEM_TAG)

        assert of_two.node_key("quota:1:{!}:metrics", server) == "quota:1:{!}:metrics"

    def test_have_another_name_at_each_other_server(self, of_two: ClusterStore) -> None:
        (other,) = {"a:1", "b:2"} - {of_two.server_of(SYSTEM_TAG)}

        key = of_two.node_key("quota:1:{!}:metrics:{!}", other)

        assert of_two.server_of(key) == other
        assert (key[:10], key[-11:]) == ("quota:1:{!", "metrics:{!}")

    def test_have_no_name_at_a_server_without_slots(self, of_two: ClusterStore) -> None:
        assert of_two.node_key("quota:1:{!}:metrics", "c:3") == ""

    def test_are_looked_for_in_a_thousand_slots_at_most(
        self, of_two: ClusterStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ClusterStore, "server_of", asked := Mock(return_value="a:1"))

        of_two.node_key("quota:1:{!}:metrics", "c:3")

        assert [each.args[0] for each in asked.call_args_list] == [
            "{!}",
            *(f"{{!{number}}}" for number in range(1_000)),
        ]

    def test_are_grouped_by_their_server(self, of_two: ClusterStore) -> None:
        keys = [f"quota:1:{{user:{number}}}:c:x" for number in range(9)]

        found = of_two.by_server(keys)

        assert {key for names in found.values() for key in names} == set(keys)
        assert all(of_two.server_of(key) == server for server, names in found.items() for key in names)
