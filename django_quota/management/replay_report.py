"""What `quota_replay` says: the figures of each rule, as `--json` prints them, and as text for 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from django_quota.core.clock import SECOND, moment_of
from django_quota.management.console import counted, printable
from django_quota.management.replaying import Results
from django_quota.services.addresses import is_trusted_proxy
from django_quota.services.replay import Traffic
from django_quota.services.subjects import digest

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
LABELS = {"nobody": "refuses nobody from", "0.1%": "  up to 0.1% from", "1%": "  up to 1% from"}
"""What JSON and the text say of each of `SHARES`."""

Report = dict[str, Any]
"""What `--json` prints, or a part of it. The text says the same."""


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
    refused = [set(result.refusals.positions) for result in results]
    return {
        "log": {
            "files": list(files),
            "format": log_format,
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
                "title": result.rules.title,
                "refused": len(result.refusals.positions),
                "share": _share(len(result.refusals.positions), traffic.requests),
                "rules": {name: _figures(name, result, worst, shows_subjects) for name in result.demands},
                "left_out": {**result.rules.left_out, **elsewhere},
            }
            for result in results
        ],
        "newly_refused": len(refused[0] - refused[-1]),
        "no_longer_refused": len(refused[-1] - refused[0]),
        "notes": [*_notes(traffic, results), CAVEAT],
    }


def _figures(name: str, result: Results, worst: int, shows_subjects: bool) -> Report:
    """Return the figures of the rules of one name."""
    demand, first = result.demands[name], next(rule for rule in result.rules.rules if rule.name == name)
    refused = {subject: count for (rule, subject), count in result.refusals.by_rule.items() if rule == name}
    shown = sorted(refused, key=lambda subject: (-refused[subject], subject))[:worst]
    return {
        "rate": "; ".join(str(limit.rate) for limit in demand.limits) or "unlimited",
        "key": " + ".join(map(str, first.key)) if isinstance(first.key, tuple) else str(first.key),
        "algorithm": first.algorithm if first.distinct is None else f"different values of {first.distinct}",
        "shadow": first.shadow,
        "requests": demand.requests,
        "refused": sum(refused.values()),
        "subjects": len(demand.subjects),
        "subjects_refused": len(refused),
        "bans": sum(count for (rule, _), count in result.refusals.bans.items() if rule == name),
        "worst": [
            {
                "subject": subject if shows_subjects else hidden(subject),
                "requests": len(demand.subjects[subject].times),
                "refused": refused[subject],
            }
            for subject in shown
        ],
        "tightest": {
            share: [
                None if (count := counts[at]) is None else str(replace(limit.rate, count=count))
                for limit, counts in zip(demand.limits, result.tightest[name], strict=True)
            ]
            for at, share in enumerate(LABELS)
        },
        "share": _share(sum(refused.values()), demand.requests),
    }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def hidden(subject: str) -> str:
    """Return a subject with digests in place of addresses and other values."""
    parts = []
    for part in subject.split("+"):
        kind, colon, value = part.partition(":")
        parts.append(f"{kind}:{digest(value)[:DIGEST]}" if colon else part)
    return "+".join(parts)


def _notes(traffic: Traffic, results: Sequence[Results]) -> Iterator[str]:
    demands = [demand for result in results for demand in result.demands.values()]
    if traffic.unordered:
        yield f"{counted(traffic.unordered, 'request')} came out of order: the log was sorted by time."
    has_short = any(limit.rate.period <= FEW_SECONDS for demand in demands for limit in demand.limits)
    if has_short and not any(time % SECOND for time in traffic.times):
        yield "The log has whole seconds. Rates over a few seconds need finer times, such as $msec of nginx."
    addresses = {
        subject.removeprefix("ip:") for demand in demands for subject in demand.subjects if subject[:3] == "ip:"
    }
    proxy = min(filter(is_trusted_proxy, addresses), default=None)
    if proxy:
        yield (
            f"{proxy} counts as a client, but it is one of TRUSTED_PROXIES. Let the log have X-Forwarded-For, or take "
            "the log of the proxy."
        )


# --- text -------------------------------------------------------------------------------------------------------------


def lines(report: Report) -> Iterator[str]:
    """Return the lines that the command prints."""
    sets = report["sets"]
    yield from _log_lines(report["log"])
    yield from _set_lines(report)
    names = dict.fromkeys(name for each in sets for name in each["rules"])
    used = [name for name in names if any(each["rules"].get(name, {}).get("requests") for each in sets)]
    for name in used:
        yield ""
        yield from _rule_lines(name, sets)
    if len(used) < len(names):
        yield ""
        yield from _wrapped(f"No request met {', '.join(name for name in names if name not in used)}.")
    left_out = {name: reason for each in sets for name, reason in each["left_out"].items()}
    if left_out:
        yield ""
        yield "Left out, because a log does not show what these rules need:"
        for name, reason in left_out.items():
            yield from _wrapped(f"{name}: {reason}", "  ")
    yield ""
    for note in [*[MEANING] * bool(used), *report["notes"]]:
        yield from _wrapped(note)


def _wrapped(text: str, indent: str = "") -> list[str]:
    deeper = indent + "  " * bool(indent)
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=deeper, break_on_hyphens=False)


def _log_lines(log: Report) -> Iterator[str]:
    files = log["files"][0] if len(log["files"]) == 1 else f"{len(log['files'])} files"
    begins, ends = (log[edge][:19].replace("T", " ") for edge in ("begins", "ends"))
    yield f"{files}: {counted(log['requests'], 'request')} in the format {log['format']}"
    yield f"  from {begins} to {ends} UTC"
    if log["answered_429"]:
        yield f"  {log['answered_429']:,} of them were answered 429 when they came"
    if log["unreadable"]:
        yield f"  {counted(log['unreadable'], 'line')} could not be used, for example:"
        for each in log["first_unreadable"]:
            yield f"    {unreadable(**each)}"
    yield ""


def unreadable(number: int, reason: str, text: str) -> str:
    """Return which line could not be used, why, and how it begins."""
    return textwrap.shorten(f"line {number:,}, {reason}: {text}", WIDTH - 4, placeholder="…")


def _set_lines(report: Report) -> Iterator[str]:
    sets = report["sets"]
    for each in sets:
        if not each["rules"]:
            yield f"{each['title']}: no rule could be replayed."
            continue
        share = percent(each["refused"], report["log"]["requests"])
        yield f"{each['title']} would have refused {counted(each['refused'], 'request')} ({share})."
    if len(sets) > 1:
        newly, no_longer = report["newly_refused"], report["no_longer_refused"]
        first, second = (each["title"] for each in sets)
        yield from _wrapped(f"{newly:,} are refused by {first} alone, {no_longer:,} by {second} alone.", "  ")


_ROWS: dict[str, Callable[[Report], str]] = {
    "rate": lambda figures: f"{figures['rate']}{' (shadow)' * figures['shadow']}",
    "key": lambda figures: str(figures["key"]),
    "requests": lambda figures: f"{figures['requests']:,}",
    "refused": lambda figures: _with_percent(figures["refused"], figures["requests"]),
    "subjects": lambda figures: f"{figures['subjects']:,}",
    "subjects refused": lambda figures: _with_percent(figures["subjects_refused"], figures["subjects"]),
    "bans": lambda figures: f"{figures['bans']:,}",
}
"""What the text says of the rules of one name, by label."""


def _rule_lines(name: str, sets: Sequence[Report]) -> Iterator[str]:
    both = [each["rules"].get(name) for each in sets]
    titles = [each["title"] for each in sets] if len(sets) > 1 else []
    yield _row(name, titles).rstrip()
    for label, of in _ROWS.items():
        if label != "bans" or any(figures and figures["bans"] for figures in both):
            yield _row(f"  {label}", ["-" if figures is None else of(figures) for figures in both])
    for share, label in LABELS.items():
        if any(figures and figures["requests"] and figures["tightest"][share] for figures in both):
            yield _row(f"  {label}", [_rates(figures, share) for figures in both])
    for figures, each in zip(both, sets, strict=True):
        if figures and figures["worst"]:
            yield "  refused most" + (f" by {each['title']}" if titles else "")
            for worst in figures["worst"]:
                share = percent(worst["refused"], worst["requests"])
                yield f"    {worst['subject']}"
                yield f"      {worst['refused']:,} of {counted(worst['requests'], 'request')} ({share})"


def _rates(figures: Report | None, share: str) -> str:
    if figures is None or not figures["requests"]:
        return "-"
    return "; ".join(rate or "no count" for rate in figures["tightest"][share])


def _row(label: str, cells: Sequence[str]) -> str:
    wide = LABEL + 3
    if not cells:
        return printable(label)
    width = (WIDTH - wide) // len(cells)
    cut = [cell if len(cell) < width or len(cells) == 1 else f"{cell[: width - 2]}…" for cell in cells]
    return printable(f"{label:<{wide}}" + "".join(f"{cell:<{width}}" for cell in cut)).rstrip()


def _with_percent(part: int, whole: int) -> str:
    return f"{part:,} ({percent(part, whole)})"


def percent(part: int, whole: int) -> str:
    """Return a share in percent with two digits, or more above 10 %."""
    if not part or not whole:
        return "0%"
    share = 100 * part / whole
    if share < 0.01:  # noqa: PLR2004
        return "<0.01%"
    return f"{share:.2g}%" if share < 10 else f"{share:.1f}%"  # noqa: PLR2004
