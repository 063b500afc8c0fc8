"""`manage.py quota_replay`: what rules would have refused of the requests in an access log.

It reads the log, the settings and the rules, and nothing else: neither the store nor the database is asked.
"""

from __future__ import annotations

import gzip
import sys
import textwrap
import tomllib
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from django.core.management.base import CommandError, CommandParser
from django.http import HttpRequest

from django_quota.conf import current
from django_quota.core.clock import moment_of
from django_quota.core.errors import ConfigurationError, did_you_mean
from django_quota.core.rules import Rule
from django_quota.error_texts import some_of
from django_quota.http.request_rules import rules_of_view
from django_quota.http.view_lookup import endpoints
from django_quota.limiting.known_rules import known_rules, known_slots, url_patterns
from django_quota.management.console import QuotaCommand, progress, quantity
from django_quota.operating.access_log import find_format
from django_quota.operating.replay import (
    Demand,
    ReplayedRefusals,
    RuleSet,
    Traffic,
    demands,
    find_refusals,
    read_rules,
    read_traffic,
    tightest,
)
from django_quota.subjects.addresses import is_trusted_proxy
from django_quota.subjects.subject import digest

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""The methods of a class-based view, each of which may have a `@quota`."""

SAMPLE = 1_000
"""Lines that are read to recognise the format."""

MAX_LINE = 100_000
"""Bytes of a line; a longer line is read as several. No server accepts a request that would make a longer line."""

STEP = 1_000
"""Lines after which progress shows."""

GZIP = b"\x1f\x8b"


class Command(QuotaCommand):
    help = "Say what rules would have refused of the requests in an access log. Nothing is counted."
    requires_system_checks = ()  # they check settings that a replay does not use

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("logs", nargs="+", metavar="LOG", help="access logs, also compressed by gzip; - for stdin")
        parser.add_argument("--rules", metavar="FILE", help="a TOML file of rules as RULES has them (the settings)")
        parser.add_argument("--rule", action="append", metavar="NAME", help="only this rule; you may repeat it")
        parser.add_argument("--rate", metavar="RATE", help="instead of rules: this rate, for example 10/m")
        parser.add_argument(
            "--key", action="append", metavar="KEY", help="with --rate: the key (ip); you may repeat it"
        )
        parser.add_argument("--match", metavar="PATH", help="with --rate: where it applies (/)")
        parser.add_argument(
            "--server-log",
            action="store_true",
            help="with TRUSTED_PROXY_COUNT: the log is of the server behind the proxies, and has their addresses",
        )
        parser.add_argument("--show-subjects", action="store_true", help="print subjects, not digests of them")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *_: Any, **options: Any) -> None:
        if options["rate"] and (options["rules"] or options["rule"]):
            raise CommandError("--rate is a rule by itself. Leave --rules and --rule out.")
        if not options["rate"] and (options["key"] or options["match"]):
            raise CommandError("--key and --match are only for --rate. Add, for example, --rate 10/m.")
        title, rules = _chosen_rules(options)
        show = partial(progress, self.stderr)
        of_views = [] if options["rate"] else rules_on_views()
        elsewhere, only = {} if options["rate"] else _elsewhere(of_views), options["rule"]
        known = {*elsewhere, *(rule.name for rule in of_views), *rules}
        for name in set(only or ()) - known:
            raise CommandError(f"--rule {name!r} is not the name of a rule.{did_you_mean(name, known)}")
        with show("Reading lines", None) as advance:
            lines = _lines(options["logs"], advance)
            sample = list(islice(lines, SAMPLE))
            log_format = find_format(sample)
            chosen = RuleSet(rules, log_format.fields, (of_views, rules_of_view), only)
            traffic = read_traffic(chain(sample, lines), log_format, chosen, is_of_server=options["server_log"])
        if not traffic.requests:
            first = f" The first: {unreadable(*traffic.shown[0])}" if traffic.shown else ""
            raise CommandError(f"No line of the log could be used as a request ({log_format.name}).{first}")
        with show("Deciding requests", len(traffic.times)) as advance:
            refusals = find_refusals(chosen, traffic, advance)
        found = demands(chosen, traffic)
        with show("Searching rates", len(found)) as advance:
            rates = {}
            for name, demand in found.items():
                rates[name] = [tightest(demand, limit) for limit in demand.limits]
                advance(1)
        report = make_report(
            options["logs"],
            log_format.name,
            traffic,
            Result(title, chosen, refusals, found, rates),
            {name: reason for name, reason in elsewhere.items() if only is None or name in only},
            shows_subjects=options["show_subjects"],
        )
        self.print_result(options, report, lines_of(report), is_asked=True)


def _lines(names: Sequence[str], advance: Callable[[int], object]) -> Iterator[str]:
    """Yield the lines of logs one after the other, decompressed. Raises `CommandError`."""
    for name in names:
        with ExitStack() as stack:
            try:
                raw = sys.stdin.buffer if name == "-" else stack.enter_context(Path(name).open("rb"))
                packed = cast("BufferedReader", raw).peek(2)[:2] == GZIP
                log = cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if packed else raw
                for number, line in enumerate(iter(partial(log.readline, MAX_LINE), b""), 1):
                    if number % STEP == 0:
                        advance(STEP)
                    text = line.removeprefix(BOM_UTF8) if number == 1 else line
                    yield text.decode(errors="surrogateescape").rstrip("\r\n")
            except FileNotFoundError as error:
                raise CommandError(
                    f"There is no file {name!r}. Give the path of an access log, or - for stdin."
                ) from error
            except (EOFError, OSError, zlib.error) as error:
                raise CommandError(f"{name!r} cannot be read to its end: {error}") from error


def _chosen_rules(options: dict[str, Any]) -> tuple[str, dict[str, Rule]]:
    """Return the rules, and what the report calls them. Raises `CommandError` or `RuleError`."""
    if options["rate"]:
        key = options["key"] or ["ip"]
        value = {"rate": options["rate"], "key": key if len(key) > 1 else key[0], "match": options["match"] or "/"}
        title = f"{options['rate']} by {' + '.join(key)}"
        return title, read_rules({title: value}, "--rate")
    if name := options["rules"]:
        try:
            given = tomllib.loads(Path(name).read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise CommandError(f"--rules {name}: {error.strerror}. Use a TOML file of rules.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CommandError(f"--rules {name} is not TOML: {error}.") from error
        if not given:
            example = 'search = {rate = "10/m", match = "/"}'
            raise CommandError(f"--rules {name} has no rule. Write, for example: {example}")
        return name, read_rules(given, name)
    settings = current()
    read_rules(settings.rules, 'QUOTA["RULES"]')
    return "the settings", {str(rule): settings.rule(str(rule)) for rule in settings.rules}


def rules_on_views() -> list[Rule]:
    """Return the rules that the middleware decides for views: those of their outermost `@quota`."""
    found: dict[int, Rule] = {}
    for endpoint in endpoints(url_patterns()):
        for method in METHODS:
            request = HttpRequest()
            request.method = method
            try:
                rules = rules_of_view(request, endpoint.callback)
            except ConfigurationError:  # a system check reports it
                continue
            found.update((id(rule), rule) for rule in rules)
    return list(found.values())


def _elsewhere(of_views: Sequence[Rule]) -> dict[str, str]:
    """Return the rules and slots that the middleware does not decide, and why they are left out."""
    here = {*(rule.name for rule in of_views), *map(str, current().rules)}
    found = {name: "your view, your code or a failed login decides it" for name in known_rules() if name not in here}
    return dict.fromkeys(known_slots(), "a slot limits how many run at once") | found


# --- the report -------------------------------------------------------------------------------------------------------


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
