"""Long jobs: a walk over several servers, and patience with late answers."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import redis
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota.core.errors import (
    ConfigurationError,
    StoreBusy,
    StoreConnectionLost,
    StoreDataError,
    StorePermissionDenied,
    StoreRefusesWrites,
    StoreUnavailable,
)
from django_quota.stores.scanning import Patience, Walk, batched, scan, time_of
from tests.support.servers import Servers
from tests.support.stores import redis_store

SILENT, DENIED = StoreUnavailable("silent"), StorePermissionDenied("denied")


class Scanned(Servers):
    """Each server says its keys."""

    def client(self, said: Any) -> Any:
        return SimpleNamespace(scan=lambda *_, **__: (0, said))


def names_of(**said: Any) -> tuple[list[str], StoreUnavailable | None]:
    """Walk over the keys of such servers; return the names, and the error at the end."""
    store: Any = Scanned(**said)
    found: list[str] = []
    try:
        for page in scan(store, "*"):
            found += page
    except StoreUnavailable as error:
        return found, error
    return found, None


class TestAWalkOverServers:
    def test_gives_the_keys_of_all_servers(self) -> None:
        assert names_of(a=[b"1", b"2"], b=["3"]) == (["1", "2", "3"], None)

    def test_goes_on_after_a_server_that_does_not_answer(self) -> None:
        names, _ = names_of(a=["1"], b=SILENT, c=["2"])

        assert names == ["1", "2"]

    def test_reports_at_its_end_that_a_server_did_not_answer(self) -> None:
        _, error = names_of(a=SILENT, b=["1"])

        assert str(error) == str(
            StoreUnavailable("a part of the Cluster did not answer, and the rest was done: silent")
        )
        assert error is not None
        assert error.__cause__ is SILENT

    @pytest.mark.parametrize(
        ("first", "kind"), [(DENIED, StorePermissionDenied), (StoreDataError("x"), StoreUnavailable)], ids=type
    )
    def test_reports_a_missing_permission_as_one(self, first: Exception, kind: type[Exception]) -> None:
        _, error = names_of(a=first, b=["1"])

        assert type(error) is kind

    def test_reports_the_first_of_several_errors(self) -> None:
        _, error = names_of(a=SILENT, b=DENIED, c=["1"])

        assert type(error) is StoreUnavailable
        assert "silent" in error.reason

    def test_ends_with_the_error_of_the_only_server(self) -> None:
        assert names_of(a=DENIED) == ([], DENIED)

    def test_counts_the_parts_that_it_missed(self) -> None:
        store: Any = Scanned(a=SILENT, b=SILENT, c=[])
        walk = Walk(store)
        for server in walk.servers:
            with walk.part(), store.commands(server):
                pass

        assert walk.missed == 2

    def test_hides_no_other_error(self) -> None:
        with pytest.raises(ConfigurationError):
            names_of(a=ConfigurationError("wrong"), b=["1"])

    def test_has_one_part_where_a_database_keeps_the_states(self) -> None:
        store: Any = SimpleNamespace(redis=None)

        assert Walk(store).servers == [None]


@pytest.mark.parametrize(("count", "pages"), [(0, []), (1, [1]), (2, [2]), (3, [2, 1]), (4, [2, 2])], ids=str)
def test_names_come_in_pages_of_a_size_at_most(count: int, pages: list[int]) -> None:
    names = [str(number) for number in range(count)]

    found = list(batched(iter(names), 2))

    assert [len(page) for page in found] == pages
    assert [name for page in found for name in page] == names


@pytest.mark.usefixtures("redis_cache")
class TestAScan:
    @pytest.fixture(autouse=True)
    def keys(self, raw: redis.Redis) -> None:
        raw.set("quota:1:a", 1)
        raw.hset("quota:1:b", "field", "1")
        raw.set("other:1:a", 1)

    def test_finds_keys_of_all_kinds(self) -> None:
        assert sorted(redis_store().names("quota:1:*")) == ["quota:1:a", "quota:1:b"]

    def test_looks_at_so_many_keys_a_call(self, raw: redis.Redis) -> None:
        raw.mset({f"quota:1:{number}": 1 for number in range(600)})
        raw.config_resetstat()

        pages = list(scan(redis_store(), "quota:1:*", 100))

        assert {len(page) for page in pages[:-1]} == {100}
        assert 6 <= raw.info("commandstats")["cmdstat_scan"]["calls"] <= 12

    def test_makes_each_call_by_who_asks(self) -> None:
        asked: list[Any] = []

        def ask(call: Any) -> Any:
            asked.append(call)
            return call()

        assert len(list(redis_store().names("quota:1:*", ask))) == 2
        assert len(asked) == 1


@pytest.mark.parametrize(("given", "count"), [({}, 1_000), ({"batch": 5}, 5)], ids=["unless it says", "as it says"])
def test_a_scan_asks_a_server_for_a_thousand_keys_a_call(given: dict[str, Any], count: int) -> None:
    client = SimpleNamespace(scan=Mock(side_effect=[(7, [b"1"]), (0, [b"2"])]))
    store: Any = SimpleNamespace(servers=lambda: ["a"], commands=lambda _: nullcontext(client))
    store.redis = store

    assert [key for page in scan(store, "a*", **given) for key in page] == ["1", "2"]
    assert client.scan.call_args_list == [call(at, match="a*", count=count) for at in (0, 7)]


def test_the_time_of_a_server_is_in_microseconds() -> None:
    client: Any = SimpleNamespace(time=lambda: ("7", "250000"))

    assert time_of(client) == 7_250_000


# --- patience ---------------------------------------------------------------------------------------------------------

SILENCE = [
    StoreUnavailable("x"), StoreBusy("x"), StoreConnectionLost("x"), RedisTimeoutError("x"), RedisConnectionError("x"),
]  # fmt: skip
ANSWERS = [
    StorePermissionDenied("x"), StoreRefusesWrites("x"), StoreDataError("x"), AuthenticationError("x"),
    ResponseError("x"), ValueError("x"),
]  # fmt: skip


class Late:
    """A call that fails so many times, and then answers."""

    def __init__(self, error: Exception, times: int) -> None:
        self._error = error
        self._left = times
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        if self._left:
            self._left -= 1
            raise self._error
        return "answer"


@pytest.mark.usefixtures("short_pauses")
class TestPatience:
    @pytest.mark.parametrize("error", SILENCE, ids=type)
    def test_asks_again_after_silence(self, error: Exception) -> None:
        assert Patience()(Late(error, 3)) == "answer"

    def test_ends_with_the_error_after_the_last_pause(self) -> None:
        call = Late(StoreUnavailable("x"), 4)

        with pytest.raises(StoreUnavailable):
            Patience()(call)
        assert call.asked == 4

    @pytest.mark.parametrize("error", ANSWERS, ids=type)
    def test_does_not_ask_again_after_an_answer(self, error: Exception) -> None:
        call = Late(error, 1)

        with pytest.raises(type(error)):
            Patience()(call)
        assert call.asked == 1


def test_patience_waits_longer_each_time() -> None:
    stop = Mock(wait=Mock(return_value=False))

    Patience(stop)(Late(StoreUnavailable("x"), 3))

    assert [each.args[0] for each in stop.wait.call_args_list] == [0.25, 1.0, 2.0]


def test_patience_ends_in_a_pause_in_which_the_job_is_stopped() -> None:
    stop, call = Mock(wait=Mock(side_effect=[False, True])), Late(StoreUnavailable("x"), 3)

    with pytest.raises(StoreUnavailable):
        Patience(stop)(call)
    assert call.asked == 2
