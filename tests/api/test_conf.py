"""The settings, live and typed; and the client's address, which they steer, with the proxies that they should name."""

import json
import reprlib
import subprocess
import sys
from functools import partial
from ipaddress import ip_network
from traceback import walk_tb
from types import MappingProxyType
from typing import Any

import pytest
from django.test import AsyncRequestFactory, RequestFactory, override_settings

from django_quota import Rule, check
from django_quota.adapters import client_ip, dotted_path
from django_quota.conf import (
    DEFAULT_LOGIN,
    KNOWN_SETTINGS,
    LOGIN_BACKEND,
    current,
    force_enabled,
    import_function,
    import_option,
    is_async_callable,
    is_path,
    limits_logins,
    rule_of,
)
from django_quota.core.errors import StoreBusy, StoreOutOfMemory
from django_quota.exceptions import ConfigurationError, RuleError, StoreUnavailable
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


DEFAULTS: dict[str, Any] = {
    "cache": "default", "cache_refusals": 0, "client_ip_header": "", "credits_status": 429, "database": "default",
    "digest_key": "the key of the site", "enabled": True, "event_days": 90, "event_requests": True, "events": 10_000,
    "exempt": (), "headers": "draft-11", "ipv4_prefix": 32, "ipv6_prefix": 64, "legacy_headers": False,
    "memory_keys": 100_000, "metrics_token": "", "on_unavailable": "allow", "prefix": "quota", "redis": None,
    "related": None, "response": None, "rules": {}, "store": "redis", "template": "429.html",
    "time_zone": "Asia/Tokyo", "trusted_proxies": (), "trusted_proxy_count": 0,
}  # fmt: skip


def test_a_site_without_the_setting_has_the_defaults(settings: Any) -> None:
    del settings.QUOTA
    settings.SECRET_KEY, settings.TIME_ZONE = "the key of the site", "Asia/Tokyo"

    assert {name.lower(): getattr(current(), name.lower()) for name in KNOWN_SETTINGS if name != "LOGIN"} == DEFAULTS


@pytest.mark.parametrize(
    ("of_site", "of_logins"), [("allow", "local"), ("deny", "deny"), ("local", "local")], ids=["allow", "deny", "local"]
)
def test_a_site_without_the_setting_limits_failed_logins(of_site: str, of_logins: str, settings: Any) -> None:
    settings.QUOTA = {"ON_UNAVAILABLE": of_site}

    assert [(rule.name, rule.key, *map(str, rule.rates), rule.on_unavailable) for rule in current().login] == [
        ("login-username-ip", ("login:username", "ip"), "5/10m", of_logins),
        ("login-username", "login:username", "100/h", of_logins),
        ("login-ip", "ip", "30/h", of_logins),
    ]


@pytest.mark.parametrize("changed", ["SECRET_KEY", "TIME_ZONE", "CACHES", "QUOTA"])
def test_the_settings_are_read_again_after_a_change_of(changed: str, settings: Any) -> None:
    before = current()

    setattr(settings, changed, getattr(settings, changed))

    assert current() is not before


def test_the_settings_are_kept_after_a_change_of_another_setting(settings: Any) -> None:
    before = current()

    settings.LANGUAGE_CODE = "de"

    assert current() is before


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
        ({"STORE": "database"}, "staging", "quota"), ({"REDIS": None}, "staging", "staging:quota"),
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


HEADER = "Use the name of a header with one address, for example 'CF-Connecting-IP'. Leave it out for X-Forwarded-For."


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("CACHE", None, "is None. Use, for example, 'default'."),
        ("ENABLED", 1, "is 1. Use True or False."),
        ("STORE", "postgres", "is 'postgres'. Use 'redis', 'database' or 'memory'."),
        ("PREFIX", "a{b", "is 'a{b'. Use a string without braces, for example 'quota'."),
        ("PREFIX", "a}b", "is 'a}b'. Use a string without braces, for example 'quota'."),
        ("PREFIX", "", "is ''. Use a string without braces, for example 'quota'."),
        ("IPV6_PREFIX", 0, "is 0. Use a number from 1 to 128, for example 64."),
        ("IPV6_PREFIX", True, "is True. Use a number from 1 to 128, for example 64."),
        ("EVENT_DAYS", 0, "is 0. Use a number from 1 to 400, for example 30."),
        ("EVENT_DAYS", "30", "is '30'. Use a number from 1 to 400, for example 30."),
        ("EVENT_REQUESTS", 1, "is 1. Use True or False."),
        ("IPV4_PREFIX", 33, "is 33. Use a number from 1 to 32, for example 24."),
        ("IPV4_PREFIX", "24", "is '24'. Use a number from 1 to 32, for example 24."),
        ("TRUSTED_PROXY_COUNT", -1, "is -1. Use a number from 0 to 32, for example 1."),
        ("CLIENT_IP_HEADER", None, f"is None. {HEADER}"),
        ("CLIENT_IP_HEADER", "HTTP_CF_CONNECTING_IP", f"is 'HTTP_CF_CONNECTING_IP'. {HEADER}"),
        ("CLIENT_IP_HEADER", "x-forwarded-for", f"is 'x-forwarded-for'. {HEADER}"),
        ("CLIENT_IP_HEADER", "Forwarded", f"is 'Forwarded'. {HEADER}"),
        (
            "CLIENT_IP_HEADER",
            "X-Real-IP",
            (
                "is 'X-Real-IP', but TRUSTED_PROXIES is empty, so the header would be ignored. Name the proxies "
                'that set it, for example "TRUSTED_PROXIES": ["10.1.2.0/24"].'
            ),
        ),
        ("TIME_ZONE", "Mars/Base", "is 'Mars/Base'. Use, for example, 'UTC' or 'Europe/Berlin'."),
        ("ON_UNAVAILABLE", "open", "is 'open'. Use 'allow', 'deny' or 'local'."),
        ("DIGEST_KEY", b"x", "has a wrong value, which is not shown. Use a long random string."),
        (
            "METRICS_TOKEN",
            "a" * 15,
            "has a wrong value, which is not shown. Use at least 16 random letters and digits.",
        ),
        (
            "METRICS_TOKEN",
            "a b" * 9,
            "has a wrong value, which is not shown. Use at least 16 random letters and digits.",
        ),
        (
            "TRUSTED_PROXIES",
            "10.0.0.0/8",
            "is '10.0.0.0/8'. Use a list of networks, for example ['10.0.0.0/8', 'unix'].",
        ),
        (
            "TRUSTED_PROXIES",
            ["10.0.0.1/8"],
            (
                "holds '10.0.0.1/8': 10.0.0.1/8 has host bits set. Use a network such as '10.0.0.0/8', an address "
                "or 'unix'."
            ),
        ),
        (
            "TRUSTED_PROXIES",
            ["nginx"],
            (
                "holds 'nginx': 'nginx' does not appear to be an IPv4 or IPv6 network. Use a network such as "
                "'10.0.0.0/8', an address or 'unix'."
            ),
        ),
        (
            "TRUSTED_PROXIES",
            [None],
            "holds None: it is NoneType, not a string. Use a network such as '10.0.0.0/8', an address or 'unix'.",
        ),
        ("TEMPLATE", 429, "is 429. Use, for example, '429.html'."),
        ("RULES", ["10/m"], "is ['10/m']. Use a dict, for example {'search': '10/m'}."),
        ("DATABASE", 5, "is 5. Use, for example, 'default'."),
        ("LEGACY_HEADERS", 1, "is 1. Use True or False."),
        ("HEADERS", "draft-3", "is 'draft-3'. Use True, False or 'draft-11'."),
        ("HEADERS", 1, "is 1. Use True, False or 'draft-11'."),
        ("EVENTS", "many", "is 'many'. Use a number from 0 to 10000000, for example 10000."),
        ("MEMORY_KEYS", 1e6, "is 1000000.0. Use a number from 1000 to 100000000, for example 100000."),
        ("TRUSTED_PROXY_COUNT", None, "is None. Use a number from 0 to 32, for example 1."),
        ("CREDITS_STATUS", True, "is True. Use 429, or 402 (Payment required)."),
        ("CREDITS_STATUS", 429.0, "is 429.0. Use 429, or 402 (Payment required)."),
        ("TEMPLATE", " ", "is ' '. Use, for example, '429.html'."),
        ("TEMPLATE", "a\n.html", "is 'a\\n.html'. Use, for example, '429.html'."),
        ("EXEMPT", "10.0.0.0/8", "is '10.0.0.0/8'. Use a list of networks, for example ['10.0.0.0/8']."),
        ("CLIENT_IP_HEADER", "X_Real_IP", f"is 'X_Real_IP'. {HEADER}"),
        ("CLIENT_IP_HEADER", "X-Real-", f"is 'X-Real-'. {HEADER}"),
    ],
)
def test_the_error_of_a_wrong_setting_says_how_to_correct_it(
    settings: Any, name: str, value: object, text: str
) -> None:
    settings.QUOTA = {name: value}

    with pytest.raises(ConfigurationError) as caught:
        getattr(current(), name.lower())

    assert str(caught.value) == f'QUOTA["{name}"] {text}'


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
        pytest.param("EXEMPT", frozenset({"10.0.0.0/8"}), INSIDE, id="a frozenset of networks"),
        pytest.param("TRUSTED_PROXY_COUNT", 2, 2, id="the number of proxies"),
        pytest.param("CREDITS_STATUS", 402, 402, id="payment required"),
        pytest.param("CLIENT_IP_HEADER", "", "", id="no header"),
    ],
)
def test_a_setting_takes_what_its_page_says(name: str, value: Any, found: object, settings: Any) -> None:
    settings.QUOTA = {name: value}

    assert getattr(current(), name.lower()) == found


def test_a_number_of_proxies_may_stand_beside_an_empty_list_of_them(settings: Any) -> None:
    settings.QUOTA = {"TRUSTED_PROXY_COUNT": 2, "TRUSTED_PROXIES": []}

    assert current().trusted_proxy_count == 2


def test_a_setting_is_read_once(settings: Any) -> None:
    settings.QUOTA = {"RULES": {"search": "5/m"}}

    assert current().rules is current().rules


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


@pytest.mark.parametrize("named", [{}, {"REMOTE_ADDR": None}], ids=["no entry", "an entry without a value"])
def test_a_server_that_names_no_peer_at_all_is_on_a_unix_socket(named: dict[str, None], settings: Any) -> None:
    settings.QUOTA = {"TRUSTED_PROXIES": ["unix"]}
    request = RequestFactory().get("/", HTTP_X_FORWARDED_FOR="203.0.113.9")
    del request.META["REMOTE_ADDR"]
    request.META |= named

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


@pytest.mark.usefixtures("memory_store")
def test_a_proxy_of_a_known_number_is_not_logged_as_an_unknown_one(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log_everything_again()
    settings.QUOTA = {**settings.QUOTA, "TRUSTED_PROXY_COUNT": 1}

    check("1/m", RequestFactory().get("/", REMOTE_ADDR="10.0.0.5", HTTP_X_FORWARDED_FOR="203.0.113.1"))

    assert caplog.messages == []


@pytest.fixture
def started_by(request: pytest.FixtureRequest, memory_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with this command line, and this value of FORWARDED_ALLOW_IPS."""
    words, allowed = request.param
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", allowed)
    log_everything_again()


TRUSTING = [
    pytest.param((["uvicorn", "--forwarded-allow-ips", "*", "site.asgi"], ""), id="uvicorn's option"),
    pytest.param((["uvicorn", "site.asgi"], " * "), id="the environment"),
    pytest.param((["uvicorn", "site.asgi", "--forwarded-allow-ips", "*"], "10.0.0.1"), id="the option goes first"),
    pytest.param(
        (["gunicorn", "-k", "uvicorn.workers.UvicornWorker", "--forwarded-allow-ips=*"], ""), id="gunicorn's option"
    ),
]
OTHERS = [
    pytest.param((["uvicorn", "--forwarded-allow-ips", "10.0.0.1", "site.asgi"], "*"), id="one proxy"),
    pytest.param((["uvicorn", "--forwarded-allow-ips", "10.0.0.1,*", "site.asgi"], ""), id="an asterisk in a list"),
    pytest.param((["uvicorn", "--forwarded-allow-ips", "*", "--no-proxy-headers", "site.asgi"], "*"), id="no headers"),
]


def messages_after_two_clients(caplog: pytest.LogCaptureFixture) -> list[str]:
    for client in ("203.0.113.1", "203.0.113.2"):
        check("1/m", AsyncRequestFactory().get("/", headers={"x-forwarded-for": client}))
    return [line for line in caplog.messages if "--no-proxy-headers" in line]


@pytest.mark.parametrize("started_by", TRUSTING, indirect=True)
@pytest.mark.usefixtures("started_by")
def test_a_server_that_trusts_every_proxy_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    assert messages_after_two_clients(caplog) == [
        (
            "The server runs with --forwarded-allow-ips '*': it takes the address from X-Forwarded-For of any client, "
            "before TRUSTED_PROXIES is checked. So every client chooses its own address, and its own limit. Start "
            "uvicorn with --no-proxy-headers, or gunicorn with --forwarded-allow-ips ''."
        )
    ]


@pytest.mark.parametrize("started_by", OTHERS, indirect=True)
@pytest.mark.usefixtures("started_by")
def test_a_server_that_trusts_no_stranger_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert messages_after_two_clients(caplog) == []


@pytest.mark.parametrize("started_by", [*TRUSTING, *OTHERS], indirect=True)
@pytest.mark.usefixtures("started_by")
def test_nothing_is_logged_about_proxies_under_wsgi(caplog: pytest.LogCaptureFixture) -> None:
    check("1/m", RequestFactory().get("/", REMOTE_ADDR="8.8.8.8", HTTP_X_FORWARDED_FOR="203.0.113.1"))

    assert caplog.messages == []


async def answer_late(request: object, decision: object) -> None: ...


class Late:
    async def __call__(self, request: object) -> None: ...


LATE: Any = Late()
RULES = {"search": "5/m", "export": {"at_once": 2}}
NOT_A_RATE = "QUOTA[\"RULES\"]['export'] is a concurrency limit (at_once), not a rate. Name a rule with a rate."
LOGIN_EXAMPLE = "Use, for example, {'5/10m': ['username', 'ip'], '100/h': 'username', '30/h': 'ip'}."
REDIS_HINT = "Use a URL such as 'redis://127.0.0.1:6379/0', a dict of redis-py's options, or a sync function."


@pytest.mark.parametrize(
    ("quota", "name", "error"),
    [
        pytest.param(
            ["10/m"], "given", "QUOTA is list, not a dict. Use, for example, {'CACHE': 'default'}.", id="a list"
        ),
        pytest.param({"REDIS": 5}, "redis", f'QUOTA["REDIS"] is int. {REDIS_HINT}', id="a number"),
        pytest.param(
            {"REDIS": answer_late},
            "redis",
            f'QUOTA["REDIS"] is an async function. {REDIS_HINT}',
            id="an async function",
        ),
        pytest.param(
            {"REDIS": "no.where"},
            "redis",
            "QUOTA[\"REDIS\"]='no.where' cannot be imported: No module named 'no'. Use the path of a function, for "
            "example 'shop.limits.redis'.",
            id="a path to nothing",
        ),
        pytest.param(
            {"RESPONSE": dict},
            "response",
            "QUOTA[\"RESPONSE\"] is <class 'dict'>. Use a sync function (request, decision) -> HttpResponse, or its "
            "dotted path.",
            id="a class",
        ),
        pytest.param(
            {"RELATED": 5},
            "related",
            'QUOTA["RELATED"] is 5. Use a sync function (user) -> subjects, or its dotted path.',
            id="not a function",
        ),
        pytest.param(
            {"RELATED": "json.decoder"},
            "related",
            "QUOTA[\"RELATED\"]='json.decoder' is module. Use a function.",
            id="a module",
        ),
        pytest.param(
            {"TRUSTED_PROXIES": ["nginx"]},
            "trusted_proxies",
            "QUOTA[\"TRUSTED_PROXIES\"] holds 'nginx': 'nginx' does not appear to be an IPv4 or IPv6 network. Use a "
            "network such as '10.0.0.0/8', an address or 'unix'.",
            id="not a proxy",
        ),
        pytest.param(
            {"EXEMPT": ["x"]},
            "exempt",
            "QUOTA[\"EXEMPT\"] holds 'x': 'x' does not appear to be an IPv4 or IPv6 network. Use a network such as "
            "'10.0.0.0/8' or an address.",
            id="not a network",
        ),
        pytest.param(
            {"TRUSTED_PROXY_COUNT": 2, "TRUSTED_PROXIES": ["10.0.0.0/8"]},
            "trusted_proxy_count",
            'QUOTA["TRUSTED_PROXY_COUNT"] is 2, and TRUSTED_PROXIES is set, too. Use one of them: TRUSTED_PROXIES if '
            "you know the addresses of your proxies.",
            id="proxies and their number",
        ),
        pytest.param(
            {"CLIENT_IP_HEADER": "X-Real-IP"},
            "client_ip_header",
            "QUOTA[\"CLIENT_IP_HEADER\"] is 'X-Real-IP', but TRUSTED_PROXIES is empty, so the header would be ignored. "
            'Name the proxies that set it, for example "TRUSTED_PROXIES": ["10.1.2.0/24"].',
            id="a header that nobody may set",
        ),
        pytest.param(
            {"CLIENT_IP_HEADER": "X-Real-IP", "TRUSTED_PROXIES": []},
            "client_ip_header",
            "QUOTA[\"CLIENT_IP_HEADER\"] is 'X-Real-IP', but TRUSTED_PROXIES is empty, so the header would be ignored. "
            'Name the proxies that set it, for example "TRUSTED_PROXIES": ["10.1.2.0/24"].',
            id="a header that nobody in an empty list may set",
        ),
        pytest.param(
            {"STORE": "x"}, "store", "QUOTA[\"STORE\"] is 'x'. Use 'redis', 'database' or 'memory'.", id="not a store"
        ),
        pytest.param(
            {"PREFIX": "{"},
            "prefix",
            "QUOTA[\"PREFIX\"] is '{'. Use a string without braces, for example 'quota'.",
            id="a brace",
        ),
        pytest.param(
            {"LOGIN": {"xyz": 1}},
            "login",
            f"QUOTA[\"LOGIN\"] has 'xyz', which is not a rate. Use, for example, {DEFAULT_LOGIN}.",
            id="not a rate of logins",
        ),
        pytest.param(
            {"LOGIN": "5/m"},
            "login",
            f"QUOTA[\"LOGIN\"] is '5/m', not a dict of limits. {LOGIN_EXAMPLE}",
            id="a rate in place of limits of logins",
        ),
        pytest.param(
            {"LOGIN": {"shadow": True}},
            "login",
            f'QUOTA["LOGIN"] has no limit. {LOGIN_EXAMPLE}',
            id="no limit of logins",
        ),
        pytest.param(
            {"LOGIN": {"exmpt": "ip"}},
            "login",
            "QUOTA[\"LOGIN\"] has 'exmpt', which is not a rate. Did you mean 'exempt'?",
            id="a misspelled option of logins",
        ),
        pytest.param(
            {"LOGIN": {5: "ip"}},
            "login",
            f'QUOTA["LOGIN"] has 5, which is not a rate. {LOGIN_EXAMPLE}',
            id="a number as a rate of logins",
        ),
        pytest.param(
            {"LOGIN": {"5/mx": "ip"}},
            "login",
            "QUOTA[\"LOGIN\"]: '5/mx' is not a rate: 'mx' is not a unit (at position 2). "
            "Units, in lower case: s, m, h, d, w (or in full), month, year.",
            id="a wrong rate of logins",
        ),
        pytest.param(
            {"LOGIN": {"5/m": "username", "ban": {"after": "5/m", "for": "1h"}}},
            "login",
            'QUOTA["LOGIN"] has "ban", but no limit by "ip": a user name alone is never banned. ' + LOGIN_EXAMPLE,
            id="a ban of a user name",
        ),
        *(
            pytest.param(
                {"LOGIN": {"5/m": "ip", "exempt": exempt}},
                "login",
                f'QUOTA["LOGIN"] has exempt={exempt!r}, but nobody is logged in yet. '
                "Name networks, for example ['198.51.100.0/24'].",
                id=f"logins with {name} exempt",
            )
            for name, exempt in (("staff", "staff"), ("a function", print))
        ),
        pytest.param(
            {"LOGIN": {"5/m": "email"}},
            "login",
            "QUOTA[\"LOGIN\"]['5/m'] is 'email'. Use 'username', 'ip' or ['username', 'ip'].",
            id="another key of logins",
        ),
        pytest.param(
            {"CACHE_REFUSALS": 61},
            "cache_refusals",
            'QUOTA["CACHE_REFUSALS"]=61 is not a duration from 0 to 1 minute. '
            "Use, for example, 1.0, '10s' or 0 for never.",
            id="a long time to repeat refusals",
        ),
        pytest.param(
            {"RESPONSE": answer_late},
            "response",
            f'QUOTA["RESPONSE"] is {answer_late!r}. Use a sync function (request, decision) -> HttpResponse, or its '
            "dotted path.",
            id="an async function that answers",
        ),
        pytest.param(
            {"LOGIN": {"5/m": []}},
            "login",
            "QUOTA[\"LOGIN\"]['5/m'] is []. Use 'username', 'ip' or ['username', 'ip'].",
            id="not a key of logins",
        ),
        pytest.param(
            {"LOGIN": {"5/m": ["ip", "email"]}},
            "login",
            "QUOTA[\"LOGIN\"]['5/m'] is ['ip', 'email']. Use 'username', 'ip' or ['username', 'ip'].",
            id="a known and an unknown key of logins",
        ),
        pytest.param(
            {"LOGIN": {"5/m": ("ip", "ip")}},
            "login",
            "QUOTA[\"LOGIN\"]['5/m'] is ('ip', 'ip'). Use 'username', 'ip' or ['username', 'ip'].",
            id="the same key of logins twice",
        ),
    ],
)
def test_the_error_of_a_wrong_setting_has_its_name_its_value_and_what_to_use(
    quota: object, name: str, error: str, settings: Any
) -> None:
    settings.QUOTA = quota

    with pytest.raises((ConfigurationError, RuleError)) as caught:
        getattr(current(), name)

    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("said", "default", "failure", "is_precious", "found"),
    [
        pytest.param(None, "allow", StoreUnavailable, False, "allow", id="a plain rule"),
        pytest.param(None, "allow", StoreUnavailable, True, "local", id="a precious rule"),
        pytest.param("allow", "allow", StoreUnavailable, True, "allow", id="a precious rule that says so"),
        pytest.param(None, "deny", StoreUnavailable, True, "deny", id="a precious rule of a strict site"),
        pytest.param(None, "allow", StoreOutOfMemory, False, "local", id="a full store"),
        pytest.param("allow", "allow", StoreOutOfMemory, False, "allow", id="a full store and a rule that says so"),
        pytest.param("allow", "deny", StoreBusy, False, "local", id="a busy process"),
        pytest.param("deny", "allow", StoreBusy, True, "deny", id="a busy process and a strict rule"),
    ],
)
def test_what_a_rule_does_without_its_store_depends_on_who_could_gain(
    said: Any, default: str, failure: type[StoreUnavailable], is_precious: bool, found: str, settings: Any
) -> None:
    settings.QUOTA = {"ON_UNAVAILABLE": default}

    assert current().without_store(said, failure, is_precious=is_precious) == found


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ("shop.limits.key", True), ("json.dumps", True), ("user", False), ("10/m", False), ("10.0.0.0/8", False),
        ("a..b", False), (".a.b", False), (5, False), (print, False),
    ],
    ids=str,
)  # fmt: skip
def test_a_path_is_names_joined_by_dots(value: object, is_one: bool) -> None:
    assert is_path(value) is is_one


@pytest.mark.parametrize(
    ("value", "is_one"),
    [(answer_late, True), (LATE, True), (print, False), (dict, False), (5, False)],
    ids=["a function", "an object", "a sync function", "a class", "a number"],
)
def test_only_async_functions_and_objects_must_be_awaited(value: object, is_one: bool) -> None:
    assert is_async_callable(value) is is_one


@pytest.mark.parametrize(
    ("option", "given", "error"),
    [
        pytest.param(
            "cost",
            "no.where",
            "cost='no.where' cannot be imported: No module named 'no'. Use the path of a function of the request, for "
            "example 'shop.limits.cost'.",
            id="a module that is missing",
        ),
        pytest.param(
            "key",
            "request.user.id",
            "key='request.user.id' cannot be imported: No module named 'request'. Write 'user', which counts by the "
            "primary key.",
            id="an attribute of the request",
        ),
        pytest.param(
            "key",
            "user.pk",
            "key='user.pk' cannot be imported: No module named 'user'. Write 'user', which counts by the primary key.",
            id="an attribute of the user",
        ),
        pytest.param(
            "key",
            "usersite.limits.by_plan",
            "key='usersite.limits.by_plan' cannot be imported: No module named 'usersite'. Use the path of a function "
            "of the request, for example 'shop.limits.key'.",
            id="a package whose name begins like the user",
        ),
        pytest.param(
            "settle",
            "json.decoder",
            "settle='json.decoder' is module. Use a function of the request and the response.",
            id="a module of two arguments",
        ),
        pytest.param(
            "starts", "json.decoder", "starts='json.decoder' is module. Use a function of the subject.", id="a module"
        ),
    ],
)
def test_a_path_that_leads_to_no_function_is_an_error(option: str, given: str, error: str) -> None:
    with pytest.raises(RuleError) as caught:
        import_function(option, given)

    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        pytest.param("cost", "json.dumps", json.dumps, id="a function"),
        pytest.param("cost", 5, 5, id="a number"),
        pytest.param("rate", "json.dumps", json.dumps, id="a rate"),
        pytest.param("rate", ["json.dumps", "5/m"], [json.dumps, "5/m"], id="rates"),
        pytest.param("rate", ("json.dumps",), [json.dumps], id="a tuple of rates"),
        pytest.param("rate", "10/m", "10/m", id="a plain rate"),
        pytest.param("exempt", {"json.dumps"}, [json.dumps], id="a set of what is exempt"),
        pytest.param("exempt", frozenset({"json.dumps"}), [json.dumps], id="a frozenset of what is exempt"),
        pytest.param("exempt", "json.dumps", json.dumps, id="who is exempt"),
        pytest.param("exempt", ["10.0.0.0/8"], ["10.0.0.0/8"], id="a network"),
        pytest.param("rate", {"pro": "json.dumps"}, {"pro": "json.dumps"}, id="rates by tier"),
        pytest.param("rate", {"json.dumps"}, {"json.dumps"}, id="a set of rates"),
        pytest.param("key", "json.dumps", "json.dumps", id="a key, which others read"),
        pytest.param("match", "json.dumps", "json.dumps", id="an option that takes no function"),
    ],
)
def test_paths_in_a_rule_become_functions(option: str, value: object, found: object) -> None:
    assert import_option(option, value) == found


@pytest.mark.parametrize("words", ["five units", ".b", ".a.b"], ids=["words", "a dot before a name", "a relative path"])
def test_words_in_the_place_of_a_function_of_a_rule_are_an_error(words: str) -> None:
    with pytest.raises(RuleError) as caught:
        import_option("cost", words)

    assert str(caught.value).startswith(f"cost={words!r} cannot be imported: ")


RATE_HINT = (
    "Write a count in digits alone, a slash and a window: '10/m', '5/30s', '1000 per day', or several: '10/s; 500/h'."
)
NO_COUNT = "is not a rate: the count is not a whole number from 0 up (at position 0)."


@pytest.mark.parametrize(
    ("given", "options", "error"),
    [
        pytest.param(
            "search",
            {"key": "ip", "cost": 2},
            "Rule 'search' has its own options; key, cost can only be given together with a rate.",
            id="options of a rule",
        ),
        pytest.param("export", {}, NOT_A_RATE, id="a slot"),
        pytest.param(
            "serch",
            {},
            f"'serch' {NO_COUNT} {RATE_HINT} Nor is it a rule in QUOTA[\"RULES\"]. Did you mean 'search'?",
            id="a misspelled rule",
        ),
        pytest.param(5, {}, f"5 is not a rate: it is int, not a string. {RATE_HINT}", id="a number"),
        pytest.param(
            "5/m",
            {"costs": "x"},
            "costs= needs a request, so it is only for @quota and the settings. Use cost= here.",
            id="an option of requests",
        ),
        pytest.param(
            "5/m",
            {"settle": "x"},
            "settle= needs a response, so it is only for @quota and the settings. Use reserve() here.",
            id="an option of responses",
        ),
    ],
)
def test_a_call_with_something_that_is_not_a_rule_is_an_error(
    given: Any, options: Any, error: str, settings: Any
) -> None:
    settings.QUOTA = {"RULES": RULES}

    with pytest.raises(RuleError) as caught:
        rule_of(given, options)

    assert str(caught.value) == error


def test_a_wrong_rate_of_a_ban_is_not_taken_for_the_name_of_a_rule(settings: Any) -> None:
    settings.QUOTA = {"RULES": RULES}

    with pytest.raises(RuleError) as caught:
        rule_of("5/m", {"ban": {"after": "5/mx", "for": "1h"}})

    assert "'5/mx'" in str(caught.value)
    assert "Nor is it a rule" not in str(caught.value)


@pytest.mark.parametrize(
    ("rate", "options", "name"),
    [
        ("10 per minute", {}, "10/m"), ("10/s;500/h", {}, "10/s; 500/h"), (None, {}, "unlimited"),
        ({"anonymous": "1/m", "authenticated": None}, {}, "1/m for anonymous, unlimited for authenticated"),
        (json.dumps, {}, "json.dumps"), ("10/m", {"name": "api"}, "api"), (lambda request: "5/m", {"name": "a"}, "a"),
    ],
    ids=["a rate", "rates", "none", "rates by tier", "a function", "a name", "a lambda with a name"],
)  # fmt: skip
def test_a_rule_of_a_call_is_named_by_its_rate_unless_it_has_a_name(rate: Any, options: Any, name: str) -> None:
    assert rule_of(rate, options).name == name


def test_a_rate_with_the_same_options_in_any_order_is_one_rule() -> None:
    ban = {"after": "5/m", "for": "1h"}

    one, other = rule_of("10/m", {"shadow": True, "ban": ban}), rule_of("10/m", {"ban": ban, "shadow": True})

    assert one is other


def test_the_ban_of_a_call_may_be_a_mapping_of_any_kind() -> None:
    ban = {"after": "5/m", "for": "1h"}

    assert rule_of("10/m", {"ban": MappingProxyType(ban)}) is rule_of("10/m", {"ban": ban})


@pytest.mark.parametrize("wrap", [lambda rate: rate, partial], ids=["itself", "in a partial"])
def test_a_call_with_a_lambda_as_its_rate_needs_a_name(wrap: Any) -> None:
    rate = wrap(lambda request: "5/m")

    with pytest.raises(RuleError) as caught:
        rule_of(rate, {})

    assert str(caught.value) == (
        f"{reprlib.repr(dotted_path(rate))} is not a rate: a lambda has no name to count under. Add name='...'."
    )


@pytest.mark.parametrize(
    ("name", "error"),
    [
        pytest.param("serch", "There is no rule 'serch' in QUOTA[\"RULES\"]. Did you mean 'search'?", id="misspelled"),
        pytest.param("upload", "There is no rule 'upload' in QUOTA[\"RULES\"]. Known: search.", id="unlike any"),
        pytest.param("export", NOT_A_RATE, id="a slot"),
    ],
)
def test_a_rule_that_the_settings_lack_is_an_error(name: str, error: str, settings: Any) -> None:
    settings.QUOTA = {"RULES": RULES}

    with pytest.raises(RuleError) as caught:
        current().rule(name)

    assert str(caught.value) == error


def test_a_site_without_rules_is_told_to_add_one(settings: Any) -> None:
    settings.QUOTA = {}

    with pytest.raises(RuleError) as caught:
        current().rule("search")

    assert str(caught.value) == "There is no rule 'search' in QUOTA[\"RULES\"]. Add it."


def test_a_call_with_a_rule_uses_it_as_it_is() -> None:
    rule = Rule.make("own", "5/m")

    assert rule_of(rule, {}) is rule


def test_a_call_with_a_rule_takes_no_options_of_one() -> None:
    with pytest.raises(RuleError) as caught:
        rule_of(Rule.make("own", "5/m"), {"shadow": True})

    assert str(caught.value) == "Rule 'own' has its own options; shadow can only be given together with a rate."


def test_a_rule_of_the_settings_is_made_once(settings: Any) -> None:
    settings.QUOTA = {"RULES": {"search": "5/m"}}

    assert current().rule("search") is current().rule("search")


def test_rules_with_a_rate_and_concurrency_limits_are_read_apart(settings: Any) -> None:
    settings.QUOTA = {"RULES": RULES}

    assert (current().rules, current().slots()) == ({"search": "5/m"}, {"export": {"at_once": 2}})


def test_a_number_as_the_name_of_a_concurrency_limit_is_read_as_a_string(settings: Any) -> None:
    settings.QUOTA = {"RULES": {5: {"at_once": 2}}}

    assert current().slots() == {"5": {"at_once": 2}}


def test_a_concurrency_limit_may_be_a_mapping_of_any_kind(settings: Any) -> None:
    settings.QUOTA = {"RULES": {"export": MappingProxyType({"at_once": 2})}}

    assert (current().rules, list(current().slots())) == ({}, ["export"])


def test_keys_in_the_database_have_no_prefix_of_a_cache(settings: Any) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "KEY_PREFIX": "shop"}}
    settings.QUOTA = {"PREFIX": "limits"}

    assert (current().prefix_in(None), current().prefix_in("database")) == ("shop:limits", "limits")


@pytest.mark.parametrize(
    ("value", "found"), [(True, "draft-11"), ("draft-11", "draft-11"), (False, "")], ids=["on", "by name", "off"]
)
def test_the_headers_follow_a_draft_or_are_off(value: object, found: str, settings: Any) -> None:
    settings.QUOTA = {"HEADERS": value}

    assert current().headers == found


def test_forcing_limits_off_returns_what_was_forced_before() -> None:
    before = force_enabled(enabled=False)
    forced = force_enabled(before)

    assert (before, forced) == (None, False)


@pytest.mark.parametrize("of_site", [True, False], ids=["on", "off"])
def test_what_is_forced_takes_precedence_over_the_settings_until_it_ends(of_site: bool, settings: Any) -> None:
    settings.QUOTA = {"ENABLED": of_site}

    before = force_enabled(enabled=not of_site)
    forced = current().enabled
    force_enabled(before)

    assert (forced, current().enabled) == (not of_site, of_site)


@pytest.mark.parametrize(
    ("quota", "backends", "limits"),
    [
        ({"LOGIN": {"5/m": "ip"}}, [], True), ({}, [LOGIN_BACKEND], True), ({}, [], False), (None, [], False),
        ("LOGIN", [], False), ({}, ["django.contrib.auth.backends.ModelBackend"], False),
    ],
    ids=["the setting", "our backend", "neither", "no setting", "a string", "another backend"],
)  # fmt: skip
def test_a_site_limits_logins_by_the_setting_or_our_backend(
    quota: Any, backends: list[str], limits: bool, settings: Any
) -> None:
    settings.QUOTA, settings.AUTHENTICATION_BACKENDS = quota, backends

    assert limits_logins() is limits


@pytest.mark.parametrize(
    ("given", "bans"),
    [
        ({"5/m": "ip", "9/h": "username"}, {"login-ip": True, "login-username": False}),
        ({"5/m": ["ip", "username"], "9/h": ["username"]}, {"login-username-ip": True, "login-username": False}),
        ({"9/h": "username", "5/m": "ip"}, {"login-username": False, "login-ip": True}),
    ],
    ids=["by address", "by both", "by address in the second place"],
)  # fmt: skip
def test_a_user_name_alone_is_never_banned(given: Any, bans: dict[str, bool], settings: Any) -> None:
    settings.QUOTA = {"LOGIN": {**given, "ban": {"after": "5/m", "for": "1h"}}}

    assert {rule.name: rule.ban is not None for rule in current().login} == bans


def test_an_option_of_logins_is_one_of_each_limit(settings: Any) -> None:
    settings.QUOTA = {"LOGIN": {"5/m": "ip", "9/h": "username", "shadow": True}}

    assert [rule.shadow for rule in current().login] == [True, True]


def test_networks_may_be_exempt_from_the_limits_of_logins(settings: Any) -> None:
    settings.QUOTA = {"LOGIN": {"5/m": "ip", "exempt": ["198.51.100.0/24"]}}

    (rule,) = current().login

    assert rule.exempt is not None
    assert rule.exempt.networks == (ip_network("198.51.100.0/24"),)


def test_a_login_with_several_limits_by_one_key_is_one_rule(settings: Any) -> None:
    settings.QUOTA = {"LOGIN": {"5/m": "ip", "9/h": ["ip"], "on_unavailable": "deny"}}

    (rule,) = current().login

    assert (rule.name, rule.key, [*map(str, rule.rates)], rule.on_unavailable) == (
        "login-ip", "ip", ["5/m", "9/h"], "deny",
    )  # fmt: skip


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


@pytest.mark.thorough("slow")
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
    assert shown_by_frames(failed.value) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("redis", ["redis://:5ecret@127.0.0.1/0"]), ("digest_key", b"5ecret"), ("metrics_token", "5ecret")],
    ids=["a list with an address", "bytes", "a short token"],
)
def test_no_frame_of_a_secret_that_is_wrong_shows_it(name: str, value: object, settings: Any) -> None:
    settings.QUOTA = {name.upper(): value}

    with pytest.raises(ConfigurationError) as failed:
        getattr(current(), name)

    assert shown_by_frames(failed.value) == []


def shown_by_frames(error: ConfigurationError) -> list[object]:
    """Return what frames of an error show of a secret, without that of the test."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)][1:]
    return [value for frame in frames for value in frame.f_locals.values() if "5ecret" in repr(value)]
