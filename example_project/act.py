"""An act of the demo: what was sent, what came back, and whether it is what is promised."""

from __future__ import annotations

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
    """How many are promised to be let in."""
    declines: int = 0
    """How many the view itself is promised to say no to."""
    says: str = ""
    """What the refusals say; made of the last one where not given."""
    differences: list[str] = field(default_factory=list)
    """What is not as promised."""

    def __post_init__(self) -> None:
        promised = self.promise if isinstance(self.promise, range) else [self.promise]
        self.expect(f"admitted of {len(self.replies)}", self.admitted, promised)
        self.expect(f"declined of {len(self.replies)}", len(self.declined), [self.declines])
        known = [*self.refusals, *self.declined]
        self.expect("other answers", [r.status for r in self.replies if not r.admitted and r not in known], [[]])
        if not self.scene.at_once:
            since = self.replies[self.replies.index(self.refusals[0]) :] if self.refusals else []
            self.expect("admitted after a refusal", sum(reply.admitted for reply in since), [0])
        for reply in self.replies if self.scene.tells_limits else self.refusals:
            self.expect("limits told in RateLimit", len(reply.left) > 0 and "RateLimit-Policy" in reply.headers, [True])
        for refusal in self.refusals:
            self.expect("Retry-After of a refusal", refusal.retry_after > 0, [True])
            problem = str(refusal.said.get("type"))
            self.expect("the refusal's body", problem.rpartition("#")[2], [self.scene.problem])
        for reply in self.declined:
            self.expect("why the view declined", bool(reply.said.get("detail")), [True])
        self.says = self.says or self._last_words()

    @property
    def admitted(self) -> int:
        """How many were let in."""
        return sum(reply.admitted for reply in self.replies)

    @property
    def declined(self) -> list[Reply]:
        """The replies by which the view itself said no."""
        return [reply for reply in self.replies if reply.status == self.scene.declines_with]

    @property
    def refusals(self) -> list[Reply]:
        """The replies of those that a limit refused."""
        return [reply for reply in self.replies if reply.status == HTTPStatus.TOO_MANY_REQUESTS]

    def _last_words(self) -> str:
        """Return what the last refusal says, or, where there is none, the last time the view declined."""
        if self.refusals:
            last = self.refusals[-1]
            limits = last.headers.get("RateLimit", "(none)").split(", ")
            told = limits[0] if len(limits) == 1 else ",".join(f"\n  {limit}" for limit in limits)
            return f"{last.status}, Retry-After: {last.retry_after}\nRateLimit: {told}"
        return f"{self.declined[-1].status}: {self.declined[-1].said.get('detail')}" if self.declined else ""

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
