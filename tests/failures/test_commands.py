"""The commands where Redis is gone, permits something no more, or dies midway: they say so, and end with status 1."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_quota import check
from django_quota.management import commands
from django_quota.management.console import INTERRUPTED, NOBODY_READS, PrintingCommand
from django_quota.testing import server_programs
from tests.commands import managing, wait_until
from tests.failures.harms import HARMS, USER, Place, harm_named, placed
from tests.failures.places import caches_at

pytestmark = pytest.mark.django_db(transaction=True)

COMMANDS: dict[str, tuple[str, ...]] = {
    "sweep": ("quota_sweep",),
    "rollup": ("quota_rollup",),
    "sync": ("quota_sync",),
    "status": ("quota_status", "user:7"),
    "reset": ("quota_reset", "user:7"),
    "override": ("quota_override", "set", "user:7", "5/m"),
    "events": ("quota_events",),
    "dead letters": ("quota_events", "--dead"),
    "drain": ("quota_events", "--drain", "--since", "beginning", "--exec", "true"),
}
WATCHERS: dict[str, tuple[str, ...]] = {
    "follow": ("quota_events", "--follow"),
    "exec": ("quota_events", "--since", "beginning", "--exec", "true"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with placed(server_programs()[0], tmp_path_factory.mktemp("place")) as made:
        yield made


@pytest.fixture
def used(place: Place, settings: Any) -> Place:
    """A place where something has been counted, and told."""
    place.client.flushall()
    settings.CACHES = caches_at(place.url)
    for _ in range(3):
        check("1/m", "user:7", name="login")
    return place


def said(*words: str) -> str:
    """Run a command; return what it ended with, and what it said before."""
    told = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command(*words, stdout=io.StringIO(), stderr=told)
    assert caught.value.returncode == 1
    return f"{told.getvalue()}{caught.value}"


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
@pytest.mark.parametrize("harm", [harm for harm in HARMS if harm.name in ("refused", "max-clients", "wrong-password")])
def test_without_redis_a_command_says_so_and_ends(words: tuple[str, ...], harm: Any, used: Place) -> None:
    with harm.do(used):
        told = said(*words)
        assert "unavailable" in told or "Redis could not be told" in told


PLAIN = {
    "sweep": "scan", "rollup": "scan", "sync": "scan", "status": "evalsha", "reset": "evalsha",
    "override": "evalsha", "events": "xrevrange", "dead letters": "xrevrange", "drain": "xreadgroup",
}  # fmt: skip
"""A command of Redis that each needs."""


@pytest.mark.parametrize("name", COMMANDS)
def test_where_a_permission_is_missing_a_command_names_what_it_may_not(name: str, used: Place) -> None:
    used.client.execute_command("ACL", "SETUSER", USER, f"-{PLAIN[name]}")
    try:
        told = said(*COMMANDS[name])
        if name == "override":  # saved, and published by quota_sync, which says why it could not be
            assert "Redis could not be told" in told
        else:
            assert f"'{PLAIN[name]}" in told
            assert "permission" in told
    finally:
        used.permit()


@pytest.mark.parametrize("command", ["xreadgroup", "xgroup", "xack", "xclaim", "xpending", "xinfo"])
def test_a_consumer_that_may_not_do_its_work_does_not_wait_for_ever(command: str, used: Place) -> None:
    used.client.execute_command("ACL", "SETUSER", USER, f"-{command}")
    try:
        told = said("quota_events", "--since", "beginning", "--exec", "true")
        assert "permission" in told or "can't run this command" in told  # Redis up to 7.0, of what a script calls
    finally:
        used.permit()


def test_a_follower_that_may_not_read_on_does_not_wait_for_ever(used: Place) -> None:
    used.client.execute_command("ACL", "SETUSER", USER, "-xread")
    try:
        assert "permission" in said("quota_events", "--follow")
    finally:
        used.permit()


@pytest.mark.parametrize("words", WATCHERS.values(), ids=WATCHERS.keys())
def test_a_watcher_says_once_that_it_waits_and_ends_where_it_is_not_let_in_any_more(
    words: tuple[str, ...], used: Place, tmp_path: Path
) -> None:
    stderr = tmp_path / "said"
    with managing(tmp_path, caches_at(used.url)) as manage:
        process = manage.start(*words, stderr=stderr)
        wait_until(lambda: any(client["cmd"].startswith("xread") for client in used.client.client_list()))
        with harm_named("refused").do(used):
            wait_until(lambda: "Connection refused. Trying again until it answers" in stderr.read_text())
        wait_until(lambda: "answers again" in stderr.read_text())
        waits = [line for line in stderr.read_text().splitlines() if "Trying again" in line]
        assert len(waits) == len(set(waits))
        with harm_named("wrong-password").do(used):
            assert process.wait(60) == 1
    assert "CommandError: The quota store is unavailable: AuthenticationError" in stderr.read_text()
    assert "Traceback" not in stderr.read_text()


@pytest.mark.parametrize(
    ("name", "unbuffered"),
    [*((name, "") for name in COMMANDS), ("status", "1"), ("events", "1"), ("help", ""), ("help", "1")],
)
def test_a_command_whose_reader_leaves_ends_without_a_word(
    name: str, unbuffered: str, used: Place, tmp_path: Path
) -> None:
    words = COMMANDS.get(name, ("quota_status", "--help"))
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "database")}
    stderr = tmp_path / "said"
    with managing(tmp_path, caches_at(used.url), {"default": database}) as manage:
        if words[0] in ("quota_override", "quota_rollup", "quota_sync"):
            assert manage.start("migrate", "--verbosity", "0").wait(60) == 0
        manage.environment["PYTHONUNBUFFERED"] = unbuffered
        process = manage.start(*words, stderr=stderr)
        assert process.stdout is not None
        process.stdout.close()
        prints = words[0] != "quota_events" or ("--exec" not in words and "--dead" not in words)
        status = process.wait(60)
        if words[-1] != "--help":  # of which Python itself may have thrown the rest away
            assert status == (NOBODY_READS if prints else 0)
    assert "Traceback" not in stderr.read_text()
    assert "Exception" not in stderr.read_text()
    assert "BrokenPipe" not in stderr.read_text()


def test_every_command_is_one_of_these() -> None:
    for module in iter_modules(commands.__path__):
        assert issubclass(import_module(f"{commands.__name__}.{module.name}").Command, PrintingCommand)


def test_what_fails_otherwise_while_nobody_reads_is_told_all_the_same(used: Place, tmp_path: Path) -> None:
    stderr = tmp_path / "said"
    with managing(tmp_path, caches_at("redis://127.0.0.1:1/0")) as manage:
        process = manage.start("quota_status", "user:7", stderr=stderr)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 1
    assert "CommandError: The quota store is unavailable" in stderr.read_text()
    with managing(tmp_path, caches_at(used.url)) as manage, Path("/dev/full").open("w") as full:
        process = manage.start("quota_status", "user:7", stdout=full, stderr=stderr)
        assert process.wait(60) not in (0, NOBODY_READS)
    assert "No space left on device" in stderr.read_text()


@pytest.mark.parametrize(("word", "status"), [("--nonsense", 2), ("user:7", 1), ("--help", 0)])
def test_a_command_that_was_started_with_its_stdout_closed_ends_as_ever(word: str, status: int, tmp_path: Path) -> None:
    without_stdout = ("sh", "-c", 'exec "$@" >&-', "sh")
    with managing(tmp_path, caches_at("redis://127.0.0.1:1/0")) as manage:
        command = (*without_stdout, sys.executable, "-m", "django", "quota_status", word)
        ended = subprocess.run(command, env=manage.environment, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == status
    assert "Traceback" not in ended.stderr


def test_where_code_has_a_command_print_a_pipe_that_breaks_is_its_own() -> None:
    class Broken(io.StringIO):
        def write(self, words: str) -> int:
            raise BrokenPipeError(words)

    with pytest.raises(BrokenPipeError):
        call_command("quota_override", "list", stdout=Broken())


@pytest.mark.parametrize("words", WATCHERS.values(), ids=WATCHERS.keys())
def test_a_watcher_that_is_started_while_redis_is_gone_waits_and_says_so_once(
    words: tuple[str, ...], used: Place, tmp_path: Path
) -> None:
    stderr = tmp_path / "said"
    with managing(tmp_path, caches_at(used.url)) as manage:
        with harm_named("refused").do(used):
            process = manage.start(*words, stderr=stderr)
            wait_until(lambda: "Trying again until it answers" in stderr.read_text())
        wait_until(lambda: "answers again" in stderr.read_text())
        check("1/m", "user:late", name="late", cost=2)
        if words[1] == "--follow":
            assert process.stdout is not None
            while "late" not in process.stdout.readline():
                pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    lines = [line for line in stderr.read_text().splitlines() if "Trying again" in line]
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize("words", WATCHERS.values(), ids=WATCHERS.keys())
def test_a_watcher_that_is_not_let_in_at_its_start_ends(words: tuple[str, ...], used: Place) -> None:
    with harm_named("wrong-password").do(used):
        assert "AuthenticationError" in said(*words)


def test_a_second_signal_ends_a_command_without_a_traceback() -> None:
    class Impatient(PrintingCommand):
        requires_system_checks = ()

        def handle(self, *_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        Impatient().run_from_argv(["manage.py", "impatient"])
    assert ended.value.code == INTERRUPTED
