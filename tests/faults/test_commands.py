"""Commands end with status 1 and an error if Redis is gone, lacks a permission, or dies midway."""

import io
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_quota import check
from tests.faults.calls import caches_at
from tests.faults.faults import FAULTS, FaultyServer
from tests.support.commands import managing, wait_until
from tests.support.selection import thorough

pytestmark = pytest.mark.django_db(transaction=True)

GROUP = ("quota_events", "--follow", "--group", "g")
COMMANDS: dict[str, tuple[str, ...]] = {
    "status": ("quota_status", "user:7"),
    "sweep": ("quota_sweep",),
    "rollup": ("quota_rollup",),
    "copy": ("quota_copy", "--from", "redis", "--to", "database"),
    "usage": ("quota_usage", "--month", "2126-10"),
    "reset": ("quota_reset", "user:7"),
    "events": ("quota_events",),
    "bans": ("quota_bans", "list"),
    "lift": ("quota_bans", "lift", "user:7"),
    "rules": ("quota_rules", "/limited/"),
}
NEEDED = [
    ("sweep", "scan"), ("rollup", "scan"), ("copy", "scan"), ("copy", "evalsha"), ("copy", "time"),
    ("usage", "scan"), ("status", "evalsha"), ("reset", "evalsha"),
    ("events", "xrevrange"), ("bans", "zrangebyscore"), ("lift", "evalsha"),
    *(("group", command) for command in ("xgroup", "xautoclaim", "xinfo", "xreadgroup", "xack")),
]  # fmt: skip


@pytest.fixture
def used(one_server: FaultyServer, settings: Any) -> FaultyServer:
    """A server where something was counted and refused."""
    one_server.client.flushall()
    settings.CACHES = caches_at(one_server.url)
    for _ in range(3):
        check("1/m", "user:7", name="login")
    return one_server


def said(*words: str) -> str:
    """Run a command that fails, and return what it printed and its error."""
    printed = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command(*words, stdout=io.StringIO(), stderr=printed)
    assert caught.value.returncode == 1
    return f"{printed.getvalue()}{caught.value}"


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        *(("refused", name) for name in COMMANDS),
        thorough("variants", "max-clients", "sweep"),
        thorough("variants", "wrong-password", "status"),
    ],
)
def test_without_redis_a_command_ends_with_an_error(
    fault: str, name: str, used: FaultyServer, short_pauses: None
) -> None:
    with FAULTS[fault].inject(used):
        assert 'It is the Redis of CACHES["default"].' in said(*COMMANDS[name])


@pytest.mark.parametrize(("name", "command"), NEEDED)
def test_a_command_ends_with_the_name_of_the_permission_that_it_lacks(
    name: str, command: str, used: FaultyServer
) -> None:
    if command == "xack":  # there must be something to acknowledge
        (key,) = used.client.keys("*:events")
        used.client.xgroup_create(key, "g", "0")
    used.permit(f"-{command}")
    try:
        printed = said(*COMMANDS.get(name, GROUP))
    finally:
        used.permit()

    assert "permission" in printed
    assert f"'{command}" in printed


@pytest.mark.thorough("processes")
@pytest.mark.parametrize("more", [(), ("--json", "--group", "g")], ids=["alone", "in a group"])
class TestWatcher:
    @pytest.fixture
    def stderr(self, tmp_path: Path) -> Path:
        return tmp_path / "said"

    @pytest.fixture
    def watcher(
        self, more: tuple[str, ...], used: FaultyServer, tmp_path: Path, stderr: Path
    ) -> Iterator[subprocess.Popen[str]]:
        """A watcher that began before Redis answered, and has read an event since."""
        with managing(tmp_path, caches_at(used.url)) as manage:
            with FAULTS["refused"].inject(used):
                process = manage.start("quota_events", "--follow", *more, stderr=stderr)
                wait_until(lambda: "Connection refused. Trying again until it answers" in stderr.read_text())
            wait_until(lambda: "answers again" in stderr.read_text())
            check("1/m", "user:late", name="late", cost=2)
            assert process.stdout is not None
            while "late" not in process.stdout.readline():
                pass
            yield process

    def test_it_says_once_that_it_waits_for_redis(self, watcher: subprocess.Popen[str], stderr: Path) -> None:
        waits = [line for line in stderr.read_text().splitlines() if "Trying again" in line]

        assert len(waits) == len(set(waits))

    def test_it_ends_if_its_password_changes(
        self, watcher: subprocess.Popen[str], used: FaultyServer, stderr: Path
    ) -> None:
        with FAULTS["wrong-password"].inject(used):
            assert watcher.wait(60) == 1

        assert "CommandError: The quota store is unavailable: AuthenticationError" in stderr.read_text()
        assert "Traceback" not in stderr.read_text()


@pytest.mark.thorough("processes")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("name", ["status", "sweep", "events", "override", "help"])
def test_a_command_ends_quietly_if_its_reader_has_left(
    name: str, unbuffered: str, used: FaultyServer, tmp_path: Path
) -> None:
    others = {"override": ("quota_override", "set", "ip:203.0.113.9", "5/m"), "help": ("quota_status", "--help")}
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "database")}
    stderr = tmp_path / "said"
    with managing(tmp_path, caches_at(used.url), {"default": database}) as manage:
        if name == "override":
            assert manage.start("migrate", "--verbosity", "0").wait(60) == 0

        manage.environment["PYTHONUNBUFFERED"] = unbuffered
        process = manage.start(*(COMMANDS | others)[name], stderr=stderr)
        assert process.stdout is not None
        process.stdout.close()
        status = process.wait(60)

        # 128 and the number of the signal, as a shell has it. Of help, Python itself may have thrown the rest away.
        assert name == "help" or status == 128 + signal.SIGPIPE
    assert not re.search("Traceback|Exception|BrokenPipe", stderr.read_text())


@pytest.mark.thorough("slow")
@pytest.mark.parametrize(
    ("name", "unbuffered"),
    [("events", ""), *(thorough("processes", name, "1") for name in ("events", "status", "sweep"))],
)
def test_a_command_whose_output_does_not_fit_says_so_in_one_line(
    name: str, unbuffered: str, used: FaultyServer, tmp_path: Path
) -> None:
    stderr = tmp_path / "said"
    with managing(tmp_path, caches_at(used.url)) as manage, Path("/dev/full").open("w") as full:
        manage.environment["PYTHONUNBUFFERED"] = unbuffered
        process = manage.start(*COMMANDS[name], stdout=full, stderr=stderr)
        assert process.wait(60) == 1
    assert stderr.read_text().splitlines()[-1] == "The output could not be written: No space left on device."
    assert not re.search("Traceback|Exception", stderr.read_text())
