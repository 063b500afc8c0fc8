"""What docs/going_live.md permits suffices for everything, and each permission is needed."""

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_quota import check, counter, once
from django_quota.adapters import digest
from django_quota.exceptions import QuotaError
from django_quota.testing import RedisServer, running_redis
from tests.security.acl_steps import OFFICE, PAGE, PASSWORD, ROOT, WEB, prepared, rules_of
from tests.support.clusters import Cluster, running_cluster, slot_of
from tests.support.stores import caches, cluster_caches, cluster_program, current_store, forget_connections

Step = Callable[[], None]

pytestmark = pytest.mark.django_db(transaction=True)


def commands_of(user: str) -> list[str]:
    return [word[1:] for words in rules_of(user) for word in shlex.split(words) if word.startswith("+")]


USERS = {"quota-web": WEB, "quota-office": OFFICE}
NEEDED = [(user, command) for user in USERS for command in commands_of(user)]
NEEDED = [pair for pair in NEEDED if pair[0] == "quota-web" or pair[1] not in commands_of("quota-web")]
BESIDES = re.findall(r"`([+|a-z ]+)`", PAGE.partition("A Redis Cluster needs")[2].partition("keeps the client")[0])
OF_CLUSTER, OF_DATABASE = BESIDES[0].split(), BESIDES[1].split()


def permit(client: Any, user: str, *more: str) -> None:
    """Make a user of the page, with some permissions more or fewer."""
    for words in (["reset"], *map(shlex.split, rules_of(user)), more):
        client.execute_command("ACL", "SETUSER", user, *words)
    client.execute_command("ACL", "LOG", "RESET")


def denied(client: Any) -> set[str]:
    """Return what a server was denied since it was last asked, but for how a client introduces itself."""
    found = {str(entry["object"]).partition("|")[0] for entry in client.acl_log()}
    client.execute_command("ACL", "LOG", "RESET")
    return found - {"client"}


class Guarded:
    """A server that is asked as a user of the page."""

    def __init__(self, server: RedisServer, client: Any, settings: Any) -> None:
        self.client = client
        self._server = server
        self._settings = settings

    def be(self, user: str) -> None:
        """Ask as this user from now on, over new connections."""
        forget_connections()
        given = caches(self._server)
        if user:
            given["default"]["LOCATION"] += f"?username={user}&password={PASSWORD}"
        self._settings.CACHES = given

    def run(self, step: Step, user: str = "") -> None:
        """Do a step as a user, or as one who may do all, with what it looks for."""
        self.be("")
        prepared(self.client)
        self.client.script_flush()
        self.client.config_resetstat()
        self.client.execute_command("ACL", "LOG", "RESET")
        self.be(user)
        step()

    def denied(self, user: str, step: Step) -> set[str]:
        """Return what a step was denied: names of commands, and keys."""
        failure: Exception | None = None
        try:
            self.run(step, user)
        except Exception as error:  # noqa: BLE001 — what was denied says more
            failure = error
        self.be("")
        found = denied(self.client)
        if failure and not found:
            raise AssertionError(f"{step.__name__} failed, and not for a permission") from failure
        return found


@pytest.fixture(scope="module")
def own_server(redis_server: RedisServer) -> Iterator[RedisServer]:
    with running_redis(redis_server.program) as server:
        yield server


@pytest.fixture
def guarded(own_server: RedisServer, settings: Any) -> Iterator[Guarded]:
    with redis.Redis.from_url(own_server.url) as client:
        yield Guarded(own_server, client, settings)


@pytest.mark.thorough("slow")
@pytest.mark.parametrize("user", USERS)
def test_nothing_that_a_user_of_the_page_needs_is_denied(user: str, guarded: Guarded) -> None:
    permit(guarded.client, user)

    assert [(step.__name__, found) for step in USERS[user] if (found := guarded.denied(user, step))] == []


@pytest.mark.parametrize("user", USERS)
def test_keys_of_others_are_out_of_reach(user: str, guarded: Guarded, own_server: RedisServer) -> None:
    permit(guarded.client, user)

    with (
        redis.Redis.from_url(own_server.url, username=user, password=PASSWORD) as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.get("other:1:{a}")


def test_the_page_permits_what_scripts_call() -> None:
    called = {
        name.lower() for path in ROOT.rglob("*.lua") for name in re.findall(r"redis\.p?call\('(\w+)'", path.read_text())
    }

    assert called <= {command.partition("|")[0] for command in commands_of("quota-office")}


def test_the_page_says_what_a_cluster_needs() -> None:
    assert OF_CLUSTER == ["+cluster|slots", "+asking"]


def test_the_page_says_what_another_database_needs() -> None:
    assert OF_DATABASE == ["+select"]


@pytest.mark.thorough("acl")
def test_without_any_of_them_something_is_denied(guarded: Guarded) -> None:
    first: dict[str, Step] = {}  # the first step that uses each command
    for step in WEB + OFFICE:
        guarded.run(step)
        for name in guarded.client.info("commandstats"):
            first.setdefault(name.removeprefix("cmdstat_").partition("|")[0], step)

    needless = []
    for user, command in NEEDED:
        name = command.partition("|")[0]
        permit(guarded.client, user, f"-{name}")
        if name not in guarded.denied(user, first[name]):
            needless.append((user, command))

    assert needless == []


@pytest.fixture
def in_another_database(redis_server: RedisServer, settings: Any) -> Iterator[redis.Redis]:
    """A client of a server whose fourth database the site uses."""
    with running_redis(redis_server.program) as server, redis.Redis.from_url(server.url, db=3) as client:
        url = f"{server.url}?db=3&username=quota-web&password={PASSWORD}"
        settings.CACHES = caches(RedisServer(url, server.pid, server.program))
        yield client
        forget_connections()


@pytest.mark.thorough("slow")
def test_with_select_another_database_can_be_used(in_another_database: redis.Redis) -> None:
    permit(in_another_database, "quota-web", *OF_DATABASE)

    assert not check("1/m", "user:7").degraded
    assert denied(in_another_database) == set()
    assert in_another_database.dbsize() > 0


@pytest.mark.thorough("slow")
def test_without_select_another_database_is_out_of_reach(in_another_database: redis.Redis) -> None:
    permit(in_another_database, "quota-web")

    assert check("1/m", "user:7").degraded
    with pytest.raises(QuotaError, match="select"):
        counter("a").incr("user:7")

    assert denied(in_another_database) == {"select"}
    assert in_another_database.dbsize() == 0


# --- on a Cluster -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    with running_cluster(cluster_program()) as cluster:
        yield cluster


@pytest.mark.thorough("topology")
class TestCluster:
    @pytest.fixture
    def guarded(self, own_cluster: Cluster, settings: Any) -> Iterator[Cluster]:
        own_cluster.flush()
        given = cluster_caches(own_cluster)
        yield own_cluster
        settings.CACHES = given

    def be(self, cluster: Cluster, settings: Any, user: str, *more: str) -> None:
        """Ask as this user from now on, over new connections."""
        for server in cluster.servers:
            permit(server.client, user, *more)
            server.client.script_flush()
        forget_connections()
        given = cluster_caches(cluster)
        places = [f"redis://{user}:{PASSWORD}@127.0.0.1:{server.port}/0" for server in cluster.servers]
        given["default"]["LOCATION"] = places
        settings.CACHES = given

    def denied(self, cluster: Cluster) -> set[str]:
        return {name for server in cluster.servers for name in denied(server.client)}

    @pytest.mark.parametrize("user", USERS)
    def test_with_both_nothing_is_denied(self, guarded: Cluster, settings: Any, user: str) -> None:
        self.be(guarded, settings, user, *OF_CLUSTER)

        found = {}
        for step in USERS[user]:
            step()
            found[step.__name__] = self.denied(guarded)

        assert {name: commands for name, commands in found.items() if commands} == {}

    def test_without_the_slots_nothing_is_found(self, guarded: Cluster, settings: Any) -> None:
        self.be(guarded, settings, "quota-web", "+asking")
        with pytest.raises(QuotaError):
            once("event", "1")
        assert self.denied(guarded) == {"cluster"}

    @pytest.fixture
    def moving(self, guarded: Cluster) -> Iterator[Cluster]:
        """A Cluster that moves the slot of the value "moving" to another server."""
        key = f"quota:1:{{once:{digest('moving')}}}:once:event"  # one key: more of them would get TRYAGAIN
        source = guarded.owner(key)
        target = next(server for server in guarded.servers if server is not source)
        slot = slot_of(key)
        target.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source.id)
        source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", target.id)
        yield guarded
        for server in (source, target):
            server.client.execute_command("CLUSTER SETSLOT", slot, "STABLE")
        target.client.flushall()
        current_store().close()

    def test_with_asking_a_slot_that_moves_is_found(self, moving: Cluster, settings: Any) -> None:
        self.be(moving, settings, "quota-web", "+cluster|slots", "+asking")
        assert once("event", "warm")

        assert [once("event", "moving"), once("event", "moving")] == [True, False]
        assert self.denied(moving) == set()

    def test_without_asking_a_slot_that_moves_is_out_of_reach(self, moving: Cluster, settings: Any) -> None:
        self.be(moving, settings, "quota-web", "+cluster|slots")
        assert once("event", "warm")

        with pytest.raises(QuotaError):
            once("event", "moving")

        assert self.denied(moving) == {"asking"}
