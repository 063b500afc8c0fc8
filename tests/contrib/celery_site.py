"""The Celery app of the workers in tests: `celery -A tests.contrib.celery_site worker`. It notes in Redis what ran."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import django
import redis
from celery import Celery, shared_task

from django_quota.contrib.celery import QuotaTask

django.setup()

URL = os.environ["SITE_REDIS"]
broker = f"redis+socket{URL.removeprefix('unix')}"
app = Celery("site", broker=broker, backend=broker)
app.conf.worker_prefetch_multiplier = 4
app.conf.broker_transport_options = {
    "visibility_timeout": 12, "unacked_restore_interval": 1, "unacked_restore_throttle": 1,
}  # fmt: skip
notes = redis.Redis.from_url(URL)


def now() -> int:
    seconds, microseconds = notes.time()
    return int(seconds) * 1_000_000 + int(microseconds)


class Noted(QuotaTask):
    """Notes each run: when it began, and when the limits let it start, which is somewhere between the two."""

    abstract = True
    quota = "10/s"
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
def other() -> None:
    notes.incr("others")
