"""What a site may rely on: the names of each public module, typed options, and errors that say what to write.

mypy checks this file and reports an ignore comment that is not needed, so each comment proves that mypy finds the typo.
"""

import asyncio
import copy
import inspect
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest

import django_quota
from django_quota import Decision, Rule, acheck, adapters, areset, check, exceptions, metrics, quota, reserve, types
from django_quota.core.errors import StoreCommandDenied
from django_quota.exceptions import (
    ConfigurationError,
    QuotaError,
    QuotaExceeded,
    RateError,
    RuleError,
    StoreUnavailable,
)
from tests.support.steps import ALGORITHMS

NAMES = {
    django_quota: """
        Decision Entry Rule Subject aacquire aban acheck acheck_all acquire alimits_of aonce apeek apeek_all
        araise_limit arefund areserve areserve_all areset aunban ausage ausage_lines ban check check_all concurrency
        counter limits_of lock once peek peek_all quota raise_limit refund reserve reserve_all reset slot unban usage
        usage_lines
    """,
    adapters: """
        SlotRule adecide arefusal_response asettle attach_decision client_ip decide digest dotted_path
        endpoints enter_queue has_middleware is_exempt limits_view now read_rule read_subject refusal_details
        refusal_response register_late_views register_rule_finder register_view_check set_body_parser settle
        take_waiting_rules take_waiting_slots write_headers write_refusal_headers
    """,
    exceptions: """
        ConfigurationError CounterError LeaseLost QuotaError QuotaExceeded RateError RuleError StoreUnavailable
    """,
    metrics: "RuleLabels counted observe running_totals unobserve",
    types: """
        Counter Endpoint Grant Lease Outcome QuotaRequest Rate RefusalDetails Reservation RuleOptions RunningTotals Slot
        UsageLine
    """,
}
"""A name more is a promise more: each needs a user of the guides, or an integration."""


@pytest.mark.parametrize("module", NAMES, ids=lambda module: module.__name__)
def test_a_module_has_these_public_names(module: ModuleType) -> None:
    assert module.__all__ == sorted(NAMES[module].split())
    assert all(hasattr(module, name) for name in module.__all__)


IN_ORDER = """
    aacquire aban acheck acquire apeek araise_limit arefund areserve areset aunban ban check peek raise_limit refund
    reserve reset unban
"""


@pytest.mark.parametrize("name", IN_ORDER.split())
def test_the_rule_comes_before_the_subject(name: str) -> None:
    rule, subject, *_ = inspect.signature(getattr(django_quota, name)).parameters
    assert (rule.removesuffix("_or_rate"), subject) == ("rule", "subject")


MAKERS = {"Decision", "Entry", "Rule", "Subject", "concurrency", "counter", "lock", "quota", "slot"}
"""What makes an object or decorates a view, and asks no store."""

WAITING_CALLS = set(NAMES[django_quota].split()) - MAKERS


@pytest.mark.parametrize("name", sorted(name for name in WAITING_CALLS if f"a{name}" in WAITING_CALLS))
def test_an_async_twin_takes_the_same_arguments(name: str) -> None:
    function, twin = getattr(django_quota, name), getattr(django_quota, f"a{name}")
    assert inspect.signature(twin).parameters == inspect.signature(function).parameters


def test_each_call_that_waits_has_an_async_twin() -> None:
    twins = {f"a{name}" for name in WAITING_CALLS} & WAITING_CALLS
    assert {f"a{name}" for name in WAITING_CALLS - twins} == twins


TYPOS: list[tuple[Callable[[], Any], str]] = [
    (lambda: check("1/m", "user:1", algoritm="fixed_window"), "algorithm"),  # type: ignore[call-arg]
    (lambda: reserve("1/m", "user:1", shadw=True), "shadow"),  # type: ignore[call-arg]
    (lambda: quota("1/m", exemt="staff"), "exempt"),  # type: ignore[call-arg]
    (lambda: acheck("1/m", "user:1", algoritm="a"), "algorithm"),  # type: ignore[call-arg]
    (lambda: areset("1/m", "user:1", nam="a"), "name"),  # type: ignore[call-arg]
    (lambda: check("1/m", "user:1", algorithm="fixed_windw"), "fixed_window"),  # type: ignore[arg-type]
    (lambda: quota("1/m", algorithm="token_buket"), "token_bucket"),  # type: ignore[arg-type]
    (lambda: check("1/m", "user:1", on_unavailable="alow"), ""),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("typo", "meant"), TYPOS)
def test_a_misspelt_option_or_value_is_an_error_that_shows_the_right_one(
    typo: Callable[[], Any], meant: str, memory_store: None
) -> None:
    async def call() -> None:
        await typo()

    with pytest.raises(RuleError, match=f"Did you mean '{meant}'" if meant else "'allow', 'deny' or 'local'"):
        asyncio.run(call())


def options_of(verb: Any, argument: str) -> dict[str, Any]:
    """Return the options that the type of an argument names, with the types of their values."""
    return get_type_hints(get_args(get_type_hints(verb)[argument])[0])


def test_the_types_name_every_algorithm() -> None:
    assert set(get_args(options_of(check, "rule_options")["algorithm"])) == set(ALGORITHMS)


def test_the_types_name_every_option() -> None:
    with pytest.raises(RuleError, match="Known: ") as caught:
        Rule.make("rule", "1/m", unknown=1)
    known = set(str(caught.value).partition("Known: ")[2].rstrip(".").split(", "))

    assert set(options_of(quota, "options")) | {"name"} == known
    of_requests = {"cost", "costs", "count_when", "settle", "methods", "skip", "exempt"}
    assert set(options_of(check, "rule_options")) == known - of_requests


LIMIT = Rule.make("search", "10/m").limits[0]
REFUSED = Decision.of((types.Outcome(LIMIT, "user:42", 1, False, 0, 61.2, 90.0),))
WRONG = RateError("5/mx", 2, "'mx' is not a unit", "Units: s, m.")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigurationError("x"), "x"), (StoreCommandDenied("not permitted"), "not permitted"),
        (WRONG, "'5/mx' is not a rate: 'mx' is not a unit (at position 2). Units: s, m."),
        (RateError(10, None, "it is an int", "H."), "10 is not a rate: it is an int. H."),
        (QuotaExceeded(REFUSED), "Rule 'search' admits 10 per minute for user:42; try again in 1 minute 2 seconds."),
        (StoreUnavailable("refused"), "The quota store is unavailable: refused"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)  # fmt: skip
class TestErrors:
    def test_an_error_is_a_quota_error(self, error: QuotaError, text: str) -> None:
        assert isinstance(error, QuotaError)

    def test_an_error_says_what_is_wrong(self, error: QuotaError, text: str) -> None:
        assert text in str(error)

    @pytest.mark.parametrize(
        "copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickled", "copied"]
    )
    def test_an_error_survives(self, copied: Callable[[QuotaError], QuotaError], error: QuotaError, text: str) -> None:
        back = copied(error)

        assert (type(back), vars(back), str(back)) == (type(error), vars(error), str(error))


def test_an_error_of_a_rate_has_its_parts() -> None:
    assert (WRONG.text, WRONG.position, WRONG.problem, WRONG.hint) == ("5/mx", 2, "'mx' is not a unit", "Units: s, m.")
