"""Commands do their work whether or not anybody can read what they say, and say what is wrong."""

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.management import CommandError, call_command
from django.db import ProgrammingError

from django_quota import check
from django_quota.management.commands.quota_status import Command as Status
from django_quota.models import DailyCounter
from django_quota.testing import RedisServer
from tests.support.commands import Manage, managing
from tests.support.stores import caches

COMMANDS = [
    "quota_sweep",
    "quota_events",
    "quota_rules",
    "quota_status user:1",
    "quota_bans list",
    "quota_copy --from redis --to database",
]
CLOSED = {"stderr": ">/dev/null 2>&-", "stdout": ">&-", "both": ">&- 2>&-", "all": "<&- >&- 2>&-"}


@pytest.fixture
def manage(
    redis_server: RedisServer, raw: Any, database: dict[str, Any], tmp_path: Path, settings: Any
) -> Iterator[Manage]:
    settings.CACHES = caches(redis_server)
    with managing(tmp_path, settings.CACHES, {"default": database}) as started:
        yield started


def status_of(manage: Manage, command: str, streams: str) -> int:
    """Run a command as a cron job does, and return its status."""
    words = ["sh", "-c", f'exec "{sys.executable}" -m django {command} {streams}']
    return subprocess.run(words, env=manage.environment, cwd=Path(__file__).parents[2], check=False).returncode


@pytest.mark.parametrize(
    "closed",
    [
        pytest.param(*given, marks=pytest.mark.thorough("processes") if name != "stderr" else [], id=name)
        for name, *given in CLOSED.items()
    ],
)
def test_a_roll_up_with_closed_streams_moves_all_batches(closed: str, manage: Manage) -> None:
    for number in range(30):
        check("9/d", f"user:{number}", name="api")
    assert status_of(manage, "quota_rollup --batch 10", closed) == 0
    assert DailyCounter.objects.count() == 30


@pytest.mark.thorough("processes")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_with_closed_streams_ends_well(command: str, manage: Manage) -> None:
    assert status_of(manage, command, CLOSED["all"]) == 0


@pytest.mark.usefixtures("redis_cache")
def test_an_encoding_that_lacks_characters_shows_others(monkeypatch: pytest.MonkeyPatch) -> None:
    check("10/m", "user:é☃", 5, name="☃")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    call_command(Status(), "user:é☃", all=True)
    said = written.getvalue().decode("latin-1")
    assert "user:é\\u2603" in said


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ('relation "django_quota_dailycounter" does not exist', "`manage.py migrate` creates the tables"),
        ("no such table: django_quota_dailycounter", "`manage.py migrate` creates the tables"),
        ("permission denied for table django_quota_dailycounter", "Grant the user of the database SELECT"),
        ("(1142, \"SELECT command denied to user 'a' for table 'django_quota_dailycounter'\")", "Grant the user"),
        ("server closed the connection", ""),
    ],
)
def test_the_advice_fits_what_the_database_says(error: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Status, "handle", Mock(side_effect=ProgrammingError(error)))
    with pytest.raises(CommandError) as raised:
        call_command(Status(), "user:1")
    assert str(raised.value).startswith(error)
    assert advice in str(raised.value)
    assert bool(advice) or str(raised.value) == error


CLEAR = "\x1b[2J"


@pytest.mark.usefixtures("redis_cache", "database")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("quota_override", "set", f"user:{CLEAR}", "blocked"), id="an error"),
        pytest.param(("quota_override", "set", f"user:{CLEAR}", "blocked", "--force"), id="a note and what was saved"),
        pytest.param(("quota_override", "set", "ip:192.0.2.1", f"5{CLEAR}"), id="a rate"),
        pytest.param(("quota_status", f"user:{CLEAR}"), id="a subject"),
        pytest.param(("quota_bans", "list", f"--rule={CLEAR}"), id="a rule"),
    ],
)
def test_no_name_moves_the_cursor_of_a_terminal(words: tuple[str, ...]) -> None:
    out = io.StringIO()
    try:
        call_command(*words, stdout=out, stderr=out)
    except CommandError as error:
        out.write(str(error))
    assert "\x1b" not in out.getvalue()
    assert "x1b" in out.getvalue()


@pytest.mark.usefixtures("redis_cache", "database")
@pytest.mark.parametrize(
    "words",
    [("quota_override", "set", "user:\udcff", "blocked"), ("quota_status", "\udcff"), ("quota_replay", "\udcff.log")],
    ids=lambda words: words[0],
)
def test_bytes_that_are_not_utf_8_are_named(words: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match=r"\\udcff.*has bytes that are not UTF-8"):
        call_command(*words)


@pytest.mark.usefixtures("redis_cache")
def test_an_unknown_database_is_named_with_what_to_use() -> None:
    check("9/d", "user:1", name="api")

    with pytest.raises(CommandError, match=r"'nowhere'.* Use an alias of DATABASES\."):
        call_command("quota_rollup", database="nowhere")


@pytest.mark.parametrize("last", ["0", "-3"])
@pytest.mark.usefixtures("redis_cache")
def test_events_are_asked_for_by_a_number_from_1(last: str) -> None:
    with pytest.raises(CommandError, match=f"--last {last}: use 1 or more, for example 20"):
        call_command("quota_events", f"--last={last}")
