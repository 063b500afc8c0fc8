"""Open the pages of the admin as its superuser, and measure how long each takes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic

from example_project.client import Visitor
from example_project.runner import Site

ADMIN = "/admin/django_quota/"
PAGES = {
    "the overview": "overview/",
    "a user's limits": "subject/?subject=user:1",
    "a user's year": "dailycounter/usage/?subject=user:1",
    "daily counters": "dailycounter/",
    "overrides": "quotaoverride/",
}


@dataclass(frozen=True)
class OpenedPage:
    name: str
    status: int
    milliseconds: float
    is_ours: bool
    """Whether it is the requested page and not the login page."""

    @property
    def difference(self) -> str:
        """What differs from the promise; empty if nothing does."""
        if self.status == HTTPStatus.OK and self.is_ours:
            return ""
        return f"The admin: {self.name}: answered {self.status}" + ("" if self.is_ours else ", and not by that page")


def open_admin_pages(site: Site) -> list[OpenedPage]:
    """Sign in and open each page once. Raises `OSError` if the site does not answer."""
    account = next(account for account in site.accounts if account.is_superuser)
    with Visitor(site.port, headers={"Accept": "text/html"}) as visitor:
        visitor.get("/admin/login/")
        visitor.post("/admin/login/", {"username": account.username, "password": account.password, "next": ADMIN})
        return [_open(visitor, name, path) for name, path in PAGES.items()]


def _open(visitor: Visitor, name: str, path: str) -> OpenedPage:
    start = monotonic()
    reply = visitor.get(ADMIN + path)
    is_ours = re.search(r'<body class="[^"]*\bapp-django_quota\b|id="content-main"', reply.body) is not None
    return OpenedPage(name, reply.status, (reply.at - start) * 1000, is_ours and 'id="login-form"' not in reply.body)
