"""Overrides for tests: published as a field of a subject's status in any store, and read back from Redis."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
import redis

from django_quota import StoreUnavailable
from django_quota.core.clock import SECOND
from django_quota.core.keys import field, key_of, named, subject_base
from django_quota.engine.operations import Operation, Script, States, text
from django_quota.services import override_sync, overrides
from django_quota.services.overrides import Override, status_key
from django_quota.stores.redis.store import RedisStore
from tests.support.steps import START
from tests.support.stores import current_store, redis_store

DAY = 86_400 * SECOND


class _Publish(Operation):
    script: ClassVar[Script] = Script.of("""
        if ARGV[3] == '' then redis.call('HDEL', KEYS[1], ARGV[2]) return 1 end
        redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
        if redis.call('PTTL', KEYS[1]) < 86400000 then redis.call('PEXPIRE', KEYS[1], 86400000) end
        return 1
    """)
    replies: type = int

    def __init__(self, key: str, name: str, value: str) -> None:
        self.keys = [key]
        self.name = name
        self.value = value

    def arguments(self) -> list[str | int]:
        return [self.name, self.value]

    def run(self, states: States, now: int) -> int:
        fields = dict(states.get(self.keys[0]) or {})
        fields.pop(self.name, None)
        if self.value:
            fields[self.name] = self.value
        if fields:
            states.put(self.keys[0], fields, max(states.expiry(self.keys[0]), now + DAY))
        else:
            states.drop(self.keys[0])
        return 1


def publish(subject: str, rule: str, value: str) -> Operation:
    """Return the operation that publishes an override ('' withdraws it)."""
    name = "*" if rule == "*" else field(rule)
    return _Publish(key_of(subject_base("quota", subject), "s"), f"o:{name}", value)


def override(value: str, rule: str = "10/m", subject: str = "ip:203.0.113.9") -> None:
    """Publish an override in the store of the settings; '' withdraws it."""
    current_store().run(publish(subject, rule, value), START)


def published(store: RedisStore, subject: str) -> dict[str | None, Override]:
    """Return the overrides of a subject in Redis, by rule; None stands for a rule of which only a digest is known."""
    (fields,) = store.of_each(("HGETALL",), [status_key("quota", subject)])
    found = {text(name).partition(":"): text(value) for name, value in fields.items()}
    rules = {rule: value for (kind, _, rule), value in found.items() if kind == "o"}
    return {rule if rule == "*" else named(rule): Override.read(value) for rule, value in rules.items()}


# --- keeping Redis like the tables ------------------------------------------------------------------------------------


def held(subject: str = "user:1") -> dict[str | None, Override]:
    """Return what Redis holds for a subject; each override equals `(mode, begins, ends, rates)`."""
    return published(redis_store(), subject)


def marker_key() -> str:
    """Return the key that shows what was published."""
    return overrides.marker_key("quota")


def lock_key() -> str:
    """Return the key of the lock that one process has, which looks whether Redis holds all overrides."""
    return overrides.lock_key("quota")


def check_overrides() -> None:
    """Have this process look whether Redis holds all overrides."""
    override_sync.watch.flush()
    look_to_the_end()


def look_to_the_end() -> None:
    """Wait until the look that has begun is over."""
    override_sync.watch.join()


def look_as_a_new_process() -> None:
    """Forget what earlier looks of this process have found and logged."""
    vars(override_sync.watch).update(vars(override_sync.OverrideWatch()))


def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_quota.services.flusher.INTERVAL", 0.01)
    monkeypatch.setattr(overrides, "LOCK_TTL", 0.2)


def another_process_looks() -> None:
    """Let another process have the lock."""
    assert overrides.take_lock(RedisStore("default"), "quota")


def let_others_look(raw: redis.Redis) -> None:
    """Let the time pass until somebody may look again."""
    raw.delete(lock_key())


def publish_in_batches_of(subjects: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(override_sync, "BATCH_SIZE", subjects)


def keep_the_lock_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "LOCK_TTL", 60.0)


def publishing_fails(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """Let Redis refuse what is published; with an empty reason, take it again."""

    def refuse(*_: Any) -> Any:
        raise StoreUnavailable(why)

    monkeypatch.setattr(override_sync, "run_all", refuse if why else overrides.run_all)


def before_the_next_publication(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen between the next reading of the rows and telling Redis."""

    def overtaken(store: Any, operations: Any, now: Any) -> Any:
        if operations:
            monkeypatch.setattr(override_sync, "run_all", overrides.run_all)
            act()
        return overrides.run_all(store, operations, now)

    monkeypatch.setattr(override_sync, "run_all", overtaken)


def whenever_subjects_are_published(monkeypatch: pytest.MonkeyPatch, act: Callable[[Collection[str]], object]) -> None:
    """Call something with the subjects that are about to be published, each time."""
    publish = override_sync.publish

    def noted(subjects: Collection[str], using: str) -> None:
        act(subjects)
        publish(subjects, using)

    monkeypatch.setattr(override_sync, "publish", noted)


def when_a_sync_has_published(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], times: int = 99) -> None:
    """Let something happen as often, when all rows are published and before what has no row is withdrawn."""
    withdraw, left = override_sync._withdraw_orphans, iter(range(times))

    def late(*arguments: Any) -> int:
        if next(left, None) is not None:
            act()
        return withdraw(*arguments)

    monkeypatch.setattr(override_sync, "_withdraw_orphans", late)


def not_published_by_the_next_command() -> Any:
    """Let a command of the block not look for what waits in the database."""
    return patch.object(override_sync, "publish_pending")


def hang_at(step: str) -> None:
    """Let this process say that it is there and hang, when it comes to "publish" or "publish_pending"."""

    def hang(*_: Any) -> None:
        print("It is there.", flush=True)
        threading.Event().wait()

    setattr(override_sync, step, hang)
