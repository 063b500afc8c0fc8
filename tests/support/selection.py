"""Which tests `make test` leaves to `make test-all` (`pytest --all`), and why.

Mark a test, a class, a file (`pytestmark`) or a parameter with `pytest.mark.thorough(reason)` where `make test` covers
the same code without it, or where it takes seconds. A test that needs such a parameter in `make test` too is marked
`pytest.mark.always(reason)`. The last lines of each run count what was left out.

`--also` brings one reason back: nox runs the slow tests, and those on a Cluster, with each version of Python and
redis-py.

With `--all` everything runs on the first server of the machine, which is the Redis on PATH where there is one, and
`ON_EACH_SERVER` on the others too.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

REASONS = {
    "server": "the same on another server",
    "decoded": "the same with decode_responses",
    "sqlite": "the same on SQLite as in memory and on Redis",
    "postgresql": "the same on PostgreSQL",
    "cluster": "the same on a Cluster",
    "slow": "a tenth of a second and more, on lines that quicker tests run too",
    "faults": "each call under more faults of a server",
    "topology": "Clusters and Sentinels of their own: seconds to form, to fail over, to time out",
    "processes": "processes that run, wait or are killed for seconds",
    "search": "long searches for a counterexample",
    "variants": "more methods, zones, languages, formats of a case that is tried",
    "scale": "many rows, keys or callers",
    "flood": "floods of subjects",
    "acl": "each permission of each Redis user, one at a time",
    "chaos": "workers on a Redis that fails (make chaos)",
    "browser": "the pages in Chromium",
    "example": "the example project in processes",
    "packages": "the wheel and the sdist, in an empty environment (make dist)",
}
"""Each reason to leave a test out, and what the summary says of it."""

SHORT = {"server", "decoded", "sqlite", "postgresql", "cluster", "variants", "slow"}
"""The reasons of tests that mostly take less than a second."""

MANY = 100
"""A test that takes seconds counts as so many others, where files are put in order."""

TESTS = Path(__file__).parents[1]
ON_EACH_SERVER = [TESTS / folder for folder in ("core", "stores", "faults")]
"""What runs on each server of a machine: scripts, stores and failures. All else runs on its first server."""


def thorough(reason: str, *values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.thorough(reason))


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the thorough tests too, and all generated inputs")
    parser.addoption("--also", action="append", choices=list(REASONS), default=[], help="run these thorough tests too")


class Selection:
    """Leaves the thorough tests out, and says how many."""

    def __init__(self, config: pytest.Config) -> None:
        for marker in ("thorough", "always"):
            config.addinivalue_line("markers", f"{marker}(*reasons): see tests/support/selection.py")
        self._all: bool = config.getoption("all")
        self._also: list[str] = config.getoption("also")
        self._left: Counter[str] = Counter()
        config.option.loadscopereorder = False  # pytest-xdist keeps the order of the files: see `_work_of_files`

    def left_out_for(self, item: pytest.Item) -> str | None:
        """Return the reason to leave a test out; None where it runs."""
        always, thorough = ([reason for mark in item.iter_markers(name) for reason in mark.args]
                            for name in ("always", "thorough"))  # fmt: skip
        if unknown := {*thorough, *always} - set(REASONS):
            raise pytest.UsageError(f"{item.nodeid}: no reason {unknown}; tests/support/selection.py lists them")
        if self._all:
            thorough = [] if any(map(item.path.is_relative_to, ON_EACH_SERVER)) else ["server"] * ("server" in thorough)
        return next((reason for reason in thorough if reason not in (*always, *self._also)), None)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        reasons = dict(zip(items, map(self.left_out_for, items), strict=True))
        self._left.update(filter(None, reasons.values()))
        config.hook.pytest_deselected(items=[item for item in items if reasons[item]])
        items[:] = [item for item in items if not reasons[item]]
        if hasattr(config, "workerinput"):  # a process of pytest-xdist
            work = self._work_of_files(items)
            items.sort(key=lambda item: -work[item.path])

    def _work_of_files(self, items: list[pytest.Item]) -> Counter[Path]:
        """Return about how long each file takes. The longest come first: the last one keeps nobody waiting then."""
        work = Counter[Path]()
        for item in items:
            reasons = {reason for mark in item.iter_markers("thorough") for reason in mark.args}
            takes_seconds = reasons - SHORT or (self._all and item.get_closest_marker("hypothesis"))
            work[item.path] += MANY if takes_seconds else 1
        return work

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):  # a process of pytest-xdist
            session.config.workeroutput["left_out"] = dict(self._left)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the counts of one process: each collects all tests."""
        self._left = Counter(getattr(node, "workeroutput", {}).get("left_out")) or self._left

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._left:
            where = "not repeated" if self._all else "left to `make test-all` (pytest --all), and most generated inputs"
            terminalreporter.section(f"{self._left.total()} tests are {where}")
            for reason, number in self._left.most_common():
                terminalreporter.line(f"{number:6}  {REASONS[reason]}")
