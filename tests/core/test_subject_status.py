"""What goes before the limits: overrides and bans, on the real Redis and in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.http import HttpResponse

from django_quota import Decision, QuotaExceeded, Rule, acheck, check, peek, quota, refund, reset
from django_quota.adapters import decide
from django_quota.exceptions import RuleError, StoreUnavailable
from django_quota.testing import freeze
from tests.support.calls import calls_of, get, run
from tests.support.published import override
from tests.support.steps import SECOND, START
from tests.support.stores import (
    current_store,
    empty_local_store,
    forget_forms,
    remembered_overrides,
    with_room_for_overrides,
)  # fmt: skip

SUBJECT = "ip:203.0.113.9"
MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
BAN = {"after": "3/m", "for": ["10m", "1h", "1d"]}

pytestmark = pytest.mark.usefixtures("either_store")


class TestOverrides:
    def test_another_rate_binds_with_the_next_check_and_ends_with_it(self) -> None:
        with freeze(START):
            assert check("2/m", SUBJECT).limit == 2
            override("r 0 0 5/m", "2/m")
            decision = check("2/m", SUBJECT)
            assert (decision.limit, decision.remaining, decision.outcomes[0].why) == (5, 3, "override")
            override("", "2/m")
            assert check("2/m", SUBJECT).limit == 2 or not check("2/m", SUBJECT)

    def test_it_holds_from_its_start_until_before_its_end(self) -> None:
        override(f"r {START + 10} {START + 20} 7/m")
        limits = []
        for moment in (9, 10, 19, 20):
            with freeze(START + moment):
                limits.append(peek("10/m", SUBJECT).limit)
        assert limits == [10, 7, 7, 10]

    def test_its_rates_may_have_other_windows_and_be_several(self) -> None:
        override("r 0 0 3/h; 20/d")
        with freeze(START):
            assert [bool(check("10/m", SUBJECT)) for _ in range(4)] == [True, True, True, False]
        with freeze(START + 2 * MINUTE):
            assert not check("10/m", SUBJECT)

    def test_one_of_the_rule_goes_before_one_of_all_rules(self) -> None:
        override("b 0 0 ", "*")
        override("x 0 0 ")
        with freeze(START):
            assert check("10/m", SUBJECT)
            assert not check("11/m", SUBJECT)

    def test_one_that_does_not_hold_now_lets_that_of_all_rules_through(self) -> None:
        override("b 0 0 ", "*")
        override(f"x {START + DAY} 0 ")
        with freeze(START):
            assert not check("10/m", SUBJECT)

    def test_an_exempt_subject_is_admitted_and_spends_nothing(self) -> None:
        override("x 0 0 ", "1/m")
        with freeze(START):
            decisions = [check("1/m", SUBJECT) for _ in range(5)]
        assert all(decisions)
        assert {(d.remaining, d.outcomes[0].why) for d in decisions} == {(1, "exempt")}

    def test_what_an_exempt_subject_did_not_spend_is_not_refunded(self) -> None:
        with freeze(START):
            check("2/m", SUBJECT)
            override("x 0 0 ", "2/m")
            refund("2/m", SUBJECT)
            override("", "2/m")
            assert peek("2/m", SUBJECT).remaining == 1

    def test_a_blocked_subject_is_refused_until_the_block_ends_and_spends_nothing(self) -> None:
        override(f"b 0 {START + HOUR} ")
        with freeze(START):
            decision = check("10/m", SUBJECT)
        assert not decision
        assert (decision.retry_after, decision.remaining, decision.outcomes[0].why) == (3_600.0, 10, "blocked")
        assert decision.explain() == (f"Rule '10/m' refuses {SUBJECT}, blocked by an operator; try again in 1 hour.")
        with freeze(START + HOUR):
            assert check("10/m", SUBJECT).remaining == 9

    def test_a_block_without_an_end_says_none(self) -> None:
        override("b 0 0 ")
        with freeze(START):
            decision = check("10/m", SUBJECT)
        assert decision.retry_after is None
        assert decision.explain() == f"Rule '10/m' refuses {SUBJECT}, blocked by an operator."

    def test_a_block_of_one_rule_refuses_the_plan_and_the_others_spend_nothing(self) -> None:
        override("b 0 0 ", "2/m")

        @quota("2/m", key="ip", name="2/m")
        @quota("9/h", key="ip", name="hourly")
        def view(request: Any) -> None:
            raise AssertionError("the view must not run")

        with freeze(START):
            assert run(view, get(REMOTE_ADDR="203.0.113.9")).status_code == 429
            assert peek("9/h", SUBJECT, name="hourly").remaining == 9

    def test_the_page_says_that_access_is_blocked_and_until_when(self) -> None:
        override(f"b 0 {START + HOUR} ", "named")

        @quota("2/m", key="ip", name="named")
        def view(request: Any) -> None: ...

        with freeze(START):
            response: Any = run(view, get(REMOTE_ADDR="203.0.113.9"))
        assert "Access is blocked. Please try again in 60 minutes." in response.content.decode()
        assert response.headers["Retry-After"] == "3600"

    def test_it_is_one_more_call_the_first_time_and_none_after_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = calls_of(monkeypatch)
        with freeze(START):
            for expected in (1, 1):
                check("10/m", SUBJECT)
                assert len(calls) == expected
                calls.clear()
            override("r 0 0 20/m")
            calls.clear()
            for expected in (2, 1, 1):
                check("10/m", SUBJECT)
                assert len(calls) == expected
                calls.clear()

    def test_exempt_and_blocked_never_take_another_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        override("b 0 0 ")
        calls = calls_of(monkeypatch)
        with freeze(START):
            assert not check("10/m", SUBJECT)
        assert len(calls) == 1

    def test_a_rate_that_does_not_fit_the_rule_is_left_out_and_logged_once(
        self, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
    ) -> None:
        name = request.node.name  # no other test has logged it
        override("r 0 0 5/month", name)
        with freeze(START):
            assert [check("10/m", SUBJECT, name=name).limit for _ in range(3)] == [10, 10, 10]
        (record,) = caplog.records
        assert record.message == (
            f"The override '5/month' does not fit rule {name!r} and is ignored: '5/month' is not a rate: "
            "'sliding_window' does not count in months (at position 2). Use algorithm='calendar', or seconds to "
            "weeks: for example, '5/30d'."
        )

    def test_under_a_calendar_rule_the_new_rate_counts_calendar_periods(self) -> None:
        override("r 0 0 2/month", "5/d")
        with freeze(START):
            assert [bool(check("5/d", SUBJECT, algorithm="calendar")) for _ in range(3)] == [True, True, False]
        with freeze(START + DAY):
            assert not check("5/d", SUBJECT, algorithm="calendar")

    def test_an_async_check_finds_it_too(self) -> None:
        override("r 0 0 20/m")

        async def ask() -> Decision:
            with freeze(START):
                return await acheck("10/m", SUBJECT)

        assert asyncio.run(ask()).limit == 20

    def test_reset_forgets_what_was_counted_under_it_too(self) -> None:
        override("r 0 0 2/h", "2/m")
        with freeze(START):
            assert [bool(check("2/m", SUBJECT)) for _ in range(3)] == [True, True, False]
            forget_forms()  # another process
            assert reset("2/m", SUBJECT)
            assert check("2/m", SUBJECT).remaining == 1
            override("", "2/m")
            check("2/m", SUBJECT)
            override("r 0 0 2/h", "2/m")
            assert reset("2/m", SUBJECT)
            override("", "2/m")
            assert peek("2/m", SUBJECT).remaining == 2

    def test_limits_of_one_name_are_one_hit_that_it_replaces(self) -> None:
        @quota("5/s", key="ip", name="api")
        @quota("9/h", key="ip", name="api")
        def view(request: Any) -> HttpResponse:
            return HttpResponse(",".join(str(outcome.remaining) for outcome in request.quota.outcomes))

        def visit() -> str:
            response: Any = run(view, get(REMOTE_ADDR="203.0.113.9"))
            return str(response.content.decode())

        with freeze(START):
            assert visit() == "4,8"
            override("r 0 0 20/d", "api")
            assert [visit(), visit()] == ["19", "18"]
            override("", "api")
            assert visit() == "3,7"

    def test_rules_of_one_name_that_differ_in_more_than_their_rates_are_an_error(self) -> None:
        with pytest.raises(RuleError, match="a name of its own"):
            decide(get(), [Rule.make("api", "5/s"), Rule.make("api", "9/h", shadow=True)])
        with pytest.raises(RuleError, match="a name of its own"):
            quota("5/s", name="api")(quota("9/h", name="api", ban=BAN)(lambda request: None))
        with pytest.raises(RuleError, match="a name of its own"):
            quota("5/s", name="api")(quota("9/s", name="api")(lambda request: None))

    def test_without_redis_the_rules_own_limits_are_counted_locally(self, monkeypatch: pytest.MonkeyPatch) -> None:
        override("r 0 0 50/m", "2/m")
        with freeze(START):
            assert check("2/m", SUBJECT, on_unavailable="local").limit == 50

            def fail(*_: Any) -> Any:
                raise StoreUnavailable("it is away")

            monkeypatch.setattr(current_store(), "run", fail)
            empty_local_store()
            decisions = [check("2/m", SUBJECT, on_unavailable="local") for _ in range(4)]
        assert [(bool(decision), decision.limit) for decision in decisions] == [(True, 2)] * 2 + [(False, 2)] * 2

    def test_the_memory_of_overrides_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with_room_for_overrides(3, monkeypatch)
        with freeze(START):
            for number in range(8):
                override("r 0 0 20/m", subject=f"ip:192.0.2.{number}")
                assert check("10/m", f"ip:192.0.2.{number}").limit == 20
        assert remembered_overrides() <= 3


class TestBans:
    def refuse(self, times: int, rule: str = "1/m", ban: Any = BAN) -> Decision:
        for _ in range(times):
            decision = check(rule, SUBJECT, ban=ban)
        return decision

    def test_so_many_refusals_in_the_window_ban_and_the_refusal_says_until_when(self) -> None:
        with freeze(START):
            assert self.refuse(1)
            assert [self.refuse(1).outcomes[0].why for _ in range(3)] == ["", "", "banned"]
        with freeze(START + MINUTE):
            decision = self.refuse(1)
        assert (decision.retry_after, decision.outcomes[0].why) == (540.0, "banned")
        assert decision.explain() == (f"Rule '1/m' refuses {SUBJECT}, which is banned; try again in 9 minutes.")

    def test_a_rule_that_would_admit_again_still_refuses_who_is_banned(self) -> None:
        with freeze(START):
            self.refuse(4, "1/s")
        with freeze(START + 2 * SECOND):
            assert not self.refuse(1, "1/s")
        with freeze(START + 10 * MINUTE):
            assert self.refuse(1, "1/s")

    def test_refusals_that_are_spread_thinner_do_not_ban(self) -> None:
        whys = []
        for number in range(20):
            with freeze(START + number * 30 * SECOND + 1):
                whys.append(self.refuse(1).outcomes[0].why)
        assert set(whys) == {""}

    def test_refusals_on_both_sides_of_a_clock_minute_do(self) -> None:
        edge = (START // MINUTE + 1) * MINUTE
        whys = []
        for moment in (edge - 2, edge - 1, edge + 1, edge + 2):
            with freeze(moment):
                whys.append(self.refuse(1).outcomes[0].why)
        assert whys == ["", "", "", "banned"]

    def test_each_further_ban_is_longer_and_the_last_length_stays(self) -> None:
        now, lengths = START, []
        for _ in range(5):
            with freeze(now):
                self.refuse(1)
                decision = self.refuse(3)
                assert decision.retry_after is not None
                lengths.append(decision.retry_after)
            now += int(decision.retry_after * SECOND)
        assert lengths == [600.0, 3_600.0, 86_400.0, 86_400.0, 86_400.0]

    def test_a_ban_is_remembered_for_the_longest_ban_even_if_the_first_is_short(self) -> None:
        with freeze(START):
            self.refuse(4)
        with freeze(START + 10 * MINUTE + DAY - 1):
            self.refuse(1)
            assert self.refuse(3).retry_after == 3_600.0

    def test_who_behaves_for_as_long_as_the_longest_ban_begins_anew(self) -> None:
        with freeze(START):
            self.refuse(4)
        with freeze(START + 10 * MINUTE + DAY):
            self.refuse(1)
            assert self.refuse(3).retry_after == 600.0

    def test_refused_requests_do_not_make_a_ban_longer(self) -> None:
        with freeze(START):
            self.refuse(4)
        with freeze(START + 9 * MINUTE):
            assert self.refuse(50).retry_after == 60.0
        with freeze(START + 10 * MINUTE):
            assert self.refuse(1).outcomes[0].why == ""

    def test_a_peek_says_so_and_neither_counts_nor_bans(self) -> None:
        with freeze(START):
            self.refuse(1)
            for _ in range(9):
                assert peek("1/m", SUBJECT, ban=BAN).outcomes[0].why == ""
            self.refuse(3)
            assert peek("1/m", SUBJECT, ban=BAN).outcomes[0].why == "banned"

    def test_reset_lifts_it_and_the_next_one_is_the_first_again(self) -> None:
        with freeze(START):
            self.refuse(4)
            assert reset("1/m", SUBJECT, ban=BAN)
            assert self.refuse(1)
            assert self.refuse(3).retry_after == 600.0
            assert reset("1/m", SUBJECT, ban=BAN)
            assert not reset("1/m", SUBJECT, ban=BAN)

    def test_a_refusal_counts_once_though_the_rule_has_several_limits(self) -> None:
        ban = {"after": "4/m", "for": "1h"}

        @quota("1/s", key="ip", name="two", ban=ban)
        @quota("1/h", key="ip", name="two", ban=ban)
        def view(request: Any) -> HttpResponse:
            return HttpResponse()

        with freeze(START):
            waits = [run(view, get()).headers.get("Retry-After") for _ in range(6)]
        assert waits == [None, "3600", "3600", "3600", "3600", "3600"]
        with freeze(START + 30 * 60 * SECOND):
            assert peek("1/h", "ip:192.0.2.1", name="two", ban=ban).outcomes[0].why == "banned"

    def test_the_index_of_bans_does_not_outgrow_them(self) -> None:
        ban = {"after": "1/m", "for": "1s"}
        store: Any = current_store()
        for number in range(60):
            with freeze(START + number * SECOND):
                check("0/m", f"ip:192.0.2.{number}", ban=ban)
        if hasattr(store, "commands"):  # the memory store keeps no index
            with store.commands() as client:
                assert 1 <= int(client.zcard("quota:1:{!}:bans")) <= 2

    def test_an_exempt_subject_is_not_banned(self) -> None:
        with freeze(START):
            self.refuse(4)
            override("x 0 0 ", "1/m")
            assert self.refuse(9)

    def test_a_shadow_rule_bans_nobody(self) -> None:
        with freeze(START):
            assert all(check("1/m", SUBJECT, ban=BAN, shadow=True) for _ in range(9))

    def test_another_subject_and_another_rule_are_not_banned(self) -> None:
        with freeze(START):
            self.refuse(4)
            assert check("1/m", "ip:192.0.2.1", ban=BAN)
            assert check("2/h", SUBJECT, ban=BAN)

    @pytest.mark.parametrize(
        ("ban", "says"),
        [
            ("20/m", "is not a dict"),
            ({}, "must have both"),
            ({"after": "20/m"}, "must have both"),
            ({"after": "20/m", "fore": "1h"}, "Did you mean 'for'"),
            ({"after": "20/month", "for": "1h"}, "does not count in months"),
            ({"after": "0/m", "for": "1h"}, "after no refusals"),
            ({"after": "20/m", "for": []}, "does not list 1 to 16"),
            ({"after": "20/m", "for": ["1 fortnight"]}, "not a duration"),
            ({"after": "20/m", "for": ["1month"]}, "not a duration"),
            ({"after": "20/m", "for": [60]}, "not a text"),
            ({"after": "20/m", "for": ["367d"]}, "between a second and 366 days"),
        ],
    )
    def test_what_cannot_be_read_is_an_error_that_says_what_to_write(self, ban: Any, says: str) -> None:
        with pytest.raises(RuleError, match=says) as caught:
            check("1/m", SUBJECT, ban=ban)
        assert "'after': '20/m'" in str(caught.value)


@pytest.mark.parametrize("algorithm", ["sliding_window", "fixed_window", "calendar"])
def test_what_a_higher_rate_has_used_stays_used_when_refusals_count(algorithm: str) -> None:
    options: dict[str, Any] = {"algorithm": algorithm, "count_refused": True}
    with freeze(START):
        assert check("10/h", SUBJECT, 8, **options)
        override("r 0 0 5/h", "10/h")
        assert not check("10/h", SUBJECT, **options)
        override("", "10/h")
        assert (peek("10/h", SUBJECT, **options).remaining or 0) <= 2


def test_a_block_that_ends_before_a_ban_refuses_until_the_end_of_the_ban() -> None:
    options: dict[str, Any] = {"name": "banning", "ban": {"after": "1/m", "for": "2h"}}
    with freeze(START):
        check("1/h", SUBJECT, **options)
        check("1/h", SUBJECT, **options)
        override(f"b 0 {START + 600 * SECOND} ", "banning")
        refused = check("1/h", SUBJECT, **options)
        assert refused.outcomes[0].why == "blocked"
        assert refused.retry_after == 7_200


def test_refusals_that_led_to_a_ban_do_not_lead_to_the_next_one() -> None:
    options: dict[str, Any] = {"name": "banning", "ban": {"after": "3/h", "for": "1m"}}
    with freeze(START):
        for _ in range(4):
            last = check("1/d", SUBJECT, **options)
        assert last.outcomes[0].why == "banned"
    with freeze(START + 120 * SECOND):
        assert check("1/d", SUBJECT, **options).outcomes[0].why == ""


def test_raise_if_refused_carries_the_reason() -> None:
    override("b 0 0 ")
    with freeze(START), pytest.raises(QuotaExceeded, match="blocked by an operator"):
        check("10/m", SUBJECT).raise_if_refused()


def test_an_override_that_does_not_fit_leaves_all_limits_of_the_name() -> None:
    @quota("5/s", key="ip", name="api")
    @quota("9/h", key="ip", name="api")
    def view(request: Any) -> HttpResponse:
        return HttpResponse(",".join(str(outcome.limit) for outcome in request.quota.outcomes))

    override("r 0 0 5/month", "api")
    with freeze(START):
        for _ in range(2):
            response: Any = run(view, get(REMOTE_ADDR="203.0.113.9"))
            assert response.content == b"5,9"
