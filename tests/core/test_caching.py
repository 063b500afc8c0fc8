"""The cache of results: a call that cannot be remembered is made all the same."""

from __future__ import annotations

import pytest

from django_quota.core.caching import cached


def test_a_call_is_remembered_if_its_arguments_can_be() -> None:
    made: list[object] = []

    @cached(maxsize=8)
    def double(value: object, *, times: int = 2) -> int:
        made.append(value)
        return len(made) * times

    assert double("a") == double("a") == 2
    assert double("a", times=3) == 6
    assert double([]) == 6
    assert double([]) == 8
    assert made == ["a", "a", [], []]


def test_an_error_is_not_remembered() -> None:
    answers = [ValueError("first"), None]

    @cached(maxsize=8)
    def ask(_: str) -> str:
        if (error := answers.pop(0)) is not None:
            raise error
        return "then"

    with pytest.raises(ValueError, match="first"):
        ask("a")
    assert ask("a") == "then"
