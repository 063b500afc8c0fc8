"""The settings, live and typed; and the client's address, which they steer, with the proxies that they should name."""

import subprocess
import sys
from ipaddress import ip_network
from traceback import walk_tb
from typing import Any

import pytest
from django.test import AsyncRequestFactory, RequestFactory, override_settings

from django_quota import check
from django_quota.adapters import client_ip
from django_quota.conf import current
from django_quota.exceptions import ConfigurationError
from tests.support.findings import REDIS
from tests.support.outages import log_everything_again
from tests.support.selection import thorough

PEER = "192.0.2.1"


def address(peer: str = PEER, forwarded: str | None = None) -> str:
    claimed: dict[str, Any] = {} if forwarded is None else {"HTTP_X_FORWARDED_FOR": forwarded}
    return client_ip(RequestFactory().get("/", REMOTE_ADDR=peer, **claimed))


def test_overridden_settings_are_read_at_once() -> None:
    with override_settings(QUOTA={"PREFIX": "outer"}):
        assert current().prefix == "outer"

        with override_settings(QUOTA={"PREFIX": "inner"}):
            assert current().prefix == "inner"

        assert current().prefix == "outer"


def test_a_site_without_the_setting_has_the_defaults(settings: Any) -> None:
    del settings.QUOTA

    assert (current().prefix, current().rules) == ("quota", {})


def test_the_time_zone_of_the_site_is_read_at_once(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    assert current().time_zone == "Europe/Berlin"

    settings.TIME_ZONE = "Asia/Tokyo"

    assert current().time_zone == "Asia/Tokyo"


@pytest.mark.parametrize("given", [[], "x", 5], ids=["a list", "a string", "a number"])
def test_a_setting_that_is_not_a_dict_is_an_error(settings: Any, given: object) -> None:
    settings.QUOTA = given

    with pytest.raises(ConfigurationError, match="not a dict"):
        _ = current().prefix


@pytest.mark.parametrize(
    ("quota", "key_prefix", "prefix"),
    [
        ({}, "staging", "staging:quota"), ({"PREFIX": "own"}, "staging", "staging:own"), ({}, "", "quota"),
        ({}, "{a} ä", "%7Ba%7D%20%C3%A4:quota"), ({}, 5, "5:quota"), ({"CACHE": "other"}, "staging", "quota"),
        ({"CACHE": "nowhere"}, "staging", "quota"), ({"REDIS": "redis://127.0.0.1/0"}, "staging", "quota"),
        ({"STORE": "database"}, "staging", "quota"),
    ],
)  # fmt: skip
def test_keys_begin_with_the_key_prefix_of_the_alias_that_counts(
    quota: dict[str, Any], key_prefix: object, prefix: str, settings: Any
) -> None:
    settings.QUOTA = quota
    settings.CACHES = {"default": {**REDIS, "KEY_PREFIX": key_prefix}, "other": REDIS}
    assert current().prefix == prefix
    settings.CACHES = {"default": REDIS, "other": REDIS}
    assert current().prefix == quota.get("PREFIX", "quota")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("CACHE", None, "Use, for example, 'default'"), ("ENABLED", 1, "Use True or False"),
        ("STORE", "postgres", "'redis', 'database' or 'memory'"), ("PREFIX", "a{b", "without braces"),
        ("IPV6_PREFIX", 0, "from 1 to 128"), ("IPV6_PREFIX", True, "for example 64"),
        ("EVENT_DAYS", 0, "from 1 to 400"), ("EVENT_DAYS", "30", "for example 30"),
        ("EVENT_REQUESTS", 1, "Use True or False"),
        ("IPV4_PREFIX", 33, "from 1 to 32"), ("IPV4_PREFIX", "24", "for example 24"),
        ("TRUSTED_PROXY_COUNT", -1, "from 0 to 32"), ("CLIENT_IP_HEADER", None, "Use the name of a header"),
        ("CLIENT_IP_HEADER", "HTTP_CF_CONNECTING_IP", "for example 'CF-Connecting-IP'"),
        ("CLIENT_IP_HEADER", "x-forwarded-for", "Leave it out"), ("CLIENT_IP_HEADER", "Forwarded", "Leave it out"),
        ("CLIENT_IP_HEADER", "X-Real-IP", "TRUSTED_PROXIES is empty, so the header would be ignored"),
        ("TIME_ZONE", "Mars/Base", "Use, for example, 'UTC' or 'Europe/Berlin'"),
        ("ON_UNAVAILABLE", "open", "'allow', 'deny' or 'local'"), ("DIGEST_KEY", b"x", "a long random string"),
        ("METRICS_TOKEN", "a" * 15, "at least 16 random"), ("METRICS_TOKEN", "a b" * 9, "at least 16 random"),
        ("TRUSTED_PROXIES", "10.0.0.0/8", r"Use a list of networks, for example \['10.0.0.0/8', 'unix'\]"),
        ("TRUSTED_PROXIES", ["10.0.0.1/8"], "host bits"), ("TRUSTED_PROXIES", ["nginx"], "'nginx'"),
        ("TRUSTED_PROXIES", [None], "holds None"), ("TEMPLATE", 429, "Use, for example, '429.html'"),
        ("RULES", ["10/m"], "Use a dict, for example {'search': '10/m'}"),
        ("DATABASE", 5, r"is 5\. Use, for example, 'default'"), ("LEGACY_HEADERS", 1, "Use True or False"),
        ("HEADERS", "draft-3", "is 'draft-3'. Use True, False or 'draft-11'"), ("HEADERS", 1, "Use True, False or"),
        ("EVENTS", "many", "for example 10000"), ("MEMORY_KEYS", 1e6, "for example 100000"),
        ("TRUSTED_PROXY_COUNT", None, r"for example 1\."), ("CREDITS_STATUS", True, "Use 429, or 402"),
        ("CREDITS_STATUS", 429.0, "Use 429, or 402"), ("TEMPLATE", " ", "for example, '429.html'"),
        ("TEMPLATE", "a\n.html", "for example, '429.html'"), ("EXEMPT", "10.0.0.0/8", "Use a list of networks"),
        ("CLIENT_IP_HEADER", "X_Real_IP", "name of a header"), ("CLIENT_IP_HEADER", "X-Real-", "name of a header"),
    ],
)  # fmt: skip
def test_the_error_of_a_wrong_setting_says_how_to_correct_it(
    settings: Any, name: str, value: object, text: str
) -> None:
    settings.QUOTA = {name: value}
    with pytest.raises(ConfigurationError, match=text) as caught:
        getattr(current(), name.lower())
    assert f'QUOTA["{name}"]' in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"), [("METRICS_TOKEN", "5ecret"), ("DIGEST_KEY", b"5ecret"), ("METRICS_TOKEN", ["5ecret"])]
)
def test_the_error_of_a_setting_that_is_a_secret_does_not_show_it(name: str, value: object, settings: Any) -> None:
    settings.QUOTA = {name: value}

    with pytest.raises(ConfigurationError, match="has a wrong value, which is not shown") as caught:
        getattr(current(), name.lower())

    assert "5ecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("EVENTS", 0, 10_000_000), ("EVENT_DAYS", 1, 400), ("IPV4_PREFIX", 1, 32), ("IPV6_PREFIX", 1, 128),
        ("MEMORY_KEYS", 1_000, 100_000_000), ("TRUSTED_PROXY_COUNT", 0, 32),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_least", [True, False], ids=["least", "most"])
class TestTheBoundsOfANumber:
    def test_each_is_right(self, name: str, least: int, most: int, is_least: bool, settings: Any) -> None:
        settings.QUOTA = {name: least if is_least else most}

        assert getattr(current(), name.lower()) == (least if is_least else most)

    def test_a_number_outside_of_them_is_an_error(
        self, name: str, least: int, most: int, is_least: bool, settings: Any
    ) -> None:
        settings.QUOTA = {name: least - 1 if is_least else most + 1}

        with pytest.raises(ConfigurationError, match=f"from {least} to {most}"):
            getattr(current(), name.lower())


INSIDE = (ip_network("10.0.0.0/8"),)


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        pytest.param("METRICS_TOKEN", "aB3!" * 4, "aB3!" * 4, id="16 characters of a token"),
        pytest.param("TRUSTED_PROXIES", {"10.0.0.0/8"}, INSIDE, id="a set of proxies"),
        pytest.param("TRUSTED_PROXIES", frozenset({"10.0.0.0/8"}), INSIDE, id="a frozenset of proxies"),
        pytest.param("EXEMPT", ("10.0.0.0/8",), INSIDE, id="a tuple of networks"),
        pytest.param("EXEMPT", {"10.0.0.0/8"}, INSIDE, id="a set of networks"),
        pytest.param("CREDITS_STATUS", 402, 402, id="payment required"),
        pytest.param("CLIENT_IP_HEADER", "", "", id="no header"),
    ],
)
def test_a_setting_takes_what_its_page_says(name: str, value: Any, found: object, settings: Any) -> None:
    settings.QUOTA = {name: value}

    assert getattr(current(), name.lower()) == found


def test_two_settings_that_name_a_redis_are_an_error(settings: Any) -> None:
    settings.QUOTA = {"CACHE": "default", "REDIS": "redis://127.0.0.1:6379/0"}

    with pytest.raises(ConfigurationError, match=r'QUOTA has both "CACHE" and "REDIS"\. Keep one of them\.'):
        _ = current().redis


@pytest.mark.parametrize(
    ("bits", "peer", "forwarded", "found"),
    [
        (64, PEER, None, PEER), (64, "::1", None, "::/64"), (48, "2001:db8:1:2::3", None, "2001:db8:1::/48"),
        (128, "fe80::1%eth0", None, "fe80::1"), (64, "10.0.0.1", "", "10.0.0.1"),
        # trusted proxies are walked past, to the first address that is none
        (64, "10.0.0.1", "1.1.1.1, 203.0.113.9 , 10.9.9.9", "203.0.113.9"),
        (64, "10.0.0.1", "10.3.3.3, 10.2.2.2", "10.3.3.3"),
        (64, "10.0.0.1", "203.0.113.9, unknown, 10.2.2.2", "10.2.2.2"),
        (64, "10.0.0.1", "203.0.113.9,", "10.0.0.1"),
    ],
)  # fmt: skip
def test_the_client_is_the_peer_or_what_proxies_saw(
    settings: Any, bits: int, peer: str, forwarded: str | None, found: str
) -> None:
    """What nobody can forge is in tests/security/test_addresses."""
    settings.QUOTA = {"IPV6_PREFIX": bits, "TRUSTED_PROXIES": ["10.0.0.0/8"]}
    assert address(peer, forwarded) == found


@pytest.mark.parametrize("quota", [{}, {"TRUSTED_PROXIES": ["0.0.0.0/0"]}], ids=["no proxies", "every proxy"])
@pytest.mark.parametrize(
    ("peer", "said"),
    [
        pytest.param("", "TRUSTED_PROXIES.*unix", id="no peer"),
        pytest.param("unix:", "TRUSTED_PROXIES.*unix", id="a Unix socket"),
        pytest.param("localhost", "peer's address into REMOTE_ADDR", id="a name"),
    ],
)
def test_an_error_about_a_missing_address_says_what_to_do(
    peer: str, said: str, quota: dict[str, Any], settings: Any
) -> None:
    settings.QUOTA = quota

    with pytest.raises(ConfigurationError, match=said):
        address(peer, "203.0.113.9")


def test_a_server_that_names_no_peer_at_all_is_on_a_unix_socket(settings: Any) -> None:
    settings.QUOTA = {"TRUSTED_PROXIES": ["unix"]}
    request = RequestFactory().get("/", HTTP_X_FORWARDED_FOR="203.0.113.9")
    del request.META["REMOTE_ADDR"]

    assert client_ip(request) == "203.0.113.9"


@pytest.mark.parametrize("peer", ["", "unix:", "unix"], ids=["gunicorn", "uvicorn", "another server"])
def test_a_unix_socket_is_trusted_by_its_name_alone(peer: str, settings: Any) -> None:
    settings.QUOTA = {"TRUSTED_PROXIES": ("unix", ip_network("10.0.0.0/8"))}

    assert address(peer, "203.0.113.9, 10.0.0.1") == "203.0.113.9"


@pytest.mark.parametrize(
    ("length", "found"),
    [pytest.param(64, "2001:db8::/64", id="64 characters"), pytest.param(65, "10.0.0.1", id="more than 64")],
)
def test_an_address_with_its_zone_has_at_most_64_characters(length: int, found: str, settings: Any) -> None:
    settings.QUOTA = {"TRUSTED_PROXIES": ["10.0.0.0/8"]}

    assert address("10.0.0.1", "2001:db8::7%".ljust(length, "e")) == found


@pytest.mark.parametrize(
    ("peer", "proxies", "expected"), [("10.0.0.5", [], 1), ("8.8.8.8", [], 0), ("10.0.0.5", ["10.0.0.0/8"], 0)]
)
@pytest.mark.usefixtures("memory_store")
def test_an_unknown_proxy_is_logged_once(
    peer: str, proxies: list[str], expected: int, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log_everything_again()
    settings.QUOTA = {**settings.QUOTA, "TRUSTED_PROXIES": proxies}
    for client in ("203.0.113.1", "203.0.113.2"):
        check("1/m", RequestFactory().get("/", REMOTE_ADDR=peer, HTTP_X_FORWARDED_FOR=client))
    assert len(caplog.messages) == expected
    assert all(f'Set, for example, "TRUSTED_PROXIES": [{peer!r}].' in line for line in caplog.messages)


@pytest.fixture
def started_by(request: pytest.FixtureRequest, memory_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with this command line, and this value of FORWARDED_ALLOW_IPS."""
    words, allowed = request.param
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", allowed)
    log_everything_again()


TRUSTING = [
    pytest.param((["uvicorn", "--forwarded-allow-ips", "*", "site.asgi"], ""), id="uvicorn's option"),
    pytest.param((["uvicorn", "site.asgi"], "*"), id="the environment"),
    pytest.param(
        (["gunicorn", "-k", "uvicorn.workers.UvicornWorker", "--forwarded-allow-ips=*"], ""), id="gunicorn's option"
    ),
]
OTHERS = [
    pytest.param((["uvicorn", "--forwarded-allow-ips", "10.0.0.1", "site.asgi"], "*"), id="one proxy"),
    pytest.param((["uvicorn", "--forwarded-allow-ips", "*", "--no-proxy-headers", "site.asgi"], "*"), id="no headers"),
]


def messages_after_two_clients(caplog: pytest.LogCaptureFixture) -> list[str]:
    for client in ("203.0.113.1", "203.0.113.2"):
        check("1/m", AsyncRequestFactory().get("/", headers={"x-forwarded-for": client}))
    return [line for line in caplog.messages if "--no-proxy-headers" in line]


@pytest.mark.parametrize("started_by", TRUSTING, indirect=True)
@pytest.mark.usefixtures("started_by")
def test_a_server_that_trusts_every_proxy_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    assert len(messages_after_two_clients(caplog)) == 1


@pytest.mark.parametrize("started_by", OTHERS, indirect=True)
@pytest.mark.usefixtures("started_by")
def test_a_server_that_trusts_no_stranger_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert messages_after_two_clients(caplog) == []


@pytest.mark.parametrize("started_by", [*TRUSTING, *OTHERS], indirect=True)
@pytest.mark.usefixtures("started_by")
def test_nothing_is_logged_about_proxies_under_wsgi(caplog: pytest.LogCaptureFixture) -> None:
    check("1/m", RequestFactory().get("/", REMOTE_ADDR="8.8.8.8", HTTP_X_FORWARDED_FOR="203.0.113.1"))

    assert caplog.messages == []


SITE_WITHOUT_USERS = """
import django
from django.conf import settings
from django.core.checks import run_checks
from django.http import HttpResponse
from django.test import Client
from django.urls import path

settings.configure(
    SECRET_KEY="x", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, INSTALLED_APPS=%r,
    MIDDLEWARE=["django_quota.middleware.QuotaMiddleware"],
    QUOTA={"STORE": "memory", "RULES": {"all": {"rate": "1/m", "match": "/"}}},
)
django.setup()
from django_quota import quota

urlpatterns = [path("", quota("2/m", key="ip")(lambda request: HttpResponse()))]
print(*(Client().get("/").status_code for _ in range(2)), *(found.id for found in run_checks(tags=["django_quota"])))
"""


@pytest.mark.parametrize("apps", [["django_quota"], thorough("processes", [])], ids=["with the app", "without an app"])
def test_a_site_without_users_limits(apps: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SITE_WITHOUT_USERS % apps], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["200", "429"], done.stderr


def test_no_frame_of_a_wrong_setting_shows_a_secret(settings: Any) -> None:
    """Django's error pages and mails show what the frames of an error hold."""
    settings.SECRET_KEY = "5ecret of the site"
    settings.QUOTA = {"REDIS": "redis://:5ecret@127.0.0.1/0", "PREFIX": 5}
    assert (current().digest_key, current().redis) == ("5ecret of the site", "redis://:5ecret@127.0.0.1/0")
    with pytest.raises(ConfigurationError) as failed:
        _ = current().prefix
    frames = [frame for frame, _ in walk_tb(failed.value.__traceback__)][1:]  # without that of the test
    assert [value for frame in frames for value in frame.f_locals.values() if "5ecret" in repr(value)] == []
