"""A Celery worker whose time a test chooses: it takes messages from Celery's in-memory broker and runs them at once."""

import heapq
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from itertools import count
from typing import Any
from uuid import uuid4

from celery import Celery
from celery.worker.request import Request

from django_quota.testing import freeze

SECOND = 1_000_000


class Clock:
    """The time of the tasks, of django_quota and of the worker; it begins now, since Celery looks at the real clock."""

    def __init__(self) -> None:
        self.now = self.begin = time.time_ns() // 1_000
        self.naps: list[float] = []
        self._frozen = ExitStack()

    @property
    def passed(self) -> int:
        return self.now - self.begin

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.move_to(self.now + round(seconds * SECOND))

    def move_to(self, now: int) -> None:
        self.now = max(self.now, now)
        self._frozen.enter_context(freeze(self.now))

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._frozen:
            self.move_to(self.now)
            yield


def in_memory_app(**conf: Any) -> Celery:
    """Return an app with a queue of its own on the in-memory broker, and results in memory."""
    app = Celery("tests", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_default_queue=f"tests-{uuid4()}", **conf)
    return app


class Worker:
    """Runs the tasks of an app, each when its eta has come; `runs` has each message that it ran."""

    def __init__(self, app: Celery, clock: Clock, queue: str = "") -> None:
        self.app, self.clock = app, clock
        self.runs: list[Any] = []
        self.waiting: list[tuple[int, int, Any]] = []
        self._numbers = count()
        self._queue = app.amqp.queues[queue or app.conf.task_default_queue](app.connection_for_read().channel())

    def fetch(self) -> None:
        """Take all messages, as a worker does that keeps those with an eta in its memory."""
        self._queue.declare()
        while (message := self._queue.get(accept=["json", "pickle"])) is not None:
            eta = message.headers["eta"]
            at = self.clock.now if eta is None else round(datetime.fromisoformat(eta).timestamp() * SECOND)
            heapq.heappush(self.waiting, (at, next(self._numbers), message))

    def step(self) -> bool:
        """Run the next message, at its time; return whether there was one."""
        self.fetch()
        if not self.waiting:
            return False
        at, _, message = heapq.heappop(self.waiting)
        self.clock.move_to(at)
        self.execute(message)
        return True

    def execute(self, message: Any) -> Any:
        def acknowledge(*_: Any) -> None:
            if not message.acknowledged:  # a test may deliver it twice
                message.ack()

        self.runs.append(message)
        return Request(message, app=self.app, on_ack=acknowledge, on_reject=message.reject_log_error).execute()

    def run_all(self, most: int = 100_000) -> int:
        """Run until no message is left; return how many ran."""
        for ran in range(most):
            if not self.step():
                return ran
        raise AssertionError("the messages never end")

    def die(self) -> None:
        """End as a killed worker does: what it has not acknowledged is delivered again."""
        self.fetch()
        for *_, message in self.waiting:
            message.requeue()
        self.waiting.clear()
