"""What `quota_replay` says: the figures of each rule, as `--json` prints them, and as text for 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from django_quota.core.clock import SECOND, moment_of
from django_quota.management.console import counted
from django_quota.operating.replay import Refusals, RuleSet, Traffic
from django_quota.operating.tightest import Demand
from django_quota.requests.addresses import is_trusted_proxy
from django_quota.requests.subjects import digest

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
    "No refusals from: the smallest count over the same window with which this rule alone would have refused none of "
    "these requests; one less refuses some."
)
Report = dict[str, Any]
"""What `--json` prints, or a part of it. The text says the same."""


class Result(NamedTuple):
    """What the replay found for the rules."""

    title: str
    rules: RuleSet
    refusals: Refusals
    demands: Mapping[str, Demand]
    tightest: Mapping[str, list[int | None]]
    """For each rule, the tightest count of each of its limits."""


def make_report(
    files: Sequence[str],
    log_format: str,
    traffic: Traffic,
    result: Result,
    elsewhere: Mapping[str, str],
    *,
    worst: int,
    shows_subjects: bool,
) -> Report:
    """Return the figures. `elsewhere`: rules that the middleware does not decide, and why they are left out."""
    refused = len(result.refusals.positions)
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
        "title": result.title,
        "refused": refused,
        "share": _share(refused, traffic.requests),
        "rules": {name: _figures(name, result, worst, shows_subjects) for name in result.demands},
        "left_out": {**result.rules.left_out, **elsewhere},
        "notes": [*_notes(traffic, result.demands.values()), CAVEAT],
    }


def _figures(name: str, result: Result, worst: int, shows_subjects: bool) -> Report:
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
        "share": _share(sum(refused.values()), demand.requests),
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
        "no_refusals_from": [
            None if count is None else str(replace(limit.rate, count=count))
            for limit, count in zip(demand.limits, result.tightest[name], strict=True)
        ],
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


def _notes(traffic: Traffic, demands: Collection[Demand]) -> Iterator[str]:
    if traffic.unordered:
        yield f"{counted(traffic.unordered, 'request')} came out of order: the log was sorted by time."
    has_short = any(limit.rate.period <= FEW_SECONDS for demand in demands for limit in demand.limits)
    if has_short and not any(time % SECOND for time in traffic.times):
        yield "The log has whole seconds. Rates over a few seconds need finer times: log JSON with $msec of nginx."
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


def lines_of(report: Report) -> Iterator[str]:
    """Return the lines that the command prints."""
    rules, refused = report["rules"], report["refused"]
    yield from _log_lines(report["log"])
    if rules:
        yield f"{report['title']} would have refused {_with_percent(refused, report['log']['requests'], 'request')}."
    else:
        yield f"{report['title']}: no rule could be replayed."
    used = [name for name, figures in rules.items() if figures["requests"]]
    for name in used:
        yield ""
        yield from _rule_lines(name, rules[name])
    if len(used) < len(rules):
        yield ""
        yield from _wrapped(f"No request met {', '.join(name for name in rules if name not in used)}.")
    if report["left_out"]:
        yield ""
        yield "Left out, because a log does not show what these rules need:"
        for name, reason in report["left_out"].items():
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


def _rule_lines(name: str, figures: Report) -> Iterator[str]:
    requests, subjects = figures["requests"], figures["subjects"]
    rows = {
        "rate": f"{figures['rate']}{' (shadow)' * figures['shadow']}",
        "key": figures["key"],
        "requests": f"{requests:,}",
        "refused": _with_percent(figures["refused"], requests),
        "subjects": f"{subjects:,}",
        "subjects refused": _with_percent(figures["subjects_refused"], subjects),
        "bans": f"{figures['bans']:,}" if figures["bans"] else "",
        "no refusals from": "; ".join(rate or "no count" for rate in figures["no_refusals_from"]),
    }
    yield name
    for label, value in rows.items():
        if value:
            yield f"  {label:<{LABEL}}{value}"
    if figures["worst"]:
        yield "  refused most"
        for worst in figures["worst"]:
            share = percent(worst["refused"], worst["requests"])
            yield f"    {worst['subject']}"
            yield f"      {worst['refused']:,} of {counted(worst['requests'], 'request')} ({share})"


def _with_percent(part: int, whole: int, what: str = "") -> str:
    return f"{counted(part, what) if what else f'{part:,}'} ({percent(part, whole)})"


def percent(part: int, whole: int) -> str:
    """Return a share in percent with two digits, or more above 10 %."""
    if not part or not whole:
        return "0%"
    share = 100 * part / whole
    if share < 0.01:  # noqa: PLR2004
        return "<0.01%"
    return f"{share:.2g}%" if share < 10 else f"{share:.1f}%"  # noqa: PLR2004
