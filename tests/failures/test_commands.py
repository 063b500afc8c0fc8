"""The commands where Redis is gone, permits something no more, or dies midway: they say so, and end with status 1."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_quota import check, publishing
from django_quota.testing import server_programs
from tests.commands import managing, wait_until
from tests.failures.harms import HARMS, USER, Place
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
    made = Place(server_programs()[0], tmp_path_factory.mktemp("place"))
    made.start()
    yield made
    made.server.end()


@pytest.fixture
def used(place: Place, settings: Any) -> Place:
    """A place where something has been counted, and told."""
    place.client.flushall()
    settings.CACHES = caches_at(place.url)
    for _ in range(3):
        check("1/m", "user:7", name="login")
    return place


@pytest.fixture(autouse=True)
def nobody_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be published would be, by a thread that outlives its test."""
    monkeypatch.setattr(publishing, "in_background", lambda *_: None)


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
        assert "permission" in said("quota_events", "--since", "beginning", "--exec", "true")
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
    harms = {harm.name: harm for harm in HARMS}
    with managing(tmp_path, caches_at(used.url)) as manage:
        process = manage.start(*words, stderr=stderr)
        # It has begun: where Redis is gone before that, it ends.
        wait_until(lambda: any(client["cmd"].startswith("xread") for client in used.client.client_list()))
        with harms["refused"].do(used):
            wait_until(lambda: "Connection refused. Trying again until it answers" in stderr.read_text())
        wait_until(lambda: "answers again" in stderr.read_text())
        waits = [line for line in stderr.read_text().splitlines() if "Trying again" in line]
        assert len(waits) == len(set(waits))
        with harms["wrong-password"].do(used):
            assert process.wait(60) == 1
    assert "CommandError: The quota store is unavailable: AuthenticationError" in stderr.read_text()
    assert "Traceback" not in stderr.read_text()
