"""Commands do their work whether or not anybody can read what they say, and say what is wrong."""

import argparse
import codecs
import errno
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command, load_command_class
from django.db import DatabaseError, ProgrammingError, connection
from django.utils.connection import ConnectionDoesNotExist

from django_quota import check
from django_quota.exceptions import RuleError, StoreUnavailable
from django_quota.management import console
from django_quota.management.commands.quota_status import Command as Status
from django_quota.management.console import QuotaCommand, bar, progress, stopping
from django_quota.models import DailyCounter, QuotaOverride
from django_quota.testing import RedisServer, freeze
from tests.support.commands import PATIENCE, Manage, Reader, Terminal, managing, said
from tests.support.events import event_fields
from tests.support.steps import SECOND, START
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


@pytest.mark.thorough("slow")
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
    assert "user:é\\u2603" in written.getvalue().decode("latin-1")


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    ("errors", "drawn"),
    [
        pytest.param("strict", "##########----------", id="by default"),
        pytest.param("replace", "????????????????????", id="as PYTHONIOENCODING has it"),
    ],
)
def test_an_encoding_that_lacks_blocks_draws_a_bar_without_them(
    errors: str, drawn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check("10/m", "global", 5)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", errors=errors))

    call_command(Status(), "global", all=True)

    assert f"{drawn} 5 of 10 used" in written.getvalue().decode("ascii")


GRANT = "Grant the user of the database SELECT, INSERT, UPDATE and DELETE on it."


@pytest.mark.parametrize(
    ("error", "says"),
    [
        pytest.param(
            'relation "django_quota_dailycounter" does not exist',
            'relation "django_quota_dailycounter" does not exist: `manage.py migrate` creates the tables.',
            id="no table",
        ),
        pytest.param(
            " no such table: django_quota_dailycounter\n",
            "no such table: django_quota_dailycounter: `manage.py migrate` creates the tables.",
            id="no table of SQLite",
        ),
        pytest.param(
            "permission denied for table django_quota_dailycounter.",
            f"permission denied for table django_quota_dailycounter. {GRANT}",
            id="no permission",
        ),
        pytest.param(
            "(1142, \"SELECT command denied to user 'a' for table 'django_quota_dailycounter'\")",
            f"(1142, \"SELECT command denied to user 'a' for table 'django_quota_dailycounter'\"). {GRANT}",
            id="no permission of MySQL",
        ),
        pytest.param("server closed the connection", "server closed the connection", id="no answer"),
        pytest.param(
            "no such column: django_quota_dailycounter.tier",
            "no such column: django_quota_dailycounter.tier",
            id="no column",
        ),
        pytest.param("no such table: auth_user", "no such table: auth_user", id="no table of another app"),
    ],
)
def test_the_advice_fits_what_the_database_says(error: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Status, "handle", Mock(side_effect=ProgrammingError(error)))

    with pytest.raises(CommandError) as raised:
        call_command(Status(), "user:1")

    assert str(raised.value) == says


@pytest.mark.parametrize(
    ("store", "error", "says"),
    [
        pytest.param(
            "redis",
            StoreUnavailable("gone."),
            'The quota store is unavailable: gone. It is the Redis of CACHES["default"].',
            id="Redis",
        ),
        pytest.param(
            "database",
            StoreUnavailable("gone"),
            'The quota store is unavailable: gone. It is DATABASES["default"].',
            id="the database",
        ),
        pytest.param(
            "redis", ConnectionDoesNotExist("The connection 'x' doesn't exist."),
            "The connection 'x' doesn't exist. Use an alias of DATABASES.", id="no alias",
        ),
    ],
)  # fmt: skip
def test_an_error_names_the_place_of_the_store(store: str, error: Exception, says: str, settings: Any) -> None:
    settings.QUOTA = {"STORE": store}

    assert console.explain(error) == says


def test_the_memory_of_a_process_is_no_store_of_a_command(memory_store: None) -> None:
    with pytest.raises(CommandError) as raised:
        console.shared_stores()

    assert str(raised.value) == (
        'QUOTA["STORE"] is "memory": other processes cannot see what a process keeps in memory.'
    )


NOON = 1_763_726_400 * SECOND  # of 2025-11-21, in UTC


@pytest.mark.parametrize(
    ("given", "moment"),
    [
        pytest.param(None, 0, id="nothing"),
        pytest.param("2025-11-21T12:00:00.5Z", NOON + SECOND // 2, id="in UTC"),
        pytest.param("2025-11-21T13:00+01:00", NOON, id="with a zone"),
        pytest.param("2025-11-21T07:00", NOON, id="in the time zone of the site"),
        pytest.param("2h", START - 7_200 * SECOND, id="how long ago"),
    ],
)
def test_a_moment_is_a_time_or_how_long_ago_it_is(given: str | None, moment: int, settings: Any) -> None:
    settings.TIME_ZONE = "America/New_York"

    with freeze(START):
        assert console.given_moment("--since", given) == moment


def test_what_is_no_moment_is_an_error() -> None:
    with pytest.raises(CommandError) as raised:
        console.given_moment("--since", "soon")

    assert str(raised.value) == (
        "--since 'soon' is not a moment. Use, for example, 2030-01-31T12:00, or 2h for 2 hours ago."
    )


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(None, None), ("60", 60.0), ("0.5", 0.5), (60, 60.0), ("10m", 600.0), (timedelta(minutes=1), 60.0)],
    ids=str,
)
def test_a_duration_is_a_number_of_seconds_or_has_a_unit(given: object, seconds: float | None) -> None:
    assert console.duration_of("--every", given) == seconds


def test_what_is_no_duration_is_an_error() -> None:
    with pytest.raises(RuleError, match=r"Use, for example, 60 \(seconds\), '10m' or '7d'\.$"):
        console.duration_of("--every", "soon")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((0, "key"), "0 keys"), ((1, "key"), "1 key"), ((2, "key"), "2 keys"), ((1_000, "key"), "1,000 keys"),
        ((1, "entry", "entries"), "1 entry"), ((2, "entry", "entries"), "2 entries"),
    ],
    ids=["none", "one", "two", "a thousand", "one of a word", "two of a word"],
)  # fmt: skip
def test_a_quantity_has_its_word(words: Any, text: str) -> None:
    assert console.quantity(*words) == text


def test_a_moment_is_printed_to_the_second() -> None:
    assert console.second_of(NOON + SECOND - 1) == "2025-11-21 12:00:00Z"


@pytest.mark.parametrize(
    ("options", "is_asked", "printed"),
    [
        pytest.param({"json": True, "verbosity": 1}, False, '{"a": 1}\n', id="as JSON"),
        pytest.param({"json": True, "verbosity": 0}, False, '{"a": 1}\n', id="as JSON although quiet"),
        pytest.param({"json": False, "verbosity": 1}, False, "one\ntwo\\x1b\n", id="as text"),
        pytest.param({"json": False, "verbosity": 0}, False, "", id="quiet"),
        pytest.param({"json": False, "verbosity": 0}, True, "one\ntwo\\x1b\n", id="quiet, but asked for"),
    ],
)
def test_a_result_is_printed_as_the_options_have_it(options: Any, is_asked: bool, printed: str) -> None:
    out = io.StringIO()

    QuotaCommand(stdout=out).print_result(options, {"a": 1}, ["one", "two\x1b"], is_asked=is_asked)

    assert out.getvalue() == printed


@pytest.mark.parametrize(
    ("given", "is_used", "notes"),
    [
        pytest.param("192.0.2.1", True, "Note: '192.0.2.1' is taken for 'ip:192.0.2.1'.\n", id="a bare address"),
        pytest.param("ip:192.0.2.1", True, "", id="a subject"),
        pytest.param("ip:192.0.2.1", False, "", id="a subject that is not used"),
    ],
)
def test_a_note_names_the_subject_of_a_bare_address(given: str, is_used: bool, notes: str) -> None:
    out = io.StringIO()

    QuotaCommand(stderr=out).note_subject(given, "ip:192.0.2.1", is_used=is_used)

    assert out.getvalue() == notes


def test_a_used_subject_gets_no_hint() -> None:
    out = io.StringIO()

    QuotaCommand(stderr=out).note_subject("ann", "ann", is_used=True)

    assert out.getvalue() == ""


def test_a_note_names_each_rule_that_nothing_has(settings: Any) -> None:
    settings.ROOT_URLCONF, settings.QUOTA = (), {"RULES": {"search": "9/m"}}
    out = io.StringIO()

    QuotaCommand(stderr=out).note_rules(["serch", "search", "searches"])

    assert out.getvalue() == (
        'Note: "serch" is not a rule of the settings or the views. Did you mean "search"?\n'
        'Note: "searches" is not a rule of the settings or the views. Did you mean "search"?\n'
    )


def test_a_program_reads_a_result_at_once() -> None:
    out = Reader()

    QuotaCommand(stdout=out).print_result({"json": True, "verbosity": 1}, {"a": 1}, [])

    assert out.read_so_far == '{"a": 1}\n'


def test_a_program_reads_a_note_at_once() -> None:
    notes = Reader()

    QuotaCommand(stderr=notes).note("one")

    assert notes.read_so_far == "one\n"


def test_notes_without_words_are_left_out() -> None:
    notes = io.StringIO()

    QuotaCommand(stderr=notes).note("one", "", "two")

    assert notes.getvalue() == "one\ntwo\n"


def test_only_what_cannot_be_written_is_made_plainer() -> None:
    error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    with pytest.raises(UnicodeDecodeError) as raised:
        codecs.lookup_error("django_quota_plainer")(error)

    assert raised.value is error


def test_a_process_without_stdout_runs_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    command: Any = QuotaCommand()

    command.print_json({"a": "☃"})

    assert command.stdout.name == os.devnull
    command.stdout.close()


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


def test_no_error_of_a_database_moves_the_cursor_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Status, "handle", Mock(side_effect=ProgrammingError(f"no such table: {CLEAR}")))

    with pytest.raises(CommandError) as raised:
        call_command(Status(), "user:1")

    assert str(raised.value) == r"no such table: \x1b[2J"


@pytest.mark.usefixtures("redis_cache", "database")
@pytest.mark.parametrize(
    "words",
    [("quota_override", "set", "user:\udcff", "blocked"), ("quota_status", "\udcff"), ("quota_replay", "\udcff.log")],
    ids=lambda words: words[0],
)
def test_bytes_that_are_not_utf_8_are_named(words: tuple[str, ...]) -> None:
    (given,) = [word for word in words if "\udcff" in word]

    with pytest.raises(CommandError) as raised:
        call_command(*words)

    shown = given.replace("\udcff", "\\udcff")
    assert str(raised.value) == f"The argument '{shown}' has bytes that are not UTF-8. Write it in UTF-8."


DJANGOS_OPTIONS = [
    "--settings=tests.support.settings",
    "--pythonpath=.",
    "--traceback",
    "--no-color",
    "--force-color",
    "--skip-checks",
    "--verbosity=0",
    "-v3",
]


HELP = {
    "quota_bans": "List, set and lift bans. A ban is a temporary block under one rule that has ban=.",
    "quota_copy": "Copy limits, bans, counters and all else that is counted from one store to another.",
    "quota_events": "Print refusals, bans and near-limit warnings, or follow them.",
    "quota_metrics": "Print the metrics of all processes, or serve them to Prometheus.",
    "quota_override": (
        "List, set, import and clear overrides, which give subjects another rate, exempt them, or block them."
    ),
    "quota_replay": "Say what rules would have refused of the requests in an access log. Nothing is counted.",
    "quota_reset": "Delete what rules have counted for a subject, and lift its bans. Overrides stay.",
    "quota_rollup": "Move the usage of each day out of the store into the daily counters, exactly once even if killed.",
    "quota_rules": (
        "Show which rules apply to a request, in which order, and what they have left. Nothing is counted."
    ),
    "quota_status": "Show the limits, overrides, bans and slots of a subject, and where each figure comes from.",
    "quota_sweep": "Drop expired entries from sorted sets in Redis, or expired rows of the database store.",
    "quota_usage": "Print what all subjects have used in a month: a line for each subject and rule, for bills.",
}
WHO = (
    "for example user:42, 203.0.113.9, post:phone=+1555, ip:203.0.113.9+post:username=ann, or login:username=ann for "
    "failed logins"
)
WHOM = "for example user:42, 203.0.113.9, 198.51.100.0/24 for a network, 'user:*' for all users, or '*' for everybody"
IN_UTC = "print JSON, with times in UTC"
ONE_RULE = "only this rule; you may repeat it"
OPTIONS = {
    "quota_bans list": {"--json": IN_UTC, "--subject": "only of this subject, for example user:42"},
    "quota_bans set": {"--json": IN_UTC, "subject": WHO},
    "quota_bans lift": {"--json": IN_UTC, "--dry-run": "only say what would be lifted", "subject": WHO},
    "quota_copy": {"--json": "print a JSON object", "--dry-run": "only count, and change nothing"},
    "quota_events": {
        "--json": "print one JSON object a line, with times in UTC", "--rule": ONE_RULE,
        "--subject": f"only this user or subject: {WHO}",
    },
    "quota_override list": {"--json": IN_UTC, "--subject": "only of this subject, for example user:42"},
    "quota_override set": {"--json": IN_UTC, "subject": WHOM},
    "quota_override import": {"--json": IN_UTC, "--dry-run": "only say what would change"},
    "quota_override clear": {
        "--json": IN_UTC, "--dry-run": "only say what would change", "subject": f"{WHOM}; not needed with --label",
    },
    "quota_replay": {"--json": "print one JSON object", "--rule": ONE_RULE},
    "quota_reset": {
        "--json": "print one JSON object", "--dry-run": "print what would be reset, and change nothing",
        "--rule": ONE_RULE, "subject": WHO,
    },
    "quota_rollup": {
        "--json": "print what was done as one JSON object a round", "--dry-run": "only say what would be moved",
        "--every": "repeat, with this pause in between: 60, or 10m",
    },
    "quota_rules": {"--json": "print one JSON list"},
    "quota_status": {
        "--json": "print one JSON object, with times in UTC and spans in seconds", "--rule": ONE_RULE,
        "subject": f"a user name, or {WHO}",
    },
    "quota_sweep": {
        "--json": "print one JSON object for each sweep", "--dry-run": "only count, and change nothing",
        "--every": "repeat, with this pause in between: 60, or 10m",
    },
    "quota_usage": {"--json": "print one JSON object a line", "--rule": "only of this rule; you may repeat it"},
}  # fmt: skip
"""What the options mean that several commands have; `tests/e2e/test_reference.py` has the others."""
VERBS = {
    "quota_bans": {
        "list": "show those in force, the first to end first",
        "set": "ban a subject from now on",
        "lift": "end the bans of a subject; what was counted stays",
    },
    "quota_override": {
        "list": "show them",
        "set": "add or change one",
        "import": "replace those with a label by a list of addresses and networks",
        "clear": "delete them",
    },
}


def parser_of(command: str) -> Any:
    """Return the parser of a command, or of one of its verbs."""
    name, _, verb = command.partition(" ")
    app = "django_quota.contrib.prometheus" if name == "quota_metrics" else "django_quota"
    parser = load_command_class(app, name).create_parser("manage.py", name)
    return verbs_of(parser).choices[verb] if verb else parser


def verbs_of(parser: Any) -> Any:
    (verbs,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return verbs


@pytest.mark.parametrize(("command", "text"), HELP.items(), ids=HELP)
def test_the_help_says_what_a_command_does(command: str, text: str) -> None:
    assert parser_of(command).description == text


@pytest.mark.parametrize(("command", "meanings"), VERBS.items(), ids=VERBS)
def test_the_help_says_what_each_verb_does(command: str, meanings: dict[str, str]) -> None:
    verbs = verbs_of(parser_of(command))

    assert {each.dest: each.help for each in verbs._choices_actions} == meanings
    assert verbs.metavar == "|".join(meanings)


@pytest.mark.parametrize(("command", "options"), OPTIONS.items(), ids=OPTIONS)
def test_the_help_says_what_an_option_of_several_commands_does(command: str, options: dict[str, str]) -> None:
    described = {
        name: action.help for action in parser_of(command)._actions for name in action.option_strings or [action.dest]
    }

    assert {name: described[name] for name in options} == options


@pytest.mark.parametrize("option", DJANGOS_OPTIONS)
@pytest.mark.parametrize("command", ["quota_bans", "quota_override"])
def test_an_option_of_django_means_the_same_before_the_verb_and_after_it(command: str, option: str) -> None:
    parser = load_command_class("django_quota", command).create_parser("manage.py", command)

    before, after = parser.parse_args([option, "list"]), parser.parse_args(["list", option])

    assert vars(after) == vars(before) != vars(parser.parse_args(["list"]))


@pytest.mark.usefixtures("redis_cache")
def test_an_unknown_database_is_named_with_what_to_use() -> None:
    check("9/d", "user:1", name="api")

    with pytest.raises(CommandError, match=r"'nowhere'.* Use an alias of DATABASES\."):
        call_command("quota_rollup", database="nowhere")


@pytest.mark.parametrize("last", ["0", "-3"])
@pytest.mark.usefixtures("redis_cache")
def test_events_are_asked_for_by_a_number_from_1(last: str) -> None:
    with pytest.raises(CommandError) as raised:
        call_command("quota_events", f"--last={last}")

    assert str(raised.value) == f"--last {last}: use 1 or more, for example 20."


def test_an_error_of_a_command_keeps_its_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Status, "handle", Mock(side_effect=CommandError("It is half done.", returncode=3)))

    with pytest.raises(CommandError) as raised:
        call_command(Status(), "user:1")

    assert raised.value.returncode == 3


class TestOutputThatCannotBeWritten:
    def run(self, error: BaseException, folder: Path) -> tuple[BaseException, str]:
        """Run a command that raises an error; return what it ends with, and what it has written to stderr."""
        # Not in a fixture: pytest sets the streams of the process again before the test.
        with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as errors:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "stdout", out)
                patch.setattr(sys, "stderr", errors)
                patch.setattr(Status, "handle", Mock(side_effect=error))
                with pytest.raises((SystemExit, FileNotFoundError)) as ended:
                    Status().run_from_argv(["manage.py", "quota_status", "user:1"])
            return ended.value, (folder / "stderr").read_text()

    @pytest.mark.parametrize(
        ("error", "status", "says"),
        [
            pytest.param(BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, "", id="nobody reads it"),
            pytest.param(
                OSError(errno.ENOSPC, "No space left on device"),
                1,
                "The output could not be written: No space left on device.\n",
                id="a full disk",
            ),
            pytest.param(KeyboardInterrupt(), 130, "", id="a second signal"),
        ],
    )
    def test_it_ends_the_command_with_a_status(
        self, error: BaseException, status: int, says: str, tmp_path: Path
    ) -> None:
        ended, notes = self.run(error, tmp_path)

        assert isinstance(ended, SystemExit)
        assert (ended.code, notes) == (status, says)

    def test_it_is_noticed_when_the_rest_is_written_at_the_end(self, tmp_path: Path) -> None:
        with (tmp_path / "stdout").open("w") as out, pytest.MonkeyPatch.context() as patch:
            broken = BrokenPipeError(errno.EPIPE, "Broken pipe")
            patch.setattr(sys, "stdout", Mock(wraps=out, **{"flush.side_effect": broken}))
            patch.setattr(Status, "handle", lambda *_, **__: None)
            with pytest.raises(SystemExit) as ended:
                Status().run_from_argv(["manage.py", "quota_status", "user:1"])

        assert ended.value.code == 141

    def test_a_process_without_stderr_ends_with_the_status(self, tmp_path: Path) -> None:
        with (tmp_path / "stdout").open("w") as out, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", None)
            patch.setattr(Status, "handle", Mock(side_effect=BrokenPipeError(errno.EPIPE, "Broken pipe")))
            command: Any = Status()
            with pytest.raises(SystemExit) as ended:
                command.run_from_argv(["manage.py", "quota_status", "user:1"])
        command.stderr.close()

        assert ended.value.code == 141

    def test_an_error_of_another_file_is_not_one_of_the_output(self, tmp_path: Path) -> None:
        error = FileNotFoundError(errno.ENOENT, "No such file or directory", "a.log")

        ended, _ = self.run(error, tmp_path)

        assert ended is error


class TestRepeat:
    """A command with `--every`."""

    @pytest.mark.parametrize(
        "error", [StoreUnavailable("gone."), DatabaseError("The quota store is unavailable: gone")], ids=type
    )
    def test_a_note_says_that_it_tries_again(self, error: Exception) -> None:
        def once(stop: threading.Event) -> None:
            rounds.append(stop)
            if len(rounds) == 1:
                raise error
            stop.set()

        rounds: list[threading.Event] = []
        notes = io.StringIO()

        QuotaCommand(stderr=notes).repeat(0.001, once)

        assert notes.getvalue() == "The quota store is unavailable: gone. Trying again in 0.001 s.\n"
        assert len(rounds) == 2

    def test_the_note_has_whole_seconds_without_a_fraction(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stop, notes = Mock(wait=Mock(return_value=True)), io.StringIO()
        monkeypatch.setattr(console, "stopping", lambda: nullcontext(stop))

        QuotaCommand(stderr=notes).repeat(600.0, Mock(side_effect=StoreUnavailable("gone")))

        assert notes.getvalue() == "The quota store is unavailable: gone. Trying again in 600 s.\n"

    def test_an_error_ends_a_command_that_does_not_repeat(self) -> None:
        with pytest.raises(StoreUnavailable):
            QuotaCommand().repeat(None, Mock(side_effect=StoreUnavailable("gone")))

    def test_a_round_does_not_use_a_connection_that_is_too_old(self, database: Any) -> None:
        def once(stop: threading.Event) -> None:
            is_open.append(connection.connection is not None)
            connection.ensure_connection()
            connection.close_at = 0.0
            if len(is_open) == 2:
                stop.set()

        connection.ensure_connection()
        is_open: list[bool] = []

        QuotaCommand().repeat(0.001, once)

        assert is_open == [True, False]

    def test_each_round_is_followed_by_the_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def once(stop: Any) -> None:
            steps.append("round")
            stop.is_set.return_value = steps.count("round") == 2

        def wait(seconds: float) -> bool:
            steps.append(seconds)
            return bool(stop.is_set())

        steps: list[object] = []
        stop = Mock(is_set=Mock(return_value=False), wait=wait)
        monkeypatch.setattr(console, "stopping", lambda: nullcontext(stop))

        QuotaCommand().repeat(600, once)

        assert steps == ["round", 600, "round", 600]


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
    def test_the_first_asks_a_command_to_stop(self, number: signal.Signals) -> None:
        with stopping() as stop:
            signal.raise_signal(number)

            assert stop.wait(PATIENCE)

    def test_the_second_ends_it(self) -> None:
        with stopping():
            signal.raise_signal(signal.SIGTERM)

            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)

    def test_afterwards_they_do_what_they_did_before(self) -> None:
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.getsignal(number) for number in numbers]

        with stopping():
            pass

        assert [signal.getsignal(number) for number in numbers] == before

    def test_another_thread_leaves_them_as_they_are(self) -> None:
        before = signal.getsignal(signal.SIGTERM)

        def run() -> tuple[bool, object]:
            with stopping() as stop:
                return stop.is_set(), signal.getsignal(signal.SIGTERM)

        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(run).result() == (False, before)


@pytest.mark.parametrize(
    ("stream", "total", "drawn"),
    [
        pytest.param(
            Terminal, 4, f"\rSweeping {'█' * 5}{'░' * 15} 1 of 4\rSweeping {'█' * 10}{'░' * 10} 2 of 4\n", id="of 4"
        ),
        pytest.param(
            Terminal, 1, f"\rSweeping {'█' * 20} 1 of 1\rSweeping {'█' * 20} 1 of 1\n", id="of fewer than there are"
        ),
        pytest.param(Terminal, 0, "\rSweeping 1\rSweeping 2\n", id="of none"),
        pytest.param(io.StringIO, 4, "", id="into a file"),
    ],
)
def test_progress_is_drawn_on_a_terminal_only(
    stream: Any, total: int, drawn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: 8.0))
    out = stream()

    with progress(out, "Sweeping", total) as advance:
        for _ in range(2):
            advance(1)

    assert out.getvalue() == drawn


def test_a_bar_of_progress_is_not_drawn_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([8.0, 8.0, 8.19, 8.21, 8.21, 8.4])
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    terminal = Terminal()

    with progress(terminal, "Sweeping", None) as advance:
        for _ in range(3):
            advance(1)

    assert terminal.getvalue() == "\rSweeping 1\rSweeping 3\rSweeping 3\n"


@pytest.mark.parametrize(("share", "filled"), [(0.0, 0), (0.5, 10), (1.0, 20), (1.5, 20)])
def test_a_bar_is_never_wider_than_a_full_one(share: float, filled: int) -> None:
    assert bar(share) == "█" * filled + "░" * (20 - filled)


@pytest.mark.usefixtures("redis_cache", "database")
class TestWithoutATableOfUsers:
    @pytest.fixture(
        autouse=True,
        params=[
            pytest.param(ProgrammingError("no such table: auth_user"), id="no table"),
            pytest.param(ImproperlyConfigured("settings.DATABASES is improperly configured"), id="no database"),
        ],
    )
    def no_users(self, database: Any, request: pytest.FixtureRequest) -> Iterator[None]:
        def execute(act: Any, sql: str, *arguments: Any) -> Any:
            if "auth_user" in sql:
                raise request.param
            return act(sql, *arguments)

        with connection.execute_wrapper(execute):
            yield

    def test_a_name_gets_a_hint(self) -> None:
        assert 'Note: No request has the subject "ann". Use, for example, user:<key>' in said("quota_reset", "ann")

    def test_an_event_has_the_key_of_its_user(self, raw: Any) -> None:
        written: Any = event_fields(
            kind="refused", rule="search", subject="ip:1", user="user:7", until=0, capacity=10, method="GET", path="/a"
        )
        raw.xadd("quota:1:{!}:events", written)

        assert "  search  ip:1  user:7 GET /a: needed " in said("quota_events")

    def test_a_status_is_of_what_was_typed(self) -> None:
        assert said("quota_status", "ann").startswith("ann\n")

    def test_an_author_is_kept_by_name(self) -> None:
        said("quota_override", "set", "ip:192.0.2.1", "blocked", "--by", "ann")

        assert QuotaOverride.objects.get().created_by == "ann"

    def test_an_override_of_a_name_is_without_effect(self) -> None:
        with pytest.raises(CommandError, match='No request has the subject "ann"'):
            said("quota_override", "set", "ann", "blocked")
