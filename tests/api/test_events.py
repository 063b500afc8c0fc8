"""The event stream: read, followed, and handed to the readers of a group: at least once, and as it is."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from ipaddress import ip_network
from pathlib import Path
from typing import IO, Any, cast
from unittest.mock import Mock

import pytest
import redis
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.test import override_settings
from django.urls import get_resolver
from hypothesis import given
from hypothesis import strategies as st

from django_quota import ban, check
from django_quota.core.errors import StorePermissionDenied
from django_quota.core.keys import escape, field
from django_quota.exceptions import StoreUnavailable
from django_quota.features import events as module
from django_quota.features.events import (
    BEGINNING,
    EVENTS_A_PAGE,
    Event,
    EventFilter,
    EventGroup,
    EventStream,
    event_log,
)
from django_quota.limiting.flusher import flusher
from django_quota.limiting.registry import get_limiter
from django_quota.management.commands import quota_events
from django_quota.models import QuotaOverride
from django_quota.testing import RedisServer, freeze
from tests.support.commands import Manage, managing, wait_until
from tests.support.events import event_fields
from tests.support.steps import SECOND, START
from tests.support.stores import caches, redis_store

PAGE = (Path(module.__file__).parents[2] / "docs" / "monitoring.md").read_text()

STREAM = "quota:1:{!}:events"

pytestmark = pytest.mark.usefixtures("redis_cache")


def tell(
    raw: redis.Redis, subject: str, at: int | None = None, kind: str = "refused", rule: str = "login", **fields: Any
) -> str:
    """Write an event as the decision script does, of now or of a moment (microseconds); return its id."""
    names: Any = {"kind": kind, "rule": field(rule), "subject": escape(subject)}
    more = {"until": 0, "capacity": 10, **fields}
    entry_id: Any = raw.xadd(STREAM, event_fields(**names, **more), id=f"{at // 1000}-0" if at else "*")
    return entry_id.decode() if isinstance(entry_id, bytes) else ""  # a pipeline has no id yet


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read three events at a time. Pages of the admin that are imported meanwhile would keep the number."""
    assert get_resolver().url_patterns  # imports them
    monkeypatch.setattr(module, "EVENTS_A_PAGE", 3)


def shown(*words: str) -> list[str]:
    out = io.StringIO()
    call_command("quota_events", *words, stdout=out)
    return out.getvalue().splitlines()


class _Drained(threading.Event):
    """Ends a command where it would wait."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


def read(*words: str, group: str = "g", out: Any = None) -> tuple[list[Any], str]:
    """Read as one of the group until there is nothing more; return the events, and what the command said."""
    out, said = out or io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quota_events, "stopping", lambda: nullcontext(_Drained()))
        call_command("quota_events", "--follow", "--json", "--group", group, *words, stdout=out, stderr=said)
    return [json.loads(line) for line in out.getvalue().splitlines()], said.getvalue()


class Pauses(threading.Event):
    """Notes how many seconds a command waits, and ends it at the last of these pauses."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.seconds = number, list[float | None]()

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        if len(self.seconds) == self.number:
            self.set()
        return self.is_set()


def follow_for(pauses: int, *words: str) -> tuple[list[str], str, list[float | None]]:
    """Follow the log until so many pauses; return the subjects that are printed, the notes, and the pauses."""
    stop, out, said = Pauses(pauses), io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quota_events, "stopping", lambda: nullcontext(stop))
        call_command("quota_events", "--follow", "--json", *words, stdout=out, stderr=said)
    printed = [json.loads(line)["subject"] for line in out.getvalue().splitlines()]
    return printed, said.getvalue(), stop.seconds


def subjects(*words: str, **options: Any) -> list[str]:
    """Read as one of the group; return the subjects of the events."""
    return [event["subject"] for event in read(*words, **options)[0]]


def begin(raw: redis.Redis, after: str = BEGINNING) -> None:
    raw.xgroup_create(STREAM, "g", after, mkstream=True)


def hand_out(raw: redis.Redis, count: int, *, idle: int = 60_000) -> None:
    """Hand events to a reader who dies; they were left for so many milliseconds."""
    for _, entries in cast("Any", raw.xreadgroup("g", "killed", {STREAM: ">"}, count)):
        raw.xclaim(STREAM, "g", "killed", 0, [entry_id for entry_id, _ in entries], idle=idle)


def pending(raw: redis.Redis) -> int:
    summary: Any = raw.xpending(STREAM, "g")
    return int(summary["pending"])


def left(raw: redis.Redis) -> None:
    """Let what a reader has not acknowledged be for another one, as after a minute."""
    ids = [each["message_id"] for each in cast("Any", raw.xpending_range(STREAM, "g", "-", "+", 999))]
    if ids:
        raw.xclaim(STREAM, "g", "killed", 0, ids, idle=60_000)


@pytest.fixture
def manage(redis_server: Any, raw: redis.Redis, tmp_path: Path) -> Iterator[Manage]:
    with managing(tmp_path, caches(redis_server, decode_responses=True)) as started:
        yield started


@pytest.fixture
def written(redis_cache: Any, settings: Any) -> list[dict[str, Any]]:
    """The events that the decision script writes of seven hits, as they are read."""
    rule = {"rate": "4/m", "warn_at": 0.5, "ban": {"after": "2/m", "for": ["10m"]}}
    settings.QUOTA = {"RULES": {"log:in\n": rule}}
    with freeze(START):
        for _ in range(7):
            check("log:in\n", "name:{a} b\u2028")
    return [json.loads(line) for line in shown("--json")]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("kind", ["near", "refused", "banned"]),
        ("rule", ["log:in\n"] * 3),
        ("subject", ["name:{a} b%E2%80%A8"] * 3),  # a subject's own control characters are escaped before
        ("capacity", [4, 4, 4]),
        ("remaining", [2, 0, 0]),
        ("level", [0, 0, 1]),
        ("share", [0.5, 0, 0]),
        ("until", [None, "2025-11-21T04:41:00+00:00", "2025-11-21T04:50:00+00:00"]),
    ],
)
def test_events_of_the_decision_script_are_read(name: str, values: list[Any], written: list[dict[str, Any]]) -> None:
    assert [event[name] for event in written] == values


def test_the_last_are_found_over_many_pages_the_oldest_first(raw: redis.Redis) -> None:
    pages: Any = raw.pipeline()
    for number in range(2 * EVENTS_A_PAGE + 20):
        tell(pages, f"user:{number}", rule="rare" if number % EVENTS_A_PAGE == 7 else "often")
    pages.execute()
    raw.xadd(STREAM, {"an": "alien"})

    found = [json.loads(line)["subject"] for line in shown("--json", "--rule", "rare", "--last", "4")]

    assert found == [f"user:{number}" for number in (7, EVENTS_A_PAGE + 7, 2 * EVENTS_A_PAGE + 7)]
    assert len(shown("--last", "5000")) == 2 * EVENTS_A_PAGE + 20


class TestTheNewestBans:
    @pytest.mark.parametrize("decode_responses", [False, True], ids=["bytes", "decoded"])
    def test_are_found_in_the_replies_of_redis_py(
        self, decode_responses: bool, raw: redis.Redis, redis_server: RedisServer, settings: Any
    ) -> None:
        settings.CACHES = caches(redis_server, decode_responses=decode_responses)
        tell(raw, "user:1", START, kind="banned")
        tell(raw, "user:2", START + SECOND)

        bans, since = EventStream(redis_store(), "quota").newest_bans(9)

        assert ([each.subject for each in bans], since) == (["user:1"], START)

    def test_do_not_have_what_cannot_be_read(self, raw: redis.Redis) -> None:
        tell(raw, "user:1", kind="banned", until="soon")

        assert EventStream(redis_store(), "quota").newest_bans(9)[0] == []


def test_a_search_since_a_moment_reads_no_older_entries(raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    for second in range(3):
        tell(raw, f"user:{second}", START + second * SECOND)
    log = EventStream(redis_store(), "quota")
    monkeypatch.setattr(log, "newest", asked := Mock(wraps=log.newest))

    found = log.search(9, EventFilter(since=START + SECOND, until=START + SECOND))

    assert [event.subject for event in found.events] == ["user:1"]
    assert asked.call_args.args[2:] == (START + SECOND, START + SECOND)


def test_without_a_number_the_last_twenty_are_printed(raw: redis.Redis) -> None:
    for number in range(22):
        tell(raw, f"user:{number}")

    assert [line.split()[4] for line in shown()] == [f"user:{number}" for number in range(2, 22)]


@pytest.fixture
def four_events(redis_cache: Any, raw: redis.Redis) -> None:
    tell(raw, "ip:1", START, until=START + 61 * SECOND)
    tell(raw, "ip:2", START + SECOND, kind="banned", until=START + 601 * SECOND, level=2)
    tell(raw, "ip:3", START + 2 * SECOND, kind="near", remaining=2, share=800)
    tell(raw, "ip:4", START + 3 * SECOND)


@pytest.mark.usefixtures("four_events")
def test_each_event_is_printed_as_a_line() -> None:
    assert shown() == [
        "2025-11-21 04:40:00Z  refused  login  ip:1  needed 1, 0 of 10 are left, for 1 minute 1 second",
        "2025-11-21 04:40:01Z  banned   login  ip:2  for 10 minutes, ban 2 in a row",
        "2025-11-21 04:40:02Z  near     login  ip:3  80% used, 2 of 10 left",
        "2025-11-21 04:40:03Z  refused  login  ip:4  needed 1, 0 of 10 are left, waiting does not help",
    ]


@pytest.mark.usefixtures("four_events")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--last", "2"], ["ip:3", "ip:4"]),
        (["--kind", "banned", "--kind", "near"], ["ip:2", "ip:3"]),
        (["--rule", "login"], ["ip:1", "ip:2", "ip:3", "ip:4"]),  # of code, or gone
    ],
    ids=["--last", "--kind", "--rule"],
)
def test_an_option_chooses_events(words: list[str], found: list[str]) -> None:
    assert [line.split()[4] for line in shown(*words)] == found


@pytest.fixture
def of_ann(redis_cache: Any, database: Any, raw: redis.Redis) -> str:
    """Three events, one of ann's request and one of her own limit; her subject."""
    ann = f"user:{get_user_model().objects.create_user('ann', 'ann@example.org').pk}"
    tell(
        raw,
        "ip:1",
        START,
        user=ann,
        method="GET",
        path="/api/report/",
        cost=50,
        remaining=49,
        until=START + 300 * SECOND,
    )
    tell(raw, ann, START + SECOND, user=ann, method="POST", path="/login/", until=START + 61 * SECOND)
    tell(raw, "ip:192.0.2.3", START + 2 * SECOND, path="/api/search/", until=START + 62 * SECOND)
    return ann


def test_a_line_says_who_sent_which_request(of_ann: str) -> None:
    assert shown() == [
        "2025-11-21 04:40:00Z  refused  login  ip:1  ann GET /api/report/: needed 50, 49 of 10 are left, for 5 minutes",
        f"2025-11-21 04:40:01Z  refused  login  {of_ann}  ann POST /login/: needed 1, 0 of 10 are left, for 1 minute",
        "2025-11-21 04:40:02Z  refused  login  ip:192.0.2.3  /api/search/: needed 1, 0 of 10 are left, for 1 minute",
    ]


@pytest.mark.parametrize(
    ("words", "moments"),
    [
        pytest.param(["--subject", "ann"], ["04:40:00Z", "04:40:01Z"], id="a user name"),
        pytest.param(["--subject", "ANN@example.org"], ["04:40:00Z", "04:40:01Z"], id="an e-mail address"),
        pytest.param(["--subject", "ip:192.0.2.3"], ["04:40:02Z"], id="a subject"),
        pytest.param(
            ["--subject", "ann", "--subject", "ip:192.0.2.3"], ["04:40:00Z", "04:40:01Z", "04:40:02Z"], id="both"
        ),
        pytest.param(["--path", "/api/"], ["04:40:00Z", "04:40:02Z"], id="a path"),
        pytest.param(["--path", "/API/"], [], id="a path in capitals"),
        pytest.param(["--since", "2025-11-21T04:40:01"], ["04:40:01Z", "04:40:02Z"], id="since"),
        pytest.param(["--until", "2025-11-21T04:40:01+00:00"], ["04:40:00Z", "04:40:01Z"], id="until"),
        pytest.param(
            ["--since", "2025-11-21", "--until", "2025-11-22"], ["04:40:00Z", "04:40:01Z", "04:40:02Z"], id="a day"
        ),
        pytest.param(["--since", "1h"], [], id="ago"),
    ],
)
@pytest.mark.usefixtures("of_ann")
def test_an_option_finds_events_of_somebody(words: list[str], moments: list[str]) -> None:
    assert [line.split()[1] for line in shown(*words)] == moments


@pytest.mark.usefixtures("of_ann")
def test_since_a_while_ago_is_by_the_clock() -> None:
    with freeze(START + 3_600 * SECOND):
        assert len(shown("--since", "1h")) == 3


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("option", ["--since", "--until"])
def test_what_is_not_a_moment_is_an_error(option: str) -> None:
    says = f"{option} 'soon' is not a moment. Use, for example, 2030-01-31T12:00, or 2h for 2 hours ago."

    with pytest.raises(CommandError, match=re.escape(says)):
        shown(option, "soon")


def notes(*words: str) -> str:
    said = io.StringIO()
    call_command("quota_events", *words, stdout=io.StringIO(), stderr=said)
    return said.getvalue()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param([], "There are no such events.\n", id="there is none"),
        pytest.param(["--kind", "refused"], "", id="there is one"),
    ],
)
def test_a_note_says_that_there_are_no_such_events(words: list[str], says: str, raw: redis.Redis) -> None:
    if words:
        tell(raw, "ip:1")

    assert notes(*words) == says


@pytest.mark.parametrize("kind", ["gone", "", "REFUSED"])
def test_an_entry_of_another_kind_is_left_out(kind: str, raw: redis.Redis) -> None:
    tell(raw, "ip:1", kind=kind)
    tell(raw, "ip:2")

    (event,) = shown("--json")

    assert json.loads(event)["subject"] == "ip:2"


def test_the_newest_entries_of_a_span_are_read(raw: redis.Redis) -> None:
    for second in range(4):
        tell(raw, f"ip:{second}", START + second * SECOND)

    found = event_log(get_limiter().store, "quota").newest(9, since=START + SECOND, until=START + 2 * SECOND)

    assert [entry.event and entry.event.subject for entry in found] == ["ip:2", "ip:1"]


def test_a_rule_that_is_gone_is_found_by_its_events(raw: redis.Redis) -> None:
    tell(raw, "ip:1", rule="gone")
    tell(raw, "ip:2", rule="another")

    (event,) = shown("--rule", "gone", "--json")

    assert json.loads(event)["subject"] == "ip:1"


def test_a_rule_that_nothing_has_is_an_error_beside_one_that_an_event_has(raw: redis.Redis) -> None:
    tell(raw, "ip:1", rule="gone")

    with pytest.raises(CommandError, match=r'^--rule: "serch" is not a rule'):
        shown("--rule", "gone", "--rule", "serch")


def test_a_rule_that_neither_the_site_nor_an_event_has_is_an_error(settings: Any) -> None:
    settings.QUOTA = {"RULES": {"search": "9/m"}}

    with pytest.raises(CommandError) as raised:
        shown("--rule", "serch")

    assert str(raised.value) == (
        '--rule: "serch" is not a rule of the settings or the views. Did you mean "search"? No event has it either.'
    )


class TestWhyARefusalIsReported:
    """A limit that has room is not the reason."""

    @pytest.fixture
    def why(self, settings: Any) -> Callable[[], str]:
        settings.QUOTA = {"RULES": {"api": {"rate": "2/m", "ban": {"after": "9/m", "for": "1h"}}}}

        def why() -> str:
            with freeze(START):
                check("api", "user:7", cost=2)
                check("api", "user:7")
                flusher.flush()
            found = [event for event in (json.loads(line) for line in shown("--json")) if event["kind"] == "refused"]
            return str(found[-1]["reason"])

        return why

    def test_a_limit_that_is_used_up_needs_no_word(self, why: Callable[[], str]) -> None:
        assert why() == ""

    def test_a_ban_is_named(self, why: Callable[[], str]) -> None:
        with freeze(START):
            ban("api", "user:7", "1h")

        assert why() == "banned"

    @pytest.mark.django_db
    def test_a_block_is_named(self, why: Callable[[], str]) -> None:
        QuotaOverride.objects.create(subject="user:7", rule="*", mode="blocked")

        assert why() == "blocked"

    @pytest.mark.parametrize("reason", ["banned", "blocked"])
    def test_a_line_says_it_in_place_of_what_is_left(self, reason: str, raw: redis.Redis) -> None:
        tell(raw, "ip:1", START, until=START + 60 * SECOND, reason=reason)

        assert shown("--last", "1")[0].endswith(f"{reason}, for 1 minute")


@pytest.mark.usefixtures("four_events")
def test_a_rule_that_nothing_has_is_an_error() -> None:
    says = r'--rule: "other" is not a rule of the settings or the views. No event has it'

    with pytest.raises(CommandError, match=says):
        shown("--rule", "other")


@pytest.mark.usefixtures("four_events")
def test_a_rule_of_the_settings_may_have_no_events(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"other": "5/m"}}

    assert shown("--rule", "other") == []


HOSTILE_SUBJECT = "ip:1\n2025 refused\r\x1b[2J\u2028\udc80"


def test_json_is_an_object_a_line(raw: redis.Redis) -> None:
    entry_id = tell(raw, HOSTILE_SUBJECT, START, rule="a\nb", until=START + SECOND)

    assert [json.loads(line) for line in shown("--json")] == [{
        "id": entry_id, "at": "2025-11-21T04:40:00+00:00", "kind": "refused", "rule": "a\nb",
        "subject": HOSTILE_SUBJECT, "until": "2025-11-21T04:40:01+00:00", "level": 0, "capacity": 10, "remaining": 0,
        "share": 0.0, "cost": 1, "user": None, "method": "", "path": "", "reason": "", "ip": None,
    }]  # fmt: skip


MINUTE_LATER = START + 60 * SECOND


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        pytest.param(
            "refused",
            {"until": MINUTE_LATER, "cost": 3, "remaining": 2},
            "refused  login  ip:1  needed 3, 2 of 10 are left, for 1 minute",
            id="a refusal",
        ),
        pytest.param(
            "refused", {}, "refused  login  ip:1  needed 1, 0 of 10 are left, waiting does not help", id="for good"
        ),
        pytest.param(
            "near",
            {"share": 800, "remaining": 2},
            "near     login  ip:1  80% used, 2 of 10 left",
            id="nearly used up",
        ),
        pytest.param(
            "banned",
            {"until": MINUTE_LATER, "level": 2},
            "banned   login  ip:1  for 1 minute, ban 2 in a row",
            id="a ban",
        ),
        pytest.param(
            "banned",
            {"level": 1, "reason": "spam"},
            "banned   login  ip:1  for good, ban 1 in a row: spam",
            id="a ban by hand",
        ),
        pytest.param(
            "near",
            {"share": 500, "remaining": 5, "user": "user:7", "method": "GET", "path": "/a"},
            "near     login  ip:1  user:7 GET /a: 50% used, 5 of 10 left",
            id="a request of a user",
        ),
        pytest.param(
            "near",
            {"share": 500, "remaining": 5, "user": "ip:1", "method": "GET", "path": "/a"},
            "near     login  ip:1  GET /a: 50% used, 5 of 10 left",
            id="a request of the subject itself",
        ),
    ],
)
def test_a_line_says_what_has_happened(kind: str, fields: dict[str, Any], words: str, raw: redis.Redis) -> None:
    tell(raw, "ip:1", START, kind, **fields)

    assert shown() == [f"2025-11-21 04:40:00Z  {words}"]


@pytest.mark.django_db
def test_a_user_who_is_a_part_of_the_subject_is_named_once(raw: redis.Redis) -> None:
    tell(raw, "ip:1+user:7", START, user="user:7", method="GET", path="/a")

    assert "  ip:1+user:7  GET /a: needed 1" in shown()[0]


def test_no_name_breaks_a_line_or_controls_the_terminal(raw: redis.Redis) -> None:
    tell(raw, HOSTILE_SUBJECT, START, rule="a\nb", until=START + SECOND)

    (line,) = shown()

    assert line.isprintable()
    assert r"ip:1\n2025 refused\r\x1b[2J\u2028\udc80" in line


def test_following_prints_what_comes_until_a_signal(raw: redis.Redis) -> None:
    class Out(io.StringIO):
        def write(self, line: str) -> int:
            if "ip:1" in line:
                tell(raw, "ip:3", rule="other")
                tell(raw, "ip:4")
            if "ip:4" in line:
                signal.raise_signal(signal.SIGTERM)
            return super().write(line)

    tell(raw, "ip:1")
    tell(raw, "ip:2", rule="other")

    call_command("quota_events", "--follow", "--json", "--rule", "login", stdout=(out := Out()))

    assert [json.loads(line)["subject"] for line in out.getvalue().splitlines()] == ["ip:1", "ip:4"]


def test_a_new_group_begins_with_the_next_event(raw: redis.Redis) -> None:
    tell(raw, "ip:1", kind="banned")

    assert read() == ([], "The group 'g' is new. It begins with the next event.\n")


def test_a_group_goes_on_where_it_was(raw: redis.Redis) -> None:
    read()
    tell(raw, "ip:4", kind="banned")

    assert [subjects(), subjects()] == [["ip:4"], []]


def test_a_group_keeps_no_event_that_it_does_not_want(raw: redis.Redis) -> None:
    read()
    tell(raw, "ip:2")
    tell(raw, "ip:3", kind="banned", rule="other")
    raw.xadd(STREAM, {"an": "alien"})
    tell(raw, "ip:4", kind="banned")

    assert subjects("--kind", "banned", "--rule", "login") == ["ip:4"]
    assert pending(raw) == 0


class DyingOut(io.StringIO):
    """What a reader writes to, who dies with the second event."""

    def write(self, line: str) -> int:
        if "ip:2" in line:
            raise KeyboardInterrupt
        return super().write(line)


@pytest.fixture
def unread(redis_cache: Any, raw: redis.Redis) -> None:
    """A group with three events, whose reader died."""
    begin(raw)
    for number in (1, 2, 3):
        tell(raw, f"ip:{number}")
    with pytest.raises(KeyboardInterrupt):
        read(out=DyingOut())


@pytest.mark.usefixtures("unread")
def test_no_event_is_acknowledged_before_its_line_is_written(raw: redis.Redis) -> None:
    assert pending(raw) == 3


@pytest.mark.usefixtures("unread")
def test_another_reader_leaves_events_for_a_minute() -> None:
    assert subjects() == [], "they may be in work"


@pytest.mark.usefixtures("unread")
def test_another_reader_takes_events_after_a_minute(raw: redis.Redis) -> None:
    left(raw)

    assert subjects() == ["ip:1", "ip:2", "ip:3"]


@pytest.mark.usefixtures("unread")
def test_no_event_is_acknowledged_before_its_line_is_flushed(raw: redis.Redis) -> None:
    class Out(io.StringIO):
        left_at_flush = 0

        def flush(self) -> None:
            self.left_at_flush = self.left_at_flush or pending(raw)

    left(raw)

    read(out=(out := Out()))

    assert (out.left_at_flush, pending(raw)) == (3, 0)


def test_events_that_were_left_too_long_come_first(raw: redis.Redis, small_pages: None) -> None:
    begin(raw)
    names = [f"ip:{number}" for number in range(20)]
    for name in names:
        tell(raw, name)
    hand_out(raw, 9)

    assert subjects() == names
    assert pending(raw) == 0


def test_a_reader_leaves_events_that_another_has_had_for_less_than_a_minute(raw: redis.Redis) -> None:
    begin(raw)
    tell(raw, "ip:1")
    hand_out(raw, 1, idle=40_000)

    assert subjects() == []


def test_all_readers_of_a_group_are_one_consumer_of_redis(raw: redis.Redis) -> None:
    begin(raw)
    tell(raw, "ip:1")
    for _ in range(2):
        read()

    assert [each["name"] for each in cast("Any", raw.xinfo_consumers(STREAM, "g"))] == [b"quota_events"]


def test_events_that_another_reader_has_are_not_read(raw: redis.Redis, small_pages: None) -> None:
    begin(raw)
    names = [f"ip:{number}" for number in range(20)]
    for name in (*names[:9], "ip:busy", *names[9:]):
        tell(raw, name)
    hand_out(raw, 9)
    hand_out(raw, 1, idle=0)

    assert subjects() == names
    assert pending(raw) == 1


class TestNewGroup:
    """A group that nobody has made before."""

    def test_it_begins_with_the_next_event(self, raw: redis.Redis) -> None:
        tell(raw, "ip:1")
        read()
        tell(raw, "ip:2")

        assert subjects() == ["ip:2"]

    @pytest.mark.parametrize("is_new", [True, False], ids=["new", "there already"])
    def test_a_note_says_so(self, is_new: bool, raw: redis.Redis) -> None:
        if not is_new:
            begin(raw)

        _, said = read()

        assert said == ("The group 'g' is new. It begins with the next event.\n" if is_new else "")


def test_a_group_that_could_not_be_made_is_an_error() -> None:
    stream = Mock()
    stream.store.commands.side_effect = StoreUnavailable("it is gone")

    with pytest.raises(StoreUnavailable, match="it is gone"):
        EventGroup(stream, "g").begin()


@pytest.fixture
def trimmed(redis_cache: Any, raw: redis.Redis) -> None:
    """A group that has read one event; of the next two one was trimmed before it was read."""
    tell(raw, "ip:1", START)
    begin(raw)
    assert subjects() == ["ip:1"]
    tell(raw, "ip:2", START + SECOND)
    tell(raw, "ip:3", START + 2 * SECOND)
    raw.xtrim(STREAM, maxlen=1, approximate=False)


@pytest.mark.usefixtures("trimmed")
def test_the_command_says_between_which_moments_events_may_be_lost() -> None:
    events, said = read()

    assert said == (
        "The stream was trimmed further than the group had read. Events after 2025-11-21T04:40:00+00:00 and before "
        "2025-11-21T04:40:02+00:00 may be lost.\n"
    )
    assert [event["subject"] for event in events] == ["ip:3"]


@pytest.mark.usefixtures("trimmed")
def test_the_command_names_an_event_that_was_trimmed_in_work(raw: redis.Redis) -> None:
    read()
    gone = tell(raw, "ip:4")
    hand_out(raw, 1)
    tell(raw, "ip:5")
    raw.xtrim(STREAM, maxlen=1, approximate=False)

    events, said = read()

    assert said.startswith(f"Event {gone} is missing: the stream was trimmed before it was printed.\n")
    assert [event["subject"] for event in events] == ["ip:5"]
    assert pending(raw) == 0


@pytest.mark.usefixtures("trimmed")
def test_the_command_names_each_event_that_was_trimmed_in_work(raw: redis.Redis) -> None:
    read()
    gone = [tell(raw, "ip:4"), tell(raw, "ip:5")]
    hand_out(raw, 2)
    tell(raw, "ip:6")
    raw.xtrim(STREAM, maxlen=1, approximate=False)

    _, said = read()

    assert re.findall(r"Event (\S+) is missing", said) == gone


@pytest.mark.usefixtures("trimmed")
def test_what_another_group_has_read_changes_nothing_of_what_is_missing(raw: redis.Redis) -> None:
    raw.xgroup_create(STREAM, "a", BEGINNING)

    assert "Events after 2025-11-21T04:40:00+00:00 and before " in read()[1]


@pytest.mark.usefixtures("trimmed")
def test_the_command_says_only_once_what_is_missing(raw: redis.Redis) -> None:
    read()
    tell(raw, "ip:4")
    hand_out(raw, 1)
    tell(raw, "ip:5")
    raw.xtrim(STREAM, maxlen=1, approximate=False)
    read()

    assert read()[1] == "", "up to what was read the stream is whole"


@pytest.fixture
def early(redis_cache: Any, raw: redis.Redis) -> None:
    """A group that was made before there were events; three of five were trimmed before it read."""
    begin(raw)
    for number in range(5):
        tell(raw, f"ip:{number}", START + number * SECOND)
    raw.xtrim(STREAM, maxlen=2, approximate=False)


@pytest.mark.usefixtures("early")
def test_a_group_that_was_made_before_there_were_events_says_what_was_trimmed() -> None:
    events, said = read()

    assert said == (
        "The stream was trimmed further than the group had read. Events before 2025-11-21T04:40:03+00:00 may be lost.\n"
    )
    assert [event["subject"] for event in events] == ["ip:3", "ip:4"]


@pytest.mark.usefixtures("early")
def test_a_group_that_was_made_before_there_were_events_says_it_once(raw: redis.Redis) -> None:
    read()
    tell(raw, "ip:5")

    assert read()[1] == ""


@pytest.mark.parametrize("by_another", [0, 2], ids=["alone", "beside another reader"])
def test_a_group_that_was_made_before_there_were_events_misses_none(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, small_pages: None, by_another: int
) -> None:
    begin(raw)
    for number in range(5):
        tell(raw, f"ip:{number}")
    whole = EventGroup._is_whole

    def is_whole_beside_another(group: EventGroup, client: Any, read: str, entries: Any) -> bool:
        monkeypatch.setattr(EventGroup, "_is_whole", whole)
        if by_another:
            hand_out(raw, by_another, idle=0)
        return whole(group, client, read, entries)

    monkeypatch.setattr(EventGroup, "_is_whole", is_whole_beside_another)
    events, said = read()
    assert said == ""
    assert [event["subject"] for event in events] == [f"ip:{number}" for number in range(5 - by_another)]


def test_a_group_whose_redis_loses_its_memory_later_misses_nothing(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Pauses.wait

    def lose(pauses: Pauses, seconds: float | None = None) -> bool:
        monkeypatch.setattr(Pauses, "wait", wait)
        raw.delete(STREAM)
        tell(raw, "ip:2")
        return wait(pauses, seconds)

    begin(raw)
    tell(raw, "ip:1")
    monkeypatch.setattr(Pauses, "wait", lose)

    assert follow_for(2, "--group", "g")[0] == ["ip:1", "ip:2"]


@pytest.mark.parametrize("lost", ["stream", "group"])
def test_a_group_whose_redis_lost_its_memory_reads_all_there_is(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    take = EventGroup.take

    def take_after_the_loss(group: EventGroup) -> Any:
        monkeypatch.setattr(EventGroup, "take", take)
        if lost == "stream":
            raw.delete(STREAM)
            tell(raw, "ip:1")
        else:
            cast("Any", raw).xgroup_destroy(STREAM, "g")
        return take(group)

    begin(raw)
    tell(raw, "ip:1")
    monkeypatch.setattr(EventGroup, "take", take_after_the_loss)
    events, said = read()
    assert said.endswith(" Redis has lost its data; the group starts again with all events that Redis has now.\n")
    assert [event["subject"] for event in events] == ["ip:1"]


NO_ADDRESSES = [
    "user:1", "ip:203.0.113.9 }; flush ruleset; #", "post.phone:7b1d+ip:203.0.113.9", "ip:0.0.0.0/0",
    "ip:fe80::1%}; flush ruleset; #", 'ip:203.0.113.9", "ip": "192.0.2.1', "ip:-rf", "ip:\udc80",
]  # fmt: skip


def test_the_program_of_the_page_blocks_only_addresses(raw: redis.Redis, tmp_path: Path) -> None:
    (program,) = re.findall(r"```py\n(import json.*?)```", PAGE, re.DOTALL)
    (tmp_path / "block.py").write_text(program)
    nft = tmp_path / "nft"
    code = "import json, sys; print(json.dumps(sys.argv[1:]), file=open(sys.argv[0] + '.log', 'a'))"
    nft.write_text(f"#!{sys.executable} -IS\n{code}\n")
    nft.chmod(0o700)
    begin(raw)
    for subject in (*NO_ADDRESSES, "ip:203.0.113.9", "ip:2001:db8::/64"):
        tell(raw, subject, kind="banned", rule="}; flush ruleset; #")
    out = io.StringIO()
    read("--kind", "banned", out=out)

    here = {**os.environ, "PATH": str(tmp_path)}
    subprocess.run([sys.executable, "block.py"], input=out.getvalue(), text=True, cwd=tmp_path, env=here, check=True)

    assert [json.loads(line)[4:] for line in (tmp_path / "nft.log").read_text().splitlines()] == [
        ["blocked4", "{ 203.0.113.9 }"], ["blocked6", "{ 2001:db8::/64 }"]
    ]  # fmt: skip


TEXTS = st.text(max_size=20) | st.ip_addresses().map(str) | st.text("0123456789abcdef.:/%", max_size=20)


@given(TEXTS | TEXTS.map("ip:{}".format))
def test_the_ip_of_an_event_is_nothing_but_an_address(subject: str) -> None:
    address = Event("1-0", "banned", "r", subject, 0, 1, 1, 0, 0, 1, None, "", "").as_json()["ip"]
    if address is not None:
        assert f"ip:{address}" == subject
        assert str(ip_network(address, strict=True)) == (address if ":" in address else f"{address}/32")


def follow(manage: Manage, **options: Any) -> tuple[subprocess.Popen[str], IO[str]]:
    process = manage.start("quota_events", "--follow", "--json", "--group", "g", **options)
    assert process.stdout is not None
    return process, process.stdout


@pytest.mark.thorough("processes")
def test_a_reader_that_is_killed_at_any_moment_misses_nothing(manage: Manage, raw: redis.Redis) -> None:
    begin(raw)
    sent, told, printed = {f"ip:{number}" for number in range(600)}, 0, []

    for turn in range(6):
        process, lines = follow(manage)
        for _ in range(100):
            tell(raw, f"ip:{told}")
            told += 1
        printed += [lines.readline() for _ in range(7 * turn + 1)]  # events are read and written meanwhile
        process.kill()
        printed += lines.readlines()
        process.wait()
        left(raw)

    process, lines = follow(manage)
    tell(raw, "ip:end")
    while '"ip:end"' not in (line := lines.readline()):
        printed.append(line)
    wait_until(lambda: not pending(raw))
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    assert {json.loads(line)["subject"] for line in printed if line.endswith("\n")} == sent


@pytest.mark.thorough("processes")
def test_a_reader_whose_program_has_ended_leaves_the_event_to_the_next(manage: Manage, raw: redis.Redis) -> None:
    begin(raw)
    process = manage.start("quota_events", "--follow", "--json", "--group", "g")
    cast("Any", process.stdout).close()
    tell(raw, "ip:1")
    assert (process.wait(), pending(raw)) == (141, 1)


@pytest.mark.thorough("processes")
def test_it_waits_for_a_redis_that_comes_back(
    manage: Manage, redis_server: Any, raw: redis.Redis, tmp_path: Path
) -> None:
    said, place = tmp_path / "said", Path(redis_server.url.removeprefix("unix://"))
    process, lines = follow(manage, stderr=said)
    wait_until(lambda: "is new" in said.read_text())
    tell(raw, "ip:1")
    assert "ip:1" in lines.readline()

    away = place.rename(place.with_suffix(".away"))
    try:
        raw.client_kill_filter(_type="normal", skipme=True)
        wait_until(lambda: "Trying again" in said.read_text())
        tell(raw, "ip:2")
    finally:
        away.rename(place)

    assert "ip:2" in lines.readline()
    wait_until(lambda: "answers again" in said.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


class TestFollowingWithoutAnAnswer:
    @pytest.fixture
    def answers(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """Let the log answer a follower so: with errors for these reasons, and in between with what it has."""

        def answers(*reasons: str) -> None:
            given = iter(reasons)

            def answer(name: str) -> Callable[..., Any]:
                method = getattr(EventStream, name)

                def asked(*arguments: Any) -> Any:
                    reason = next(given, "")
                    if reason:
                        raise StoreUnavailable(reason)
                    return method(*arguments)

                return asked

            for name in ("last_id", "after"):
                monkeypatch.setattr(EventStream, name, answer(name))

        return answers

    def test_the_pauses_grow_up_to_five_seconds(self, answers: Callable[..., None]) -> None:
        answers(*["It is gone."] * 6)

        assert follow_for(6)[2] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]

    def test_each_reason_is_printed_once(self, answers: Callable[..., None]) -> None:
        answers("It is gone.", "It is gone.", "It is late.", "It is late.")

        assert follow_for(4)[1].splitlines() == [
            f"The quota store is unavailable: {reason} Trying again until it answers."
            for reason in ("It is gone.", "It is late.")
        ]

    def test_a_note_says_that_it_answers_again(self, answers: Callable[..., None], raw: redis.Redis) -> None:
        tell(raw, "ip:1")
        answers("It is gone.", "")

        printed, notes, _ = follow_for(2)

        assert notes.splitlines()[1:] == ["The quota store answers again."]
        assert printed == ["ip:1"]

    def test_the_next_outage_begins_with_the_shortest_pause(
        self, answers: Callable[..., None], raw: redis.Redis
    ) -> None:
        tell(raw, "ip:1")
        answers(*["It is gone."] * 3, "", "It is gone.")

        assert follow_for(4)[2] == [0.5, 1.0, 2.0, 0.5]

    def test_a_missing_permission_ends_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(EventStream, "last_id", Mock(side_effect=StorePermissionDenied("No rights.")))

        with pytest.raises(CommandError, match="No rights"):
            follow_for(1)

    def test_a_follower_who_is_up_to_date_looks_again_after_half_a_second(self) -> None:
        assert follow_for(3)[2] == [0.5, 0.5, 0.5]


def test_an_event_that_comes_while_the_first_are_read_is_printed_once(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    last_id = EventStream.last_id

    def overtaken(log: EventStream) -> str:
        found = last_id(log)
        tell(raw, "ip:2")
        return found

    tell(raw, "ip:1")
    monkeypatch.setattr(EventStream, "last_id", overtaken)

    assert follow_for(2)[0] == ["ip:1", "ip:2"]


def test_events_that_come_together_are_printed_once_each(raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    after, coming = EventStream.after, iter(["ip:2", "ip:3"])

    def arriving(log: EventStream, *arguments: Any) -> Any:
        for subject in coming:
            tell(raw, subject)
        return after(log, *arguments)

    tell(raw, "ip:1")
    monkeypatch.setattr(EventStream, "after", arriving)

    assert follow_for(1)[0] == ["ip:1", "ip:2", "ip:3"]


@pytest.mark.parametrize(("last", "printed"), [("0", []), ("1", ["ip:2"])])
def test_following_begins_with_the_last_events(last: str, printed: list[str], raw: redis.Redis) -> None:
    tell(raw, "ip:1")
    tell(raw, "ip:2")

    assert follow_for(2, "--last", last)[0] == printed


def test_following_begins_with_the_last_events_that_are_wanted(raw: redis.Redis) -> None:
    tell(raw, "ip:1")
    tell(raw, "ip:2", rule="other")

    assert follow_for(1, "--last", "1", "--rule", "login")[0] == ["ip:1"]


def test_following_with_fewer_than_no_last_events_is_an_error() -> None:
    with pytest.raises(CommandError) as raised:
        follow_for(1, "--last=-1")

    assert str(raised.value) == "--last -1: use 0 or more, for example 20."


def test_a_share_is_printed_without_an_error_of_rounding(raw: redis.Redis) -> None:
    tell(raw, "ip:1", START, kind="near", remaining=7, share=290)

    assert shown()[0].endswith("  29% used, 7 of 10 left")


@pytest.mark.parametrize("fields", [{"subject": ""}, {"subject": "ip:1", "rule": ""}], ids=["subject", "rule"])
def test_a_name_too_long_to_keep_is_named_so(fields: dict[str, str], raw: redis.Redis) -> None:
    tell(raw, at=START, **fields)

    assert "(very long name)" in shown()[0]


@pytest.mark.parametrize(
    ("since", "printed"), [("04:40:00.3", 1), ("04:40:00.4", 0)], ids=["at its moment", "a moment later"]
)
def test_since_is_exact_to_parts_of_a_second(since: str, printed: int, raw: redis.Redis) -> None:
    tell(raw, "ip:1", START + 300_000)

    assert len(shown("--since", f"2025-11-21T{since}Z")) == printed


@pytest.mark.parametrize(("hour", "printed"), [("13", 1), ("14", 0)], ids=["at its moment", "an hour later"])
def test_since_is_in_the_time_zone_of_the_site(hour: str, printed: int, raw: redis.Redis) -> None:
    tell(raw, "ip:1", START)

    with override_settings(TIME_ZONE="Asia/Tokyo"):
        assert len(shown("--since", f"2025-11-21T{hour}:40")) == printed


@pytest.mark.parametrize(
    ("words", "quota", "said"),
    [
        (["--group", "g"], {}, r"^--group is only for --follow\. Add --follow, or leave --group out\.$"),
        ([], {"STORE": "memory"}, 'is "memory"'),
    ],
    ids=["--group without --follow", "a store without events"],
)
def test_what_cannot_be_printed_is_an_error(words: list[str], quota: Any, said: str) -> None:
    with override_settings(QUOTA=quota), pytest.raises(CommandError, match=said):
        call_command("quota_events", *words)


def test_a_stream_without_an_event_expires_by_itself(raw: redis.Redis) -> None:
    read()
    assert 399 * 86_400 < int(raw.ttl(STREAM)) <= 400 * 86_400


def test_the_index_of_bans_does_not_keep_those_that_have_ended(raw: redis.Redis) -> None:
    ban: Any = {"after": "1/m", "for": ["10s"]}
    for number, at in enumerate((START, START + 60 * SECOND)):
        with freeze(at):
            for _ in range(2):
                check("0/m", f"ip:192.0.2.{number}", name="banning", ban=ban)
    assert raw.zrange("quota:1:{!}:bans", 0, -1) == [b"ip:192.0.2.1 banning"]
