"""The Celery app of the workers in tests: `celery -A tests.contrib.celery_site worker`. It notes in Redis what ran."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import django
import redis
from celery import Celery, shared_task
from django.conf import settings

from tests.support import settings as base

OPTIONS: dict[str, Any] = json.loads(os.environ["SITE_OPTIONS"])
"""What the test chooses: the URL of Redis, CACHES, the quota, options of the broker."""

if not settings.configured:
    names = {name: getattr(base, name) for name in dir(base) if name.isupper()}
    settings.configure(**{**names, "CACHES": OPTIONS["caches"]})
    django.setup()

from django_quota.contrib.celery import QuotaTask  # noqa: E402 — the settings come first

URL: str = OPTIONS["url"]
app = Celery(
    "site", broker=f"redis+socket{URL.removeprefix('unix')}", backend=f"redis+socket{URL.removeprefix('unix')}"
)
app.conf.update(
    broker_transport_options=OPTIONS.get("transport", {}),
    worker_prefetch_multiplier=4,
)
notes = redis.Redis.from_url(URL)


def now() -> int:
    seconds, microseconds = notes.time()
    return int(seconds) * 1_000_000 + int(microseconds)


class Noted(QuotaTask):
    """Notes each run: when it began, and when the limits let it start, which is somewhere between the two."""

    abstract = True
    quota = OPTIONS.get("quota", "10/s")
    key = "org:7"
    acks_late = True

    def before_start(self, task_id: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        began = now()
        super().before_start(task_id, args, kwargs)
        notes.rpush("starts", f"{args[0]} {began} {now()}")


@shared_task(base=Noted, name="limited")
def limited(number: int) -> int:
    return number


@shared_task(name="other")
def other(sent: int) -> None:
    notes.rpush("latencies", now() - sent)
