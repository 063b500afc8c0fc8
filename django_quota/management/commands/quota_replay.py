"""`manage.py quota_replay`: what rules would have refused of the requests in an access log.

It reads the log, the settings and the rules, and nothing else: neither Redis nor the database is asked.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.http import HttpRequest
from django.urls import get_resolver

from django_quota.conf import current
from django_quota.core.errors import ConfigurationError, did_you_mean
from django_quota.core.rules import Rule
from django_quota.management.console import QuotaCommand, printable, progress
from django_quota.management.replay_picture import picture
from django_quota.management.replay_report import lines, make_report, unreadable
from django_quota.management.replaying import Source, can_fork, read_traffic, replay
from django_quota.services.access_log import find_format
from django_quota.services.known_rules import known_login_rules, known_rules, known_slots
from django_quota.services.replay import LineReader, RuleSet, read_rules
from django_quota.web.request_rules import claim_view_rules
from django_quota.web.view_lookup import endpoints

CURRENT = "current"
SETTINGS = "the settings"

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""The methods of a class-based view, each of which may have a `@quota`."""

SMALL = 8_000_000
"""Bytes of logs up to which one process is faster than several."""

MAX_PROCESSES = 256

FORMAT_HELP = (
    "auto (default), combined, common, vhost_combined, json, or the text that configures the server: nginx' log_format "
    "or Apache's LogFormat"
)


class Command(QuotaCommand):
    help = "Say what rules would have refused of the requests in an access log. Nothing is counted."
    requires_system_checks = ()  # they ask Redis

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("logs", nargs="+", metavar="LOG", help="access logs, also packed by gzip; - for stdin")
        rules = parser.add_argument_group("which rules")
        rules.add_argument("--rules", metavar="FILE", help="a TOML file of rules as RULES has them (the settings)")
        rules.add_argument("--compare", metavar="FILE", help="other rules beside them: current, or a TOML file")
        rules.add_argument("--rule", action="append", metavar="NAME", help="only this rule; you may repeat it")
        rules.add_argument("--rate", metavar="RATE", help="instead of rules: this rate, for example 10/m")
        rules.add_argument("--key", action="append", metavar="KEY", help="with --rate: the key (ip); you may repeat it")
        rules.add_argument("--match", metavar="PATH", help="with --rate: where it applies (/)")
        log = parser.add_argument_group("the log")
        log.add_argument("--format", default="auto", metavar="FORMAT", help=FORMAT_HELP.replace("%", "%%"))
        log.add_argument(
            "--field",
            action="append",
            default=[],
            metavar="FIELD=NAME",
            help="where a JSON log has ip, time, method, path, host, status or header:X-Api-Key; you may repeat it",
        )
        log.add_argument(
            "--server-log",
            action="store_true",
            help="with TRUSTED_PROXY_COUNT: the log is of the server behind the proxies, and has their addresses",
        )
        output = parser.add_argument_group("the report")
        output.add_argument("--worst", type=int, default=3, metavar="N", help="name the N subjects refused most (3)")
        output.add_argument("--show-subjects", action="store_true", help="print subjects, not digests of them")
        output.add_argument("--picture", metavar="FILE", help="draw demand and limits into this SVG file")
        output.add_argument("--json", action="store_true", help="print one JSON object")
        output.add_argument("--processes", type=int, metavar="N", help="processes to use (one for each core)")

    def handle(self, *_: Any, **options: Any) -> None:
        _check(options)
        chosen = _chosen_rules(options)
        source = Source(options["logs"])
        log_format = find_format(source.sample, options["format"], _mapping(options["field"]))
        of_views, only = [] if options["rate"] else rules_of_views(), options["rule"]
        elsewhere = {} if options["rate"] else _elsewhere(of_views)
        known = {*elsewhere, *(rule.name for rule in of_views), *(name for _, rules in chosen for name in rules)}
        _check_names(only, known)
        views = (of_views, claim_view_rules)
        sets = [RuleSet(title, rules, log_format.fields, views, only) for title, rules in chosen]
        processes = options["processes"] or _processes(source.size)
        show = partial(progress, self.stderr)
        reader = LineReader(log_format, sets, is_of_server=options["server_log"])
        traffic = read_traffic(source, reader, sets, processes, show)
        if not traffic.requests:
            if not traffic.shown:
                raise CommandError("The log is empty.")
            example = "The first: " + unreadable(*traffic.shown[0])
            raise CommandError(f"No line of the log could be used as a request ({log_format.description}). {example}")
        results = replay(traffic, sets, processes, show)
        report = make_report(
            options["logs"],
            log_format.description,
            traffic,
            results,
            {name: reason for name, reason in elsewhere.items() if only is None or name in only},
            worst=options["worst"],
            shows_subjects=options["show_subjects"],
        )
        self.print_result(options, report, map(printable, lines(report)))
        if options["picture"]:
            try:
                Path(options["picture"]).write_text(picture(traffic, results), encoding="utf-8")
            except OSError as error:
                raise CommandError(f"--picture {options['picture']}: {error.strerror}.") from error


# --- options ----------------------------------------------------------------------------------------------------------


def _check(options: dict[str, Any]) -> None:
    """Check options that do not go together. Raises `CommandError`."""
    for name in ("key", "match"):
        if options[name] and not options["rate"]:
            raise CommandError(f"--{name} is only for --rate. Add, for example, --rate 10/m.")
    for name in ("rules", "rule"):
        if options["rate"] and options[name]:
            raise CommandError(f"--rate is a rule by itself. Leave --{name} out, or compare: --compare {CURRENT}.")
    if options["worst"] < 0:
        raise CommandError(f"--worst {options['worst']} is below 0. Use 0 or more.")
    if options["processes"] is None:
        return
    if not 1 <= options["processes"] <= MAX_PROCESSES:
        raise CommandError(f"--processes {options['processes']}: use 1 to {MAX_PROCESSES}.")
    if options["processes"] > 1 and not can_fork():
        raise CommandError("--processes: this system cannot fork, so there is one process. Leave the option out.")


def _mapping(given: Sequence[str]) -> dict[str, str]:
    """Return the fields of `--field`. Raises `CommandError`."""
    mapping = {}
    for text in given:
        field, equals, name = text.partition("=")
        kind, colon, of = field.partition(":")
        known = ("ip", "time", "method", "path", "query", "request", "host", "status")
        if not equals or not name:
            raise CommandError(f"--field {text!r} names no field of the log. Use, for example, --field ip=remote_addr.")
        if colon and kind in ("header", "cookie") and of:
            field = f"{kind}:{of.lower()}" if kind == "header" else field
        elif field not in known:
            hint = did_you_mean(field, [*known, "header:X-Api-Key", "cookie:device"])
            raise CommandError(f"--field {text!r}: {field!r} is not a field.{hint}")
        mapping[field] = name
    return mapping


def _processes(size: int | None) -> int:
    if not can_fork() or (size is not None and size <= SMALL):
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- rules ------------------------------------------------------------------------------------------------------------


def _chosen_rules(options: dict[str, Any]) -> list[tuple[str, dict[str, Rule]]]:
    """Return the title and the rules of each set. Raises `CommandError` or `RuleError`."""
    if options["rate"]:
        key = options["key"] or ["ip"]
        value = {"rate": options["rate"], "key": key if len(key) > 1 else key[0], "match": options["match"] or "/"}
        title = f"{options['rate']} by {' + '.join(key)}"
        sets = [(title, read_rules({title: value}, "--rate"))]
    else:
        sets = [_named_rules(options["rules"] or CURRENT, "--rules")]
    return [*sets, _named_rules(options["compare"], "--compare")] if options["compare"] else sets


def _named_rules(name: str, option: str) -> tuple[str, dict[str, Rule]]:
    if name == CURRENT:
        settings = current()
        read_rules(settings.rules, 'QUOTA["RULES"]')
        return SETTINGS, {str(rule): settings.rule(str(rule)) for rule in settings.rules}
    try:
        given = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        hint = f"Use a TOML file of rules, or {CURRENT}."
        raise CommandError(f"{option} {name}: {error.strerror}. {hint}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"{option} {name} is not TOML: {error}.") from error
    if not given:
        raise CommandError(f'{option} {name} has no rule. Write, for example: search = {{rate = "10/m", match = "/"}}')
    if not any(isinstance(value, dict) for value in given.values()) and "rate" in given:
        raise CommandError(f"{option} {name} has options of no rule. Write a line such as [search] above them.")
    if list(given) == ["RULES"]:
        raise CommandError(f"{option} {name} has a table RULES. Leave it out: write, for example, [search].")
    return name, read_rules(given, name)


def rules_of_views() -> list[Rule]:
    """Return the rules that the middleware decides for views: those of the `@quota` on their outside."""
    found: dict[int, Rule] = {}
    for endpoint in endpoints(get_resolver().url_patterns):
        for method in METHODS:
            request = HttpRequest()
            request.method = method
            try:
                rules = claim_view_rules(request, endpoint.callback)
            except ConfigurationError:  # a system check reports it
                continue
            found.update((id(rule), rule) for rule in rules)
    return list(found.values())


def _elsewhere(of_views: Sequence[Rule]) -> dict[str, str]:
    """Return the rules that the middleware does not decide, and why."""
    here = {rule.name for rule in of_views} | set(map(str, current().rules))
    logins = {rule.name for rule in known_login_rules()}
    found = {name: "your view or your code decides it" for name in known_rules() if name not in here | logins}
    found |= dict.fromkeys(sorted(logins), "only failed logins count")
    return found | {name: "@concurrency counts how many run at once" for name in known_slots() if name not in found}


def _check_names(only: Sequence[str] | None, known: set[str]) -> None:
    """Raise `CommandError` for a name in `--rule` that no rule has."""
    for name in only or ():
        if name not in known:
            raise CommandError(f"--rule {name!r} is not the name of a rule.{did_you_mean(name, known)}")
