"""The users of the site's API, and the users of its admin.

The admin's passwords are new on each start. They are printed on the terminal and stored nowhere.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Person:
    """A user of the API."""

    username: str
    first_name: str
    last_name: str
    requests: int
    """How many requests they send on a busy day."""
    pro: bool = False
    staff: bool = False
    """Whether they are staff, whose searches are free. They have no password and cannot sign in."""
    weekends: float = 0.2
    """The share of that which they send on a Saturday or Sunday."""
    since: int = 400
    """How many days ago they started."""


DEMO, DEMO_PRO = "demo", "demo-pro"

PEOPLE = (
    Person("ada", "Ada", "Lindqvist", 900, pro=True, weekends=0.9),
    Person("boris", "Boris", "Okafor", 140),
    Person("chiara", "Chiara", "Moretti", 60, weekends=1.6),
    Person("dmitri", "Dmitri", "Haddad", 420, pro=True),
    Person("emeka", "Emeka", "Nwosu", 85, since=210),
    Person("freya", "Freya", "Aaltonen", 30, weekends=1.1),
    Person("goran", "Goran", "Petrov", 260, weekends=0.05),
    Person("hana", "Hana", "Sato", 1500, pro=True, weekends=1.0, since=300),
    Person("ines", "Inês", "Carvalho", 45, staff=True, weekends=0.0),
    Person("jonas", "Jonas", "Weber", 12, since=40),
    Person("kamala", "Kamala", "Rao", 190),
    Person("liam", "Liam", "Byrne", 70, staff=True, weekends=0.1),
    Person(DEMO, "Demo", "User", 8, weekends=0.5, since=90),
    Person(DEMO_PRO, "Demo", "Pro", 20, pro=True, weekends=0.5, since=90),
)


@dataclass(frozen=True)
class Account:
    """A user of the admin."""

    username: str
    may: str
    """What they may do, in words."""
    permissions: Sequence[str] = ()
    """The permissions of django_quota, by codename."""
    is_superuser: bool = False
    password: str = field(default_factory=lambda: secrets.token_urlsafe(9), repr=False)


def new_accounts() -> tuple[Account, ...]:
    """Return the users of the admin with new passwords."""
    views = ("view_subject", "view_overview", "view_ban", "view_dailycounter", "view_quotaoverride")
    return (
        Account("admin", "may do everything", is_superuser=True),
        Account("clerk", "may look, and change nothing", views),
        Account("intern", "may not see the limits"),
    )
