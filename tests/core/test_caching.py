"""What is cached is computed once, and belongs to its owner."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from django_quota.core.caching import cached, kept_on, lazy_attribute


def test_a_result_is_computed_once_for_equal_arguments() -> None:
    asked: list[Any] = []

    @cached(maxsize=2)
    def double(number: int, *, plus: int = 0) -> int:
        asked.append(number)
        return number * 2 + plus

    assert [double(2), double(2), double(2, plus=1), double(3)] == [4, 4, 5, 6]
    assert asked == [2, 2, 3]


def test_what_cannot_be_remembered_is_computed_each_time() -> None:
    asked: list[Any] = []

    @cached(maxsize=2)
    def length(values: list[int], *, plus: int = 0) -> int:
        asked.append(values)
        return len(values) + plus

    assert [length([1]), length([1], plus=1)] == [1, 2]
    assert asked == [[1], [1]]


def test_a_cached_function_remembers_only_so_many_results() -> None:
    asked: list[int] = []

    @cached(maxsize=2)
    def same(number: int) -> int:
        asked.append(number)
        return number

    for number in (1, 2, 3, 1):
        same(number)

    assert asked == [1, 2, 3, 1]


def test_a_cached_function_has_its_own_name() -> None:
    @cached(maxsize=1)
    def double(number: int) -> int:
        """Return twice the number."""
        return number * 2

    assert (double.__name__, double.__doc__) == ("double", "Return twice the number.")


def test_the_error_of_a_cached_function_is_raised_each_time() -> None:
    asked = list[int]()

    @cached(maxsize=1)
    def fail(number: int) -> int:
        asked.append(number)
        raise ValueError(number)

    with suppress(ValueError):
        fail(5)
    with pytest.raises(ValueError, match="5"):
        fail(5)

    assert asked == [5, 5]


def test_a_second_call_returns_the_attribute_that_the_first_kept() -> None:
    owner, made = SimpleNamespace(), list[list[int]]()

    def make() -> list[int]:
        made.append([])
        return made[-1]

    first, second = (kept_on(owner, "_ours", make) for _ in range(2))

    assert first is second is owner._ours
    assert len(made) == 1


class Lazy:
    """An object with an attribute that is slow to compute."""

    def __init__(self) -> None:
        self.computed = 0

    @lazy_attribute
    def slow(self) -> int:
        """Say how often it was computed."""
        self.computed += 1
        return self.computed


def test_a_lazy_attribute_is_computed_when_it_is_first_read() -> None:
    lazy = Lazy()

    assert (lazy.computed, lazy.slow, lazy.slow, lazy.computed) == (0, 1, 1, 1)


def test_a_lazy_attribute_belongs_to_its_object() -> None:
    one, other = Lazy(), Lazy()

    assert (one.slow, other.slow) == (1, 1)
    assert (one.computed, other.computed) == (1, 1)


def test_a_lazy_attribute_of_the_class_is_an_error_that_names_both() -> None:
    with pytest.raises(AttributeError, match=r"^Lazy\.slow is an attribute of instances\.$"):
        _ = Lazy.slow


def test_an_attribute_is_kept_although_another_object_has_one_of_its_name() -> None:
    owner = SimpleNamespace(_theirs=5)

    assert (kept_on(owner, "_ours", lambda: 6), owner._theirs, owner._ours) == (6, 5, 6)


def test_a_lazy_attribute_has_the_docstring_of_its_function() -> None:
    assert vars(Lazy)["slow"].__doc__ == "Say how often it was computed."
