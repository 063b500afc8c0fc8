"""`manage.py quota_rules`: which rules apply to a request, in which order, and what they have left.

The command counts nothing. It covers configured rules and `@quota`, but not throttles or slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from django.apps import apps
from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.management.base import CommandError, CommandParser
from django.http import HttpRequest
from django.test import RequestFactory
from django.urls import Resolver404, resolve

from django_quota.core.clock import SECOND, in_words
from django_quota.core.decisions import Outcome
from django_quota.core.errors import StoreUnavailable
from django_quota.core.flow import run_sync
from django_quota.core.rules import Rule, option_in_words
from django_quota.http.request_rules import site_rules
from django_quota.http.view_lookup import rules_of_endpoint
from django_quota.limiting.asking import asked_flow
from django_quota.limiting.known_rules import known_rules
from django_quota.limiting.registry import get_limiter
from django_quota.management.console import QuotaCommand
from django_quota.operating.health import nothing_is_limited
from django_quota.operating.lookup import find_users
from django_quota.subjects.addresses import is_address


class Command(QuotaCommand):
    help = "Show which rules apply to a request, in which order, and what they have left. Nothing is counted."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", nargs="?", metavar="PATH", help="for example /search/?q=1; without it, all rules")
        parser.add_argument("--method", default="GET", metavar="NAME", help="the HTTP method (GET)")
        parser.add_argument("--user", metavar="NAME", help="the name, e-mail address or key of the user (nobody)")
        parser.add_argument("--ip", default="127.0.0.1", metavar="ADDRESS", help="the client's address (127.0.0.1)")
        parser.add_argument("--host", metavar="NAME", help="the host (the first of ALLOWED_HOSTS, or localhost)")
        parser.add_argument("--json", action="store_true", help="print one JSON list")

    def handle(self, *_: Any, **options: Any) -> None:
        self.note(nothing_is_limited())
        if options["path"] is None:
            if options["user"] is not None:
                raise CommandError("--user needs a PATH, for example quota_rules /search/ --user ann.")
            rows = [_described(name, rule) for name, rule in known_rules().items()]
            self.print_result(options, rows, map(_line, rows), is_asked=True)
            return
        if not get_limiter().store.is_shared:
            self.note('Note: QUOTA["STORE"] is "memory", so what other processes have used is not seen.')
        request = _request(options)
        if request.resolver_match is None:
            self.note(f"Note: no URL of the site is {options['path']!r}, so only configured rules apply.")
        rows = list(_applied(request))
        lines = [line for row in rows for line in _lines(row)]
        self.print_result(options, rows, lines or ["No rule applies to this request."], is_asked=True)


def _described(name: str, rule: Rule | str) -> dict[str, Any]:
    if isinstance(rule, str):
        return {"rule": name, "problem": rule}
    return {
        "rule": name,
        "rate": "; ".join(map(option_in_words, rule.rates)) or "unlimited",
        "key": option_in_words(rule.key),
        "match": [] if rule.match is None else [pattern.text for pattern in rule.match.patterns],
    }


def _line(row: dict[str, Any]) -> str:
    if "problem" in row:
        return f"{row['rule']}: {row['problem']}"
    return f"{row['rule']}: {row['rate']} by {row['key']}{', at ' * bool(row['match'])}{', '.join(row['match'])}"


def _request(options: dict[str, Any]) -> HttpRequest:
    """Return the request that the options describe. Raises `CommandError`."""
    path, address, method = options["path"], options["ip"], options["method"]
    if not path.startswith("/"):
        raise CommandError(f"{path!r} is not a path. Begin it with a slash: /search/")
    if not is_address(address):
        raise CommandError(f"--ip {address!r} is not an IP address. Use, for example, 203.0.113.9.")
    host = {} if options["host"] is None else {"HTTP_HOST": options["host"]}
    request = RequestFactory(SERVER_NAME=_host(), REMOTE_ADDR=address).generic(method, path, **host)
    try:
        request.get_host()
    except DisallowedHost as error:
        raise CommandError(str(error)) from error
    with suppress(Resolver404):
        request.resolver_match = resolve(urlsplit(path).path)
    if options["user"] is not None:
        request.user = _user(options["user"])
    elif apps.is_installed("django.contrib.auth"):
        from django.contrib.auth.models import AnonymousUser  # noqa: PLC0415 — its module needs the app

        request.user = AnonymousUser()
    return request


def _host() -> str:
    return next((host for host in settings.ALLOWED_HOSTS if "*" not in host), "localhost").lstrip(".")


def _user(name: str) -> Any:
    users = find_users(name)
    if len(users) != 1:
        keys = ", ".join(str(user.pk) for user in users)
        what = (
            f"is one of several users. Use a key: {keys}."
            if users
            else "is not the name, e-mail address or key of a user."
        )
        raise CommandError(f"--user {name!r} {what}")
    return users[0]


def _applied(request: HttpRequest) -> Iterator[dict[str, Any]]:
    """Yield the rules that apply to a request in the order in which they are asked, with what is left."""
    found = [(rule, "settings") for rule in site_rules(request)]
    match = request.resolver_match
    if match is not None:
        found += [(rule, "view") for rule in rules_of_endpoint(match.func, request.method or "")]
    for rule, source in found:
        row: dict[str, Any] = {"rule": rule.name, "from": source, "subject": None, "limits": [], "problem": ""}
        known = replace(rule, cost=1) if callable(rule.cost) else rule
        try:
            asked = run_sync(asked_flow([known], request))
        except Exception as error:  # noqa: BLE001 — of a function of the site, too, which may need more of the request
            row["problem"] = f"{type(error).__name__}: {error}"
        else:
            if not asked:
                continue
            row["subject"] = asked[0].subject
            decision = get_limiter().decide(asked, "peek")
            if decision.degraded:
                raise StoreUnavailable("it did not report what the limits have left")
            row["limits"] = list(map(_limit, decision.outcomes))
        yield row


def _limit(outcome: Outcome) -> dict[str, Any]:
    shown = ("limit", "remaining", "retry_after", "why", "shadow")
    rate = None if outcome.remaining is None else str(outcome.rate)
    return {"rate": rate, "used": outcome.used, **{name: getattr(outcome, name) for name in shown}}


def _lines(row: dict[str, Any]) -> Sequence[str]:
    title = f"{row['rule']} ({row['from']})"
    if row["problem"]:
        return [f"{title}: not known, {row['problem']}"]
    limits = [
        f"  {limit['rate']}: {_left(limit)}" if limit["rate"] else f"  unlimited: {limit['used']:,} used"
        for limit in row["limits"]
    ] or ["  unlimited"]
    return [f"{title} for {row['subject']}", *limits]


def _left(limit: dict[str, Any]) -> str:
    wait = limit["retry_after"]
    refused = "never admitted" if wait is None else f"refused for {in_words(wait * SECOND)}" if wait else ""
    notes = ", ".join(filter(None, [refused, limit["why"], "a shadow rule" if limit["shadow"] else ""]))
    return f"{limit['remaining']:,} of {limit['limit']:,} left{f' ({notes})' if notes else ''}"
