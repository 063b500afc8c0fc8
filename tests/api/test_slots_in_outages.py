"""Requests that are let in while the store does not answer: with `renew` they count once it answers again."""

import asyncio
from typing import Any

import pytest

from django_quota import concurrency
from django_quota.adapters import SlotRule
from django_quota.exceptions import StoreUnavailable
from django_quota.features.slots.renewal import renewer
from tests.support.calls import both, get
from tests.support.commands import wait_until
from tests.support.outages import no_answer
from tests.support.processes import forks, in_child
from tests.support.slot_views import (
    asks_nothing,
    held,
    one,
    stream,
)
from tests.support.slots import calls, counting_held_up, forget, is_count, nobody_renews

pytestmark = pytest.mark.usefixtures("slot_site", "renewed_often")

let_in_by = pytest.mark.parametrize("said", ["allow", "local"])


def let_in(said: Any, kind: str = "sync") -> Any:
    """Enter a renewed slot of one; return what holds it."""
    holding = SlotRule.make("view", 1, renew=True, on_unavailable=said).hold(get())
    refused = holding.__enter__() if kind == "sync" else asyncio.run(holding.__aenter__())
    assert refused is None
    return holding


def leave(holding: Any, kind: str = "sync") -> None:
    if kind == "sync":
        holding.__exit__(None, None, None)
    else:
        asyncio.run(holding.__aexit__(None, None, None))


@let_in_by
def test_a_request_whose_slot_is_not_renewed_is_not_counted_later(said: Any, renewed_often: list[float]) -> None:
    limited = concurrency(1, name="view", on_unavailable=said)(asks_nothing)

    with no_answer():
        assert limited(get()).status_code == 200

    assert renewed_often == []


@pytest.mark.usefixtures("either_store")
@let_in_by
@both
class TestWhoStays:
    @pytest.fixture
    def holders(self, said: Any, kind: str) -> Any:
        """Two requests in a slot of one: one was there before an outage, the other was let in during it."""
        before = let_in(said)
        with no_answer():
            inside = let_in(said, kind)
        wait_until(lambda: held() == 2)
        yield before, inside
        leave(before)
        leave(inside, kind)

    def test_a_request_counts_when_the_store_answers_again(self, holders: Any) -> None:
        assert held() == 2

    def test_nobody_new_is_let_in_until_enough_have_left(self, holders: Any) -> None:
        leave(holders[0])

        assert one(asks_nothing)(get()).status_code == 429

    def test_the_next_one_is_let_in_once_all_have_left(self, holders: Any, kind: str) -> None:
        leave(holders[0])
        leave(holders[1], kind)

        assert one(asks_nothing)(get()).status_code == 200

    def test_nobody_has_lost_a_lease(self, holders: Any, kind: str, caplog: pytest.LogCaptureFixture) -> None:
        leave(holders[0])
        leave(holders[1], kind)

        assert (held(), "lease" in caplog.text) == (0, False)


@both
class TestWhoLeaves:
    @pytest.mark.usefixtures("either_store")
    @let_in_by
    def test_a_lease_that_was_lost_after_it_was_counted_is_logged(
        self, said: Any, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with no_answer():
            inside = let_in(said, kind)
        wait_until(lambda: held() == 1)
        forget("view")
        wait_until(lambda: held() == 1)

        leave(inside, kind)

        assert "lease" in caplog.text

    @pytest.mark.usefixtures("either_store")
    @pytest.mark.parametrize("is_done", [False, True], ids=["calls are lost", "replies are lost"])
    @let_in_by
    def test_who_leaves_during_the_outage_holds_nothing_afterwards(
        self, said: Any, kind: str, is_done: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        with no_answer(done=is_done):
            leave(let_in(said, kind), kind)

        wait_until(lambda: not renewer)
        assert (held(), "lease" in caplog.text) == (0, False)

    @let_in_by
    def test_who_leaves_after_a_renewal_whose_reply_was_lost_has_lost_no_lease(
        self, said: Any, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        def lose(operation: Any) -> None:
            if is_count(operation):
                done.append(operation)
                raise StoreUnavailable("it is gone")

        done: list[Any] = []
        with calls(after=lose):
            with no_answer():
                inside = let_in(said, kind)
            wait_until(lambda: done)

        leave(inside, kind)

        assert (held(), "lease" in caplog.text) == (0, False)

    @pytest.mark.usefixtures("either_store")
    def test_who_leaves_while_it_is_being_counted_holds_nothing_afterwards(
        self, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with counting_held_up() as (under_way, goes_on):
            with no_answer():
                inside = let_in("allow")
            assert under_way.wait(60)

            leave(inside, kind)

            goes_on.set()
            wait_until(nobody_renews)
        assert (held(), "lease" in caplog.text) == (0, False)


def test_a_slot_that_is_not_renewed_is_not_taken_later() -> None:
    rule = SlotRule.make("view", 1, on_unavailable="allow")

    with no_answer():
        holding = rule.hold(get())
        assert holding.__enter__() is None

    assert (len(renewer), holding.leases) == (0, [])


def test_a_refused_request_is_not_counted_later() -> None:
    rule = SlotRule.make("view", 1, renew=True, on_unavailable="deny")

    with no_answer():
        holding = rule.hold(get())
        assert holding.__enter__() is not None

    assert (len(renewer), holding.leases) == (0, [])


def test_a_stream_counts_until_it_is_sent() -> None:
    with no_answer():
        response: Any = concurrency(1, name="view", renew=True, on_unavailable="allow")(stream)(get())
    wait_until(lambda: held() == 1)

    assert list(response) == [b"a", b"1"]
    assert held() == 0


@forks
def test_a_forked_process_leaves_the_counting_to_its_parent() -> None:
    with no_answer():
        inside = let_in("allow")

        assert in_child(lambda: len(renewer)) == 0

    wait_until(lambda: held() == 1)
    leave(inside)
