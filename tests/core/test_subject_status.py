"""What takes precedence over the limits: overrides and bans."""

from typing import Any

import pytest
from django.http import HttpResponse

from django_quota import Decision, Rule, check, peek, quota, refund, reset
from django_quota.adapters import decide
from django_quota.exceptions import RuleError
from django_quota.testing import freeze
from tests.support.calls import get, run
from tests.support.overridden import override
from tests.support.steps import MINUTE, SECOND, START, SUBJECT

HOUR = 3_600 * SECOND
BAN = {"after": "3/m", "for": ["10m", "1h", "1d"]}
BUCKET = {"algorithm": "token_bucket"}

pytestmark = pytest.mark.usefixtures("memory_store")


def view_of(*rates: str, name: str = "api", **options: Any) -> Any:
    """Return a view under one rule of several decorators, which answers with what each limit has and has left."""

    def view(request: Any) -> HttpResponse:
        return HttpResponse(",".join(f"{each.remaining} of {each.limit}" for each in request.quota.outcomes))

    for rate in reversed(rates):
        view = quota(rate, key="ip", name=name, **options)(view)
    return view


def visit(view: Any) -> Any:
    with freeze(START):
        return run(view, get(REMOTE_ADDR="203.0.113.9"))


# --- overrides --------------------------------------------------------------------------------------------------------


def test_what_an_exempt_subject_did_not_spend_is_not_refunded() -> None:
    with freeze(START):
        check("2/m", SUBJECT)
        override("x 0 0 ", "2/m")
        refund("2/m", SUBJECT)
        override("", "2/m")
        assert peek("2/m", SUBJECT).remaining == 1


def test_a_rate_that_does_not_fit_the_rule_is_left_out(request: Any) -> None:
    override("r 0 0 5/month", request.node.name)

    with freeze(START):
        assert [check("10/m", SUBJECT, name=request.node.name).limit for _ in range(3)] == [10, 10, 10]


def test_a_rate_that_does_not_fit_the_rule_is_logged_once(caplog: Any, request: Any) -> None:
    name = request.node.name  # no other test has logged it
    override("r 0 0 5/month", name)

    with freeze(START):
        for _ in range(3):
            check("10/m", SUBJECT, name=name)

    (record,) = caplog.records
    assert f"The override '5/month' does not fit rule {name!r} and is ignored: " in record.message


def test_limits_of_one_name_are_one_hit_that_an_override_replaces_if_it_fits() -> None:
    view = view_of("5/s", "9/h")
    seen = [visit(view)]
    for rates, times in (("20/d", 2), ("5/month", 1)):
        override(f"r 0 0 {rates}", "api")
        seen += [visit(view) for _ in range(times)]
    override("", "api")
    seen.append(visit(view))
    found = [response.content.decode() for response in seen]
    assert found == ["4 of 5,8 of 9", "19 of 20", "18 of 20", "3 of 5,7 of 9", "2 of 5,6 of 9"]


@pytest.mark.parametrize("kept", ["b 0 0 -", "x 0 0 "], ids=["blocked", "exempt"])
def test_what_an_override_decides_without_a_count_is_not_over_its_limit(kept: str) -> None:
    override(kept, "10/m")

    (outcome,) = check("10/m", SUBJECT).outcomes

    assert outcome.over == 0


DIFFERENT = pytest.mark.parametrize(
    ("rate", "options"),
    [
        pytest.param("9/h", {"shadow": True}, id="shadow"),
        pytest.param("9/h", {"block": False}, id="block"),
        pytest.param("9/h", {"ban": BAN}, id="ban"),
        pytest.param("9/h", {"on_unavailable": "deny"}, id="on_unavailable"),
        pytest.param("9/h", {"warn_at": 0.5}, id="warn_at"),
        pytest.param("9/h", {"daily": True}, id="daily"),
        pytest.param("9/h", {"distinct": "header:X-Device"}, id="distinct"),
        pytest.param("9/h", {"prefetch": True}, id="prefetch"),
        pytest.param("9/h", {"store": "database"}, id="store"),
        pytest.param("9/h", {"settle": lambda request, response: 1}, id="settle"),
        pytest.param("9/h", {"count_when": lambda response: True}, id="count_when"),
        pytest.param("9/s", {}, id="another count in one window"),
    ],
)
OF_ONE_LIMIT = pytest.mark.parametrize(
    "options",
    [
        pytest.param({"algorithm": "fixed_window"}, id="algorithm"),
        pytest.param({**BUCKET, "burst": 3}, id="burst"),
        pytest.param({"precision": 4}, id="precision"),
        pytest.param({"algorithm": "calendar", "tz": "Asia/Tokyo"}, id="tz"),
        pytest.param({"count_refused": True}, id="count_refused"),
        pytest.param({"share": 0.5}, id="share"),
        pytest.param({"cache_refusals": 1}, id="cache_refusals"),
        pytest.param({"methods": ["GET"]}, id="methods"),
        pytest.param({"skip": lambda request: False}, id="skip"),
        pytest.param({"exempt": "10.0.0.0/8"}, id="exempt"),
    ],
)


@DIFFERENT
def test_rules_of_one_name_that_differ_in_more_than_their_rates_are_an_error(rate: str, options: Any) -> None:
    with pytest.raises(RuleError, match="a name of its own"):
        decide(get(), [Rule.make("api", "5/s"), Rule.make("api", rate, **options)])


@DIFFERENT
def test_decorators_of_one_name_that_differ_in_more_than_their_rates_are_an_error(rate: str, options: Any) -> None:
    with pytest.raises(RuleError, match="a name of its own"):
        quota("5/s", name="api")(quota(rate, name="api", **options)(lambda request: None))


@OF_ONE_LIMIT
def test_rules_of_one_name_may_differ_in_what_concerns_one_limit(options: Any) -> None:
    decision = decide(get(), [Rule.make("api", "5/s"), Rule.make("api", "9/h", **options)])

    assert len(decision.outcomes) == 2


@OF_ONE_LIMIT
def test_decorators_of_one_name_may_differ_in_what_concerns_one_limit(options: Any) -> None:
    view = view_of("5/s")

    answer = visit(quota("9/h", key="ip", name="api", **options)(view))

    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("options", "rate", "left"), [({"algorithm": "sliding_window"}, "5/h", 2), ({**BUCKET, "burst": 8}, "20/h", 0)]
)
def test_what_another_rate_has_used_stays_used_when_refusals_count(options: Any, rate: str, left: int) -> None:
    options = {**options, "count_refused": True}
    with freeze(START):
        assert check("10/h", SUBJECT, 8, **options)
        override(f"r 0 0 {rate}", "10/h")
        assert not check("10/h", SUBJECT, **options)
        override("", "10/h")
        assert (peek("10/h", SUBJECT, **options).remaining or 0) <= left


# --- bans -------------------------------------------------------------------------------------------------------------


def refuse(times: int, rule: str = "1/m", ban: Any = BAN) -> Decision:
    for _ in range(times):
        decision = check(rule, SUBJECT, ban=ban)
    return decision


def test_a_peek_never_bans() -> None:
    with freeze(START):
        refuse(1)
        assert {peek("1/m", SUBJECT, ban=BAN).outcomes[0].why for _ in range(9)} == {""}


def test_a_peek_reports_a_ban() -> None:
    with freeze(START):
        refuse(4)
        decision = peek("1/m", SUBJECT, ban=BAN)
    assert decision.explain() == f"Rule '1/m' refuses {SUBJECT}, which is banned; try again in 10 minutes."


def test_a_reset_says_whether_it_lifted_a_ban() -> None:
    with freeze(START):
        refuse(4)
        assert [bool(reset("1/m", SUBJECT, ban=BAN)) for _ in range(2)] == [True, False]


def test_after_a_reset_the_next_ban_is_the_first_again() -> None:
    with freeze(START):
        refuse(4)
        reset("1/m", SUBJECT, ban=BAN)
        assert refuse(4).retry_after == 600.0


def test_a_refusal_counts_once_though_the_rule_has_several_limits() -> None:
    ban = {"after": "4/m", "for": "2h"}
    view = view_of("1/s", "1/h", name="two", ban=ban)
    waits = [visit(view).headers.get("Retry-After") for _ in range(6)]
    assert waits == [None, "3600", "3600", "3600", "7200", "7200"]


def test_a_shadow_rule_bans_nobody() -> None:
    with freeze(START):
        assert all(check("1/m", SUBJECT, ban=BAN, shadow=True) for _ in range(9))


@pytest.mark.parametrize(("rule", "subject"), [("1/m", "ip:192.0.2.1"), ("2/h", SUBJECT)], ids=["subject", "rule"])
def test_a_ban_does_not_concern_another(rule: str, subject: str) -> None:
    with freeze(START):
        refuse(4)
        assert check(rule, subject, ban=BAN)


def test_an_exemption_takes_precedence_over_a_ban() -> None:
    with freeze(START):
        refuse(4)
        override("x 0 0 ", "1/m")
        assert refuse(9)


def test_refusals_that_led_to_a_ban_do_not_lead_to_the_next_one() -> None:
    ban = {"after": "3/h", "for": "1m"}
    with freeze(START):
        assert refuse(4, "1/d", ban).outcomes[0].why == "banned"

    with freeze(START + 2 * MINUTE):
        assert refuse(1, "1/d", ban).outcomes[0].why == ""
