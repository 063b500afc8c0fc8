"""`django.tasks` (Django 6.0): enqueue a task for the moment at which its limit has room.

`TaskQuota("100/m").enqueue(export, org_id)`

A backend of `django.tasks` decides alone when a task runs, so the limit is asked when the task is enqueued. A leaky
bucket says how long the task must wait, and `run_after` carries that to the backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from django_quota import Decision, Rule, acheck, check
from django_quota.adapters import now, read_rule
from django_quota.exceptions import ConfigurationError, RuleError
from django_quota.types import Rate

__all__ = ["TaskQuota"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ROOM = 30 * 86_400 * 1_000_000
"""How far ahead tasks get a place, unless `burst` of a `leaky_bucket` rule says how many may wait."""


class TaskQuota:
    """A limit for tasks that are enqueued with it. It spaces them evenly, by each of its rates.

    `rule`: a rate (`"100/m"`), the name of a configured rule, or a `Rule`. `key`: a subject, or a function
    `(task, args, kwargs)` that returns a subject or a user; without it all tasks share one limit. `cost`: a number, or
    a function `(task, args, kwargs)`.
    """

    def __init__(self, rule: str | Rule, *, key: Any = "global", cost: Any = None) -> None:
        self.rule: str | Rule = rule
        self.key: Any = key
        self.cost: Any = cost

    def enqueue(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        """Enqueue a task for the moment of its place; return its `TaskResult`.

        Raises `QuotaExceeded` if no moment helps: the subject is blocked, the rate is 0, or the store does not answer
        and the rule says `on_unavailable="deny"`. Raises `ConfigurationError` if the backend of the task cannot defer,
        and `RuleError` if the rule is wrong.
        """
        return _later(task, check(*self._asks(task, args, kwargs))).enqueue(*args, **kwargs)

    async def aenqueue(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        """Enqueue a task without blocking the event loop; see `enqueue`."""
        return await _later(task, await acheck(*self._asks(task, args, kwargs))).aenqueue(*args, **kwargs)

    def _asks(self, task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Rule, Any, int | None]:
        """Return the bucket, who the task counts for, and its cost."""
        if not task.get_backend().supports_defer:
            raise ConfigurationError(
                f"The backend {task.backend!r} of task {task.name!r} cannot defer tasks (supports_defer is False).",
                "Use a backend in TASKS that can.",
            )
        return _bucket(read_rule(self.rule)), *asked_by(task, self.key, self.cost, args, kwargs)


def asked_by(task: Any, key: Any, cost: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, int | None]:
    """Return who a run of a task counts for, and its cost; `key` and `cost` may be functions."""
    return (
        key(task, args, kwargs) if callable(key) else key,
        cost(task, args, kwargs) if callable(cost) else cost,
    )


def _bucket(rule: Rule) -> Rule:
    check_rule(rule)
    room = rule.burst if rule.algorithm == "leaky_bucket" else None
    return queue_of(rule, cast("tuple[Rate, ...]", rule.rates), room)


def check_rule(rule: Rule) -> None:
    """Raise `RuleError` if a rule needs a request."""
    if rule.dynamic or rule.distinct is not None:
        raise RuleError(f"Rule {rule.name!r} needs a request, so no task can use it.", "Use a rule with a rate.")


def queue_of(rule: Rule, rates: Sequence[Rate], room: int | None = None) -> Rule:
    """Return a leaky bucket that spaces tasks by these rates. `room`: how many may wait, for 30 days by default."""
    rooms = (ROOM * rate.count // rate.period for rate in rates)
    return replace(
        rule,
        rates=tuple(rates),
        algorithm="leaky_bucket",
        burst=room or max(1, min((Rate.max_count, *rooms))),
        precision=None,
        tz=None,
        starts=None,
        count_refused=False,
        ban=None,
        warn_at=None,
    )


def _later(task: Any, decision: Decision) -> Any:
    """Return the task with the moment of its place, or with its own if that is later."""
    if decision.enforced:
        decision.raise_if_refused()
    wait = max((outcome.delay for outcome in decision.outcomes if outcome.enforced), default=0.0)
    if not wait:
        return task
    at = EPOCH + timedelta(microseconds=now(), seconds=wait)
    return task.using(run_after=at if task.run_after is None else max(at, task.run_after))
