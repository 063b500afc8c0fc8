"""The options are typed: a typo is an error for mypy, and an error when the code runs.

mypy checks this file and reports an ignore comment that is not needed, so each comment proves that mypy finds the typo.
"""

from __future__ import annotations

import asyncio
from typing import get_args, get_type_hints

import pytest

from django_quota import (
    Rule,
    RuleError,
    acheck,
    apeek,
    arefund,
    areserve,
    areset,
    check,
    peek,
    quota,
    refund,
    reserve,
    reset,
)
from tests.support.steps import ALGORITHMS

OF_A_CALL, OF_A_VIEW = (
    get_type_hints(get_args(get_type_hints(verb)[options])[0])
    for verb, options in ((check, "rule_options"), (quota, "options"))
)
"""The options, and the type of each."""

pytestmark = pytest.mark.usefixtures("memory_store")


def test_a_misspelt_option_is_an_error_for_mypy_and_when_it_runs() -> None:
    with pytest.raises(RuleError, match="Did you mean 'algorithm'"):
        check("1/m", "user:1", algoritm="fixed_window")  # type: ignore[call-arg]
    with pytest.raises(RuleError, match="Did you mean 'burst'"):
        peek("1/m", "user:1", brust=2)  # type: ignore[call-arg]
    with pytest.raises(RuleError, match="Did you mean 'name'"):
        refund("1/m", "user:1", nam="a")  # type: ignore[call-arg]
    with pytest.raises(RuleError, match="Did you mean 'precision'"):
        reset("1/m", "user:1", precison=10)  # type: ignore[call-arg]
    with pytest.raises(RuleError, match="Did you mean 'shadow'"):
        reserve("1/m", "user:1", shadw=True)  # type: ignore[call-arg]
    with pytest.raises(RuleError, match="Did you mean 'exempt'"):
        quota("1/m", exemt="staff")  # type: ignore[call-arg]


def test_the_async_functions_know_the_options_too() -> None:
    async def ask() -> None:
        with pytest.raises(RuleError):
            await acheck("1/m", "user:1", algoritm="fixed_window")  # type: ignore[call-arg]
        with pytest.raises(RuleError):
            await apeek("1/m", "user:1", algoritm="fixed_window")  # type: ignore[call-arg]
        with pytest.raises(RuleError):
            await arefund("1/m", "user:1", algoritm="fixed_window")  # type: ignore[call-arg]
        with pytest.raises(RuleError):
            await areset("1/m", "user:1", algoritm="fixed_window")  # type: ignore[call-arg]
        with pytest.raises(RuleError):
            await areserve("1/m", "user:1", algoritm="fixed_window")  # type: ignore[call-arg]

    asyncio.run(ask())


def test_a_misspelt_value_is_an_error_for_mypy_and_when_it_runs() -> None:
    with pytest.raises(RuleError, match="Did you mean 'fixed_window'"):
        check("1/m", "user:1", algorithm="fixed_windw")  # type: ignore[arg-type]
    with pytest.raises(RuleError, match="Did you mean 'token_bucket'"):
        quota("1/m", algorithm="token_buket")  # type: ignore[arg-type]
    with pytest.raises(RuleError, match="'allow', 'deny' or 'local'"):
        check("1/m", "user:1", on_unavailable="alow")  # type: ignore[arg-type]


def test_right_options_are_right_for_mypy_too() -> None:
    assert check("2/m", "user:1", algorithm="token_bucket", burst=1, name="typed", on_unavailable="deny")
    assert peek("2/m", "user:1", key=("ip", "user"), methods=["GET"], warn_at=None, daily=True)


def test_the_types_name_every_option_and_algorithm() -> None:
    assert set(get_args(OF_A_CALL["algorithm"])) == set(ALGORITHMS)
    with pytest.raises(RuleError, match="Known: ") as caught:
        Rule.make("rule", "1/m", unknown=1)
    known = set(str(caught.value).partition("Known: ")[2].rstrip(".").split(", "))
    assert set(OF_A_VIEW) | {"name"} == known
    assert set(OF_A_CALL) == known - {"cost", "counts", "settle"}


@pytest.mark.parametrize("verb", [check, acheck, peek, apeek, refund, arefund, reset, areset, reserve, areserve])
def test_each_function_has_typed_options(verb: object) -> None:
    assert get_args(get_type_hints(verb)["rule_options"]) == get_args(get_type_hints(check)["rule_options"])
