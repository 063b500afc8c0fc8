"""What `quota_replay` says: the figures of each rule, as `--json` prints them, and as text for 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from django_quota.core.clock import moment_of
from django_quota.error_texts import some_of
from django_quota.management.console import quantity
from django_quota.operating.replay import ReplayedRefusals, RuleSet, Traffic
from django_quota.operating.tightest import Demand
from django_quota.subjects.addresses import is_trusted_proxy
from django_quota.subjects.subject import digest

WIDTH, LABEL = 79, 20
"""Columns of the text, and of its labels."""

MAX_NAMES_LISTED = 20
"""Rules that the text names in one place; `--json` names all."""

DIGEST = 12
"""Digits of a digest that stands for a subject."""

WORST = 3
"""Subjects that are listed for each rule, those refused most."""

CAVEAT = (
    "These are upper bounds. A client that is refused usually slows down, so that many of the requests that were "
    "refused here would not have come. Counts begin at zero where the log begins, without overrides and bans."
)
MEANING = (
    "No refusals from: the smallest count over the same window with which this rule alone would have refused none of "
    "these requests; one less refuses some."
)
ReplayReport = dict[str, Any]
"""What `--json` prints, or a part of it. The text says the same."""


class Result(NamedTuple):
    """What the replay found for the rules."""

    title: str
    rules: RuleSet
    refusals: ReplayedRefusals
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
    shows_subjects: bool,
) -> ReplayReport:
    """Return the figures. `elsewhere`: rules that the middleware does not decide, and why they are left out."""
    return {
        "log": {
            "files": list(files),
            "format": log_format,
            "lines": traffic.lines,
            "requests": traffic.requests,
            "begins": moment_of(traffic.begins).isoformat(),
            "ends": moment_of(traffic.ends).isoformat(),
            "unreadable": traffic.unreadable,
            "first_unreadable": [each._asdict() for each in traffic.shown],
        },
        "title": result.title,
        "refused": len(result.refusals.positions),
        "rules": {name: _figures(name, result, shows_subjects) for name in result.demands},
        "left_out": dict(sorted({**result.rules.left_out, **elsewhere}.items())),
        "notes": [*_proxy_note(result.demands.values()), CAVEAT],
    }


def _figures(name: str, result: Result, shows_subjects: bool) -> ReplayReport:
    """Return the figures of the rules of one name."""
    demand, first = result.demands[name], next(rule for rule in result.rules.rules if rule.name == name)
    refused = {subject: count for (rule, subject), count in result.refusals.by_rule.items() if rule == name}
    return {
        "rate": "; ".join(str(limit.rate) for limit in demand.limits) or "unlimited",
        "key": " + ".join(map(str, first.key)) if isinstance(first.key, tuple) else str(first.key),
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
            for subject in sorted(refused, key=lambda subject: (-refused[subject], subject))[:WORST]
        ],
        "no_refusals_from": [
            None if count is None else str(replace(limit.rate, count=count))
            for limit, count in zip(demand.limits, result.tightest[name], strict=True)
        ],
    }


def hidden(subject: str) -> str:
    """Return a subject with digests in place of addresses and other values."""
    parts = []
    for part in subject.split("+"):
        kind, colon, value = part.partition(":")
        parts.append(f"{kind}:{digest(value)[:DIGEST]}" if colon else part)
    return "+".join(parts)


def _proxy_note(demands: Collection[Demand]) -> Iterator[str]:
    addresses = {subject.removeprefix("ip:") for each in demands for subject in each.subjects if subject[:3] == "ip:"}
    proxy = min(filter(is_trusted_proxy, addresses), default=None)
    if proxy:
        yield (
            f"{proxy} counts as a client, but it is one of TRUSTED_PROXIES. Add X-Forwarded-For to the log, or use "
            "the log of the proxy."
        )


# --- text -------------------------------------------------------------------------------------------------------------


def lines_of(report: ReplayReport) -> Iterator[str]:
    """Return the lines that the command prints."""
    log, rules = report["log"], report["rules"]
    files = log["files"][0] if len(log["files"]) == 1 else f"{len(log['files'])} files"
    begins, ends = (log[edge][:19].replace("T", " ") for edge in ("begins", "ends"))
    yield f"{files}: {quantity(log['requests'], 'request')} in the format {log['format']}"
    yield f"  from {begins} to {ends} UTC"
    if log["unreadable"]:
        yield f"  {quantity(log['unreadable'], 'line')} could not be used, for example:"
        yield from (f"    {unreadable(**each)}" for each in log["first_unreadable"])
    yield ""
    if rules:
        refused = f"{quantity(report['refused'], 'request')} ({_percent(report['refused'], log['requests'])})"
        yield f"{report['title']} would have refused {refused}."
    else:
        yield f"{report['title']}: no rule could be replayed."
    unused = [name for name, figures in rules.items() if not figures["requests"]]
    for name, figures in rules.items():
        if name not in unused:
            yield from ("", *_rule_lines(name, figures))
    if unused:
        yield from ("", *_wrapped(f"No request matched {some_of(unused, MAX_NAMES_LISTED)}."))
    if report["left_out"]:
        yield from ("", "Left out, because a log does not show what these rules need:")
        by_reason: dict[str, list[str]] = {}
        for name, reason in report["left_out"].items():
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            yield from _wrapped(f"{some_of(names, MAX_NAMES_LISTED)}: {reason}", "  ")
    yield ""
    for note in [*[MEANING] * (len(unused) < len(rules)), *report["notes"]]:
        yield from _wrapped(note)


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent * 2, break_on_hyphens=False)


def unreadable(number: int, reason: str, text: str) -> str:
    """Return which line could not be used, why, and how it begins."""
    return textwrap.shorten(f"line {number:,}, {reason}: {text}", WIDTH - 4, placeholder="…")


def _rule_lines(name: str, figures: ReplayReport) -> Iterator[str]:
    requests, subjects, refused = figures["requests"], figures["subjects"], figures["subjects_refused"]
    rows = {
        "rate": f"{figures['rate']}{' (shadow)' * figures['shadow']}",
        "key": figures["key"],
        "requests": f"{requests:,}",
        "refused": f"{figures['refused']:,} ({_percent(figures['refused'], requests)})",
        "subjects": f"{subjects:,}",
        "subjects refused": f"{refused:,} ({_percent(refused, subjects)})",
        "bans": f"{figures['bans']:,}" if figures["bans"] else "",
        "no refusals from": "; ".join(rate or "no count" for rate in figures["no_refusals_from"]),
    }
    yield name
    yield from (f"  {label:<{LABEL}}{value}" for label, value in rows.items() if value)
    if figures["worst"]:
        yield "  refused most"
    for worst in figures["worst"]:
        share = _percent(worst["refused"], worst["requests"])
        yield f"    {worst['subject']}"
        yield f"      {worst['refused']:,} of {quantity(worst['requests'], 'request')} ({share})"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0.0%"
