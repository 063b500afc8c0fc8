"""The options are typed: a typo is an error for mypy, and an error when the code runs.

mypy checks this file and reports an ignore comment that is not needed, so each comment proves that mypy finds the typo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import get_args, get_type_hints

import pytest

from django_quota import Rule, acheck, apeek, arefund, areserve, areset, check, peek, quota, refund, reserve, reset
from django_quota.exceptions import RuleError
from tests.support.steps import ALGORITHMS

OF_A_CALL, OF_A_VIEW = (
    get_type_hints(get_args(get_type_hints(verb)[options])[0])
    for verb, options in ((check, "rule_options"), (quota, "options"))
)
"""The options, and the type of each."""

pytestmark = pytest.mark.usefixtures("memory_store")


TYPOS: list[tuple[Callable[[], object], str]] = [
    (lambda: check("1/m", "user:1", algoritm="fixed_window"), "algorithm"),  # type: ignore[call-arg]
    (lambda: peek("1/m", "user:1", brust=2), "burst"),  # type: ignore[call-arg]
    (lambda: refund("1/m", "user:1", nam="a"), "name"),  # type: ignore[call-arg]
    (lambda: reset("1/m", "user:1", precison=10), "precision"),  # type: ignore[call-arg]
    (lambda: reserve("1/m", "user:1", shadw=True), "shadow"),  # type: ignore[call-arg]
    (lambda: quota("1/m", exemt="staff"), "exempt"),  # type: ignore[call-arg]
    (lambda: quota("1/m", METHODS="GET"), "methods"),  # type: ignore[call-arg]
    (lambda: asyncio.run(acheck("1/m", "user:1", algoritm="a")), "algorithm"),  # type: ignore[call-arg]
    (lambda: asyncio.run(apeek("1/m", "user:1", algoritm="a")), "algorithm"),  # type: ignore[call-arg]
    (lambda: asyncio.run(arefund("1/m", "user:1", algoritm="a")), "algorithm"),  # type: ignore[call-arg]
    (lambda: asyncio.run(areset("1/m", "user:1", algoritm="a")), "algorithm"),  # type: ignore[call-arg]
    (lambda: wait(areserve("1/m", "user:1", algoritm="a")), "algorithm"),  # type: ignore[call-arg]
    (lambda: check("1/m", "user:1", algorithm="fixed_windw"), "fixed_window"),  # type: ignore[arg-type]
    (lambda: quota("1/m", algorithm="token_buket"), "token_bucket"),  # type: ignore[arg-type]
    (lambda: check("1/m", "user:1", on_unavailable="alow"), ""),  # type: ignore[arg-type]
]


def wait(awaited: Awaitable[object]) -> object:
    async def work() -> object:
        return await awaited

    return asyncio.run(work())


@pytest.mark.parametrize(("typo", "meant"), TYPOS)
def test_a_misspelt_option_or_value_is_an_error_for_mypy_and_when_it_runs(
    typo: Callable[[], object], meant: str
) -> None:
    with pytest.raises(RuleError, match=f"Did you mean '{meant}'" if meant else "'allow', 'deny' or 'local'"):
        typo()


def test_the_types_name_every_option_and_algorithm() -> None:
    assert set(get_args(OF_A_CALL["algorithm"])) == set(ALGORITHMS)
    with pytest.raises(RuleError, match="Known: ") as caught:
        Rule.make("rule", "1/m", unknown=1)
    known = set(str(caught.value).partition("Known: ")[2].rstrip(".").split(", "))
    assert set(OF_A_VIEW) | {"name"} == known
    assert set(OF_A_CALL) == known - {"cost", "costs", "count_when", "settle"}
