"""A look at the admin, as its superuser: each page that shows something of ours is there, and soon."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic

from example_project.client import Visitor
from example_project.stage import Site

ADMIN = "/admin/django_quota/"
PAGES = {
    "the overview": "overview/",
    "a user's limits": "subject/?subject=user:1",
    "a user's year": "dailycounter/usage/?subject=user:1",
    "daily counters": "dailycounter/",
    "overrides": "quotaoverride/",
}


@dataclass(frozen=True)
class Look:
    """A page that was opened."""

    name: str
    status: int
    milliseconds: float
    is_ours: bool
    """Whether it is the page that was asked for, and not one to sign in at."""

    @property
    def difference(self) -> str:
        """What is not as promised; empty where nothing is."""
        if self.status == HTTPStatus.OK and self.is_ours:
            return ""
        return f"The admin: {self.name}: answered {self.status}" + ("" if self.is_ours else ", and not by that page")


def look_through(site: Site) -> list[Look]:
    """Sign in, and open each page once. Raises `OSError` where the site does not answer."""
    account = next(account for account in site.accounts if account.is_superuser)
    with Visitor(site.port, headers={"Accept": "text/html"}) as visitor:
        visitor.get("/admin/login/")
        visitor.post("/admin/login/", {"username": account.username, "password": account.password, "next": ADMIN})
        return [_look(visitor, name, path) for name, path in PAGES.items()]


def _look(visitor: Visitor, name: str, path: str) -> Look:
    start = monotonic()
    reply = visitor.get(ADMIN + path)
    is_ours = re.search(r'<body class="[^"]*\bapp-django_quota\b|id="content-main"', reply.body) is not None
    return Look(name, reply.status, (reply.at - start) * 1000, is_ours and 'id="login-form"' not in reply.body)
