"""What docs/going_live.md permits suffices for everything, and each permission is needed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_quota.testing import RedisServer, running_redis
from tests.security.acl_steps import OFFICE, PASSWORD, ROOT, WEB, prepared, rules_of
from tests.support.stores import caches, forget_connections

Step = Callable[[], None]

pytestmark = pytest.mark.django_db(transaction=True)


def commands_of(user: str) -> list[str]:
    return [word[1:] for words in rules_of(user) for word in shlex.split(words) if word.startswith("+")]


USERS = {"quota-web": WEB, "quota-office": OFFICE}
NEEDED = [(user, command) for user in USERS for command in commands_of(user)]
NEEDED = [pair for pair in NEEDED if pair[0] == "quota-web" or pair[1] not in commands_of("quota-web")]


class Guarded:
    """A server that is asked as a user of the page."""

    def __init__(self, server: RedisServer, client: Any, settings: Any) -> None:
        self.client = client
        self._server = server
        self._settings = settings

    def be(self, user: str = "") -> None:
        """Ask as this user from now on, over new connections; as one who may do all, without a name."""
        forget_connections()
        named = f"?username={user}&password={PASSWORD}" if user else ""
        self._settings.CACHES = caches(RedisServer(self._server.url + named, self._server.pid, self._server.program))

    def permit(self, user: str) -> None:
        for words in rules_of(user):
            self.client.execute_command("ACL", "SETUSER", user, *shlex.split(words))

    def denied(self, user: str, step: Step) -> set[str]:
        """Return what a step was denied: names of commands, and keys."""
        self.be()
        prepared(self.client)
        self.client.script_flush()
        self.client.execute_command("ACL", "LOG", "RESET")
        self.be(user)
        try:
            step()
        except Exception:  # noqa: BLE001 — what was denied says more
            assert self._log(), f"{step.__name__} failed, and not for a permission"
        finally:
            self.be()
        return self._log()

    def used(self, step: Step) -> set[str]:
        """Return the commands that a step uses, without their subcommands."""
        self.be()
        prepared(self.client)
        self.client.script_flush()
        self.client.config_resetstat()
        step()
        return {name.removeprefix("cmdstat_").partition("|")[0] for name in self.client.info("commandstats")}

    def _log(self) -> set[str]:
        pairs = [entry if isinstance(entry, dict) else {} for entry in self.client.acl_log()]
        denied = {str(entry["object"]) for entry in pairs}
        return {name for name in denied if name.partition("|")[0] != "client"}  # how a client introduces itself


@pytest.fixture(scope="module")
def own_server(redis_server: RedisServer) -> Iterator[RedisServer]:
    with running_redis(redis_server.program) as server:
        yield server


@pytest.fixture
def guarded(own_server: RedisServer, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    with redis.Redis.from_url(own_server.url) as client:
        yield Guarded(own_server, client, settings)


@pytest.mark.parametrize("user", USERS)
def test_nothing_is_denied(user: str, guarded: Guarded) -> None:
    guarded.permit(user)
    assert {step.__name__: guarded.denied(user, step) for step in USERS[user]} == {
        step.__name__: set() for step in USERS[user]
    }


def test_other_keys_are_out_of_reach(guarded: Guarded, own_server: RedisServer) -> None:
    guarded.permit("quota-web")
    with (
        redis.Redis.from_url(own_server.url, username="quota-web", password=PASSWORD) as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.get("other:1:{a}")


@pytest.fixture(scope="module")
def first_users() -> dict[str, dict[str, Step]]:
    """Keep, for each server, the first step that uses each command."""
    return {}


@pytest.mark.thorough("acl")
@pytest.mark.parametrize(("user", "command"), NEEDED, ids=lambda word: word.removeprefix("quota-"))
def test_without_it_something_is_denied(
    user: str, command: str, guarded: Guarded, own_server: RedisServer, first_users: dict[str, dict[str, Step]]
) -> None:
    first = command.partition("|")[0]
    if own_server.url not in first_users:
        first_users[own_server.url] = {name: step for step in reversed(OFFICE) for name in guarded.used(step)}
    step = first_users[own_server.url][first]
    guarded.permit(user)
    guarded.client.execute_command("ACL", "SETUSER", user, f"-{first}")
    assert first in {name.partition("|")[0] for name in guarded.denied(user, step)}


def test_what_the_scripts_call_is_permitted_whether_or_not_a_step_comes_there() -> None:
    called = {
        name.lower()
        for path in (ROOT / "engine" / "lua").glob("*.lua")
        for name in re.findall(r"redis\.p?call\('(\w+)'", path.read_text())
    }
    assert called <= {command.partition("|")[0] for command in commands_of("quota-office")}
