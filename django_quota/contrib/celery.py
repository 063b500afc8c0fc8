"""Celery: a limit for a task over all workers.

`@shared_task(base=QuotaTask, quota="100/m", key=lambda task, args, kwargs: f"org:{args[0]}")`

A task that comes too early takes a place in a queue (a leaky bucket), and is published again with the moment of that
place as its eta. A header of the message carries the place, so the second run does not take another place. At that
moment the limits themselves decide, and only a task that starts is counted. So the limits hold whatever happens to the
messages: a broker delivers the messages of a killed worker late and all at once, and may deliver any message twice.

If the limits refuse the task, because it is late or a quota is used up, it is published again, too. It takes a
place in a second queue, so that a thousand such tasks do not all run again at the same moment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import ceil
from random import uniform
from time import sleep
from typing import Any, NamedTuple, NoReturn, cast

from celery import Celery, Task, current_app, uuid
from celery.exceptions import Ignore, Reject
from celery.utils.time import maybe_iso8601, maybe_make_aware
from django.core.checks import CheckMessage, Error
from kombu.exceptions import OperationalError

from django_quota import Decision, Rule, check, peek
from django_quota.adapters import enter_queue, now, register_view_check
from django_quota.conf import current
from django_quota.contrib.tasks import EPOCH, asked_by, check_rule, queue_of
from django_quota.exceptions import QuotaError, RuleError
from django_quota.types import Rate

__all__ = ["QuotaTask", "TaskRefused", "TaskWouldExpire"]

logger = logging.getLogger("django_quota.tasks")

MICROSECONDS = 1_000_000

SLICES = 100
"""The slices of a sliding window, unless the rule has `precision`."""

PLACE_HEADER = "quota_place"
"""The header of a message that carries the place of its task: a moment, in microseconds since 1970."""

NAP = 5_000
"""Up to this long (microseconds) a task waits in its worker: about as long as publishing it again would take. If it
waited longer, the tasks after it would wait too."""

LONGEST_SPACED = 3600 * MICROSECONDS
"""A rate with a longer window is a quota: its tasks are not spaced, and may use up the quota at once."""

QUOTA_PACE = 10
"""Tasks that wait for a used-up quota run at this multiple of its rate: a calendar quota is free all at once."""

OUTAGE_WAIT = (10, 20)
"""While the store does not answer and the rule says "deny", a task asks again after a random time between
these two, in seconds."""

DEFAULT_VISIBILITY_TIMEOUT = 1800
"""Seconds for which brokers leave a message with a worker, unless the settings say otherwise: RabbitMQ and SQS half an
hour, Redis an hour. After that the message is delivered again, so no task waits longer in one go."""

PUBLISH_RETRY = {"max_retries": 300, "interval_start": 0, "interval_step": 0.2, "interval_max": 1.0}
"""Try for five minutes to publish a task again: this worker may have the only copy."""


class TaskRefused(QuotaError):  # noqa: N818 — the state of a task, as in celery.exceptions.TaskRevokedError
    """Waiting does not help: the subject is blocked, the rate is 0, or the cost is more than the limit ever admits."""


class TaskWouldExpire(TaskRefused):
    """The task would expire before its turn, so it fails at once."""


class TaskLimits(NamedTuple):
    """The rules that a task is decided by. All have the rates of one rule."""

    start: Rule
    """Decides whether the task may start now, and counts it."""
    spacing: Rule | None
    """The queue that spaces new tasks; None if only quotas limit the task, or if it never waits."""
    again: Rule | None
    """The queue that spaces the tasks that were refused at their start."""

    @classmethod
    def of(cls, rule: Rule) -> TaskLimits:
        """Return the limits that follow from a rule. Raises `RuleError` if a rule needs a request."""
        check_rule(rule)
        start = replace(rule, count_refused=False, ban=None)
        rates = cast("tuple[Rate, ...]", rule.rates)
        if not rates or rule.shadow or not rule.block:
            return cls(start, None, None)
        shortest = min(rates, key=lambda rate: rate.period)
        is_spaced = shortest.period <= LONGEST_SPACED
        again = _queue(start, f"{rule.name}:again", [shortest], pace=1 if is_spaced else QUOTA_PACE)
        if rule.algorithm == "leaky_bucket":
            spacing = _queue(start, rule.name, rates, room=rule.burst)
            return cls(replace(start, algorithm="sliding_window", burst=None), spacing, again)
        if is_spaced and rule.algorithm != "token_bucket":
            return cls(start, _queue(start, rule.name, [shortest]), again)
        return cls(start, None, again)


def _queue(rule: Rule, name: str, rates: Sequence[Rate], pace: int = 1, room: int | None = None) -> Rule:
    """Return a leaky bucket that spaces tasks for these rates.

    It is slower than the rate by one slice of a sliding window, which is a hundredth unless the rule says otherwise. So
    a task still finds room if it comes a moment early, or if an earlier one came a moment late.
    """
    slices = rule.precision or SLICES
    paces = [  # a rate of 0 stays as it is, since an error names it
        Rate(min(Rate.max_count, rate.count * pace * slices), "second", rate.period // MICROSECONDS * (slices + 1))
        if rate.count
        else rate
        for rate in rates
    ]
    return queue_of(replace(rule, name=name, daily=False), paces, room)


def _from_now(at: int) -> timedelta:
    """Return how long it is until a moment, in whole seconds, rounded up."""
    return timedelta(seconds=ceil(max(0, at - now()) / MICROSECONDS))


def _place(at: int | None, task_id: str, retries: int) -> dict[str, Any]:
    """Return the header of a message with the place of its task."""
    return {PLACE_HEADER: {"id": task_id, "retries": retries, "at": at}}


def _place_of(request: Any) -> int | None:
    """Return the place of a running task. A retry is another run: it needs a place of its own."""
    given = request.get(PLACE_HEADER)
    if not isinstance(given, Mapping) or (given["id"], given["retries"]) != (request.id, request.retries):
        return None
    return cast("int | None", given["at"])


class QuotaTask(Task):
    """A task that waits until its limits admit it; the base of `@shared_task(base=QuotaTask, ...)`.

    These are options of the decorator, or attributes of a subclass. Give `quota` or `quota_rule`.
    """

    abstract = True

    quota: Any = None
    """A rate (`"100/m"`), several (`["100/m", "10000/d"]`), or a `Rule`. Without a `Rule`, the task's name is the
    rule's."""
    quota_rule: str = ""
    """The name of a configured rule. Tasks and views with the same rule and subject share one count."""
    key: Any = "global"
    """Who is limited: a subject, or a function `(task, args, kwargs)` that returns a subject or a user."""
    cost: Any = None
    """The units that a run takes: a number, or a function `(task, args, kwargs)`. None takes the rule's own (1)."""

    _inline: Rule | None = None
    """The rule of `quota`."""
    _limits: tuple[Rule, TaskLimits] | None = None
    """The last rule, and what follows from it."""

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Read `quota` when the task is made, so that a wrong rate is an error then."""
        super().on_bound(app)
        if (cls.quota is None) == (not cls.quota_rule):
            raise RuleError(
                f"Task {cls.name!r} needs either quota= or quota_rule=.", "Use, for example, quota='100/m'."
            )
        if cls.quota is not None:
            rates = cls.quota if isinstance(cls.quota, (list, tuple)) else [cls.quota]
            cls._inline = cls.quota if isinstance(cls.quota, Rule) else Rule.make(cls.name, *rates)
            TaskLimits.of(cls._inline)

    def before_start(self, task_id: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Let the task start, or publish it again for later. A subclass that overrides this must call it."""
        if not self.request.is_eager:  # such a task runs at once in any case, as if it had no eta
            self._wait_for_turn(args, kwargs)
        super().before_start(task_id, args, kwargs)

    def quota_apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        task_id: str | None = None,
        countdown: float | None = None,
        eta: datetime | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Publish the task with its place, so that it need not be published again; else as `apply_async` does.

        Raises `TaskWouldExpire` if the task would expire before its turn, and `TaskRefused` if it would never start.
        While the store does not answer, and for limits that do not space their tasks, this does what `apply_async`
        does.
        """
        limits, task_id = self.limits(), task_id or uuid()
        if limits.spacing is not None and not self.app.conf.task_always_eager:
            subject, cost = self._asks(args or (), kwargs or {})
            decision = enter_queue(limits.spacing, subject, cost)
            if not decision.degraded:
                began = now()
                chosen = self._microseconds(eta) if eta else began + round((countdown or 0) * MICROSECONDS)
                at = max(chosen, began + self._wait_of(decision))
                self._check_expiry(at, options.get("expires", self.expires))
                place = None if decision.enforced else at
                headers = {**(headers or {}), **_place(place, task_id, options.get("retries", 0))}
                countdown, eta = None, (self._eta(at) if at > began else None)
        return self.apply_async(args, kwargs, task_id=task_id, countdown=countdown, eta=eta, headers=headers, **options)

    def limits(self) -> TaskLimits:
        """Return the limits of the task. Raises `RuleError` if the settings have no such rule."""
        rule = self._inline or current().rule(self.quota_rule)
        if self._limits is None or self._limits[0] is not rule:
            self._limits = rule, TaskLimits.of(rule)
        return self._limits[1]

    def _asks(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, int | None]:
        """Return who a run of the task counts for, and its cost."""
        return asked_by(self, type(self).key, type(self).cost, args, kwargs)

    def _wait_for_turn(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Return if the task may start; else publish it again and raise `Ignore`, which ends this run."""
        limits, place = self.limits(), _place_of(self.request)
        subject, cost = self._asks(args, kwargs)
        if place is None and limits.spacing is not None:
            decision = enter_queue(limits.spacing, subject, cost)
            if decision.enforced:
                self._publish_again(self._next_try(decision, None), None)
            place = now() + self._wait_of(decision)
        if place is not None and (left := place - now()) > 0:
            if left > NAP:
                self._publish_again(place, place)
            sleep(left / MICROSECONDS)
        ask = peek if cost == 0 else check  # a free task takes nothing, and a block stops it too
        decision = ask(limits.start, subject, cost)
        if decision.enforced:
            at = self._next_try(decision, place)
            if limits.again is not None:
                at += round(enter_queue(limits.again, subject, cost).delay * MICROSECONDS)
            self._publish_again(at, at)

    def _next_try(self, decision: Decision, place: int | None) -> int:
        """Return when a refused task may ask again. While the store does not answer, publish the task again here."""
        if decision.degraded:
            self._publish_again(now() + round(uniform(*OUTAGE_WAIT) * MICROSECONDS), place)  # noqa: S311 — no secret
        return now() + self._wait_of(decision)

    def _wait_of(self, decision: Decision) -> int:
        """Return the microseconds that a task must wait after a decision. Raises `TaskRefused` if no wait helps."""
        wait = decision.retry_after if decision.enforced else decision.delay
        if wait is None:
            raise TaskRefused(f"Task {self.name} never starts. {decision.explain()}")
        return round(wait * MICROSECONDS)

    def _publish_again(self, at: int, place: int | None) -> NoReturn:
        """Publish the task as it came, with its place and another eta, and end this run."""
        request = self.request
        self._check_expiry(at, request.expires)
        kept = {name: request.get(name) for name in ("parent_id", "argsrepr", "kwargsrepr")}  # Celery makes new ones
        again = self.signature_from_request(
            request,
            eta=self._eta(at),
            headers={**(request.headers or {}), **kept, **_place(place, request.id, request.retries)},
            retry=True,
            retry_policy=PUBLISH_RETRY,
        )
        logger.info("Task %s[%s] waits %s for its turn.", self.name, request.id, _from_now(at))
        try:
            again.apply_async()
        except OperationalError as error:
            if self.acks_late:
                raise Reject(error, requeue=True) from error
            raise
        raise Ignore

    def _eta(self, at: int) -> datetime:
        """Return when a worker should look at the task: at its moment, but before the broker delivers it again."""
        transport = self.app.conf.broker_transport_options
        longest = int(0.75 * MICROSECONDS * transport.get("visibility_timeout", DEFAULT_VISIBILITY_TIMEOUT))
        return EPOCH + timedelta(microseconds=min(at, now() + longest))

    def _check_expiry(self, at: int, expires: Any) -> None:
        if expires is None:
            return
        ends = (
            now() + round(expires * MICROSECONDS) if isinstance(expires, (int, float)) else self._microseconds(expires)
        )
        if ends <= at:
            raise TaskWouldExpire(
                f"Task {self.name} would wait {_from_now(at)} for its turn, and expires in {_from_now(ends)}."
            )

    def _microseconds(self, moment: datetime | str) -> int:
        """Return a moment as microseconds since 1970; without a time zone, in UTC, as Celery's workers read it."""
        aware: datetime = maybe_make_aware(maybe_iso8601(moment))
        return (aware - EPOCH) // timedelta(microseconds=1)


@register_view_check
def check_tasks(_: Sequence[Any]) -> Iterator[CheckMessage]:
    """Find tasks with a `quota_rule` that no task can use, among the tasks whose modules the site has imported."""
    for task in current_app.tasks.values():
        if isinstance(task, QuotaTask):
            try:
                task.limits()
            except RuleError as error:
                text = f"Task {task.name!r} has quota_rule={task.quota_rule!r}. {error.problem}"
                yield Error(text, hint=error.hint or None, id="django_quota.E026")
