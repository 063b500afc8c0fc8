"""The Lua files: one a script, a head that lists what it takes, and the rules that hold for all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
import redis

import django_quota
from django_quota import Rule
from django_quota.admin.wording import ALGORITHM_NAMES
from django_quota.core.algorithms import REGISTRY
from django_quota.engine.decide import Decide
from django_quota.engine.operations import lua_source
from django_quota.engine.plans import event_log_of
from tests.support.steps import hits_of

FILES = sorted(path.stem for path in (Path(django_quota.__file__).parent / "engine" / "lua").glob("*.lua"))


def head(name: str) -> str:
    """Return the comment that a Lua file opens with."""
    lines = lua_source(name).splitlines()
    return "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("--"))])


def code(name: str) -> str:
    """Return a Lua file without its comments."""
    return re.sub(r"--.*", "", lua_source(name))


def test_a_head_lists_keys_arguments_and_reply() -> None:
    missing = [
        (name, part) for name in FILES for part in ("KEYS", "ARGV", "reply") if f"\n-- {part} " not in head(name)
    ]
    assert missing == []


def test_the_head_of_the_decision_is_what_the_caller_sends() -> None:
    ban = {"after": "20/m", "for": ["10m", "1h"]}
    rules = [
        Rule.make("a b", "5/m; 7/h", ban=ban),
        Rule.make("b", "9/d", algorithm="calendar", shadow=True, warn_at=None, count_refused=True),
    ]
    hits = hits_of(*rules, subject="user:1")
    hits += hits_of(Rule.make("c", "3/m", distinct=True), subject="user:1", value="cafe")
    hits[2].is_estimate = True
    decide = Decide(hits, "check", event_log_of("quota", 99))
    assert [key.removeprefix("quota:1:{user:1}:") for key in decide.keys] == [
        "s", "r:a%20b:sw.60s", "r:a%20b:sw.3600s", "b:a%20b", "day:2025-11-21",
        "s", "r:b:cal.1day.UTC", "day:2025-11-21",
        "s", "r:c:dv.60s", "day:2025-11-21",
        "quota:1:{!}:events", "quota:1:{!}:bans",
    ]  # fmt: skip
    day = ["day", 1763683200000000, 1763769600000000, ""]
    assert decide.arguments() == [
        "check", 99,
        "a%20b", 1, "800", 2, "sliding_window", "5", "60000000", "0", "sliding_window", "7", "3600000000", "0",
        "ban", "20", "60000000", "0", "600000000,3600000000", *day, "",
        "b", 1, "0", 1, "calendar", "9", "1763683200000000", "1763769600000000", "1763856000000000",
        "counted", "1", "quiet", "group", 1, *day, "",
        "c", 1, 0, 1, "distinct", "3", "60000000", "0", "value", "cafe", *day, "",
    ]  # fmt: skip
    listed = set(re.findall(r'"(\w+)"', head("decide").partition("then its options")[2].partition("-- reply")[0]))
    assert listed == {"counted", "quiet", "shares", "value", "group", "ban", "day"}


def test_every_algorithm_gives_back_and_has_a_name_in_the_admin() -> None:
    lua = re.findall(r"^  (\w+) = ", code("restore").rpartition("\nreturn {")[2], re.MULTILINE)
    assert set(lua) == set(REGISTRY) == set(ALGORITHM_NAMES)


def test_scripts_touch_declared_keys_only() -> None:
    for command, key in re.findall(r"redis\.call\('(\w+)'(?:, ([^,)]+))?", "".join(map(code, FILES))):
        assert command not in {"KEYS", "SCAN", "FLUSHDB", "FLUSHALL", "EVAL"}
        assert (command, key) == ("TIME", "") or re.fullmatch(r"(?:\w+\.)?(?:\w+_)?key|KEYS\[.*", key)


def test_no_time_is_written_as_a_float() -> None:
    """Lua writes a large number as 1.7637e+15, unless it is formatted."""
    scripts = "".join(map(code, FILES))
    assert "tostring" not in scripts
    for call in re.findall(r"redis\.call\([^\n]*", scripts):
        assert "..  now" not in call
        assert not re.search(r", now\b", call)


@pytest.mark.parametrize("number", [0, 1, 99_999_999, 10**8, 10**8 + 1, 2**31, 2**32 + 7, 10**15, 2**52 - 1, 2**53 - 1])
def test_lua_writes_whole_numbers_in_full(raw: redis.Redis, number: int) -> None:
    text = lua_source("lifetimes") + "return integer(tonumber(ARGV[2]))"
    assert cast("Any", raw).eval(text, 0, 1, number) == str(number).encode()


def test_a_time_survives_the_way_through_lua_to_the_microsecond(raw: redis.Redis) -> None:
    now = 4_102_444_799_999_999  # the last microsecond of 2099
    hits = hits_of(Rule.make("a", "1/366d", algorithm="fixed_window"))
    decide = Decide(hits, "check")
    keys: Any = decide.keys
    client: Any = raw
    reply = decide.read_reply(client.eval(decide.script.text, len(keys), *keys, now, *decide.arguments()))
    assert reply == [now, 1, 1, 0, 0, 366 * 86_400 * 1_000_000, 366 * 86_400 * 1_000_000]
    assert raw.get(hits[0].limits[0].key) == f"1 {now + 366 * 86_400 * 1_000_000}".encode()
