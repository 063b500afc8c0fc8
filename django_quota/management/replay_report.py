"""What `quota_replay` says: figures of each rule as JSON, and as text for 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from django_quota.core.clock import SECOND, moment_of
from django_quota.core.rules import Rule
from django_quota.management.console import counted, printable
from django_quota.management.replaying import Results
from django_quota.services.addresses import is_trusted_proxy
from django_quota.services.replay import Traffic, Unreadable
from django_quota.services.subjects import digest
from django_quota.services.tightest import Found

WIDTH = 79
LABEL = 20
"""Columns of the text, and of its labels."""

DIGEST = 12
"""Digits of a digest that stands for a subject."""

FEW_SECONDS = 10 * SECOND
"""Up to this window, whole seconds in a log make a difference."""

CAVEAT = (
    "These are upper bounds. A client that is refused usually slows down, so that many of the requests that were "
    "refused here would not have come. Counts begin at zero where the log begins, without overrides and bans."
)
MEANING = (
    "Refuses nobody from: the smallest count over the same window with which this rule alone would have refused none "
    "of these requests; one less refuses some. In the same way up to 0.1% and 1% of them."
)
LABELS = ("refuses nobody from", "  up to 0.1% from", "  up to 1% from")
"""What the text says of each of `SHARES`."""

JSON_NAMES = ("nobody", "0.1%", "1%")


class Worst(NamedTuple):
    """A subject that was refused often."""

    subject: str
    requests: int
    refused: int


@dataclass
class RuleFigures:
    """The figures of the rules of one name, in one set."""

    rate: str
    key: str
    algorithm: str
    shadow: bool
    requests: int
    refused: int
    subjects: int
    subjects_refused: int
    bans: int
    worst: list[Worst]
    tightest: dict[str, list[str | None]]
    """By what it refuses, a rate for each limit; None: there is none."""


@dataclass
class SetFigures:
    """The figures of one set of rules."""

    title: str
    refused: int
    rules: dict[str, RuleFigures]
    left_out: dict[str, str]


@dataclass
class Report:
    """All that a replay found."""

    files: Sequence[str]
    format: str
    traffic: Traffic
    sets: list[SetFigures]
    newly_refused: int
    no_longer_refused: int
    notes: list[str]


def make_report(
    files: Sequence[str],
    log_format: str,
    traffic: Traffic,
    results: Sequence[Results],
    elsewhere: Mapping[str, str],
    *,
    worst: int,
    shows_subjects: bool,
) -> Report:
    """Return the figures. `elsewhere`: rules that the middleware does not decide, and why they are left out."""
    sets = []
    for rules, result in zip(traffic.sets, results, strict=True):
        by_name = {
            name: _figures([rule for rule in rules.rules if rule.name == name], name, result, worst, shows_subjects)
            for name in result.demands
        }
        sets.append(SetFigures(rules.title, len(result.share.refused), by_name, {**rules.left_out, **elsewhere}))
    refused = [set(result.share.refused) for result in results]
    newly = len(refused[0] - refused[-1])
    return Report(files, log_format, traffic, sets, newly, len(refused[-1] - refused[0]), _notes(traffic, results))


def _figures(rules: Sequence[Rule], name: str, result: Results, worst: int, shows_subjects: bool) -> RuleFigures:
    demand, first = result.demands[name], rules[0]
    refused = {subject: count for (rule, subject), count in result.share.by_rule.items() if rule == name}
    shown = sorted(refused, key=lambda subject: (-refused[subject], subject))[:worst]
    return RuleFigures(
        rate="; ".join(str(limit.rate) for limit in demand.limits) or "unlimited",
        key=" + ".join(map(str, first.key)) if isinstance(first.key, tuple) else str(first.key),
        algorithm=first.algorithm if first.distinct is None else f"different values of {first.distinct}",
        shadow=first.shadow,
        requests=demand.requests,
        refused=sum(refused.values()),
        subjects=len(demand.subjects),
        subjects_refused=len(refused),
        bans=sum(count for (rule, _), count in result.share.bans.items() if rule == name),
        worst=[
            Worst(subject if shows_subjects else hidden(subject), len(demand.subjects[subject]), refused[subject])
            for subject in shown
        ],
        tightest={
            label: [
                _rate(limit.rate, found[at]) for limit, found in zip(demand.limits, result.rates[name], strict=True)
            ]
            for at, label in enumerate(JSON_NAMES)
        },
    )


def _rate(rate: Any, found: Found) -> str | None:
    return None if found.least is None else str(replace(rate, count=found.least))


def hidden(subject: str) -> str:
    """Return a subject with digests in place of addresses and other values."""
    parts = []
    for part in subject.split("+"):
        kind, colon, value = part.partition(":")
        parts.append(f"{kind}:{digest(value)[:DIGEST]}" if colon else part)
    return "+".join(parts)


def _notes(traffic: Traffic, results: Sequence[Results]) -> list[str]:
    notes = []
    if traffic.unordered:
        notes.append(f"{counted(traffic.unordered, 'request')} came out of order: the log was sorted by time.")
    limits = [limit for result in results for demand in result.demands.values() for limit in demand.limits]
    if any(limit.rate.period <= FEW_SECONDS for limit in limits) and not any(time % SECOND for time in traffic.times):
        notes.append("The log has whole seconds. Rates over a few seconds need finer times, such as $msec of nginx.")
    subjects = {subject for result in results for demand in result.demands.values() for subject in demand.subjects}
    addresses = sorted(subject.removeprefix("ip:") for subject in subjects if subject.startswith("ip:"))
    of_proxies = list(filter(is_trusted_proxy, addresses))
    if of_proxies:
        notes.append(
            f"{of_proxies[0]} counts as a client, but it is one of TRUSTED_PROXIES. Let the log have "
            "X-Forwarded-For, or take the log of the proxy."
        )
    return notes


# --- JSON -------------------------------------------------------------------------------------------------------------


def as_json(report: Report) -> dict[str, Any]:
    """Return what `--json` prints."""
    traffic = report.traffic
    return {
        "log": {
            "files": list(report.files),
            "format": report.format,
            "lines": traffic.lines,
            "requests": traffic.requests,
            "begins": moment_of(traffic.begins).isoformat(),
            "ends": moment_of(traffic.ends).isoformat(),
            "answered_429": traffic.turned_away,
            "unreadable": traffic.unreadable,
            "first_unreadable": [each._asdict() for each in traffic.shown],
        },
        "sets": [
            {
                "title": each.title,
                "refused": each.refused,
                "share": _share(each.refused, traffic.requests),
                "rules": {name: _rule_as_json(figures) for name, figures in each.rules.items()},
                "left_out": each.left_out,
            }
            for each in report.sets
        ],
        "newly_refused": report.newly_refused,
        "no_longer_refused": report.no_longer_refused,
        "notes": [*report.notes, CAVEAT],
    }


def _rule_as_json(figures: RuleFigures) -> dict[str, Any]:
    found = {name: getattr(figures, name) for name in figures.__dataclass_fields__}
    return {
        **found,
        "share": _share(figures.refused, figures.requests),
        "worst": [each._asdict() for each in figures.worst],
    }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


# --- text -------------------------------------------------------------------------------------------------------------


def lines(report: Report) -> Iterator[str]:
    """Return the lines that the command prints."""
    yield from _log_lines(report)
    yield from _set_lines(report)
    names = dict.fromkeys(name for each in report.sets for name in each.rules)
    unused = [
        name for name in names if not any(each.rules[name].requests for each in report.sets if name in each.rules)
    ]
    for name in names:
        if name not in unused:
            yield ""
            yield from _rule_lines(name, report.sets)
    if unused:
        yield ""
        yield from _wrapped(f"No request met {', '.join(unused)}.")
    left_out = {name: reason for each in report.sets for name, reason in each.left_out.items()}
    if left_out:
        yield ""
        yield "Left out, because a log does not show what these rules need:"
        for name, reason in left_out.items():
            yield from _wrapped(f"{name}: {reason}", "  ")
    yield ""
    if any(figures.requests for each in report.sets for figures in each.rules.values()):
        yield from _wrapped(MEANING)
    for note in (*report.notes, CAVEAT):
        yield from _wrapped(note)


def _wrapped(text: str, indent: str = "") -> list[str]:
    deeper = indent + "  " * bool(indent)
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=deeper, break_on_hyphens=False)


def _log_lines(report: Report) -> Iterator[str]:
    traffic = report.traffic
    files = report.files[0] if len(report.files) == 1 else f"{len(report.files)} files"
    begins, ends = (f"{moment_of(time):%Y-%m-%d %H:%M:%S}" for time in (traffic.begins, traffic.ends))
    yield f"{files}: {counted(traffic.requests, 'request')} in the format {report.format}"
    yield f"  from {begins} to {ends} UTC"
    if traffic.turned_away:
        yield f"  {traffic.turned_away:,} of them were answered 429 when they came"
    if traffic.unreadable:
        yield f"  {counted(traffic.unreadable, 'line')} could not be used, for example:"
        for each in traffic.shown:
            yield f"    {unreadable(each)}"
    yield ""


def unreadable(line: Unreadable) -> str:
    """Return which line could not be used, why, and how it begins."""
    return textwrap.shorten(f"line {line.number:,}, {line.reason}: {line.text}", WIDTH - 4, placeholder="…")


def _set_lines(report: Report) -> Iterator[str]:
    for each in report.sets:
        if not each.rules:
            yield f"{each.title}: no rule could be replayed."
            continue
        share = percent(each.refused, report.traffic.requests)
        yield f"{each.title} would have refused {counted(each.refused, 'request')} ({share})."
    if len(report.sets) > 1:
        first, second = (each.title for each in report.sets)
        yield from _wrapped(
            f"{report.newly_refused:,} are refused by {first} alone, {report.no_longer_refused:,} by {second} alone.",
            "  ",
        )


def _rule_lines(name: str, sets: Sequence[SetFigures]) -> Iterator[str]:
    both = [each.rules.get(name) for each in sets]
    titles = [each.title for each in sets] if len(sets) > 1 else []
    yield _row(name, titles).rstrip()
    for label, of in _ROWS:
        cells = ["-" if figures is None else of(figures) for figures in both]
        if label != "bans" or any(figures and figures.bans for figures in both):
            yield _row(f"  {label}", cells)
    for label, share in zip(LABELS, JSON_NAMES, strict=True):
        if any(figures and figures.requests and figures.tightest[share] for figures in both):
            yield _row(f"  {label}", [_rates(figures, share) for figures in both])
    for figures, title in zip(both, (each.title for each in sets), strict=True):
        if figures is not None and figures.worst:
            yield f"  refused most{f' by {title}' if titles else ''}"
            for each in figures.worst:
                yield f"    {each.subject}"
                share = percent(each.refused, each.requests)
                yield f"      {each.refused:,} of {counted(each.requests, 'request')} ({share})"


_ROWS = (
    ("rate", lambda figures: figures.rate + (" (shadow)" if figures.shadow else "")),
    ("key", lambda figures: figures.key),
    ("requests", lambda figures: f"{figures.requests:,}"),
    ("refused", lambda figures: f"{figures.refused:,} ({percent(figures.refused, figures.requests)})"),
    ("subjects", lambda figures: f"{figures.subjects:,}"),
    (
        "subjects refused",
        lambda figures: f"{figures.subjects_refused:,} ({percent(figures.subjects_refused, figures.subjects)})",
    ),
    ("bans", lambda figures: f"{figures.bans:,}"),
)


def _rates(figures: RuleFigures | None, share: str) -> str:
    if figures is None or not figures.requests:
        return "-"
    return "; ".join(rate or "no count" for rate in figures.tightest[share])


def _row(label: str, cells: Sequence[str]) -> str:
    wide = LABEL + 3
    if not cells:
        return printable(label)
    width = (WIDTH - wide) // len(cells)
    cut = [cell if len(cell) < width or len(cells) == 1 else f"{cell[: width - 2]}…" for cell in cells]
    return printable(f"{label:<{wide}}" + "".join(f"{cell:<{width}}" for cell in cut)).rstrip()


def percent(part: int, whole: int) -> str:
    """Return a share in percent with two digits, or more above 10 %."""
    if not part or not whole:
        return "0%"
    share = 100 * part / whole
    if share < 0.01:  # noqa: PLR2004
        return "<0.01%"
    return f"{share:.2g}%" if share < 10 else f"{share:.1f}%"  # noqa: PLR2004
