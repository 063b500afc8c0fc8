"""A history for the admin to show: users, a year of daily counters up to yesterday, and overrides of every kind.

It comes from a fixed seed, so each run makes the same year. Only the past is made up, and only in the database. The
counts of today in Redis come from real requests; see `traffic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from math import pi, sin
from random import Random

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Group, Permission, User
from django.db import transaction
from django.utils import timezone

from django_quota.models import DailyCounter, QuotaOverride
from example_project.people import PEOPLE, Account, Person
from example_project.rules import PRO

DAYS = 365
SEED = 20_12_03_22
BATCH = 2_000

SHARES = {"api": 1.0, "api-search": 0.35, "api-export": 0.02}
"""The rules, with the share of the day's requests that each checks."""
SATURDAY = 5
HOLIDAYS = frozenset({(1, 1), (5, 1), (12, 24), (12, 25), (12, 26), (12, 31)})
INCIDENT = range(74, 78)
"""How many days ago Goran's script ran in a loop."""
RUNAWAY = "goran"
OUTAGE = 131
"""How many days ago the site was down for most of a day."""

ProgressCallback = Callable[[int, int], object]
"""Called with how much is done and how much there is."""


def write_people(accounts: Sequence[Account]) -> dict[str, User]:
    """Write the users and the admin's accounts into an empty database; return the users by name."""
    with ThreadPoolExecutor() as pool:  # hashing is slow on purpose, and uses one core
        hashes = list(pool.map(make_password, [account.password for account in accounts]))
    User.objects.bulk_create(
        [
            *(_user(person) for person in PEOPLE),
            *(
                User(username=account.username, password=hashed, is_staff=True, is_superuser=account.is_superuser)
                for account, hashed in zip(accounts, hashes, strict=True)
            ),
        ]
    )
    users = {user.username: user for user in User.objects.all()}
    Group.objects.create(name=PRO).user_set.set(users[person.username] for person in PEOPLE if person.pro)
    for account in accounts:
        users[account.username].user_permissions.set(
            Permission.objects.filter(content_type__app_label="django_quota", codename__in=account.permissions)
        )
    return users


def write_history(users: Mapping[str, User], report: ProgressCallback) -> int:
    """Write the counters of a year; return the number of rows."""
    today = timezone.localdate()
    rows = [row for person in PEOPLE for row in _rows(person, f"user:{users[person.username].pk}", today)]
    report(0, len(rows))
    with transaction.atomic():
        for number, batch in enumerate(_batches(rows)):
            DailyCounter.objects.bulk_create(batch)
            report(min((number + 1) * BATCH, len(rows)), len(rows))
    return len(rows)


def write_overrides(users: Mapping[str, User]) -> None:
    """Write overrides that are active, planned and expired."""
    now, by = timezone.now(), users["admin"].get_username()

    def user(name: str) -> str:
        return f"user:{users[name].pk}"

    def days(number: float) -> timedelta:
        return timedelta(days=number)

    modes = QuotaOverride.Mode
    QuotaOverride.objects.bulk_create(
        [
            QuotaOverride(
                subject=user("boris"),
                rule="api",
                mode=modes.RATE,
                rate="500/m",
                reason="Moves his catalogue over; asked for it on the phone.",
                expires=now + days(3),
                created_by=by,
            ),
            QuotaOverride(
                subject=user(RUNAWAY),
                rule="api-export",
                mode=modes.BLOCKED,
                reason="His script exported the same file again and again. Until he has mended it.",
                created_by=by,
            ),
            QuotaOverride(
                subject=user("hana"),
                rule="*",
                mode=modes.EXEMPT,
                reason="Her launch, agreed with sales.",
                starts=now + days(2),
                expires=now + days(4),
                created_by=by,
            ),
            QuotaOverride(
                subject=user("ada"),
                rule="api",
                mode=modes.RATE,
                rate="5000/m",
                reason="A load test of theirs.",
                starts=now - days(30),
                expires=now - days(23),
                created_by=by,
            ),
            QuotaOverride(
                subject="ip:198.51.100.23",
                rule="*",
                mode=modes.BLOCKED,
                reason="Guessed passwords for two days.",
                expires=now + days(20),
                created_by=by,
            ),
            QuotaOverride(
                subject="ip:192.0.2.10",
                rule="*",
                mode=modes.EXEMPT,
                reason="Our own monitoring.",
                created_by=by,
            ),
            QuotaOverride(
                subject="ip:203.0.113.0/24",
                rule="*",
                mode=modes.SHADOW,
                reason="The fair: many visitors behind few addresses. We only watch.",
                starts=now + days(5),
                expires=now + days(7),
                created_by=by,
            ),
        ]
    )


def _user(person: Person) -> User:
    return User(
        username=person.username,
        password=make_password(None),
        first_name=person.first_name,
        last_name=person.last_name,
        email=f"{person.username}@example.com",
        is_staff=person.staff,
    )


def _batches(rows: list[DailyCounter]) -> Iterator[list[DailyCounter]]:
    yield from (rows[start : start + BATCH] for start in range(0, len(rows), BATCH))


def _rows(person: Person, subject: str, today: date) -> Iterator[DailyCounter]:
    random = Random(f"{SEED} {person.username}")
    for ago in range(min(DAYS, person.since), 0, -1):
        day = today - timedelta(days=ago)
        sent = person.requests * _mood(person, day, ago) * random.lognormvariate(0, 0.25)
        for rule, share in SHARES.items():
            asked = round(sent * share * random.uniform(0.8, 1.2))
            allowed, refused = _decided(person, rule, ago, asked, random)
            if allowed or refused:
                counts = {"allowed": allowed, "refused": refused, "units": allowed}
                yield DailyCounter(subject=subject, rule=rule, day=day, **counts)


def _mood(person: Person, day: date, ago: int) -> float:
    """Return the traffic of a day as a share of a busy day: it grows over the year and drops on days off."""
    growth = 1 - 0.55 * ago / DAYS
    season = 1 + 0.12 * sin(2 * pi * day.timetuple().tm_yday / DAYS)
    weekend = person.weekends if day.weekday() >= SATURDAY else 1.0
    holiday = 0.15 if (day.month, day.day) in HOLIDAYS else 1.0
    outage = 0.1 if ago == OUTAGE else 1.0
    return growth * season * weekend * holiday * outage


def _decided(person: Person, rule: str, ago: int, asked: int, random: Random) -> tuple[int, int]:
    """Return how many requests of a day were allowed and refused; many are refused during the incident."""
    if person.username == RUNAWAY and ago in INCIDENT:
        return asked, round(person.requests * random.uniform(4, 9) * SHARES[rule])
    rarely = random.random() < (0.01 if person.pro else 0.03)
    refused = round(asked * random.uniform(0.02, 0.15)) if rarely else 0
    return asked - refused, refused
