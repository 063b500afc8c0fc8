"""What `prefetch` saves, as a picture: `python -m tests.benchmarks.prefetching` writes it.

Four processes check one subject on a Redis, once without `prefetch` and once with it. They check in turn, at moments
that are passed in: so the demand is the same in both runs, however fast the machine is.
"""

import os
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import svg

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "prefetch.svg"

LIMIT, WINDOW, PROCESSES, SUBJECT = 3_000, 60, 4, "user:7"
DEMAND = ((20, 3), (60, 40), (60, 200), (40, 40))
"""For how many seconds clients send how many requests a second: few, many, four times the limit, many."""
STEP = 2
"""Seconds that a column stands for."""
TITLE = f"{LIMIT}/{WINDOW}s, checked by {PROCESSES} processes"

KINDS = {
    "asked": ("admitted by a call", "#2a78d6", "#3987e5"),
    "spent": ("admitted without", "#1baf7a", "#199e70"),
    "refused": ("refused by a call", "#e34948", "#e66767"),
    "repeated": ("refused without", "#eda100", "#c98500"),
}
"""What may become of a check, from the bottom of a column to its top, and its colours in light and dark."""

WIDTH, LEFT, RIGHT, PLOT, GAP, TOP, HEIGHT = 860, 96, 24, 130, 44, 62, 400


class Check(NamedTuple):
    """A check: when it was made, in microseconds after the first, whether it was admitted, and by a call to Redis."""

    at: int
    admitted: bool
    asked: bool

    @property
    def kind(self) -> str:
        if self.admitted:
            return "asked" if self.asked else "spent"
        return "refused" if self.asked else "repeated"


def moments() -> list[int]:
    """Return when each check is made, in microseconds."""
    found, begins = list[int](), 0
    for seconds, rate in DEMAND:
        found += [begins + number * 1_000_000 // rate for number in range(seconds * rate)]
        begins += seconds * 1_000_000
    return found


def run(prefetch: bool | None) -> list[Check]:
    """Make all checks; return what became of each."""
    from django_quota import Rule, check
    from django_quota.limiting.registry import get_limiter
    from django_quota.testing import freeze
    from tests.support.steps import START
    from tests.support.turns import Turns, in_turn

    given: dict[str, Any] = {"prefetch": True} if prefetch else {}
    rule, due = Rule.make(f"prefetch-{prefetch}", f"{LIMIT}/{WINDOW}s", key="user", **given), moments()

    def work(each: int, turns: Turns) -> None:
        store: Any = get_limiter().store
        ask, trips = store.run, list[int]()

        def counting(*asked: Any) -> Any:
            trips.append(1)
            return ask(*asked)

        store.run = counting
        with (folder / str(each)).open("wb") as out:
            for number in turns:
                before = len(trips)
                with freeze(START + due[number]):
                    admitted = check(rule, SUBJECT).allowed
                out.write(struct.pack("<q??", due[number], admitted, len(trips) > before))

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        in_turn(work, PROCESSES, len(due))
        return sorted(
            Check(*each) for file in folder.iterdir() for each in struct.iter_unpack("<q??", file.read_bytes())
        )


def words(checks: Sequence[Check]) -> str:
    calls, admitted = sum(each.asked for each in checks), sum(each.admitted for each in checks)
    return f"{len(checks):,} checks, {calls:,} calls to Redis, {admitted:,} admitted"


def most_in_a_window(checks: Sequence[Check]) -> int:
    admitted = [each.at for each in checks if each.admitted]
    most = first = 0
    for number, at in enumerate(admitted):
        while admitted[first] <= at - WINDOW * 1_000_000:
            first += 1
        most = max(most, number - first + 1)
    return most


def picture(runs: Mapping[str, Sequence[Check]]) -> str:
    light, dark = (" ".join(f".{kind} {{ fill: {of[n]}; }}" for kind, of in KINDS.items()) for n in (1, 2))
    return svg.picture(alternative(runs), WIDTH, HEIGHT, (f" {light}", f" {dark}"), _parts(runs))


def alternative(runs: Mapping[str, Sequence[Check]]) -> str:
    """Return what the picture says, for people who do not see it."""
    return f"{TITLE}. " + "; ".join(f"{name}: {words(checks)}" for name, checks in runs.items())


def _parts(runs: Mapping[str, Sequence[Check]]) -> Iterator[str]:
    seconds = sum(seconds for seconds, _ in DEMAND)
    across = (WIDTH - LEFT - RIGHT) / seconds
    yield svg.text(LEFT, 20, TITLE)
    for number, (kind, (meaning, *_)) in enumerate(KINDS.items()):
        yield svg.rect(kind, LEFT + number * 160, 31, 11, 11)
        yield svg.text(LEFT + number * 160 + 16, 41, meaning, "small")
    for number, (name, checks) in enumerate(runs.items()):
        base = TOP + number * (PLOT + GAP) + PLOT
        yield svg.text(LEFT - 10, base - PLOT / 2, name, anchor="end")
        yield svg.text(LEFT, base - PLOT + 6, words(checks), "small")
        yield from _columns(checks, across, base)
    for second in range(0, seconds + 1, 20):
        yield svg.text(LEFT + second * across, HEIGHT - 10, f"{second} s", "small", "middle")


def _columns(checks: Sequence[Check], across: float, base: int) -> Iterator[str]:
    columns: dict[int, Counter[str]] = {}
    for each in checks:
        columns.setdefault(int(each.at / 1_000_000 / STEP), Counter())[each.kind] += 1
    up = (PLOT - 24) / (STEP * max(rate for _, rate in DEMAND))
    for step, column in columns.items():
        y = float(base)
        for kind in filter(column.get, KINDS):
            y -= column[kind] * up
            yield svg.rect(kind, LEFT + step * STEP * across, y, STEP * across - 1, column[kind] * up)
    yield svg.line("axis", LEFT, base, WIDTH - RIGHT, base)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.support.settings")
    import django

    django.setup()
    from django.test import override_settings

    from django_quota.testing import server_programs
    from tests.benchmarks.processes import redis_over_tcp

    with redis_over_tcp(server_programs()[0]) as url, override_settings(QUOTA={"REDIS": url, "EVENTS": 0}):
        runs = {"without": run(None), "prefetch": run(True)}
    for name, checks in runs.items():
        print(f"{name}: at most {most_in_a_window(checks):,} in a window")
    PICTURE.write_text(picture(runs))
    print(f"![{alternative(runs)}](pictures/{PICTURE.name})")


if __name__ == "__main__":
    main()
