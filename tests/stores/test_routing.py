"""How a command finds its server: which server it is sent to, and what follows from each answer, without a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

from django_quota.core.flow import run_sync
from django_quota.engine.operations import Script
from django_quota.stores.cluster.attempts import FORGOTTEN_AFTER, MAX_HOPS, MOVE_TIMEOUT
from django_quota.stores.cluster.nodes import SPARE, Nodes
from django_quota.stores.cluster.routing import PROBE_INTERVAL, NotSentError, RoundTrip, Router, Sleep, SlotCommand
from django_quota.stores.cluster.slots import Address, SlotTable, slot_of
from django_quota.stores.redis.breaker import Breaker
from django_quota.stores.redis.errors import GarbledError

A, B, C = (Address("10.0.0.1", port) for port in (1, 2, 3))
HALVES = [[0, 8191, [b"10.0.0.1", 1, b"id"]], [8192, 16383, ["10.0.0.1", 2, "id"], ["10.0.0.1", 3, "id"]]]
SCRIPT = Script.of("return 1")
HIT = ("EVALSHA", SCRIPT.sha, 1, "key")
ASKED = SlotCommand(5, HIT, SCRIPT)

Answer = Callable[[Address, Sequence[Any]], Any]


class Servers:
    """Answers trips as a test says, and keeps a record of them."""

    def __init__(self, *answers: Any, slots: Any = HALVES) -> None:
        self.answers = list(answers)
        self.slots = slots
        self.look: Any = 1
        self.now = 100.0
        self.sent: list[tuple[Address, str]] = []
        self.table = SlotTable([A], clock=lambda: self.now)
        self.router = Router(self.table, clock=lambda: self.now)

    def __call__(self, route: Any) -> Any:
        return run_sync(route, self.step)

    def step(self, step: RoundTrip | Sleep) -> Any:
        if isinstance(step, Sleep):
            self.now += step.seconds
            return None
        return [self.one(step.at, command) for command in step.commands]

    def one(self, at: Address, command: Sequence[Any]) -> Any:
        self.sent.append((at, str(command[0])))
        if command[0] == "CLUSTER":
            answer = self.slots
        elif command[0] == "EVAL":
            answer = self.look
        elif command[0] in ("ASKING", "SCRIPT"):
            answer = "OK"
        else:
            answer = self.answers.pop(0)
        if isinstance(answer, Exception) and not isinstance(answer, ResponseError):
            raise answer
        return answer

    def all_nodes_healthy(self) -> bool:
        return self.router.all_nodes_healthy

    @property
    def hits(self) -> list[Address]:
        return [at for at, word in self.sent if word == "EVALSHA"]


def test_a_known_slot_is_one_trip() -> None:
    servers = Servers(1, 2)
    assert servers(servers.router.reach(ASKED)) == 1
    before = len(servers.sent)
    assert servers(servers.router.reach(ASKED)) == 2
    assert servers.sent[before:] == [(A, "EVALSHA")]


@pytest.mark.parametrize("error", [MovedError("5 10.0.0.1:3"), ResponseError("MOVED 5 10.0.0.1:3"), MovedError("5 :3")])
def test_a_slot_that_has_moved_is_followed_and_remembered(error: Exception) -> None:
    servers = Servers(error, 1)
    assert servers(servers.router.reach(ASKED)) == 1
    assert servers.hits == [A, C]
    assert servers.table.owner(5) == C


def test_a_slot_that_is_moving_is_asked_for_in_one_trip_and_not_remembered() -> None:
    servers = Servers(AskError("5 10.0.0.1:2"), 1)
    assert servers(servers.router.reach(ASKED)) == 1
    assert servers.sent[-2:] == [(B, "ASKING"), (B, "EVALSHA")]
    assert servers.table.owner(5) == A


def test_keys_on_both_sides_of_a_move_are_tried_again_but_not_for_ever() -> None:
    servers = Servers(*[TryAgainError("later")] * 3, 1)
    assert servers(servers.router.reach(ASKED)) == 1
    servers = Servers(*[TryAgainError("later")] * 10_000)
    with pytest.raises(TryAgainError):
        servers(servers.router.reach(ASKED))
    assert MOVE_TIMEOUT <= servers.now - 100 <= MOVE_TIMEOUT + 0.1
    assert len(servers.hits) < 60


def test_a_script_that_a_server_does_not_know_is_loaded_there() -> None:
    servers = Servers(MovedError("5 10.0.0.1:3"), NoScriptError("no"), 1)
    assert servers(servers.router.reach(ASKED)) == 1
    assert servers.sent[-3:] == [(C, "EVALSHA"), (C, "SCRIPT"), (C, "EVALSHA")]


@pytest.mark.parametrize("error", [RedisTimeoutError("no answer"), RedisConnectionError("closed"), OSError("reset")])
def test_what_was_sent_and_not_answered_is_never_sent_again(error: Exception) -> None:
    servers = Servers(error, 1)
    with pytest.raises(type(error)):
        servers(servers.router.reach(ASKED))
    assert servers.hits == [A]
    servers.now += 1
    servers(servers.router.reach(ASKED))
    assert [word for _, word in servers.sent[-2:]] == ["CLUSTER", "EVALSHA"]  # but who has the slot is asked anew


@pytest.mark.parametrize("error", [NotSentError("refused"), ClusterDownError("down"), ReadOnlyError("a replica")])
def test_where_nothing_was_done_the_new_owner_is_asked_at_once(error: Exception) -> None:
    servers = Servers(0, error, 1)
    servers(servers.router.reach(ASKED))
    servers.now += 1
    servers.slots = [[0, 16383, [b"10.0.0.1", 3, b"id"]]]
    assert servers(servers.router.reach(ASKED)) == 1
    assert servers.hits == [A, A, C]


@pytest.mark.parametrize("error", [NotSentError("refused"), ClusterDownError("down")])
def test_where_nobody_has_taken_over_it_is_told_at_once(error: Exception) -> None:
    servers = Servers(0, error)
    servers(servers.router.reach(ASKED))
    servers.now += 1
    with pytest.raises(type(error)):
        servers(servers.router.reach(ASKED))


def test_servers_that_send_a_command_to_each_other_are_given_up() -> None:
    servers = Servers(*[MovedError("5 10.0.0.1:2"), MovedError("5 10.0.0.1:1")] * MAX_HOPS)
    with pytest.raises(RedisConnectionError, match="each other"):
        servers(servers.router.reach(ASKED))
    assert len(servers.hits) == MAX_HOPS + 1


def test_an_error_of_the_command_itself_is_raised() -> None:
    servers = Servers(ResponseError("OOM command not allowed"))
    with pytest.raises(ResponseError, match="OOM"):
        servers(servers.router.reach(ASKED))


def test_a_slot_that_nobody_has_is_told() -> None:
    servers = Servers(slots=HALVES[1:])
    with pytest.raises(RedisConnectionError, match="slot 5"):
        servers(servers.router.reach(ASKED))


def test_several_commands_are_one_trip_a_server_and_only_what_was_refused_goes_again() -> None:
    servers = Servers(1, MovedError("9000 10.0.0.1:3"), 3, 2)
    asked = [ASKED, SlotCommand(9_000, HIT, SCRIPT), ASKED._replace(slot=6)]
    servers.answers = [1, 3, MovedError("9000 10.0.0.1:3"), 2]
    assert servers(servers.router.reach_all(asked)) == [1, 2, 3]
    assert servers.hits == [A, A, B, C]


def test_the_table_is_read_no_oftener_than_it_may() -> None:
    servers = Servers(*[NotSentError("refused")] * 50)
    for _ in range(10):
        with pytest.raises(NotSentError):
            servers(servers.router.reach(ASKED))
    assert servers.sent.count((A, "CLUSTER")) == 1


@pytest.mark.parametrize(
    "key", ["quota:1:{ip:1}:s", "{}x", "{a}{b}", "x{", "x{a", "a{b}c}", "{ü}:x", "", "{{a}}", "}{a}"]
)
def test_the_slot_of_a_key_is_that_of_redis(key: str) -> None:
    assert slot_of(key) == key_slot(key.encode())


def test_a_table_takes_over_what_servers_say() -> None:
    table = SlotTable([A], remap=lambda at: (at[0], at[1] + 100))
    table.learn([[0, 16383, [b"", 7, b"id"]]], A)
    assert table.owner(0) == Address("10.0.0.1", 107)
    assert table.primaries == [Address("10.0.0.1", 107)]
    assert table.moved(3, Address("x", 1)) == Address("x", 101)
    assert table.owner(3) == Address("x", 101)


def test_an_address_of_ipv6_is_read() -> None:
    assert Address.read("2001:db8::1:6379", A) == Address("2001:db8::1", 6379)


class TestASlotWhoseMoveNeverEnds:
    """TRYAGAIN, again and again: waited for, but not by everybody."""

    @staticmethod
    def waited(servers: Servers, slot: int = 5) -> float:
        before = servers.now
        with pytest.raises(TryAgainError):
            servers(servers.router.reach(ASKED._replace(slot=slot)))
        return servers.now - before

    def test_who_comes_later_waits_no_longer_than_the_first(self) -> None:
        servers = Servers(*[TryAgainError("later")] * 10_000)
        first = servers.router.reach(ASKED)
        step = next(first)
        while isinstance(step, RoundTrip):
            step = first.send(servers.step(step))
        servers.now += 0.75 * MOVE_TIMEOUT  # it still waits
        assert self.waited(servers) == pytest.approx(MOVE_TIMEOUT / 4, abs=0.1)

    def test_then_one_at_a_time_waits_in_the_whole_process(self) -> None:
        servers = Servers(*[TryAgainError("later")] * 10_000)
        assert self.waited(servers) == pytest.approx(MOVE_TIMEOUT, abs=0.1)
        assert self.waited(servers) == pytest.approx(MOVE_TIMEOUT, abs=0.1)  # the one that finds out whether it goes on
        servers = Servers(*[TryAgainError("later")] * 10_000)
        self.waited(servers)
        probe = servers.router.reach(ASKED)
        step = next(probe)
        while isinstance(step, RoundTrip):  # it is its probe, and it waits
            step = probe.send(servers.step(step))
        assert [self.waited(servers) for _ in range(50)] == [0.0] * 50

    def test_once_a_command_that_waited_was_done_the_next_move_has_its_time(self) -> None:
        servers = Servers(*[TryAgainError("later")] * 10_000)
        self.waited(servers)
        servers.answers = [TryAgainError("later"), 1]
        assert servers(servers.router.reach(ASKED)) == 1
        servers.answers = [TryAgainError("later")] * 10_000
        ways = [servers.router.reach(ASKED) for _ in range(3)]
        for route in ways:
            step = next(route)
            while isinstance(step, RoundTrip):
                step = route.send(servers.step(step))
            assert isinstance(step, Sleep)

    def test_a_slot_is_forgotten_that_nobody_met_on_the_move_for_long(self) -> None:
        servers = Servers(*[TryAgainError("later")] * 10_000)
        self.waited(servers)
        servers.now += FORGOTTEN_AFTER + 1
        assert self.waited(servers) == pytest.approx(MOVE_TIMEOUT, abs=0.1)

    def test_another_slot_has_a_patience_of_its_own(self) -> None:
        servers = Servers(*[TryAgainError("later")] * 10_000)
        self.waited(servers)
        assert self.waited(servers, 6) == pytest.approx(MOVE_TIMEOUT, abs=0.1)


class TestOddServers:
    @pytest.mark.parametrize("words", ["5 ?:7000", "5", "5 10.0.0.1", "5 10.0.0.1:x", ""])
    @pytest.mark.parametrize("kind", [MovedError, AskError])
    def test_who_sends_a_command_on_to_nobody_is_not_followed(self, kind: Any, words: str) -> None:
        error = ResponseError(f"{'MOVED' if kind is MovedError else 'ASK'} {words}")
        servers = Servers(0, error, 1)
        servers(servers.router.reach(ASKED))
        servers.now += 1
        servers.slots = [[0, 16383, [b"10.0.0.1", 3, b"id"]]]
        assert servers(servers.router.reach(ASKED)) == 1  # the table says who
        assert servers.hits == [A, A, C]

    def test_two_that_ask_each_other_are_given_up(self) -> None:
        servers = Servers(*[AskError("5 10.0.0.1:2"), AskError("5 10.0.0.1:1")] * MAX_HOPS)
        with pytest.raises(RedisConnectionError, match="each other"):
            servers(servers.router.reach(ASKED))

    def test_a_server_without_a_name_is_reached_by_its_address(self) -> None:
        table = SlotTable([A])
        table.learn([[0, 16383, [b"?", 7, b"id", [b"ip", b"10.0.0.9", b"x", b"y"]]]], A)
        assert table.owner(0) == Address("10.0.0.9", 7)
        table.learn([[0, 16383, [b"?", 8, b"id", {b"x": b"y", b"ip": b"10.0.0.8"}]]], A)  # as RESP3 has it
        assert table.owner(0) == Address("10.0.0.8", 8)
        table.learn([[0, 16383, ["?", 7, "id"]]], A)
        assert table.owner(0) == Address("10.0.0.1", 7)
        table.learn([[0, 16383, [None, 7, "id", []]]], A)
        assert table.owner(0) == Address("10.0.0.1", 7)

    def test_the_table_is_not_read_for_each_command_to_a_slot_that_nobody_has(self) -> None:
        servers = Servers(slots=HALVES[1:])
        for _ in range(20):
            with pytest.raises(RedisConnectionError, match="slot 5"):
                servers(servers.router.reach(ASKED))
        assert len(servers.sent) == 1

    def test_another_server_is_asked_for_the_table_each_time(self) -> None:
        servers = Servers()
        for _ in range(4):
            servers.table.doubt()
            servers(servers.router.refreshed())
            servers.now += 1
        assert {at for at, _ in servers.sent} == {A, B}

    def test_one_that_did_not_answer_is_asked_for_the_table_last(self) -> None:
        servers = Servers(0, RedisTimeoutError("no answer"))
        for slot in (5, 9_000):
            try:
                servers(servers.router.reach(ASKED._replace(slot=slot)))
            except RedisTimeoutError:
                servers.now += 1
        servers.sent.clear()
        for _ in range(4):
            servers.table.doubt()
            servers(servers.router.refreshed())
            servers.now += 1
        assert {at for at, _ in servers.sent} == {A}

    def test_it_is_whole_again_once_who_was_silent_answers_or_is_replaced(self) -> None:
        servers = Servers(0, RedisTimeoutError("no answer"), 0, 0)
        servers(servers.router.reach(ASKED))
        assert servers.all_nodes_healthy()
        with pytest.raises(RedisTimeoutError):
            servers(servers.router.reach(ASKED._replace(slot=9_000)))
        servers(servers.router.reach(ASKED))
        assert not servers.all_nodes_healthy()
        servers(servers.router.reach(ASKED._replace(slot=9_000)))
        assert servers.all_nodes_healthy()
        servers.answers = [RedisTimeoutError("no answer"), 0]
        with pytest.raises(RedisTimeoutError):
            servers(servers.router.reach(ASKED._replace(slot=9_000)))
        servers.slots = [HALVES[0], [8192, 16383, ["10.0.0.1", 3, "id"]]]
        servers.now += 1
        servers(servers.router.reach(ASKED))
        assert servers.all_nodes_healthy()

    def test_what_one_server_does_not_do_holds_up_no_other(self) -> None:
        servers = Servers(RedisTimeoutError("no answer"), 2)
        with pytest.raises(RedisTimeoutError):
            servers(servers.router.reach_all([ASKED, ASKED._replace(slot=9_000)]))
        assert servers.hits == [A, B]

    def test_a_slot_that_nobody_has_holds_up_no_other(self) -> None:
        servers = Servers(1, 2, slots=[[0, 99, HALVES[0][2]], HALVES[1]])
        with pytest.raises(RedisConnectionError, match="slot 5000"):
            servers(servers.router.reach_all([ASKED._replace(slot=slot) for slot in (5_000, 5, 5_000, 9_000)]))
        assert servers.hits == [A, B]
        assert not servers.all_nodes_healthy()

    def test_where_no_slot_has_a_server_the_table_is_asked_for_once(self) -> None:
        servers = Servers(slots=ResponseError("ERR This instance has cluster support disabled"))
        with pytest.raises(ResponseError, match="disabled"):
            servers(servers.router.reach_all([ASKED._replace(slot=slot) for slot in range(50)]))
        assert servers.sent == [(A, "CLUSTER")]


class TestAQuietSite:
    """What has failed is found to work again, though no command goes there any more."""

    @staticmethod
    def failed(error: Exception, *answers: Any) -> Servers:
        """Return servers of which B has failed a command."""
        servers = Servers(0, error, *answers)
        for slot in (5, 9_000):
            try:
                servers(servers.router.reach(ASKED._replace(slot=slot)))
            except (RedisError, OSError):
                servers.sent.clear()
        assert not servers.all_nodes_healthy()
        return servers

    @pytest.mark.parametrize(
        "look",
        [RedisTimeoutError("no answer"), NotSentError("it is loading its keys"), ResponseError("MASTERDOWN Link down")],
    )
    def test_one_that_gave_no_answer_is_asked_now_and_then_until_it_does(self, look: Exception) -> None:
        servers = self.failed(RedisTimeoutError("no answer"), *[0] * 200)
        servers.look = look
        for _ in range(100):
            servers.now += 0.1
            servers(servers.router.reach(ASKED))
            assert not servers.all_nodes_healthy()
        assert 3 <= self.looks(servers) <= 10 / PROBE_INTERVAL
        servers.look = 1
        servers.now += PROBE_INTERVAL
        servers(servers.router.reach(ASKED))
        assert servers.all_nodes_healthy()
        before = self.looks(servers)
        servers.now += 10 * PROBE_INTERVAL
        servers(servers.router.reach(ASKED))
        assert self.looks(servers) == before

    @staticmethod
    def looks(servers: Servers) -> int:
        found = [at for at, word in servers.sent if word == "EVAL"]
        assert set(found) <= {B}
        return len(found)

    def test_one_that_another_has_replaced_is_missed_no_more(self) -> None:
        servers = self.failed(RedisTimeoutError("no answer"), 0, 0)
        servers.look = RedisTimeoutError("no answer")
        servers.now += PROBE_INTERVAL / 2
        servers(servers.router.reach(ASKED))
        servers.slots = [HALVES[0], [8192, 16383, ["10.0.0.1", 3, "id"]]]  # nobody's command finds that out
        servers.now += PROBE_INTERVAL
        servers(servers.router.reach(ASKED))
        assert servers.all_nodes_healthy()

    def test_a_slot_that_somebody_has_again_is_missed_no_more(self) -> None:
        servers = Servers(*[0] * 9, slots=HALVES[:1])
        with pytest.raises(RedisConnectionError, match="slot 9000"):
            servers(servers.router.reach(ASKED._replace(slot=9_000)))
        servers.now += 1
        servers(servers.router.reach(ASKED))  # the table is read, and nobody has it yet
        servers.slots = HALVES
        assert not servers.all_nodes_healthy()
        servers.now += PROBE_INTERVAL
        servers(servers.router.reach(ASKED))
        assert servers.all_nodes_healthy()

    @pytest.mark.parametrize("error", [ResponseError("OOM command not allowed"), ClusterDownError("down")])
    def test_one_that_answered_by_an_error_is_back_when_it_does_a_command(self, error: Exception) -> None:
        servers = self.failed(error, *[0] * 4)
        for _ in range(3):
            servers.now += PROBE_INTERVAL
            servers(servers.router.reach(ASKED))
        assert not servers.all_nodes_healthy()
        servers(servers.router.reach(ASKED._replace(slot=9_000)))
        assert servers.all_nodes_healthy()

    def test_of_several_one_at_a_time_is_asked_that_was_not_for_longest(self) -> None:
        error = RedisTimeoutError("no answer")
        slots = [[0, 99, HALVES[0][2]], [100, 8191, ["10.0.0.1", 3, "id"]], HALVES[1]]
        servers = Servers(error, error, *[0] * 9, slots=slots)
        servers.look = error
        for slot in (100, 9_000):
            with pytest.raises(RedisTimeoutError):
                servers(servers.router.reach(ASKED._replace(slot=slot)))
            servers.now += 0.5
        servers(servers.router.reach(ASKED))
        for _ in range(2):
            servers.now += PROBE_INTERVAL
            for _ in range(3):
                servers(servers.router.reach(ASKED))
        assert [at for at, word in servers.sent if word == "EVAL"] == [C, B]


class TestNodes:
    class Node:
        def __init__(self, alias: str, address: Address) -> None:
            self.breaker = Breaker(failures=1)
            self.closed = 0

        def close(self) -> None:
            self.closed += 1

    def test_servers_that_have_left_are_let_go(self) -> None:
        made: list[Any] = []

        def make(alias: str, address: Address) -> Any:
            made.append(self.Node(alias, address))
            return made[-1]

        known: set[Address] = set()
        nodes = Nodes("default", lambda: known, make)
        for probe in range(1_000):
            known = {Address("10.0.0.1", probe), Address("10.0.0.1", probe + 1)}
            for address in known:
                assert nodes[address] is nodes[address]
            assert len(nodes) <= 2 * 3 + SPARE
        assert all(node.closed == 1 for node in made[: -(2 * 3 + SPARE)])
        assert not any(nodes[address].closed for address in known)  # type: ignore[attr-defined]

    def test_they_are_shut_where_each_of_them_is(self) -> None:
        nodes = Nodes("default", lambda: [A, B], self.Node)  # type: ignore[arg-type]
        assert not nodes.are_refusing([])
        assert not nodes.are_refusing([A])  # which nobody has asked
        nodes[A].breaker.failed()
        assert nodes.are_refusing([A])
        assert not nodes.are_refusing([A, B])
        nodes[B].breaker.failed()
        assert nodes.are_refusing([A, B])


TABLES: list[Any] = [
    7, [7], [[]], [[0]], [[0, 1]], [[0, 1, None]], [[0, 1, []]], [[0, 1, [b"10.0.0.1"]]], [["x", 1, [b"10.0.0.1", 7]]],
    [[0, 16_384, [b"10.0.0.1", 7]]], [[-1, 5, [b"10.0.0.1", 7]]], [[9, 5, [b"10.0.0.1", 7]]],
    [[0, 10**15, [b"10.0.0.1", 7]]], [[0, 1, [7, 7]]], [[0, 1, [b"\xff", 7]]], [[0, 1, [b"10.0.0.1", None]]],
    [[0, 1, [b"10.0.0.1", 7]], None],
]  # fmt: skip


NUMBERS = st.integers(-1, 20_000)


class TestATableThatMakesNoSense:
    @pytest.mark.parametrize("told", TABLES)
    def test_what_is_known_still_holds(self, told: Any) -> None:
        servers = Servers(1, 2)
        assert servers(servers.router.reach(ASKED)) == 1
        servers.now += 1
        servers.slots = told
        servers.table.doubt()
        assert servers(servers.router.reach(ASKED)) == 2
        assert servers.table.primaries == [A, B]
        assert servers.sent.count((A, "CLUSTER")) + servers.sent.count((B, "CLUSTER")) == 3  # the other one, too

    @pytest.mark.parametrize("told", TABLES)
    def test_where_nothing_is_known_it_is_as_no_answer(self, told: Any) -> None:
        servers = Servers(slots=told)
        with pytest.raises(RedisConnectionError):
            servers(servers.router.reach(ASKED))

    @given(
        st.recursive(
            st.none() | st.integers() | st.binary(max_size=4) | st.text(max_size=4),
            lambda parts: st.lists(parts, max_size=5) | st.tuples(NUMBERS, NUMBERS, parts).map(list),
        )
    )
    def test_whatever_is_told_the_table_keeps_its_size(self, told: Any) -> None:
        table = SlotTable([A])
        with suppress(GarbledError):
            table.learn(told, A)
        assert len(table._owners) == 16_384
