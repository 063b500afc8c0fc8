"""The Lua scripts: read from `lua/`, put together once at import. Pure; it must not know a connection.

`decide.lua` is a frame; the algorithm files are put where it says so, in the order of `ALGORITHMS`: a file may use
what an earlier one defines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from django_quota.algorithms import ALGORITHMS, Mode, Step

_PLACE = "-- %% algorithms %%"


@dataclass(frozen=True, slots=True)
class Script:
    """A script and the digest by which Redis calls it."""

    text: str
    sha: str


def lua_source(name: str) -> str:
    """Return the text of `lua/<name>.lua`."""
    return files("django_quota").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def _script(text: str) -> Script:
    # Redis itself names scripts by their SHA-1.
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _put_together() -> str:
    frame = lua_source("decide")
    if frame.count(_PLACE) != 1:
        raise RuntimeError(f"lua/decide.lua must hold {_PLACE!r} exactly once")
    return frame.replace(_PLACE, "\n".join(lua_source(name) for name in ALGORITHMS))


DECIDE = _script(_put_together())
"""The decision script: any number of limits, mixed algorithms, all or nothing."""


def decide_arguments(steps: Sequence[Step], mode: Mode, now: int | None) -> list[str | int]:
    """Return the arguments of EVALSHA for a plan: digest, number of keys, KEYS and ARGV as `decide.lua` lists them."""
    arguments: list[str | int] = [DECIDE.sha, len(steps)]
    arguments += [step.key for step in steps]
    arguments += ["" if now is None else now, mode]
    for step in steps:
        arguments += (step.wire, step.cost)
    return arguments
