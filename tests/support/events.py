"""Events as they are written."""

from typing import Any

from django_quota.core.keys import escape, field
from django_quota.engine.events import EventRecord


def event_fields(kind: str = "refused", rule: str = "a", subject: str = "user:1", **more: Any) -> dict[Any, Any]:
    """Return the fields of an event in the stream; `more`: other ones than those of a plain refusal."""
    names: Any = {"kind": kind, "rule": rule, "subject": subject}
    return EventRecord(**names)._replace(**more)._asdict()


def record(kind: str = "refused", rule: str = "a", subject: str = "user:1", **more: Any) -> EventRecord:
    """Return an event of names as people write them."""
    return EventRecord(**event_fields(kind, field(rule), escape(subject), **more))
