"""An act of the demo: what was sent, what came back, and whether it is what the rule promises."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass, field
from http import HTTPStatus

from example_project.client import Reply
from example_project.scenes import Scene


@dataclass
class Act:
    """Requests of a scene, sent in one way."""

    scene: Scene
    name: str
    replies: list[Reply]
    promise: int | range
    """How many the rule promises to admit."""
    says: str = ""
    """What the refusals say; made of the last one where not given."""
    differences: list[str] = field(default_factory=list)
    """What is not as promised."""

    def __post_init__(self) -> None:
        promised = self.promise if isinstance(self.promise, range) else [self.promise]
        self.expect(f"admitted of {len(self.replies)}", self.admitted, promised)
        self.expect(
            "other answers", [r.status for r in self.replies if not r.admitted and r not in self.refusals], [[]]
        )
        if not self.scene.at_once:
            self.expect("admitted after a refusal", sum(r.admitted for r in self.replies[self.admitted :]), [0])
        for reply in self.replies:
            self.expect("limits told in RateLimit", len(reply.left) > 0 and "RateLimit-Policy" in reply.headers, [True])
        for refusal in self.refusals:
            self.expect("Retry-After of a refusal", refusal.retry_after > 0, [True])
            self.expect("the refusal's body", _problem_type(refusal).endswith("#quota-exceeded"), [True])
        if self.refusals and not self.says:
            last = self.refusals[-1]
            limits = last.headers.get("RateLimit", "(none)").split(", ")
            told = limits[0] if len(limits) == 1 else ",".join(f"\n  {limit}" for limit in limits)
            self.says = f"{last.status}, Retry-After: {last.retry_after}\nRateLimit: {told}"

    @property
    def admitted(self) -> int:
        """How many were let in."""
        return sum(reply.admitted for reply in self.replies)

    @property
    def refusals(self) -> list[Reply]:
        """The replies of those that were not."""
        return [reply for reply in self.replies if reply.status == HTTPStatus.TOO_MANY_REQUESTS]

    def expect(self, what: str, got: object, promised: Container[object]) -> None:
        """Note a difference where `got` is none of what is promised; the same one only once."""
        difference = f"{self.name}: {what}: {got}, promised {_in_words(promised)}"
        if got not in promised and difference not in self.differences:
            self.differences.append(difference)


def promised_by_bucket(burst: int, a_second: float, seconds: float) -> range:
    """Return how many a bucket may admit in some seconds: its burst, and what flows in meanwhile."""
    return range(burst, burst + int(a_second * seconds) + 1)


def _in_words(promised: Container[object]) -> str:
    if isinstance(promised, range):
        return f"{promised[0]} to {promised[-1]}" if len(promised) > 1 else str(promised[0])
    return " or ".join(map(str, promised)) if isinstance(promised, list) else str(promised)


def _problem_type(refusal: Reply) -> str:
    try:
        return str(json.loads(refusal.body)["type"])
    except (ValueError, KeyError, TypeError):
        return ""
