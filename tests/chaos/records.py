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


@dataclass(slots=True)
class Account:
    """All that one worker has to say."""

    kind: str
    records: list[Record] = field(default_factory=list)
    lost: int = 0
    """`store_lost` signals."""
    slow: int = 0
    """Those of them that a time-out brought about."""
    back: int = 0
    """`store_back` signals."""
    logged: list[str] = field(default_factory=list)
    """Lines in the log "django_quota", from WARNING upwards."""

    def write(self, path: Path) -> None:
        """Write it to a file."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Account:
        """Read it from a file."""
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        told["records"] = [Record(*fields) for fields in told["records"]]
        return cls(**told)
