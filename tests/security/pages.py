"""Every URL of the admin, found by the URL resolver, so that a new one is found too."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.http import HttpResponseBase
from django.urls import URLPattern

from django_quota.admin.subject_actions import ACTIONS
from django_quota.models import DailyCounter, QuotaOverride

ROOT = "/admin/"
SUBJECT = "user:1"


def patterns() -> list[str]:
    """Return the routes of all addresses of our admin."""
    return sorted(set(_routes("", admin.site.get_urls())))


def _routes(before: str, urls: list[Any]) -> Iterator[str]:
    for each in urls:
        route = f"{before}{each.pattern}"
        if isinstance(each, URLPattern):
            if route.startswith("django_quota/"):
                yield route
        else:
            yield from _routes(route, each.url_patterns)


def addresses() -> list[str]:
    """Return all addresses, once for each thing that their arguments may stand for; rows are made where needed."""
    row, _ = QuotaOverride.objects.get_or_create(subject=SUBJECT, rule="login", defaults={"rate": "5/m"})
    counter, _ = DailyCounter.objects.get_or_create(subject=SUBJECT, rule="login", day="2026-11-21")
    things: dict[str, dict[str, list[Any]]] = {
        "quotaoverride": {"object_id": [row.pk], "key": [row.pk]},
        "dailycounter": {"object_id": [counter.pk]},
        "subject": {"object_id": [SUBJECT], "name": list(ACTIONS)},
        "overview": {"object_id": [1]},
        "ban": {},
        "knownrule": {"object_id": ["login"]},
    }
    found = []
    for route in patterns():
        known = things[route.split("/")[1]]
        found += [ROOT + filled for filled in _filled(route, known)]
    return found


def _filled(route: str, known: dict[str, list[Any]]) -> Iterator[str]:
    match = re.search(r"<(?:\w+:)?(\w+)>", route)
    if match is None:
        yield route
        return
    for thing in known[match[1]]:
        yield from _filled(route.replace(match[0], str(thing), 1), known)


def state(one_redis: Any) -> dict[str, Any]:
    """Return all that an operator could change: what Redis holds, and our rows, and what was noted of them.

    Not the processes that share the limits: each is forgotten after a while.
    """
    keys = [key for key in one_redis.scan_iter(count=1000) if not key.endswith(b":workers")]
    kept: dict[str, Any] = {str(key): one_redis.dump(key) for key in keys}
    for model in (QuotaOverride, DailyCounter, LogEntry):
        kept[model.__name__] = sorted(map(repr, model.objects.values_list()))
    return kept


class Seen(HTMLParser):
    """The tags and attributes of a page, where its links lead, and what a strict Content-Security-Policy forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: set[str] = set()
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self.names |= {tag, *names}
        self.inline += [f"{tag} {name}" for name in names if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in names and "json" not in (names.get("type") or "")):
            self.inline.append(tag)
        self.links |= {value or "" for name, value in attrs if name in ("href", "src", "action", "formaction")}


def seen(reply: HttpResponseBase) -> Seen:
    """Read a page, or the page's part in a JSON reply."""
    text = getattr(reply, "content", b"").decode()
    found = Seen()
    if "json" in reply.headers.get("Content-Type", ""):
        text = _html_of(json.loads(text))
    found.feed(text)
    found.close()
    return found


def _html_of(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(_html_of(each) for name, each in value.items() if name == "html" or not isinstance(each, str))
    return "".join(map(_html_of, value)) if isinstance(value, list) else value if isinstance(value, str) else ""
