"""Everything that web processes, the admin and the commands do in Redis, in steps."""

import asyncio
import io
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import get_args
from uuid import uuid4

import redis
from django.core.management import call_command

import django_quota
from django_quota import check, reset, slot
from django_quota.core.algorithms import AlgorithmName
from django_quota.core.clock import SECOND
from django_quota.core.keys import system_key
from django_quota.engine.system_operations import FIELDS, SUBJECTS, AddMetrics, MetricsKeys
from django_quota.exceptions import QuotaError
from django_quota.features.events import BEGINNING, EventGroup, EventStream
from django_quota.features.usage.days import recent_usage
from django_quota.limiting.flusher import flusher
from django_quota.models import QuotaOverride
from django_quota.testing import freeze
from tests.admin.operators import superuser
from tests.faults.calls import CALLS
from tests.support.steps import START
from tests.support.stores import current_store, redis_store

WHO = "user:7"
"""Days are counted of users."""

ADMIN = "/admin/django_quota"


def prepared(client: redis.Redis) -> None:
    """Lay down what steps look for: a ban, leases, days, events, and a set with expired entries."""
    client.flushall()
    with freeze(START):
        check("2/m", WHO, name="expired")
    for _ in range(4):
        check("1/m", WHO, name="login", ban={"after": "1/m", "for": ["10m"]})
    slot("export", 2, lease=30, subject=WHO).acquire()
    client.persist(f"quota:1:{{{WHO}}}:r:expired:sw.60s")


# --- web processes ----------------------------------------------------------------------------------------------------


def limits() -> None:
    """Refused, banned, and much later: the scripts' own commands are on the page, as a test of the text says."""
    for later in (0, 30, 7_200):
        with freeze(START + later * SECOND):
            for algorithm in get_args(AlgorithmName):
                for _ in range(4):
                    check("2/m", WHO, name=algorithm, algorithm=algorithm)
            for value in "abcdef":
                check("4/m", WHO, name="devices", distinct=True, value=value)
            for _ in range(4):
                check("2/m", WHO, name="banning", ban={"after": "1/m", "for": ["1m", "1h"]}, count_refused=True)
    reset("*", WHO)


def public_calls() -> None:
    for call in CALLS:
        with suppress(QuotaError):  # a Cluster transfers nothing between slots
            call.sync(call.before())


def public_calls_async() -> None:
    async def ask() -> None:
        for call in CALLS:
            with suppress(QuotaError):
                await call.asynchronous(await asyncio.to_thread(call.before))

    asyncio.run(ask())


def usage() -> None:
    check("0/m", WHO)
    flusher.flush()
    recent_usage(WHO)


def metrics() -> None:
    names = ("metrics:1", "metrics:2", "refused:1", "slots", "totals", "sent:1")
    keys = MetricsKeys(*(system_key("quota", name) for name in names))
    rules = {f"rule-{number}:a": 1 for number in range(FIELDS)}
    subjects = {f"ip:{number}": 1 for number in range(2 * SUBJECTS)}
    for number, counts in enumerate((rules, {"one-more:a": 1}), 1):
        current_store().run(AddMetrics(keys, number, counts, subjects, {"user:7 export 2": SECOND}))


def blocked_and_exempt() -> None:
    for mode in ("blocked", "exempt"):
        QuotaOverride.objects.update_or_create(subject=WHO, rule="*", defaults={"mode": mode})
        check("2/m", WHO)
    flusher.flush()
    QuotaOverride.objects.all().delete()


WEB: tuple[Callable[[], None], ...] = (
    limits, public_calls, public_calls_async, usage, metrics, blocked_and_exempt,
)  # fmt: skip


# --- the admin and the commands ---------------------------------------------------------------------------------------

COMMANDS = (
    "quota_sweep", "quota_sweep --dry-run", "quota_rollup", f"quota_override set {WHO} 100/m --rule login --force",
    f"quota_override clear {WHO} --rule login", f"quota_status {WHO} --all", f"quota_reset {WHO} --dry-run",
    f"quota_reset {WHO}", "quota_events --last 5",
    "quota_copy --from redis --to database --dry-run",
)  # fmt: skip


def commands() -> None:
    for command in COMMANDS:
        with suppress(SystemExit):
            call_command(*command.split(), stdout=io.StringIO(), stderr=io.StringIO())


def events() -> None:
    stream = EventStream(redis_store(), "quota")
    stream.after(BEGINNING)
    group = EventGroup(stream, "team")
    group.begin(BEGINNING)
    while entries := group.take().entries:
        group.acknowledge(entries)


def admin_pages() -> None:
    client = superuser(f"root-{uuid4()}")
    QuotaOverride.objects.get_or_create(subject=WHO, rule="login", mode="exempt")
    for page in ("overview/", "ban/", "subject/", "quotaoverride/", "dailycounter/", "overview/content/"):
        client.get(f"{ADMIN}/{page}")
    client.get(f"{ADMIN}/subject/", {"subject": WHO})
    client.get(f"{ADMIN}/dailycounter/usage/", {"subject": WHO})
    for act in ("lift", "reset", "block"):
        given = {"subject": WHO, "on": '["login"]', "reason": "spam", "confirmed": "yes"}
        client.post(f"{ADMIN}/subject/action/{act}/", given)


OFFICE: tuple[Callable[[], None], ...] = (commands, events, admin_pages)
"""Beside WEB: who serves the admin serves requests too, with the same permissions."""


ROOT = Path(django_quota.__file__).parent

PAGE = (ROOT.parent / "docs" / "going_live.md").read_text()
LINES = re.findall(r"^ACL SETUSER (quota-\S+) (.*)$", PAGE, re.MULTILINE)
PASSWORD = "change-me"


def rules_of(user: str) -> list[str]:
    """Return what the page gives a user: the office has all that the web has."""
    ours = [words for name, words in LINES if name == user]
    return [words for name, words in LINES if name == "quota-web"] + ours if user == "quota-office" else ours
