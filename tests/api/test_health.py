"""Why a site limits nothing now, in a sentence for its operators, and what the servers of a store say of themselves."""

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock, patch

import pytest
from redis.exceptions import NoPermissionError, ReadOnlyError

from django_quota.core.errors import StorePermissionDenied, StoreRefusesWrites
from django_quota.exceptions import QuotaError, StoreUnavailable
from django_quota.limiting.overrides import overrides
from django_quota.models import QuotaOverride
from django_quota.operating.health import Health, health, is_full, nothing_is_limited, refused_change
from django_quota.testing import freeze
from tests.support.overridden import override
from tests.support.servers import Servers
from tests.support.steps import SECOND, START, Clock

FAILS = "The store fails, so nothing is limited, except by rules with an on_unavailable of their own."
EXEMPT = "An override exempts everybody from all rules, so nothing is limited."
OFF = "Limits are switched off (ENABLED is false), so everything is allowed."


@pytest.mark.parametrize(
    ("quota", "failure", "said"),
    [
        pytest.param({}, None, "", id="a site that limits"),
        pytest.param({"ENABLED": False}, None, OFF, id="limits are off"),
        pytest.param({"ENABLED": False}, StoreUnavailable("gone"), OFF, id="limits are off and the store fails"),
        pytest.param({}, StoreUnavailable("gone"), FAILS, id="the store fails"),
        pytest.param({"ON_UNAVAILABLE": "deny"}, StoreUnavailable("gone"), "", id="all is refused without the store"),
        pytest.param({"ON_UNAVAILABLE": "local"}, StoreUnavailable("gone"), "", id="each process limits by itself"),
        pytest.param({}, QuotaError("wrong"), "", id="another error"),
    ],
)
def test_a_sentence_says_why_nothing_is_limited(
    quota: dict[str, Any], failure: QuotaError | None, said: str, settings: Any
) -> None:
    settings.QUOTA = quota

    assert nothing_is_limited(failure) == said


@pytest.mark.parametrize(
    ("value", "rule", "subject", "said"),
    [
        pytest.param("x 0 0 ", "*", "*", EXEMPT, id="everybody is exempt from all rules"),
        pytest.param("b 0 0 ", "*", "*", "", id="everybody is blocked"),
        pytest.param("x 0 0 ", "search", "*", "", id="everybody is exempt from one rule"),
        pytest.param("x 0 0 ", "*", "user:*", "", id="users are exempt"),
        pytest.param(f"x {START + SECOND} 0 ", "*", "*", "", id="it has not begun"),
        pytest.param(f"x 0 {START} ", "*", "*", "", id="it has ended"),
    ],
)
def test_a_sentence_says_that_an_override_exempts_everybody(value: str, rule: str, subject: str, said: str) -> None:
    with freeze(START):
        override(value, rule, subject)

        assert nothing_is_limited() == said


@pytest.mark.django_db
def test_a_sentence_knows_the_override_that_another_process_saved() -> None:
    nothing_is_limited()

    with patch.object(overrides, "change"):  # this process is not told
        QuotaOverride.objects.create(mode="exempt", subject="*", rule="*")

    assert nothing_is_limited() == EXEMPT


class Reporting(Servers):
    """Each server reports of itself, or says how the write of a probe ends."""

    def server_of(self, key: str) -> str:
        return self.servers()[0]

    def node_key(self, key: str, server: str) -> str:
        return f"{key} of {server}"

    def client(self, said: Any) -> Any:
        client = MagicMock()
        pipeline = client.pipeline.return_value.__enter__.return_value
        info, change = (said, 0) if isinstance(said, dict) else ({"role": "master"}, said)
        pipeline.execute.side_effect = lambda **_: [info, 7, change, *[9] * pipeline.xlen.call_count]
        return client


def store_of(**said: Any) -> Any:
    return Reporting(**said)


class TestServers:
    """The health of a store of several servers."""

    def test_of_two_one_may_be_silent(self) -> None:
        found = health(store_of(a=0, b=StoreUnavailable("gone")), "quota")

        assert (found.servers, found.silent, found.keys, found.events) == (2, ["b"], 7, 9)

    def test_the_one_with_the_events_may_be_silent(self) -> None:
        found = health(store_of(a=StoreUnavailable("gone"), b=0), "quota")

        assert (found.servers, found.silent, found.keys, found.events) == (2, ["a"], 7, None)

    def test_the_figures_of_all_are_joined(self) -> None:
        one = {"redis_version": "7.0.15", "uptime_in_seconds": 9, "connected_clients": 2, "used_memory": 30,
               "maxmemory": 100, "maxmemory_policy": "noeviction", "role": "master"}  # fmt: skip
        other = {"redis_version": "7.0.9", "uptime_in_seconds": 5, "connected_clients": 3, "used_memory": 40,
                 "maxmemory": 50, "maxmemory_policy": "allkeys-lru", "role": "slave"}  # fmt: skip

        found = health(store_of(a=one, b=other), "quota")

        figures = (found.version, found.uptime, found.clients, found.used, found.most, found.policy, found.keys)
        assert figures == ("7.0.9", 5, 5, 70, 150, "allkeys-lru", 14)
        assert (found.fullest, found.is_nearly_full, found.may_evict, found.is_replica) == (0.8, False, True, True)

    def test_what_the_first_may_not_say_the_second_says(self) -> None:
        info = {"redis_version": "7.0.15", "uptime_in_seconds": 9, "connected_clients": 2, "used_memory": 30,
                "maxmemory_policy": "noeviction", "role": "master"}  # fmt: skip

        found = health(store_of(a={}, b=info), "quota")

        figures = (found.version, found.role, found.uptime, found.clients, found.used, found.policy)
        assert figures == ("7.0.15", "master", 9, 2, 30, "noeviction")

    def test_the_latency_is_that_of_the_slowest_without_the_time_to_connect(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = Clock()
        monkeypatch.setattr("django_quota.operating.health.time", SimpleNamespace(perf_counter=clock))

        class Slow(Reporting):
            def client(self, said: Any) -> Any:
                waits = iter((60, said))

                def ping() -> None:
                    clock.now += next(waits)

                client = super().client({})
                client.ping.side_effect = ping
                return client

        found = health(cast("Any", Slow(a=1, b=3, c=2)), "quota")

        assert found.latency == 3

    @pytest.mark.parametrize(
        ("key", "probed"),
        [
            pytest.param("quota:1:{!7}:events:probe", "quota:1:{!7}:events:probe", id="a key of its own"),
            pytest.param("", "quota:1:{!}:events:probe", id="no key of its own"),
        ],
    )
    def test_each_is_probed_by_a_key_that_it_holds(self, key: str, probed: str) -> None:
        store = store_of(a=0)
        client = store.client({})
        store.client = lambda _: client
        store.node_key = lambda *_: key

        health(store, "quota")

        pipeline = client.pipeline.return_value.__enter__.return_value
        pipeline.zadd.assert_called_once_with(probed, {"": 1}, xx=True)

    def test_what_none_may_say_is_unknown(self) -> None:
        denied: dict[str, Any] = {}

        found = health(store_of(a=denied, b=denied), "quota")

        figures = (found.version, found.role, found.uptime, found.clients, found.used, found.policy)
        assert figures == (None,) * 6
        assert (found.most, found.fullest, found.may_evict, found.is_replica) == (0, None, False, False)

    def test_a_server_without_a_bound_leaves_all_without_one(self) -> None:
        found = health(store_of(a={"maxmemory": 100, "used_memory": 95}, b={"maxmemory": 0}), "quota")

        assert (found.most, found.fullest, found.is_nearly_full) == (0, 0.95, True)

    def test_one_of_valkey_says_its_own_version(self) -> None:
        info = {"redis_version": "7.2.4", "valkey_version": "8.0.1"}

        assert health(store_of(a=info), "quota").version == "Valkey 8.0.1"

    def test_if_all_are_silent_it_is_an_error(self) -> None:
        with pytest.raises(StoreUnavailable, match="a part of the Cluster did not answer"):
            health(store_of(a=StoreUnavailable("gone"), b=StoreUnavailable("gone")), "quota")

    def test_events_that_it_may_not_count_are_unknown(self) -> None:
        store = store_of(a=0)
        client = store.client({})
        pipeline = client.pipeline.return_value.__enter__.return_value
        pipeline.execute = lambda **_: [{"role": "master"}, 7, 0, NoPermissionError("no XLEN")]
        store.client = lambda _: client

        found = health(store, "quota")

        assert (found.role, found.keys, found.events) == ("master", 7, None)

    @pytest.mark.parametrize(
        ("said", "refuses"),
        [
            pytest.param(0, "", id="it takes changes"),
            pytest.param(ReadOnlyError("a replica"), "ReadOnlyError: a replica", id="it refuses changes"),
            pytest.param(NoPermissionError("no ZADD"), "", id="it may not be asked"),
        ],
    )
    def test_what_the_probe_of_one_says_is_said_of_the_store(self, said: object, refuses: str) -> None:
        assert health(store_of(a=0, b=said), "quota").refuses == refuses


@pytest.mark.parametrize(
    ("most", "policy", "may_evict"),
    [
        pytest.param(100, "allkeys-lru", True, id="a policy that evicts"),
        pytest.param(100, "noeviction", False, id="a policy that evicts nothing"),
        pytest.param(100, None, False, id="a policy that we may not read"),
        pytest.param(0, "allkeys-lru", False, id="no limit"),
        pytest.param(None, "allkeys-lru", False, id="a limit that we may not read"),
    ],
)
def test_a_server_evicts_keys_only_at_a_limit(most: int | None, policy: str | None, may_evict: bool) -> None:
    assert Health(0.001, most=most, policy=policy).may_evict is may_evict


@pytest.mark.parametrize(("used", "is_nearly_full"), [(89, False), (90, True)])
def test_a_server_is_nearly_full_from_nine_tenths_on(used: int, is_nearly_full: bool) -> None:
    assert Health(0.001, used=used, most=100).is_nearly_full is is_nearly_full


@pytest.mark.parametrize(
    ("error", "why"),
    [
        pytest.param(StoreRefusesWrites("a replica"), "a replica", id="a replica"),
        pytest.param(StorePermissionDenied("no ZADD"), "", id="a user without the permission"),
    ],
)
def test_the_probe_of_a_store_says_why_it_takes_no_changes(error: QuotaError, why: str) -> None:
    assert refused_change(store_of(a=error), "quota:1:{user:1}:s") == why


def test_the_probe_of_a_store_writes_nothing() -> None:
    store = store_of(a=0)
    client = store.client({})
    store.client = lambda _: client

    assert refused_change(store, "quota:1:{user:1}:s") == ""
    client.zadd.assert_called_once_with("quota:1:{user:1}:s:probe", {"": 1}, xx=True)


@pytest.mark.parametrize(
    ("refusal", "says_so"),
    [
        pytest.param("OutOfMemoryError: command not allowed when used memory > 'maxmemory'.", True, id="a command"),
        pytest.param("ResponseError: OOM command not allowed when used memory > 'maxmemory'.", True, id="a script"),
        pytest.param("ReadOnlyError: a replica", False, id="a replica"),
        pytest.param("", False, id="no refusal"),
    ],
)
def test_a_server_is_full_if_its_refusal_says_so(refusal: str, says_so: bool) -> None:
    assert (is_full(refusal), Health(0.001, refuses=refusal).is_full) == (says_so, says_so)
