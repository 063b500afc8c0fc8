"""`make demo`: start the example site on a real Redis, send it real requests, print what happened.

A real client runs every scenario against a real server process and compares the replies with what the scenario
promises. The exit status is 0 if all are as promised, otherwise 1, with the list of differences.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import ExitStack
from http.client import HTTPException
from time import monotonic

from django_quota.exceptions import StoreUnavailable
from example_project.admin_pages import open_admin_pages
from example_project.runner import RunnerError, Site, ended_by_signals, running_site
from example_project.scenarios import SCENARIOS, Scenario
from example_project.steps import RUNS, Step, run
from example_project.terminal import Part, Terminal

PREFIX = "quota-example-demo"
INTERRUPTED = 130

LEGEND = (
    "Each scenario sends real requests. Admitted: the view ran. Declined: the view itself said no, for example to a "
    "wrong password. Refused: a limit said no, with status 429. The lines below show what the last refusal said: "
    "Retry-After is the wait in seconds. RateLimit has what is left of each limit (r), and the seconds until there is "
    "more (t)."
)


def run_all(terminal: Terminal, site: Site) -> list[str]:
    """Run every scenario and print each step as it ends; return the differences from the promises."""
    differing = []
    terminal.paragraph(LEGEND)
    with terminal.progress(only_bar=True) as report:
        for number, scenario in enumerate(SCENARIOS):
            report(scenario.title, number, len(SCENARIOS))
            differing += [f"{scenario.title}: {difference}" for difference in _run_one(scenario, site, terminal)]
    if site.process.poll() is not None:
        differing.append(f"The server stopped by itself, with status {site.process.returncode}.")
    return differing


def look(terminal: Terminal, site: Site) -> list[str]:
    """Open the pages of the admin and print the result; return the differences from the promises."""
    terminal.line()
    terminal.line(("The admin", "bold"))
    terminal.paragraph(f"Its pages, with the {site.rows:,} daily counters of a year.", "dim", indent=2)
    try:
        looks = open_admin_pages(site)
    except (OSError, HTTPException) as error:
        return [f"The admin: the site does not answer ({type(error).__name__}: {error})"]
    for seen in looks:
        words = f" {seen.name:<20} {seen.status} in {seen.milliseconds:.0f} ms"
        terminal.line(_mark(is_good=not seen.difference), words)
    return [seen.difference for seen in looks if seen.difference]


def _run_one(scenario: Scenario, site: Site, terminal: Terminal) -> list[str]:
    """Run a scenario and print its steps; return the differences from its promises."""
    differing = []
    terminal.line()
    terminal.line((scenario.title, "bold"))
    terminal.paragraph(scenario.shows, "dim", indent=2)
    try:
        for step in RUNS.get(scenario.slug, run)(scenario, site):
            _print_step(step, terminal)
            differing += step.differences
    except (OSError, HTTPException, StoreUnavailable, threading.BrokenBarrierError) as error:
        differing.append(f"the site or its Redis does not answer ({type(error).__name__}: {error})")
    except (LookupError, ValueError) as error:
        differing.append(f"a reply was not what it should be ({type(error).__name__}: {error})")
    for difference in differing:
        terminal.paragraph(f"✗ {difference}", "red", indent=2, hanging=2)
    return differing


def _print_step(step: Step, terminal: Terminal) -> None:
    parts: list[Part] = [_mark(is_good=not step.differences), f" {step.name}: {len(step.replies)} sent"]
    numbers = (
        (step.admitted, "admitted", "green"), (len(step.declined), "declined", "yellow"),
        (len(step.refusals), "refused", "red"),
    )  # fmt: skip
    for number, words, style in numbers:
        if number:
            parts += [", ", (f"{number} {words}", style)]
    terminal.line(*parts)
    for line in step.says.splitlines():
        terminal.paragraph(line, indent=4, hanging=2)


def _mark(*, is_good: bool) -> Part:
    return ("✓", "green") if is_good else ("✗", "red")


def main() -> int:
    """Run the demo; return the exit status."""
    terminal = Terminal()
    started = monotonic()
    try:
        with ended_by_signals(), ExitStack() as stack:
            with terminal.progress() as report:
                site = stack.enter_context(running_site(prefix=PREFIX, keep_log=True, report=report))
            terminal.paragraph(f"The example site is a real server at {site.url}, on {site.store}.")
            terminal.line()
            differing = run_all(terminal, site) + look(terminal, site)
            output = site.output()
    except KeyboardInterrupt:
        terminal.line("Stopped; nothing is left running.")
        return INTERRUPTED
    except RunnerError as error:
        terminal.line(("The demo could not start. ", "red"), str(error))
        return 1
    return _conclude(terminal, differing, output, monotonic() - started)


def _conclude(terminal: Terminal, differing: list[str], output: str, seconds: float) -> int:
    """Print the result; return the exit status."""
    terminal.line()
    if not differing:
        terminal.line((f"All {len(SCENARIOS)} scenarios did what they promise", "green"), f", in {seconds:.1f} s.")
        terminal.line("To try them in a browser: ", (f"make serve{_store()}", "bold"))
        return 0
    terminal.line(("Not as promised:", "red"))
    for difference in differing:
        terminal.paragraph(difference, indent=2, hanging=2)
    terminal.line(f"The output of the server:\n{output}")
    return 1


def _store() -> str:
    """Return what to add to `make`, so that it uses the same store."""
    store = os.environ.get("EXAMPLE_STORE", "redis")
    return "" if store == "redis" else f" STORE={store}"


if __name__ == "__main__":
    sys.exit(main())
