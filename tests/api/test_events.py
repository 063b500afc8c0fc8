"""The event stream: read, followed, and handed to a program: at least once, and byte by byte as it is."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from django_quota import check
from django_quota.core.keys import escape, field
from django_quota.engine.events import AppendEvents, EventRecord, NextEvent
from django_quota.engine.operations import Operation
from django_quota.engine.plans import event_log_of
from django_quota.exceptions import StoreUnavailable
from django_quota.management.programs import Program, UnfitError
from django_quota.services import event_stream as module
from django_quota.services.event_stream import BEGINNING, START_ID, Event, EventGroup, EventStream
from django_quota.stores.redis.store import RedisStore
from django_quota.testing import freeze
from tests.support.commands import Manage, managing, wait_until
from tests.support.steps import SECOND, START
from tests.support.stores import caches

STREAM = "quota:1:{!}:events"
BANNED_STREAM = "quota:1:{!}:events:banned"
DEAD = "quota:1:{!}:dead:quota_events"

pytestmark = pytest.mark.usefixtures("redis_cache")

# Writes its arguments, in the system's own bytes, as one line; "go" holds it until the file of that name is there.
RECORD = """
import os, sys
path, *words = sys.argv[1:]
line = " ".join(os.fsencode(word).hex() or "-" for word in words) + "\\n"
with open(path, "ab", buffering=0) as file:
    file.write(line.encode())
"""


def stored(subject: str, kind: str = "refused", rule: str = "login", **fields: Any) -> dict[Any, Any]:
    """Return the fields of an event, as the decision script writes them."""
    names = {"kind": kind, "rule": field(rule), "subject": escape(subject)}
    return {**names, "until": 0, "level": 0, "capacity": 10, "remaining": 0, **fields}


def tell(raw: redis.Redis, subject: str, **fields: Any) -> str:
    """Write an event; return its id."""
    entry_id: Any = raw.xadd(STREAM, stored(subject, **fields))
    return str(entry_id.decode())


def at(raw: redis.Redis, moment: int, subject: str, **fields: Any) -> str:
    """Write an event of a moment (microseconds); return its id."""
    entry_id: Any = raw.xadd(STREAM, stored(subject, **fields), id=f"{moment // 1000}-0")
    return str(entry_id.decode())


def ran(path: Path) -> list[list[str]]:
    """Return the arguments of each run of the recording program."""
    if not path.exists():
        return []
    return [[bytes.fromhex(word).decode() for word in line.split()] for line in path.read_text().splitlines()]


def recorder(path: Path, *words: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", RECORD, str(path), *words]


def consume(*words: str, **options: Any) -> str:
    """Run the command in this process until there is nothing more to do; return what it said."""
    said = io.StringIO()
    given = {"group": "quota_events", "consumer": "c1", "since": "beginning", "backoff": 0.0, **options}
    call_command("quota_events", exec=list(words), drain=True, stdout=io.StringIO(), stderr=said, **given)
    return said.getvalue()


def shown(*words: str) -> list[str]:
    out = io.StringIO()
    call_command("quota_events", *words, stdout=out)
    return out.getvalue().splitlines()


def take(group: EventGroup) -> Any:
    """Take what there is next; there must be something."""
    taken = group.take()
    assert taken is not None
    return taken


def pending(raw: redis.Redis) -> int:
    summary: Any = raw.xpending(STREAM, "quota_events")
    return int(summary["pending"])


@pytest.fixture
def stream() -> Iterator[EventStream]:
    store = RedisStore("default")
    yield EventStream(store, "quota")
    store.close()


@pytest.fixture
def manage(redis_server: Any, raw: redis.Redis, tmp_path: Path) -> Iterator[Manage]:
    with managing(tmp_path, caches(redis_server, decode_responses=True)) as started:
        yield started


# --- events -----------------------------------------------------------------------------------------------------------

names = st.text(min_size=1, max_size=16)  # escaped, each character takes twelve at most: no digest stands for them


@given(names, names)
def test_rule_and_subject_come_back_as_they_were(rule: str, subject: str) -> None:
    fields = {"kind": "banned", "rule": field(rule), "subject": escape(subject), "until": str(START + 5 * SECOND)}
    event = Event.read(f"{START // 1000}-0", {**fields, "level": "2", "capacity": "10", "remaining": "0"})
    assert (event.rule, event.subject) == (rule, subject)
    assert (event.at, event.lasts, event.level) == (START, 5 * SECOND, 2)
    assert json.loads(json.dumps(event.as_json()))["subject"] == subject


def test_very_long_names_are_none() -> None:
    fields = {"kind": "near", "rule": field("r" * 300), "subject": escape("s" * 300), "until": "0", "level": "0"}
    event = Event.read("1-0", {**fields, "capacity": "10", "remaining": "1"})
    assert (event.rule, event.subject, event.value, event.lasts) == (None, None, None, 0)


def test_events_of_the_decision_script_are_read(settings: Any) -> None:
    rule = {"rate": "4/m", "warn_at": 0.5, "ban": {"after": "2/m", "for": ["10m"]}}
    settings.QUOTA = {"RULES": {"log:in\n": rule}}
    with freeze(START):
        for _ in range(7):
            check("log:in\n", "name:{a} b\u2028")
    lines = [json.loads(line) for line in shown("--json")]
    assert [line["kind"] for line in lines] == ["near", "refused", "banned"]
    assert {(line["rule"], line["subject"], line["capacity"]) for line in lines} == {
        ("log:in\n", "name:{a} b%E2%80%A8", 4)  # a subject's own control characters are escaped before
    }
    assert [line["remaining"] for line in lines] == [2, 0, 0]
    assert [line["level"] for line in lines] == [0, 0, 1]
    ends = (None, "2025-11-21T04:41:00+00:00", "2025-11-21T04:50:00+00:00")
    assert tuple(line["until"] for line in lines) == ends


@pytest.mark.parametrize(
    ("subject", "value"),
    [("ip:203.0.113.9", "203.0.113.9"), ("ip:2001:db8::/64", "2001:db8::/64"), ("global", "global"), ("a:", "a:")],
)
def test_the_value_is_the_subject_without_its_kind(subject: str, value: str) -> None:
    fields = {"kind": "near", "rule": "r", "subject": escape(subject), "until": "0", "level": "0"}
    assert Event.read("1-0", {**fields, "capacity": "1", "remaining": "0"}).value == value


def test_the_last_are_found_over_many_pages_the_oldest_first(
    stream: EventStream, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    for number in range(20):
        tell(raw, f"user:{number}", rule="odd" if number % 2 else "even")
    raw.xadd(STREAM, {"an": "alien"})
    last = stream.last(4, lambda event: event.rule == "odd")
    assert [event.subject for event in last] == ["user:13", "user:15", "user:17", "user:19"]
    assert len(stream.last(100, lambda event: True)) == 20
    assert stream.last(0, lambda event: True) == []


@pytest.mark.thorough("processes")
def test_reading_works_with_a_short_socket_timeout(redis_server: Any, raw: redis.Redis, settings: Any) -> None:
    settings.CACHES = caches(redis_server, socket_timeout=0.9)  # it waits for a second
    store = RedisStore("default")
    stream = EventStream(store, "quota")
    group = EventGroup(stream, "g", "c", 1)
    group.begin(BEGINNING)
    assert stream.after(START_ID) == []
    assert group.take() is None
    entry_id = tell(raw, "ip:1")
    assert [entry.id for entry in stream.after(START_ID)] == [entry_id]
    assert take(group).id == entry_id
    store.close()


# --- printing ---------------------------------------------------------------------------------------------------------


def test_the_last_are_printed_as_lines(raw: redis.Redis) -> None:
    at(raw, START, "ip:1", until=START + 61 * SECOND)
    at(raw, START + SECOND, "ip:2", kind="banned", until=START + 601 * SECOND, level=2)
    at(raw, START + 2 * SECOND, "ip:3", kind="near", remaining=2)
    at(raw, START + 3 * SECOND, "ip:4")
    assert shown() == [
        "2025-11-21 04:40:00Z  refused  login  ip:1  for 1 minute 1 second",
        "2025-11-21 04:40:01Z  banned   login  ip:2  for 10 minutes, ban 2 in a row",
        "2025-11-21 04:40:02Z  near     login  ip:3  2 of 10 left",
        "2025-11-21 04:40:03Z  refused  login  ip:4  waiting does not help",
    ]
    assert [line.split()[4] for line in shown("--last", "2")] == ["ip:3", "ip:4"]
    assert [line.split()[4] for line in shown("--kind", "banned", "--kind", "near")] == ["ip:2", "ip:3"]
    assert shown("--rule", "other") == []


def test_json_has_one_object_a_line_with_times_in_utc(raw: redis.Redis) -> None:
    entry_id = at(raw, START, "ip:1\n\x1b[2J\udc80", until=START + SECOND)
    at(raw, START + SECOND, "ip:2")
    first, second = map(json.loads, shown("--json"))
    assert first == {
        "id": entry_id,
        "at": "2025-11-21T04:40:00+00:00",
        "kind": "refused",
        "rule": "login",
        "subject": "ip:1\n\x1b[2J\udc80",
        "until": "2025-11-21T04:40:01+00:00",
        "level": 0,
        "capacity": 10,
        "remaining": 0,
    }
    assert second["until"] is None


def test_a_name_cannot_break_a_line_or_control_the_terminal(raw: redis.Redis) -> None:
    tell(raw, "ip:1\n2025 refused\r\x1b[2J\u2028\udc80", rule="a\nb")
    (line,) = shown()
    assert line.isprintable()
    assert r"ip:1\n2025 refused\r\x1b[2J\u2028\udc80" in line


def test_following_prints_what_comes_and_ends_on_a_signal(manage: Manage, raw: redis.Redis) -> None:
    tell(raw, "ip:1")
    tell(raw, "ip:2", rule="other")
    process = manage.start("quota_events", "--follow", "--json", "--rule", "login")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["subject"] == "ip:1"
    tell(raw, "ip:3", rule="other")
    tell(raw, "ip:4")
    assert json.loads(process.stdout.readline())["subject"] == "ip:4"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert process.stdout.read() == ""


# --- a program for each event: what it is given -----------------------------------------------------------------------


def values(**changed: str) -> dict[str, str]:
    return {"value": "203.0.113.9", "kind": "banned", "seconds": "600", **changed}


def test_placeholders_are_replaced_once_and_other_braces_stay() -> None:
    program = Program(["fw", "add", "{value}", "{kind}:{seconds}", "{}", "{other}", "{{value}}"], 1)
    assert program.arguments(values(value="{kind}")) == [
        b"fw", b"add", b"{kind}", b"banned:600", b"{}", b"{other}", b"{{kind}}",
    ]  # fmt: skip


@pytest.mark.parametrize("word", ["{value}", "--ip={value}", "{ {value} }", "-{value}"])
@pytest.mark.parametrize("value", ["-rf", "@blocked", "@/etc/passwd"])
def test_a_value_cannot_become_an_option_or_a_file(word: str, value: str) -> None:
    with pytest.raises(UnfitError, match="reads as an option or a file"):
        Program(["fw", word], 1).arguments(values(value=value))


def test_an_empty_value_does_not_turn_what_follows_into_an_option() -> None:
    with pytest.raises(UnfitError, match="would become '-x'"):
        Program(["fw", "{value}-x"], 1).arguments(values(value=""))
    assert Program(["fw", "-x{value}"], 1).arguments(values(value="")) == [b"fw", b"-x"]


def test_an_address_comes_with_its_family(raw: redis.Redis, tmp_path: Path) -> None:
    tell(raw, "ip:203.0.113.9")
    tell(raw, "ip:2001:db8::/64")
    said = consume(*recorder(tmp_path / "ran", "blocked{family}", "{ {ip} }"))
    assert ran(tmp_path / "ran") == [["blocked4", "{ 203.0.113.9 }"], ["blocked6", "{ 2001:db8::/64 }"]]
    assert "skipped" not in said


@pytest.mark.parametrize(
    "subject",
    [
        "user:1",
        "global",
        "203.0.113.9",
        "ip:203.0.113.9 }; flush ruleset; #",
        "ip:203.0.113.9+post.phone:7b1d",
        "post.phone:7b1d+ip:203.0.113.9",
        "ip:203.0.113.0/24",
        "ip:0.0.0.0/0",
        "ip:::/0",
        "ip:2001:db8::/32",
        "ip:2001:db8::1",
        "ip:fe80::1%}; flush ruleset; #",
        "ip:203.0.113.9\n",
        "ip:٢٠٣.0.113.9",
        "ip:@blocked",
        "ip:-rf",
        "ip:",
        "key.by_name:203.0.113.9",
        "ip:" + "a" * 300,
    ],
)
def test_an_event_of_no_single_address_is_skipped_where_the_program_takes_one(
    raw: redis.Redis, tmp_path: Path, subject: str
) -> None:
    tell(raw, subject)
    tell(raw, "ip:203.0.113.9")
    said = consume(*recorder(tmp_path / "ran", "{ip}"))
    assert ran(tmp_path / "ran") == [["203.0.113.9"]]
    assert said.count("is skipped: its subject") == 1
    assert pending(raw) == 0
    assert shown("--dead") == []


def test_whole_ipv6_addresses_are_single_with_the_prefix_128(raw: redis.Redis, tmp_path: Path, settings: Any) -> None:
    settings.QUOTA = {"IPV6_PREFIX": 128}
    tell(raw, "ip:2001:db8::1")
    tell(raw, "ip:2001:db8::/64")
    assert "ip:2001:db8::/64" in consume(*recorder(tmp_path / "ran", "{ip}"))
    assert ran(tmp_path / "ran") == [["2001:db8::1"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sh", "-c", "ban {value}"], "{value} is in the script of sh -c"),
        (["/bin/bash", "-ec", "ban $1", "ban", "{subject}"], '"$QUOTA_EVENT_SUBJECT" in the script'),
        (["sh", "-ce", "ban {value}"], "{value} is in the script of sh -c"),
        (["sudo", "dash", "-c", "ban {ip}"], "{ip} is in the script of dash -c"),
        (["nft", "add", "element", "inet", "filter", "blocked", "{ {value} }"], "Use {ip} instead"),
        (["ssh", "fw", "ban", "{rule}"], "ssh parses its arguments"),
        (["sh", "ban.sh", "{value}"], ""),
        (["sh", "-c", 'ban "$QUOTA_EVENT_VALUE"'], ""),
        (["nft", "add", "element", "inet", "filter", "blocked{family}", "{ {ip} }"], ""),
        (["ban", "-c", "{value}"], ""),
        (
            ["ban", "--net=a{vlue}"],
            "{vlue} is not a placeholder, so the program gets it unchanged. Did you mean {value}?",
        ),
        (["awk", "{print}"], ""),
    ],
)
def test_placeholders_that_are_unsafe_or_misspelt_are_warned_of(words: list[str], said: str) -> None:
    warning = Program(words, 1).warning
    assert said in warning
    assert bool(warning) is bool(said)


def test_the_warning_is_printed_when_the_consumer_starts() -> None:
    assert "Warning: {value} is in the script of sh -c" in consume("sh", "-c", "true {value}")


def test_an_event_does_not_choose_the_program() -> None:
    for words in ([], [""], ["{value}"], ["/bin/{kind}", "x"]):
        with pytest.raises(ValueError, match="program"):
            Program(words, 1)


@pytest.mark.parametrize(
    ("subject", "said"),
    [("ip:-rf", "reads as an option"), ("ip:a\0b", "null byte"), ("ip:" + "a" * 300, "only a digest is known")],
)
def test_an_event_that_is_unfit_becomes_a_dead_letter_and_runs_nothing(
    raw: redis.Redis, tmp_path: Path, subject: str, said: str
) -> None:
    entry_id = tell(raw, subject)
    tell(raw, "ip:fine")
    assert said in consume(*recorder(tmp_path / "ran", "{value}"))
    assert ran(tmp_path / "ran") == [["fine"]]
    assert pending(raw) == 0
    (dead,) = map(json.loads, shown("--dead", "--json"))
    assert dead["id"] == entry_id
    assert dead["subject"] == (None if len(subject) > 200 else subject)


def test_a_single_argument_is_split_into_words_without_a_shell(raw: redis.Redis, tmp_path: Path) -> None:
    tell(raw, "ip:1 2")
    script = tmp_path / "record.py"
    script.write_text(RECORD)
    path = tmp_path / "ran"
    assert "attempt" not in consume(f"{sys.executable} -I -S {script} {path} '{{value}} x' $HOME")
    assert ran(path) == [["1 2 x", "$HOME"]]


# --- a program for each event: how often ------------------------------------------------------------------------------


def test_unwanted_events_are_acknowledged_and_not_run(raw: redis.Redis, tmp_path: Path) -> None:
    tell(raw, "ip:1")
    tell(raw, "ip:2", kind="banned", rule="other")
    tell(raw, "ip:3", kind="banned")
    raw.xadd(STREAM, {"an": "alien"})
    said = consume(*recorder(tmp_path / "ran", "{value}"), kind=["banned"], rule=["login"])
    assert ran(tmp_path / "ran") == [["3"]]
    assert "is not an event" in said
    assert pending(raw) == 0


def test_a_failed_event_is_retried_then_given_up_and_blocks_no_other(raw: redis.Redis, tmp_path: Path) -> None:
    first = tell(raw, "ip:bad")
    tell(raw, "ip:good")
    code = RECORD + "sys.exit(words == [b'bad'.decode()])"
    said = consume(sys.executable, "-I", "-S", "-c", code, str(tmp_path / "ran"), "{value}", retries=2)
    assert ran(tmp_path / "ran") == [["bad"], ["bad"], ["bad"], ["good"]]
    assert said.count("its exit status was 1") == 4  # three attempts, and when it is given up
    assert pending(raw) == 0
    assert [json.loads(line)["id"] for line in shown("--dead", "--json")] == [first]
    assert raw.ttl(DEAD) > 0


def test_an_event_that_succeeds_in_the_end_is_no_dead_letter(raw: redis.Redis, tmp_path: Path) -> None:
    tell(raw, "ip:1")
    path = tmp_path / "ran"
    code = RECORD + "sys.exit(len(open(path).readlines()) < 3)"
    consume(sys.executable, "-I", "-S", "-c", code, str(path), "{value}", retries=2)
    assert len(ran(path)) == 3
    assert (pending(raw), raw.exists(DEAD)) == (0, 0)


def test_a_program_that_cannot_be_started_is_a_failure_like_others(raw: redis.Redis, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o700)
    tell(raw, "ip:1")
    assert "could not start" in consume(str(program), "x", retries=0)
    assert raw.xlen(DEAD) == 1


def test_a_missing_program_is_an_error_before_any_event_is_lost_on_it(raw: redis.Redis) -> None:
    tell(raw, "ip:1")
    with pytest.raises(CommandError, match="there is no program '/no/such/program'"):
        consume("/no/such/program", "x", retries=0)
    assert raw.xlen(DEAD) == 0


@pytest.mark.thorough("processes")
def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    path = tmp_path / "child"
    program = Program(["/bin/sh", "-c", 'sleep 600 & echo $! > "$0"; wait', str(path)], 3.0)  # quick to start
    assert program.run(Event("1-0", "near", "r", "s", 0, 0, 1, 0)) == "it did not end within 3 s and was killed"
    child = int(path.read_text())
    wait_until(lambda: _is_gone(child))


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(("since", "expected"), [("now", []), ("beginning", ["1", "2", "3"])])
def test_a_new_group_begins_where_since_says(raw: redis.Redis, tmp_path: Path, since: str, expected: list[str]) -> None:
    for number in (1, 2, 3):
        at(raw, START + number * SECOND, f"ip:{number}")
    consume(*recorder(tmp_path / "ran", "{value}"), since=since)
    assert ran(tmp_path / "ran") == [[value] for value in expected]
    tell(raw, "ip:4")
    consume(*recorder(tmp_path / "ran", "{value}"), since="beginning")  # the group is there: it goes on where it was
    assert ran(tmp_path / "ran") == [[value] for value in [*expected, "4"]]


def test_a_new_group_may_begin_at_a_date(raw: redis.Redis, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        at(raw, START + number * SECOND, f"ip:{number}")
    consume(*recorder(tmp_path / "ran", "{value}"), since="2025-11-21T04:40:02Z")
    assert ran(tmp_path / "ran") == [["2"], ["3"]]


def test_a_stream_that_a_group_has_made_has_a_ttl(raw: redis.Redis) -> None:
    consume("true", "x")
    assert raw.ttl(STREAM) > 0


def test_unfinished_events_of_a_consumer_come_first(raw: redis.Redis, tmp_path: Path) -> None:
    tell(raw, "ip:1")
    tell(raw, "ip:2")
    raw.xgroup_create(STREAM, "quota_events", BEGINNING)
    raw.xreadgroup("quota_events", "c1", {STREAM: ">"}, 1)
    tell(raw, "ip:3")
    consume(*recorder(tmp_path / "ran", "{value}"))
    assert ran(tmp_path / "ran") == [["1"], ["2"], ["3"]]
    assert pending(raw) == 0


def test_events_left_too_long_are_taken_over_and_running_ones_are_not(raw: redis.Redis, tmp_path: Path) -> None:
    left = tell(raw, "ip:left")
    tell(raw, "ip:busy")
    raw.xgroup_create(STREAM, "quota_events", BEGINNING)
    raw.xreadgroup("quota_events", "killed", {STREAM: ">"}, 2)
    raw.xclaim(STREAM, "quota_events", "killed", 0, [left], idle=3_600_000)
    consume(*recorder(tmp_path / "ran", "{value}"))
    assert ran(tmp_path / "ran") == [["left"]]
    assert pending(raw) == 1


def test_an_event_in_work_is_not_idle(stream: EventStream, raw: redis.Redis) -> None:
    entry_id = tell(raw, "ip:1")
    mine, other = (EventGroup(stream, "g", name, 60) for name in ("mine", "other"))
    mine.begin(BEGINNING)
    assert mine.take() is not None
    raw.xclaim(STREAM, "g", "mine", 0, [entry_id], idle=3_600_000)
    mine.keep(entry_id)
    assert other.take() is None
    raw.xclaim(STREAM, "g", "mine", 0, [entry_id], idle=3_600_000)
    other = EventGroup(stream, "g", "third", 60)
    taken = take(other)
    assert (taken.id, taken.found) == (entry_id, "left")


# --- what is missing --------------------------------------------------------------------------------------------------


def test_a_stream_that_was_trimmed_past_what_was_read_is_noticed(stream: EventStream, raw: redis.Redis) -> None:
    group = EventGroup(stream, "g", "c", 60)
    first = tell(raw, "ip:1")
    group.begin(BEGINNING)
    assert take(group).behind is None
    for number in range(5):
        tell(raw, f"ip:{number}")
    raw.xtrim(STREAM, maxlen=2, approximate=False)
    assert take(group).behind == first
    assert take(group).behind is None


def test_a_loss_is_noticed_where_the_group_began_on_an_empty_stream(stream: EventStream, raw: redis.Redis) -> None:
    group = EventGroup(stream, "g", "c", 60)
    group.begin(stream.last_id())
    assert raw.ttl(STREAM) > 0
    for number in range(5):
        tell(raw, f"ip:{number}")
    raw.xtrim(STREAM, maxlen=2, approximate=False)
    taken = take(group)
    assert (taken.event.subject, taken.behind) == ("ip:3", START_ID)
    assert take(group).behind is None


def test_a_group_that_began_on_an_empty_untrimmed_stream_misses_nothing(stream: EventStream, raw: redis.Redis) -> None:
    groups = [EventGroup(stream, name, "c", 60) for name in ("one", "two")]
    for group in groups:
        group.begin(BEGINNING)
        assert group.take(1) is None or group is groups[1]
    tell(raw, "ip:1")
    for group in groups:
        assert take(group).behind is None


def test_the_command_says_what_is_missing_since_the_group_began(raw: redis.Redis, tmp_path: Path) -> None:
    assert "no event" not in consume(*recorder(tmp_path / "ran", "{value}"), since="now")
    at(raw, START, "ip:1")
    at(raw, START + SECOND, "ip:2")
    raw.xtrim(STREAM, maxlen=1, approximate=False)
    said = consume(*recorder(tmp_path / "ran", "{value}"))
    assert "events before 2025-11-21T04:40:01+00:00 are lost" in said
    assert ran(tmp_path / "ran") == [["2"]]


def test_the_start_entry_of_a_group_is_no_event(raw: redis.Redis, tmp_path: Path) -> None:
    consume(*recorder(tmp_path / "ran", "{value}"), group="first", since="now")
    tell(raw, "ip:1")
    said = consume(*recorder(tmp_path / "ran", "{value}"), since="beginning")
    assert "no event" not in said
    assert ran(tmp_path / "ran") == [["1"]]
    assert pending(raw) == 0
    assert len(shown()) == 1


def test_a_stream_that_was_trimmed_up_to_what_was_read_is_whole(stream: EventStream, raw: redis.Redis) -> None:
    group = EventGroup(stream, "g", "c", 60)
    tell(raw, "ip:1")
    tell(raw, "ip:2")
    group.begin(stream.last_id())
    raw.xtrim(STREAM, maxlen=1, approximate=False)
    tell(raw, "ip:3")
    assert take(group).behind is None


def test_the_command_says_what_is_missing(raw: redis.Redis, tmp_path: Path) -> None:
    at(raw, START, "ip:1")
    consume(*recorder(tmp_path / "ran", "{value}"))
    at(raw, START + SECOND, "ip:2")
    at(raw, START + 2 * SECOND, "ip:3")
    raw.xtrim(STREAM, maxlen=1, approximate=False)
    said = consume(*recorder(tmp_path / "ran", "{value}"))
    assert "after 2025-11-21T04:40:00+00:00 and before 2025-11-21T04:40:02+00:00" in said
    assert ran(tmp_path / "ran") == [["1"], ["3"]]


@pytest.mark.parametrize("consumer", ["c1", "killed"])
def test_an_event_that_was_trimmed_before_it_was_done_is_named(raw: redis.Redis, tmp_path: Path, consumer: str) -> None:
    gone = tell(raw, "ip:1")
    raw.xgroup_create(STREAM, "quota_events", BEGINNING)
    raw.xreadgroup("quota_events", consumer, {STREAM: ">"}, 1)
    raw.xclaim(STREAM, "quota_events", consumer, 0, [gone], idle=3_600_000)
    tell(raw, "ip:2")
    raw.xtrim(STREAM, maxlen=1, approximate=False)
    said = consume(*recorder(tmp_path / "ran", "{value}"))
    assert f"Event {gone} is missing" in said
    assert ran(tmp_path / "ran") == [["2"]]
    assert pending(raw) == 0


class TestBansInAFloodOfRefusals:
    """A ban is an event that somebody acts on: refusals must not push it out before that."""

    @pytest.fixture(autouse=True)
    def small_stream(self, settings: Any) -> None:
        settings.QUOTA = {**(getattr(settings, "QUOTA", None) or {}), "EVENTS": 10}

    @staticmethod
    def ban(subject: str = "ip:192.0.2.1") -> None:
        for _ in range(3):
            check("1/h", subject, name="login", ban={"after": "1/h", "for": ["1h"]})

    @staticmethod
    def flood(raw: redis.Redis) -> None:
        with raw.pipeline(transaction=False) as pipeline:
            for number in range(400):
                pipeline.xadd(STREAM, stored(f"header.x:{number}"), maxlen=10)
            pipeline.execute()
        kinds = [fields[b"kind"] for _, fields in cast("Any", raw.xrange(STREAM))]
        assert b"banned" not in kinds

    def test_the_group_is_handed_the_ban(self, raw: redis.Redis, tmp_path: Path) -> None:
        check("0/m", "ip:192.0.2.9", name="first")
        consume(*recorder(tmp_path / "ran", "{kind}", "{value}"))
        self.ban()
        self.ban("ip:192.0.2.2")
        self.flood(raw)
        said = consume(*recorder(tmp_path / "ran", "{kind}", "{value}"))
        assert "Events are missing" in said
        assert [words for words in ran(tmp_path / "ran") if words[0] == "banned"] == [
            ["banned", "192.0.2.1"],
            ["banned", "192.0.2.2"],
        ]
        assert pending(raw) == 0
        consume(*recorder(tmp_path / "again", "{kind}"))
        assert ran(tmp_path / "again") == []

    def test_a_group_that_has_read_nothing_yet_is_handed_it_too(self, raw: redis.Redis, tmp_path: Path) -> None:
        cast("Any", EventGroup(EventStream(RedisStore("default"), "quota"), "quota_events", "c1", 60)).begin(BEGINNING)
        self.ban()
        self.flood(raw)
        consume(*recorder(tmp_path / "ran", "{kind}"), kind=["banned"])
        assert ran(tmp_path / "ran") == [["banned"]]

    def test_a_consumer_that_dies_before_it_is_done_leaves_it_to_the_next(
        self, raw: redis.Redis, stream: EventStream
    ) -> None:
        first, second = (EventGroup(stream, "g", name, 60) for name in ("a", "b"))
        check("0/m", "ip:192.0.2.9", name="first")
        first.begin(BEGINNING)
        assert first.take()
        self.ban()
        self.flood(raw)
        for group in (first, second):
            assert take(group).event.kind == "banned"

    @pytest.mark.thorough("processes")
    @pytest.mark.parametrize("consumer", ["c1", "killed"])
    def test_a_ban_that_was_taken_and_not_handled_is_handled(
        self, raw: redis.Redis, stream: EventStream, tmp_path: Path, consumer: str
    ) -> None:
        self.ban()
        group = EventGroup(stream, "quota_events", consumer, 60)
        group.begin(BEGINNING)
        while (taken := group.take()) and taken.event and taken.event.kind != "banned":
            group.acknowledge(taken.id)
        assert taken is not None
        raw.xclaim(STREAM, "quota_events", consumer, 0, [taken.id], idle=3_600_000)
        self.flood(raw)
        consume(*recorder(tmp_path / "ran", "{kind}", "{value}"))
        assert [words for words in ran(tmp_path / "ran") if words[0] == "banned"] == [["banned", "192.0.2.1"]]
        assert pending(raw) == 0

    def test_a_ban_that_is_given_up_becomes_a_dead_letter(self, raw: redis.Redis) -> None:
        check("0/m", "ip:192.0.2.9", name="first")
        consume("true")
        self.ban()
        self.flood(raw)
        consume("false", retries=0, kind=["banned"])
        (line,) = shown("--dead")
        assert "192.0.2.1" in line

    def test_kind_banned_shows_it(self, raw: redis.Redis) -> None:
        self.ban()
        for number in range(250):
            check("0/m", f"header.x:{number}", name="api")
        assert b"banned" not in [fields[b"kind"] for _, fields in cast("Any", raw.xrange(STREAM))]
        (line,) = shown("--kind", "banned")
        assert "ip:192.0.2.1" in line

    def test_a_clock_that_steps_back_loses_no_ban_and_refuses_nobody_by_mistake(self, raw: redis.Redis) -> None:
        raw.xadd(BANNED_STREAM, stored("ip:192.0.2.8", kind="banned"), id="9999999999999-0")
        for _ in range(3):
            decision = check("1/h", "ip:192.0.2.1", name="login", ban={"after": "1/h", "for": ["1h"]})
        assert (decision.allowed, decision.degraded) == (False, False)
        assert raw.xlen(BANNED_STREAM) == 2

    def test_events_that_a_cluster_writes_afterwards_are_kept_too(self, raw: redis.Redis, stream: EventStream) -> None:
        news = [EventRecord("refused", "r", "ip:192.0.2.1"), EventRecord("banned", "r", "ip:192.0.2.1", 5, 1, 1)]
        stream.store.run(AppendEvents(event_log_of("quota", 10), news))
        assert raw.xrange(BANNED_STREAM) == cast("Any", raw.xrange(STREAM))[1:]
        assert 0 < raw.ttl(BANNED_STREAM) <= 400 * 86_400 + 3_600


def test_a_group_whose_redis_lost_its_memory_says_so(stream: EventStream, raw: redis.Redis) -> None:
    group = EventGroup(stream, "g", "c", 60)
    group.begin(BEGINNING)
    assert group.take() is None
    for lost in (STREAM, "g"):
        if lost == "g":
            cast("Any", raw).xgroup_destroy(STREAM, "g")
        else:
            raw.delete(STREAM)
        tell(raw, "ip:1")
        with pytest.raises(LookupError):
            group.take()
        group.begin(BEGINNING)
        assert group.take() is not None
    raw.flushall()
    with pytest.raises(LookupError):
        group.take()


def test_other_errors_are_not_mistaken_for_a_lost_memory(stream: EventStream, raw: redis.Redis) -> None:
    raw.set(STREAM, "no stream")
    group = EventGroup(stream, "g", "c", 60)
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        group.begin(BEGINNING)
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        group.take()


# --- real processes ---------------------------------------------------------------------------------------------------


def _has_run(path: Path, times: int) -> bool:
    return len(ran(path)) >= times


@pytest.mark.thorough("processes")
def test_killed_at_any_moment_and_started_again_it_misses_nothing(
    manage: Manage, raw: redis.Redis, tmp_path: Path
) -> None:
    path = tmp_path / "ran"
    words = ["quota_events", "--since", "beginning", "--consumer", "c1", "--exec", *recorder(path, "{value}")]
    sent = {str(number) for number in range(60)}
    for number in range(60):
        tell(raw, f"ip:{number}")
    for enough in (3, 9, 15, 21, 28, 35):
        process = manage.start(*words)
        wait_until(partial(_has_run, path, enough))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        process.send_signal(signal.SIGSTOP)  # so that the program that runs is known: it dies too, as with the machine
        programs = [int(pid) for pid in children.read_text().split()]
        process.kill()
        process.wait()
        for pid in programs:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process = manage.start(*words)
    wait_until(lambda: {value for (value,) in ran(path)} == sent and pending(raw) == 0)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    assert len(ran(path)) <= 60 + 6, "a kill costs at most one repetition"


@pytest.mark.thorough("processes")
def test_two_consumers_share_the_events(manage: Manage, raw: redis.Redis, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    for name in ("c1", "c2"):
        manage.start("quota_events", "--since", "beginning", "--consumer", name, "--exec", *recorder(path, "{value}"))
    for number in range(30):
        tell(raw, f"ip:{number}")
    wait_until(lambda: len(ran(path)) >= 30)
    assert sorted(int(value) for (value,) in ran(path)) == list(range(30))


def consumer_at_a_gate(manage: Manage, raw: redis.Redis, tmp_path: Path) -> tuple[Any, Path, Path]:
    """Start a consumer of two events whose program waits until the gate, a pipe, is opened for writing.

    Return the process, the file that notes what ran, and the gate.
    """
    path, gate = tmp_path / "ran", tmp_path / "gate"
    os.mkfifo(gate)
    tell(raw, "ip:1")
    tell(raw, "ip:2")
    code = RECORD + f"open({str(gate)!r}).read()"
    process = manage.start(
        "quota_events", "--since", "beginning", "--exec", sys.executable, "-I", "-S", "-c", code, str(path), "{value}"
    )
    return process, path, gate


@pytest.mark.thorough("processes")
def test_two_consumers_of_one_host_do_not_run_an_event_at_once(
    manage: Manage, raw: redis.Redis, tmp_path: Path
) -> None:
    busy, path, gate = consumer_at_a_gate(manage, raw, tmp_path)
    wait_until(lambda: ran(path))
    manage.start("quota_events", "--exec", *recorder(path, "{value}"))
    wait_until(lambda: len(ran(path)) == 2)
    assert ran(path) == [["1"], ["2"]]
    busy.send_signal(signal.SIGTERM)
    with gate.open("w"):
        pass
    assert busy.wait() == 0


def test_consumers_without_a_name_leave_none_behind(raw: redis.Redis, tmp_path: Path) -> None:
    for number in range(3):
        tell(raw, f"ip:{number}")
        consume(*recorder(tmp_path / "ran", "{value}"), consumer=None)
    assert len(ran(tmp_path / "ran")) == 3
    assert raw.xinfo_consumers(STREAM, "quota_events") == []


def test_a_consumer_tidies_up_behind_those_that_were_killed(raw: redis.Redis, stream: EventStream) -> None:
    for name in ("killed", "busy"):
        EventGroup(stream, "quota_events", name, 60).begin(BEGINNING)
        tell(raw, f"ip:{name}")
        raw.xreadgroup("quota_events", name, {STREAM: ">"}, 1)
        if name == "killed":
            raw.xack(STREAM, "quota_events", *[each["message_id"] for each in _pending_of(raw, name)])
    EventGroup(stream, "quota_events", "new", 0).tidy()
    assert [each["name"] for each in cast("Any", raw).xinfo_consumers(STREAM, "quota_events")] == [b"busy"]


def _pending_of(raw: redis.Redis, name: str) -> Any:
    return raw.xpending_range(STREAM, "quota_events", "-", "+", 9, name)


def test_the_event_of_a_stopped_consumer_is_taken_over_at_once(stream: EventStream, raw: redis.Redis) -> None:
    entry_id = tell(raw, "ip:1")
    stopped, other = (EventGroup(stream, "g", name, 60) for name in ("stopped", "other"))
    stopped.begin(BEGINNING)
    assert stopped.take() is not None
    stopped.leave(entry_id)
    taken = take(other)
    assert (taken.id, taken.found) == (entry_id, "left")


def test_a_signal_lets_the_running_program_finish_and_takes_no_other(
    manage: Manage, raw: redis.Redis, tmp_path: Path
) -> None:
    process, path, gate = consumer_at_a_gate(manage, raw, tmp_path)
    wait_until(lambda: ran(path))
    process.send_signal(signal.SIGTERM)
    with gate.open("w"):  # opens when the program reads, so that it was still running
        pass
    assert process.wait() == 0
    assert ran(path) == [["1"]]
    assert pending(raw) == 0


@pytest.mark.thorough("processes")
def test_it_waits_for_a_redis_that_comes_back(
    manage: Manage, redis_server: Any, raw: redis.Redis, tmp_path: Path
) -> None:
    path, said, place = tmp_path / "ran", tmp_path / "said", Path(redis_server.url.removeprefix("unix://"))
    process = manage.start("quota_events", "--since", "now", "--exec", *recorder(path, "{value}"), stderr=said)
    wait_until(lambda: "is new" in said.read_text())
    tell(raw, "ip:1")
    wait_until(lambda: ran(path))
    away = place.rename(place.with_suffix(".away"))
    try:
        raw.client_kill_filter(_type="normal", skipme=True)
        wait_until(lambda: "Trying again" in said.read_text())
        tell(raw, "ip:2")
    finally:
        away.rename(place)
    wait_until(lambda: len(ran(path)) == 2)
    wait_until(lambda: "answers again" in said.read_text())
    with raw.pipeline() as transaction:  # so that it has no chance to begin anew in between
        transaction.flushall()
        transaction.xadd(STREAM, stored("ip:3"))
        transaction.execute()
    wait_until(lambda: len(ran(path)) == 3)
    assert "lost its memory" in said.read_text()
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--last", "-1"], "below 0"),
        (["--dead", "--follow"], "--dead cannot"),
        (["--timeout", "0", "--exec", "true", "x"], "--timeout 0"),
        (["--timeout", "nan", "--exec", "true", "x"], "--timeout nan"),
        (["--take-over", "20", "--exec", "true", "x"], "--take-over 20"),
        (["--since", "1h"], "--since is only for --exec"),
        (["--follow", "--take-over", "200"], "--take-over is only for --exec"),
        (["--exec"], "no program"),
        (["--exec", "'"], "No closing quotation"),
        (["--exec", "{value}"], "which program"),
        (["--since", "soon", "--exec", "true", "x"], "'soon'"),
        (["--since", "2025-99-99T00:00", "--exec", "true", "x"], "2025-99-99"),
    ],
)
def test_wrong_options_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        call_command("quota_events", *words)


def test_a_store_in_memory_has_no_stream(settings: Any) -> None:
    settings.QUOTA = {"STORE": "memory"}
    with pytest.raises(CommandError, match='not "redis"'):
        call_command("quota_events")


def test_printing_events_fails_if_redis_never_answers(settings: Any) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nonexistent/redis.sock"}}
    with pytest.raises(CommandError, match="unavailable"):
        call_command("quota_events")


@pytest.mark.parametrize("since", ["empty", "read"])
def test_a_ban_that_a_flood_trims_just_before_a_read_is_handed_over(
    stream: EventStream, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    group = EventGroup(stream, "g", "one", 60)
    group.begin(BEGINNING)
    if since == "read":
        tell(raw, "ip:203.0.113.1")
        while (taken := group.take(1)) is not None:
            group.acknowledge(taken.id)
    flooded = False

    run = RedisStore.run

    def flood_before_it_reads(store: RedisStore, operation: Operation, now: int | None = None) -> Any:
        nonlocal flooded
        if not flooded and isinstance(operation, NextEvent):
            flooded = True
            entry_id = tell(raw, "ip:203.0.113.9", kind="banned")
            raw.xadd(BANNED_STREAM, stored("ip:203.0.113.9", kind="banned"), id=entry_id)
            last = tell(raw, "ip:203.0.113.10")
            raw.xtrim(STREAM, minid=last, approximate=False)
        return run(store, operation, now)

    monkeypatch.setattr(RedisStore, "run", flood_before_it_reads)
    subjects = []
    for _ in range(5):
        taken = group.take(1)
        if taken is not None and taken.event is not None:
            subjects.append(taken.event.subject)
    assert flooded
    assert subjects == ["ip:203.0.113.9", "ip:203.0.113.10"]
