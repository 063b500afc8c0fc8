"""What a worker notes down of each request, and of what it was told; written to a file and read again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class Record(NamedTuple):
    """One request; times are the machine's monotonic clock, which all processes share."""

    policy: str
    started: float
    ended: float
    allowed: bool
    degraded: bool
    error: str
    """What was raised; empty where nothing was."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.started


class Loss(NamedTuple):
    """One `store_lost` signal."""

    at: float
    reason: str

    @property
    def is_slow(self) -> bool:
        """Whether it came of an answer, or of a connection, that took too long."""
        return "Timeout" in self.reason

    @property
    def is_of_breaker(self) -> bool:
        """Whether nobody was asked, since there had been no answer before."""
        return any(words in self.reason for words in ("does not answer", "has not answered"))


class Stall(NamedTuple):
    """A process that wanted to look at the clock got to do so late: the machine had other things to do."""

    ended: float
    seconds: float
    """How late it was."""


BACK = "back"
"""The line in that file when Redis answers again."""


def losses_beside(file: Path) -> Path:
    """Return where a worker notes its losses as they come, a moment a line; its account says more, in the end."""
    return file.with_suffix(".losses")


@dataclass(slots=True)
class Account:
    """All that one worker has to say."""

    kind: str
    records: list[Record] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    back: int = 0
    """`store_back` signals."""
    logged: list[str] = field(default_factory=list)
    """Lines in the log "django_quota", from WARNING upwards."""
    stalls: list[Stall] = field(default_factory=list)
    used: int | None = None
    """What `site.BESIDE` had counted when all workers had ended; None where Redis did not tell."""

    def write(self, path: Path) -> None:
        """Write it to a file."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Account:
        """Read it from a file."""
        given: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for name, kind in (("records", Record), ("losses", Loss), ("stalls", Stall)):
            given[name] = [kind(*fields) for fields in given[name]]
        return cls(**given)
