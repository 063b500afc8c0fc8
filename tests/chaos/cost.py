"""What a limited view costs beside a bare one while Redis is gone: through Django's own handler, in one run."""

from __future__ import annotations

import itertools
import time
from statistics import median
from typing import Any, NamedTuple, cast

from tests.chaos import site

BATCH = 100
"""Requests of a batch; batches of the two views take turns."""


BARE = ("/bare", "/bare-too")
"""The paths of the bare view, before and behind the limited one in the URLconf."""


class Cost(NamedTuple):
    """What a request costs through the handler, in microseconds of the thread's CPU: medians over the batches."""

    bare: float
    limited: float
    ratio: float
    """The median of the ratios of neighbours."""


def cost_without_redis(batches: int) -> Cost:
    """Measure it, in this process, which is set up for it: Django can be set up only once."""
    site.configure(site.one_alias("unix:///nonexistent/redis.sock"))
    import logging

    from django.core.handlers.wsgi import WSGIHandler
    from django.test import RequestFactory

    logging.getLogger("django_quota").setLevel(logging.CRITICAL)
    handler, factory = WSGIHandler(), RequestFactory()

    def batch(path: str) -> float:
        environs: list[Any] = [factory._base_environ(PATH_INFO=path) for _ in range(BATCH)]  # type: ignore[attr-defined]
        began = time.thread_time_ns()
        for environ in environs:
            handler(environ, cast("Any", _start_response))
        return (time.thread_time_ns() - began) / BATCH / 1_000

    for path in itertools.islice(itertools.cycle((*BARE, "/limited")), 9):  # the breaker opens with the first
        batch(path)
    pairs = [(batch(bare), batch("/limited")) for bare in itertools.islice(itertools.cycle(BARE), batches)]
    ratio = median(limited / bare for bare, limited in pairs)
    return Cost(median(bare for bare, _ in pairs), median(limited for _, limited in pairs), ratio)


def _start_response(status: str, headers: list[tuple[str, str]]) -> None:
    if not status.startswith("200"):
        raise RuntimeError(f"A view answered {status}.")
