"""`manage.py quota_replay`: what rules would have refused of the requests in an access log.

It reads the log, the settings and the rules, and nothing else: neither the store nor the database is asked.
"""

from __future__ import annotations

import gzip
import sys
import tomllib
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from django.core.management.base import CommandError, CommandParser
from django.http import HttpRequest

from django_quota.conf import current
from django_quota.core.errors import ConfigurationError, did_you_mean
from django_quota.core.rules import Rule
from django_quota.http.request_rules import rules_of_view
from django_quota.http.view_lookup import endpoints
from django_quota.limiting.known_rules import known_rules, known_slots, url_patterns
from django_quota.management.console import QuotaCommand, printable, progress
from django_quota.management.replay_report import Result, lines_of, make_report, unreadable
from django_quota.operating.access_log import find_format
from django_quota.operating.replay import RuleSet, find_refusals, read_rules, read_traffic
from django_quota.operating.tightest import demands, tightest

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
            first = f" The first: {printable(unreadable(*traffic.shown[0]))}" if traffic.shown else ""
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
