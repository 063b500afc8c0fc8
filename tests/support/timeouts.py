"""How long a test may take. One that hangs fails, with the place where it hangs, and the others go on.

The limits are generous: they find an endless loop or a lost wake-up, not a slow machine.
"""

import signal
from collections.abc import Generator
from typing import Any

import pytest

from tests.support.inputs import TIMES

LONG = 900
"""Seconds for a test that `make test` leaves out, and for one that tries all generated inputs. `pyproject.toml` has
the limit of the others."""


class TimedOutError(BaseException):
    """A test took too long.

    It is neither an `Exception` nor pytest's failure: on those, Hypothesis would try the same input again, and hang
    again.
    """


class Timeouts:
    """Sets the limit of each test. `everything`: all generated inputs are tried."""

    def __init__(self, *, everything: bool) -> None:
        self._everything = everything

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if self._is_long(item) and item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(LONG * TIMES))

    def _is_long(self, item: pytest.Item) -> bool:
        return bool(item.get_closest_marker("thorough") or (self._everything and item.get_closest_marker("hypothesis")))

    @pytest.hookimpl(wrapper=True)
    def pytest_timeout_set_timer(self) -> Generator[None, Any, Any]:
        result = yield
        fail: Any = signal.getsignal(signal.SIGALRM)

        def fail_at_once(*given: Any) -> None:
            try:
                fail(*given)
            except pytest.fail.Exception as failure:
                raise TimedOutError(str(failure)) from None

        if callable(fail):
            signal.signal(signal.SIGALRM, fail_at_once)
        return result
