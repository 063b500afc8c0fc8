"""Overrides for tests: published as a field of a subject's status in any store, and read back from Redis."""

from __future__ import annotations

from typing import ClassVar

from django_quota.core.clock import SECOND
from django_quota.core.keys import field, key_of, named, subject_base
from django_quota.engine.operations import Operation, Script, States, text
from django_quota.services.overrides import Override, status_key
from django_quota.stores.redis.store import RedisStore
from tests.support.steps import START
from tests.support.stores import current_store

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
