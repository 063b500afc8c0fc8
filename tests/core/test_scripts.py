"""The Lua files: a head that lists what each takes, and the rules for all."""

import re
from pathlib import Path
from typing import Any

import django_quota
from django_quota import Rule
from django_quota.admin.wording import ALGORITHM_NAMES
from django_quota.core.algorithms import REGISTRY
from django_quota.engine.decide import Decide
from django_quota.engine.operations import lua_source
from django_quota.engine.plans import event_log_of
from tests.support.steps import SECOND, hits_of

FILES = sorted(path.stem for path in (Path(django_quota.__file__).parent / "engine" / "lua").glob("*.lua"))
CODE = re.sub(r"--.*", "", "".join(map(lua_source, FILES)))


def head(name: str) -> str:
    """Return the comment that a Lua file opens with."""
    return re.match(r"(?:--.*\n)*", lua_source(name))[0]  # type: ignore[index]


def test_each_file_has_a_head_and_each_algorithm_gives_back() -> None:
    parts = [(name, part) for name in FILES for part in ("KEYS", "ARGV", "reply")]
    assert [(name, part) for name, part in parts if f"\n-- {part} " not in head(name)] == []
    gives_back = re.findall(r"^  (\w+) = ", lua_source("restore").rpartition("\nreturn {")[2], re.MULTILINE)
    assert set(gives_back) == set(REGISTRY) == set(ALGORITHM_NAMES)


def test_the_head_of_the_decision_lists_the_options_that_the_caller_sends() -> None:
    rules = [
        Rule.make("a b", "5/m; 7/h", warn_at=[0.5, 1.0], ban={"after": "20/m", "for": ["10m", "1h"]}),
        Rule.make("b", "9/d", algorithm="calendar", shadow=True, warn_at=None, count_refused=True),
    ]
    hits = hits_of(*rules, subject="user:1")
    hits += hits_of(Rule.make("c", "3/m", distinct=True), subject="user:1", value="cafe")
    decide = Decide(hits, "check", event_log_of("quota", 99))
    listed = set(re.findall(r'"(\w+)"', head("decide").partition("then its options")[2].partition("-- reply")[0]))
    assert listed == {"counted", "quiet", "shares", "value", "group", "ban", "day"} <= set(decide.arguments())


def test_scripts_touch_declared_keys_only_and_write_no_time_as_a_float() -> None:
    """Lua writes a large number as 1.7637e+15, unless it is formatted."""
    for command, key in re.findall(r"redis\.call\('(\w+)'(?:, ([^,)]+))?", CODE):
        assert command not in {"KEYS", "SCAN", "FLUSHDB", "FLUSHALL", "EVAL"}
        assert (command, key) == ("TIME", "") or re.fullmatch(r"(?:\w+\.)?(?:\w+_)?key|KEYS\[.*", key)
    assert "tostring" not in CODE
    assert not re.search(r"redis\.call\([^\n]*(?:\.\.  now|, now\b)", CODE)


def test_lua_writes_whole_numbers_and_times_to_the_microsecond(raw: Any) -> None:
    source = lua_source("lifetimes") + "return integer(tonumber(ARGV[2]))"
    for number in (0, 99_999_999, 10**8 + 1, 2**31, 10**15, 2**53 - 1):
        assert raw.eval(source, 0, 1, number) == str(number).encode()
    now, year = 4_102_444_799_999_999, 366 * 86_400 * SECOND  # the last microsecond of 2099
    hits = hits_of(Rule.make("a", "1/366d", algorithm="fixed_window"))
    decide = Decide(hits, "check")
    keys: Any = decide.keys
    reply = decide.read_reply(raw.eval(decide.script.text, len(keys), *keys, now, *decide.arguments()))
    assert reply == [now, 1, 1, 0, 0, year, year]
    assert raw.get(hits[0].limits[0].key) == f"1 {now + year}".encode()
