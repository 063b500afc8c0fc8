"""What all stores share: drafts of states, errors in place of replies, and why a store is unavailable."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from django_quota.core.errors import ConfigurationError, QuotaError, StoreFull, StoreUnavailable
from django_quota.engine.operations import DictStates
from django_quota.features.counters.operations import Get, Set
from django_quota.stores.base import Draft, Statement, all_well, asked_once, reason_of, tried
from django_quota.stores.database.states import RowStates, StateRow, dumps
from django_quota.stores.memory import MemoryStore
from tests.support.counts import keys_of

LATER = 10**12  # microseconds


def of_dict() -> Any:
    states = DictStates()
    states.put("a", 5, 100)
    return states


def of_rows() -> Any:
    return RowStates(["a", "b"], [StateRow(dumps(5), 100, "a")])


@pytest.fixture(params=[of_dict, lambda: Draft({"a": (5, 100)}), of_rows], ids=["a dict", "a draft", "rows"])
def states(request: pytest.FixtureRequest) -> Any:
    """States with a value 5 that expires at 100."""
    made: Callable[[], Any] = request.param
    return made()


class TestStates:
    @pytest.mark.parametrize(("now", "value"), [(None, 5), (99, 5), (100, None), (101, None)], ids=str)
    def test_a_value_is_there_until_it_expires(self, now: int | None, value: int | None, states: Any) -> None:
        assert states.get("a", now) == value

    @pytest.mark.parametrize("now", [None, 99])
    def test_there_is_no_value_under_another_key(self, now: int | None, states: Any) -> None:
        assert states.get("b", now) is None

    def test_a_value_is_replaced(self, states: Any) -> None:
        states.put("a", 6, 200)

        assert (states.get("a", 199), states.expiry("a")) == (6, 200)

    def test_a_value_that_was_put_expires(self, states: Any) -> None:
        states.put("b", 6, 200)

        assert states.get("b", 200) is None

    @pytest.mark.parametrize(("key", "expiry"), [("a", 100), ("b", 0)])
    def test_a_key_says_when_it_expires(self, key: str, expiry: int, states: Any) -> None:
        assert states.expiry(key) == expiry

    def test_a_key_that_was_dropped_has_no_value(self, states: Any) -> None:
        states.drop("a")

        assert (states.get("a"), states.expiry("a")) == (None, 0)

    def test_dropping_says_whether_a_key_existed(self, states: Any) -> None:
        assert [states.drop("a"), states.drop("a"), states.drop("b")] == [True, False, False]

    def test_a_key_can_be_put_after_it_was_dropped(self, states: Any) -> None:
        states.drop("a")
        states.put("a", 7, 300)

        assert (states.get("a", 299), states.drop("a")) == (7, True)


class TestOperationsThatAreTried:
    @pytest.fixture
    def replies(self) -> list[Any]:
        """The replies to three operations, of which a full store refuses the second."""
        store = MemoryStore(max_keys=2)  # of which one counter may have one
        store.run(Set(keys_of("quota:1:{a}:c:n"), 5, LATER), 0)
        one, other = keys_of("quota:1:{a}:c:n"), keys_of("quota:1:{b}:c:n")
        return store.try_all([Set(one, 6, LATER), Set(other, 7, LATER), Get(one)], 0)

    def test_have_an_error_in_place_of_a_reply(self, replies: list[Any]) -> None:
        assert type(replies[1]) is StoreFull

    def test_go_on_after_one_that_failed(self, replies: list[Any]) -> None:
        assert replies[2][1] == "6"

    @pytest.mark.parametrize("kind", [StoreUnavailable, ConfigurationError])
    def test_raise_the_first_error_where_all_must_be_well(self, kind: type[QuotaError]) -> None:
        first, second = kind("first"), StoreUnavailable("second")

        with pytest.raises(kind) as caught:
            all_well([1, first, second])
        assert caught.value is first

    def test_are_returned_where_all_are_well(self) -> None:
        assert all_well([1, None, 3]) == [1, None, 3]


def test_operations_are_tried_in_order_at_the_time_that_is_passed_in() -> None:
    one, other = Get(keys_of("quota:1:{a}:c:n")), Get(keys_of("quota:1:{b}:c:n"))

    assert tried(lambda *given: given, [one, other], 7) == [(one, 7), (other, 7)]


def test_a_call_is_made_once_unless_its_job_is_patient() -> None:
    failed = Mock(side_effect=StoreUnavailable("x"))

    with pytest.raises(StoreUnavailable):
        asked_once(failed)
    assert (asked_once(lambda: 5), failed.call_count) == (5, 1)


def test_a_statement_may_have_no_parameters() -> None:
    assert Statement("SELECT 1").values == ()


def test_why_a_store_is_unavailable_names_the_error() -> None:
    assert reason_of(ValueError("other"), "it hangs") == "ValueError: it hangs"


@pytest.mark.parametrize(("more", "end"), [(0, "x"), (1, "...")], ids=["the longest", "too long"])
def test_a_long_text_of_a_driver_is_cut(more: int, end: str) -> None:
    reason = reason_of(ValueError(), "x" * (400 + more))

    assert reason == f"ValueError: {'x' * 400}{end if more else ''}"
