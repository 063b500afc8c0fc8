"""The Lua files: one a script, a head that lists what it takes, and the rules that hold for all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
import redis

import django_quota
from django_quota.algorithms import ALGORITHMS, Step
from django_quota.rules import Rule
from django_quota.scripts import DECIDE, decide_arguments, lua_source
from tests.steps import steps_of

FILES = sorted(path.stem for path in (Path(django_quota.__file__).parent / "lua").glob("*.lua"))


def evaluate(raw: redis.Redis, steps: list[Step], now: int | None) -> Any:
    """Run the decision as its caller would."""
    return cast("Any", raw).eval(DECIDE.text, *decide_arguments(steps, "check", now)[1:])


def head(name: str) -> str:
    """Return the comment that a Lua file opens with."""
    lines = lua_source(name).splitlines()
    return "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("--"))])


def code(name: str) -> str:
    """Return a Lua file without its comments."""
    return re.sub(r"--.*", "", lua_source(name))


def test_every_algorithm_has_a_file_and_every_file_a_use() -> None:
    assert set(FILES) == {"decide", *ALGORITHMS}


@pytest.mark.parametrize("name", FILES)
def test_a_head_lists_keys_arguments_and_reply(name: str) -> None:
    for part in ("KEYS", "ARGV", "reply"):
        assert re.search(rf"^-- {part} ", head(name), re.MULTILINE), part


def test_the_head_of_the_decision_is_what_the_caller_sends() -> None:
    rules = [Rule.make("a", "5/m; 7/h"), Rule.make("b", "9/d", algorithm="calendar", shadow=True)]
    steps = steps_of(*rules, cost=3)
    sha, number, *rest = decide_arguments(steps, "check", 17)
    keys, argv = rest[: len(steps)], rest[len(steps) :]
    assert (sha, number, keys) == (DECIDE.sha, 3, [step.key for step in steps])
    assert argv[:2] == [17, "check"]
    assert "<algorithm> <capacity> <a> <b> <c> <counted> <group>" in head("decide")
    for wire, cost in zip(argv[2::2], argv[3::2], strict=True):
        name, *numbers = str(wire).split(" ")
        assert name in ALGORITHMS
        assert len(numbers) == 6
        assert all(number.isdecimal() for number in numbers)
        assert cost == 3


def test_the_head_of_the_decision_is_what_it_replies(raw: redis.Redis) -> None:
    steps = steps_of(Rule.make("a", "5/m; 7/h"))
    reply = evaluate(raw, steps, None)
    assert isinstance(reply, list)
    assert len(reply) == 2 + 4 * len(steps)
    assert all(isinstance(number, int) for number in reply)


@pytest.mark.parametrize("name", FILES)
def test_scripts_touch_declared_keys_only(name: str) -> None:
    for command, key in re.findall(r"redis\.call\('(\w+)'(?:, ([^,)]+))?", code(name)):
        assert command not in {"KEYS", "SCAN", "FLUSHDB", "FLUSHALL", "EVAL"}
        assert (command, key) == ("TIME", "") or key in {"limit.key", "key"}


@pytest.mark.parametrize("name", FILES)
def test_no_time_is_written_as_a_float(name: str) -> None:
    """Lua writes a large number as 1.7637e+15, unless it is formatted."""
    assert "tostring" not in code(name)
    for call in re.findall(r"redis\.call\([^\n]*", code(name)):
        assert "..  now" not in call
        assert not re.search(r", now\b", call)


def test_a_time_survives_the_way_through_lua_to_the_microsecond(raw: redis.Redis) -> None:
    rule = Rule.make("a", "1/366d", algorithm="fixed_window")
    now = 4_102_444_799_999_999  # the last microsecond of 2099
    steps = steps_of(rule)
    reply = evaluate(raw, steps, now)
    assert reply == [now, 1, 1, 0, 0, 366 * 86_400 * 1_000_000]
    assert raw.get(steps[0].key) == f"1 {now + 366 * 86_400 * 1_000_000}".encode()
