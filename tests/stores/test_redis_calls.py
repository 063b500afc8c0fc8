"""What the Redis store makes of an operation and of its reply, on connections that the tests play."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota.core.errors import StoreBusy, StoreDataError, StorePermissionDenied, StoreUnavailable
from django_quota.features.counters.operations import Get
from django_quota.stores.breaker import Breaker
from django_quota.stores.redis.async_wire import Loading
from django_quota.stores.redis.settings import PLAIN_TIMEOUT, GivenRedis
from django_quota.stores.redis.store import RedisStore, ServerClient, guarded
from tests.support.counts import keys_of
from tests.support.outages import FAILURES, fail
from tests.support.processes import forks, in_child
from tests.support.steps import Clock

KEYS = keys_of("quota:1:{user:1}:c:x")
REPLY = [1, b"5", 0]
FORGOTTEN = NoScriptError("No matching script.")


class GivingBack(Get):
    gives_back = True


class Slow(Get):
    is_slow = True


class Connections:
    """The connections to a server; `said`: the replies to the calls in order. It notes each call."""

    def __init__(self, *said: Any) -> None:
        self.said = list(said)
        self.sent: list[tuple[bytes, bool]] = []
        self.loading = Loading()

    def execute(self, command: bytes, *, gives_back: bool) -> Any:
        self.sent.append((command, gives_back))
        said = self.said.pop(0)
        if isinstance(said, BaseException):
            raise said
        return said


class Wire(Connections):
    """The connection of an event loop."""

    async def execute(self, command: bytes, *, gives_back: bool) -> Any:
        return super().execute(command, gives_back=gives_back)


def run(kind: str, operation: Get, *said: Any, now: int | None = None) -> Any:
    """Run an operation on connections that say this; return them, and the reply or the error."""
    store: Any = object.__new__(RedisStore)
    ours = Connections(*said) if kind == "sync" else Wire(*said)
    slow: Any = Wire(*said)
    vars(ours)["beside"] = lambda: slow

    async def get() -> Any:
        return ours

    store.server = SimpleNamespace(pool=ours, wires=SimpleNamespace(known=lambda: None, get=get))
    try:
        reply = store.run(operation, now) if kind == "sync" else asyncio.run(store.arun(operation, now))
    except StoreUnavailable as error:
        reply = error
    return ours, slow, reply


both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])


@both_kinds
class TestAnOperation:
    def test_is_called_by_its_digest(self, kind: str) -> None:
        ours, _, reply = run(kind, operation := Get(KEYS), REPLY, now=7)

        assert (ours.sent, reply) == ([(operation.command(7), False)], operation.read_reply(REPLY))

    def test_is_sent_whole_to_a_server_that_has_forgotten_it(self, kind: str) -> None:
        ours, _, reply = run(kind, operation := Get(KEYS), FORGOTTEN, REPLY, now=7)

        assert ours.sent == [(operation.command(7), False), (operation.in_full(7), False)]
        assert reply == operation.read_reply(REPLY)

    def test_that_gives_back_waits_longer_each_time(self, kind: str) -> None:
        ours, *_ = run(kind, GivingBack(KEYS), FORGOTTEN, REPLY)

        assert [gives_back for _, gives_back in ours.sent] == [True, True]

    @pytest.mark.parametrize(
        ("said", "kind_of_error", "reason"),
        [
            (ResponseError("WRONGTYPE Operation"), StoreDataError, "ResponseError: WRONGTYPE Operation"),
            (RedisTimeoutError("late"), StoreUnavailable, "TimeoutError: late"),
            (ValueError("nonsense"), StoreUnavailable, "ValueError: nonsense"),
        ],
        ids=["an error reply", "silence", "an error of a parser"],
    )
    def test_that_fails_raises_an_error_of_ours(
        self, kind: str, said: Exception, kind_of_error: type[Exception], reason: str
    ) -> None:
        *_, error = run(kind, Get(KEYS), said)

        assert (type(error), error.reason, error.__context__) == (kind_of_error, reason, None)

    def test_that_finds_no_room_raises_that_error_itself(self, kind: str) -> None:
        *_, error = run(kind, Get(KEYS), busy := StoreBusy("busy"))

        assert error is busy


class TestASlowOperation:
    def test_goes_beside_the_others_of_its_event_loop(self) -> None:
        ours, slow, _ = run("async", Slow(KEYS), FORGOTTEN, REPLY)

        assert (len(ours.sent), len(slow.sent)) == (0, 2)

    def test_goes_over_a_connection_of_its_thread(self) -> None:
        ours, *_ = run("sync", Slow(KEYS), REPLY)

        assert len(ours.sent) == 1


class TestAScriptThatTheServerHasForgotten:
    @pytest.fixture
    def sent_by_another(self) -> Callable[..., list[tuple[bytes, bool]]]:
        """Return what a task sends after another task has sent the script."""

        def sent_by_another(*said: Any) -> list[tuple[bytes, bool]]:
            store, wire = object.__new__(RedisStore), Wire(*said)

            async def wait() -> None:
                await wire.loading.by_another(GivingBack.script.sha)
                waiting = asyncio.ensure_future(store._sent_in_full(wire, GivingBack(KEYS), 7))  # type: ignore[arg-type]
                await asyncio.sleep(0)
                assert not waiting.done()
                wire.loading.done(GivingBack.script.sha)
                assert await waiting == REPLY

            asyncio.run(wait())
            return wire.sent

        return sent_by_another

    def test_is_called_after_another_task_has_sent_it(self, sent_by_another: Any) -> None:
        assert sent_by_another(REPLY) == [(GivingBack(KEYS).command(7), True)]

    def test_is_sent_where_it_was_forgotten_again(self, sent_by_another: Any) -> None:
        operation = GivingBack(KEYS)

        assert sent_by_another(FORGOTTEN, REPLY) == [(operation.command(7), True), (operation.in_full(7), True)]

    @pytest.mark.parametrize("said", [REPLY, RedisTimeoutError("late")], ids=["well", "in vain"])
    def test_is_left_to_the_next_task_once_it_was_sent(self, said: Any) -> None:
        ours, *_ = run("async", Get(KEYS), FORGOTTEN, said)

        assert asyncio.run(ours.loading.by_another(Get.script.sha)) is False


class TestTheStoreOfOneServer:
    @pytest.fixture
    def store(self) -> RedisStore:
        return RedisStore(GivenRedis({"host": "h"}))

    def test_knows_which_redis_it_is(self) -> None:
        assert RedisStore(which := GivenRedis({"host": "h"})).which is which

    def test_says_what_it_can_do(self, store: RedisStore) -> None:
        assert (store.is_shared, store.redis, store.database) == (True, store, None)

    def test_is_as_healthy_as_the_answers_of_its_server(self, store: RedisStore) -> None:
        assert store.all_nodes_healthy is True

    @pytest.mark.parametrize(("failures", "refuses"), [(FAILURES - 1, False), (FAILURES, True)], ids=["a few", "many"])
    def test_refuses_calls_once_its_server_has_failed_several_times(
        self, failures: int, refuses: bool, store: RedisStore
    ) -> None:
        fail(store.server.breaker, failures)

        assert store.is_refusing() is refuses

    def test_closes_the_client_of_its_server(self, store: RedisStore) -> None:
        store.close()

        assert store.server.pool._is_closed

    def test_raises_the_error_of_loading_a_script(self, store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        pipeline = MagicMock()
        pipeline.__enter__.return_value = pipeline
        pipeline.execute.return_value = [NoPermissionError("NOPERM"), NoScriptError("x")]
        client = Mock(pipeline=Mock(return_value=pipeline))
        monkeypatch.setattr(ServerClient, "commands", lambda _: nullcontext(client))

        with pytest.raises(StorePermissionDenied):
            store.try_all([Get(KEYS)], None)
        pipeline.execute.assert_called_once_with(raise_on_error=False)


class TestTheClientOfAServer:
    @pytest.fixture
    def client(self) -> ServerClient:
        return ServerClient(GivenRedis({"host": "h", "timeout": 7, "max_connections": 3, "socket_timeout": 5}))

    def test_has_the_connections_that_the_settings_ask_for(self, client: ServerClient) -> None:
        assert (client.pool._permits.qsize(), client.pool._patience) == (3, 7)

    def test_has_one_pool(self, client: ServerClient) -> None:
        assert client.pool is client.pool

    def test_reports_all_calls_to_one_breaker(self, client: ServerClient) -> None:
        assert client.pool._breaker is client.breaker
        fail(client.breaker)
        with pytest.raises(StoreUnavailable) as caught, client.commands():
            pytest.fail("the block began")
        assert caught.value.reason == "it has failed several times in a row, and is asked again in a moment"

    def test_gives_plain_commands_more_time(self, client: ServerClient) -> None:
        plain = client._connections()[1].connection_pool.connection_kwargs

        assert (plain["socket_timeout"], plain["socket_connect_timeout"]) == (5, PLAIN_TIMEOUT)
        assert client.pool._source.options["socket_connect_timeout"] == 0.25

    def test_that_is_closed_closes_all_its_connections(self, client: ServerClient) -> None:
        ours, plain = Mock(), Mock()
        client._made[""] = ours, plain

        client.close()

        ours.close.assert_called_once_with()
        plain.connection_pool.disconnect.assert_called_once_with()

    def test_that_is_closed_keeps_no_connection(self, client: ServerClient) -> None:
        client.close()

        assert client.pool._is_closed

    @pytest.mark.thorough("slow")
    @forks
    def test_begins_anew_in_a_child_process(self, client: ServerClient) -> None:
        before = client.pool

        assert in_child(lambda: int(client.pool is not before)) == 1


class TestPlainCommands:
    @pytest.fixture
    def due(self) -> Breaker:
        """A breaker that lets a probe ask."""
        made = Breaker(clock=(clock := Clock()))
        fail(made, FAILURES)
        clock.now += 1
        return made

    def test_are_lent_at_once_while_all_is_well(self) -> None:
        client: Any = Mock()

        with guarded(client, Breaker()) as lent:
            assert client.mock_calls == []
        assert lent is client

    def test_are_lent_after_a_probe_was_answered(self, due: Breaker) -> None:
        client: Any = Mock()

        with guarded(client, due):
            client.eval.assert_called_once_with("return 1", 0)
            assert not due.is_open

    @pytest.mark.parametrize(
        ("names", "named"), [([], "it"), (["a:1"], "a:1")], ids=["the only server", "one of several"]
    )
    def test_are_not_lent_while_the_breaker_refuses_calls(self, names: list[str], named: str) -> None:
        fail(refusing := Breaker())

        with pytest.raises(StoreUnavailable) as caught, guarded(Mock(), refusing, *names):
            pytest.fail("the block began")
        assert caught.value.reason == f"{named} has failed several times in a row, and is asked again in a moment"

    def test_are_not_lent_if_the_probe_fails(self, due: Breaker) -> None:
        client: Any = Mock(eval=Mock(side_effect=RedisTimeoutError("late")))

        with pytest.raises(RedisTimeoutError), guarded(client, due):
            pytest.fail("the block began")
        assert due.is_refusing()
