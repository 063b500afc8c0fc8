"""How a command finds its server: which server it is sent to, and what follows from each answer, without a network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota.core.flow import IOCall, run_sync
from django_quota.engine.operations import Script
from django_quota.stores.cluster.routing import MAX_GONE, MAX_HOPS, MOVE_TIMEOUT, PROBE_INTERVAL, Router, SlotCommand
from django_quota.stores.cluster.slots import SLOTS, slot_of, slot_owners
from django_quota.stores.redis.breaker import Breaker
from django_quota.stores.redis.config import Address
from django_quota.stores.redis.errors import GarbledError, NotSentError

A, B, C = (Address("10.0.0.1", port) for port in (1, 2, 3))
HALVES = [[0, 8191, [b"10.0.0.1", 1, b"id"]], [8192, 16383, ["10.0.0.1", 2, "id"], ["10.0.0.1", 3, "id"]]]
ALL_OF_C = [[0, 16383, [b"10.0.0.1", 3, b"id"]]]
SCRIPT = Script.of("return 1")
HIT = ("EVALSHA", SCRIPT.sha, 1, "key")
FIRST, SECOND = SlotCommand(5, HIT, SCRIPT), SlotCommand(9_000, HIT, SCRIPT)
NO_ANSWER = RedisTimeoutError("no answer")


class FakeNode:
    """Answers as the test says."""

    def __init__(self, servers: Servers, address: Address) -> None:
        self.servers, self.address = servers, address
        self.breaker = Breaker(failures=1)
        self.closed = 0

    def send(self, commands: Sequence[Any]) -> list[Any]:
        return [self.servers.answer(self.address, command) for command in commands]

    async def asend(self, commands: Sequence[Any]) -> list[Any]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed += 1


class Servers:
    """All servers of a Cluster, and a router to them."""

    def __init__(self, *answers: Any, slots: Any = HALVES, seeds: Sequence[Address] = (A,)) -> None:
        self.answers = list(answers)
        self.slots = slots
        self.probed: Any = 1
        self.now = 100.0
        self.sent: list[tuple[Address, str]] = []
        self.made: dict[Address, FakeNode] = {}
        self.router = Router(seeds, self.make, clock=lambda: self.now)

    def make(self, address: Address) -> Any:
        self.made[address] = FakeNode(self, address)
        return self.made[address]

    def answer(self, at: Address, command: Sequence[Any]) -> Any:
        self.sent.append((at, str(command[0])))
        answer = {"CLUSTER": self.slots, "ASKING": "OK"}.get(str(command[0]))
        if command[0] == "EVAL":
            answer = self.probed if command[2] == 0 else 1
        elif command[0] == "EVALSHA":
            answer = self.answers.pop(0)
        if isinstance(answer, Exception) and not isinstance(answer, ResponseError):
            raise answer
        return answer

    def perform(self, call: IOCall) -> Any:
        if call.sync is not time.sleep:
            return call.run_sync()
        self.now += call.args[0]
        return None

    def run(self, *asked: SlotCommand) -> list[Any]:
        replies = run_sync(self.router.reach(asked), self.perform)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def fails(self, *asked: SlotCommand) -> Exception:
        with pytest.raises((RedisError, OSError)) as caught:
            self.run(*asked)
        return caught.value

    @property
    def hits(self) -> list[Address]:
        return [at for at, word in self.sent if word == "EVALSHA"]

    def times(self, word: str) -> int:
        return [sent for _, sent in self.sent].count(word)


def test_a_known_slot_is_one_round_trip() -> None:
    servers = Servers(1, 2)
    assert servers.run(FIRST) == [1]
    before = len(servers.sent)
    assert servers.run(FIRST) == [2]
    assert servers.sent[before:] == [(A, "EVALSHA")]


class TestRedirections:
    @pytest.mark.parametrize(
        "error", [MovedError("5 10.0.0.1:3"), ResponseError("MOVED 5 10.0.0.1:3"), MovedError("5 :3")]
    )
    def test_a_slot_that_has_moved_is_followed_and_remembered(self, error: Exception) -> None:
        servers = Servers(error, 1)
        assert servers.run(FIRST) == [1]
        assert servers.hits == [A, C]
        assert servers.router.owner(5) == C

    def test_a_moving_slot_is_asked_for_in_one_round_trip_and_not_remembered(self) -> None:
        servers = Servers(AskError("5 10.0.0.1:2"), 1)
        assert servers.run(FIRST) == [1]
        assert servers.sent[-2:] == [(B, "ASKING"), (B, "EVALSHA")]
        assert servers.router.owner(5) == A

    def test_a_server_that_does_not_know_the_script_gets_it(self) -> None:
        servers = Servers(AskError("5 10.0.0.1:2"), NoScriptError("no"))
        assert servers.run(FIRST) == [1]
        assert servers.sent[-4:] == [(B, "ASKING"), (B, "EVALSHA"), (B, "ASKING"), (B, "EVAL")]

    @pytest.mark.parametrize("kind", [MovedError, AskError])
    def test_servers_that_name_each_other_are_given_up(self, kind: Any) -> None:
        servers = Servers(*[kind("5 10.0.0.1:2"), kind("5 10.0.0.1:1")] * MAX_HOPS)
        assert "each other" in str(servers.fails(FIRST))
        assert len(servers.hits) == MAX_HOPS + 1

    @pytest.mark.parametrize("words", ["5", "5 10.0.0.1", "5 10.0.0.1:x", ""])
    @pytest.mark.parametrize("word", ["MOVED", "ASK"])
    def test_a_redirection_to_nowhere_is_an_error(self, word: str, words: str) -> None:
        assert isinstance(Servers(ResponseError(f"{word} {words}")).fails(FIRST), GarbledError)

    def test_an_address_of_ipv6_is_read(self) -> None:
        servers = Servers(MovedError("5 2001:db8::1:6379"), 1)
        servers.run(FIRST)
        assert servers.hits[-1] == Address("2001:db8::1", 6379)

    def test_the_address_in_a_redirection_is_remapped(self) -> None:
        servers = Servers(MovedError("5 10.0.0.1:2"), 1)
        servers.router._remap = lambda at: (at[0], at[1] + 100)
        servers.run(FIRST)
        assert servers.hits == [Address("10.0.0.1", 101), Address("10.0.0.1", 102)]


class TestErrors:
    @pytest.mark.parametrize("error", [NO_ANSWER, RedisConnectionError("closed"), OSError("reset")])
    def test_a_command_without_an_answer_is_never_sent_again(self, error: Exception) -> None:
        servers = Servers(error, 1)
        assert servers.fails(FIRST) is error
        assert servers.hits == [A]
        servers.now += 1
        servers.run(FIRST)
        assert [word for _, word in servers.sent[-2:]] == ["CLUSTER", "EVALSHA"]  # the table is read again

    @pytest.mark.parametrize("error", [NotSentError("refused"), ClusterDownError("down"), ReadOnlyError("a replica")])
    def test_a_command_that_was_not_run_goes_to_the_new_owner_at_once(self, error: Exception) -> None:
        servers = Servers(0, error, 1)
        servers.run(FIRST)
        servers.now += 1
        servers.slots = ALL_OF_C
        assert servers.run(FIRST) == [1]
        assert servers.hits == [A, A, C]

    @pytest.mark.parametrize("error", [NotSentError("refused"), ClusterDownError("down"), ResponseError("OOM")])
    def test_without_a_new_owner_the_error_is_raised(self, error: Exception) -> None:
        servers = Servers(0, error)
        servers.run(FIRST)
        servers.now += 1
        assert servers.fails(FIRST) is error

    def test_the_table_is_read_ten_times_a_second_at_most(self) -> None:
        servers = Servers(*[NotSentError("refused")] * 50)
        for _ in range(10):
            servers.fails(FIRST)
        assert servers.times("CLUSTER") == 1

    def test_a_slot_without_a_server_is_an_error_and_one_reading(self) -> None:
        servers = Servers(slots=HALVES[1:])
        for _ in range(20):
            assert "no server" in str(servers.fails(FIRST))
        assert len(servers.sent) == 1


class TestSeveralCommands:
    def test_they_are_one_round_trip_a_server_and_only_refused_ones_are_sent_again(self) -> None:
        servers = Servers(1, 3, MovedError("9000 10.0.0.1:3"), 2)
        assert servers.run(FIRST, SECOND, FIRST._replace(slot=6)) == [1, 2, 3]
        assert servers.hits == [A, A, B, C]

    def test_a_silent_server_does_not_hold_up_another(self) -> None:
        servers = Servers(NO_ANSWER, 2)
        assert servers.fails(FIRST, SECOND) is NO_ANSWER
        assert servers.hits == [A, B]

    def test_a_slot_without_a_server_does_not_hold_up_another(self) -> None:
        servers = Servers(1, 2, slots=[[0, 99, HALVES[0][2]], HALVES[1]])
        nobodys = FIRST._replace(slot=5_000)
        assert "no server" in str(servers.fails(nobodys, FIRST, nobodys, SECOND))
        assert servers.hits == [A, B]

    def test_without_any_table_it_is_read_once(self) -> None:
        servers = Servers(slots=ResponseError("ERR This instance has cluster support disabled"))
        assert "disabled" in str(servers.fails(*[FIRST._replace(slot=slot) for slot in range(50)]))
        assert servers.sent == [(A, "CLUSTER")]


class TestASlotWhoseMoveTakesLong:
    """TRYAGAIN: some of the keys are on one server, some on the other."""

    @staticmethod
    def moving() -> Servers:
        return Servers(*[TryAgainError("later")] * 10_000)

    @staticmethod
    def waited(servers: Servers, slot: int = 5) -> float:
        before = servers.now
        assert isinstance(servers.fails(FIRST._replace(slot=slot)), TryAgainError)
        return servers.now - before

    def test_the_command_waits_for_it(self) -> None:
        servers = Servers(*[TryAgainError("later")] * 3, 1)
        assert servers.run(FIRST) == [1]

    def test_it_waits_two_seconds_at_most(self) -> None:
        servers = self.moving()
        assert self.waited(servers) == pytest.approx(MOVE_TIMEOUT, abs=0.1)
        assert len(servers.hits) < 60

    def test_then_nobody_waits_for_this_slot_for_as_long(self) -> None:
        servers = self.moving()
        self.waited(servers)
        for _ in range(50):
            assert self.waited(servers) == 0
            servers.now += 0.9 * MOVE_TIMEOUT / 50
        assert self.waited(servers, 6) == pytest.approx(MOVE_TIMEOUT, abs=0.1)
        servers.now += MOVE_TIMEOUT
        assert self.waited(servers) == pytest.approx(MOVE_TIMEOUT, abs=0.1)


class TestServersThatFail:
    @staticmethod
    def failed(error: Exception) -> Servers:
        """Return servers of which B has failed a command."""
        servers = Servers(0, error, *[0] * 200)
        servers.run(FIRST)
        servers.fails(SECOND)
        servers.sent.clear()
        assert not servers.router.all_nodes_healthy
        return servers

    def test_a_silent_server_is_asked_for_the_table_last(self) -> None:
        servers = self.failed(NO_ANSWER)
        for _ in range(4):
            servers.router.is_stale = True
            run_sync(servers.router.refresh(), servers.perform)
            servers.now += 0.2
        assert {at for at, _ in servers.sent} == {A}

    @pytest.mark.parametrize("reply", [NO_ANSWER, NotSentError("loading"), ResponseError("MASTERDOWN Link down")])
    def test_on_a_quiet_site_a_silent_server_is_probed_until_it_answers(self, reply: Exception) -> None:
        servers = self.failed(NO_ANSWER)
        servers.probed = reply
        for _ in range(100):
            servers.now += 0.1
            servers.run(FIRST)
            assert not servers.router.all_nodes_healthy
        assert 3 <= servers.times("EVAL") <= 10 / PROBE_INTERVAL
        servers.probed = 1
        servers.now += PROBE_INTERVAL
        servers.run(FIRST)
        assert servers.router.all_nodes_healthy
        servers.sent.clear()
        servers.now += 10 * PROBE_INTERVAL
        servers.run(FIRST)
        assert not servers.times("EVAL")

    def test_of_several_the_one_that_waited_longest_is_probed(self) -> None:
        slots = [[0, 99, HALVES[0][2]], [100, 8191, ["10.0.0.1", 3, "id"]], HALVES[1]]
        servers = Servers(NO_ANSWER, NO_ANSWER, *[0] * 9, slots=slots)
        servers.probed = NO_ANSWER
        for slot in (100, 9_000):
            servers.fails(FIRST._replace(slot=slot))
            servers.now += 0.5
        for _ in range(3):
            servers.now += PROBE_INTERVAL
            for _ in range(3):
                servers.run(FIRST)
        assert [at for at, word in servers.sent if word == "EVAL"] == [C, B, C]

    def test_a_server_that_was_replaced_is_missed_no_more(self) -> None:
        servers = self.failed(NO_ANSWER)
        servers.probed = NO_ANSWER
        servers.slots = [HALVES[0], [8192, 16383, ["10.0.0.1", 3, "id"]]]
        servers.now += PROBE_INTERVAL
        servers.run(FIRST)
        assert servers.router.all_nodes_healthy

    @pytest.mark.parametrize("error", [ResponseError("OOM command not allowed"), ClusterDownError("down")])
    def test_a_server_that_answered_by_an_error_is_back_when_it_runs_a_command(self, error: Exception) -> None:
        servers = self.failed(error)
        for _ in range(3):
            servers.now += PROBE_INTERVAL
            servers.run(FIRST)
        assert not servers.router.all_nodes_healthy
        servers.run(SECOND)
        assert servers.router.all_nodes_healthy

    def test_all_refuse_when_the_breaker_of_each_does(self) -> None:
        servers = Servers(1, 1)
        assert not servers.router.is_refusing()  # nobody has asked
        servers.run(FIRST, SECOND)
        servers.made[A].breaker.failed()
        assert not servers.router.is_refusing()
        servers.made[B].breaker.failed()
        assert servers.router.is_refusing()

    def test_servers_that_have_left_are_closed(self) -> None:
        servers = Servers(*[1] * 100)
        for port in range(2, 50):
            servers.slots = [[0, 16383, ["10.0.0.1", port, "id"]]]
            servers.now += 1
            servers.router.is_stale = True
            servers.run(FIRST)
            assert {A, Address("10.0.0.1", port)} <= set(servers.router.nodes)
            assert len(servers.router.nodes) <= MAX_GONE + 2
        assert all(node.closed == 1 for at, node in servers.made.items() if at not in servers.router.nodes)


@pytest.mark.parametrize(
    "key", ["quota:1:{ip:1}:s", "{}x", "{a}{b}", "x{", "x{a", "a{b}c}", "{ü}:x", "", "{{a}}", "}{a}"]
)
def test_the_slot_of_a_key_is_that_of_redis(key: str) -> None:
    assert slot_of(key) == key_slot(key.encode())


TABLES: list[Any] = [
    7, [7], [[]], [[0]], [[0, 1]], [[0, 1, None]], [[0, 1, []]], [[0, 1, [b"10.0.0.1"]]], [["x", 1, [b"10.0.0.1", 7]]],
    [[-9, -5, [b"10.0.0.1", 7]]], [[9, 5, [b"10.0.0.1", 7]]], [[0, 1, [b"10.0.0.1", None]]],
    [[0, 1, [b"10.0.0.1", 7]], None], [],
]  # fmt: skip


class TestTheReplyToClusterSlots:
    @pytest.mark.parametrize("host", [b"", "", None, "?"])
    def test_a_server_without_a_name_is_the_one_that_was_asked(self, host: Any) -> None:
        owners = slot_owners([[0, 16383, [host, 7, b"id", []]]], A, lambda at: (at[0], at[1] + 100))
        assert set(owners.values()) == {Address("10.0.0.1", 107)}
        assert len(owners) == SLOTS

    @pytest.mark.parametrize("reply", TABLES)
    def test_what_cannot_be_read_leaves_the_old_table(self, reply: Any) -> None:
        servers = Servers(1, 2)
        servers.run(FIRST)
        servers.now += 1
        servers.slots = reply
        servers.router.is_stale = True
        assert servers.run(FIRST) == [2]
        assert servers.router.primaries == [A, B]
        assert servers.times("CLUSTER") == 3  # the other server was asked, too

    @pytest.mark.parametrize("reply", TABLES)
    def test_without_an_old_table_it_is_an_error(self, reply: Any) -> None:
        assert isinstance(Servers(slots=reply).fails(FIRST), RedisConnectionError)

    @given(
        st.recursive(
            st.none() | st.integers() | st.binary(max_size=4) | st.text(max_size=4),
            lambda parts: (
                st.lists(parts, max_size=5)
                | st.tuples(st.integers(-1, 10**15), st.integers(-1, 10**15), parts).map(list)
            ),
        )
    )
    def test_no_reply_makes_a_table_of_other_slots(self, reply: Any) -> None:
        with suppress(GarbledError):
            assert set(slot_owners(reply, A, None)) <= set(range(SLOTS))
