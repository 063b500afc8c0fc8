"""Nobody chooses their own address, whatever headers they send: wherever it is learned, and under real servers."""

import json
import os
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPResponse
from ipaddress import IPv4Address, ip_network
from typing import Any

import django
import pytest
from django.test import override_settings
from hypothesis import assume, given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.adapters import client_ip, decide, read_subject
from django_quota.exceptions import ConfigurationError, QuotaError
from tests.support.calls import always, get
from tests.support.commands import ROOT
from tests.support.inputs import inputs
from tests.support.outages import log_everything_again

PROXIES = ["10.0.0.0/8", "2001:db8::/32"]
BY_PROXY = {"TRUSTED_PROXIES": PROXIES}
BY_HEADER = {"TRUSTED_PROXIES": PROXIES, "CLIENT_IP_HEADER": "CF-Connecting-IP"}
MANY = inputs(400)

PROXY, PEER, VICTIM = "10.0.0.1", "198.51.100.7", "203.0.113.9"
FORGED = [
    VICTIM, f"{VICTIM}, 10.0.0.1", f"10.0.0.1, {VICTIM}", f"::ffff:{VICTIM}", f"[::ffff:{VICTIM}]:443",
    f"{VICTIM}:8080", f"64:ff9b::{VICTIM}", f" \t{VICTIM}\t ", f'"{VICTIM}"', f"for={VICTIM}",
    "fe80::1%eth0", "[2001:4860::1%25lo]:1",
    f",,{VICTIM},,", f"{VICTIM},", "unix", "unknown", "localhost", "127.0.0.1", "::1", "0.0.0.0", "\xa0\xff\xe9",
    "\u0662\u0660\u0663.\u0660.\u0661\u0661\u0663.\u0669", "203.0.113.009", "3405803785", "0xcb007109",
    ", ".join([VICTIM] * 10_000), ", ".join(["10.0.0.1"] * 10_000), "," * 10_000, "1" * 100_000,
]  # fmt: skip
CLAIMS = [
    "HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP", "HTTP_CLIENT_IP", "HTTP_TRUE_CLIENT_IP",
    "HTTP_CF_CONNECTING_IP", "HTTP_X_CLUSTER_CLIENT_IP", "HTTP_X_CLIENT_IP", "HTTP_VIA", "HTTP_REMOTE_ADDR",
]  # fmt: skip
"""Headers by which software names a client's address. Only one is ever read, and of a trusted proxy alone."""


def found(options: dict[str, Any], peer: str = PROXY, forwarded: str | None = None, **meta: Any) -> str:
    """Return the client of a request that came from a peer."""
    claimed = {} if forwarded is None else {"HTTP_X_FORWARDED_FOR": forwarded}
    with override_settings(QUOTA={"STORE": "memory", **options}):
        return client_ip(get(REMOTE_ADDR=peer, **claimed, **meta))


@pytest.mark.parametrize("options", [{}, BY_PROXY, BY_HEADER], ids=["no proxies", "proxies", "a header"])
@pytest.mark.parametrize("claim", CLAIMS)
def test_no_header_of_a_stranger_is_believed(claim: str, options: dict[str, Any]) -> None:
    assert {found(options, PEER, **{claim: forged}) for forged in FORGED} == {PEER}


@pytest.mark.parametrize("options", [{}, BY_PROXY], ids=["no proxies", "proxies"])
@pytest.mark.parametrize(
    "key",
    ["ip", "user", "user_or_ip", "header:X-None", ("ip", "path"), always(None)],
    ids=["ip", "user", "user or ip", "no header", "ip and path", "a function"],
)
@pytest.mark.parametrize("claim", CLAIMS)
def test_no_header_of_a_stranger_is_believed_by_any_key(claim: str, key: Any, options: dict[str, Any]) -> None:
    with override_settings(QUOTA={"STORE": "memory", **options}):
        request = get(REMOTE_ADDR=PEER, **{claim: VICTIM})

        assert f"ip:{PEER}" in decide(request, Rule.make("r", "99/m", key=key)).subject


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if "FORWARDED_FOR" not in claim])
def test_only_x_forwarded_for_of_a_proxy_is_believed(claim: str) -> None:
    assert {found(BY_PROXY, forwarded=PEER, **{claim: forged}) for forged in FORGED} == {PEER}
    assert {found(BY_PROXY, **{claim: forged}) for forged in FORGED} == {PROXY}


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if "CF_" not in claim])
def test_only_the_header_of_the_settings_is_believed(claim: str) -> None:
    assert found(BY_HEADER, HTTP_CF_CONNECTING_IP=PEER, **{claim: VICTIM}) == PEER
    assert found(BY_HEADER, **{claim: VICTIM}) == PROXY


@pytest.mark.parametrize("proxy", [PROXY, "::ffff:10.0.0.1", "2001:db8::7", "2001:DB8:0::7%eth0"])
@pytest.mark.parametrize("seen", [PEER, f"::ffff:{PEER}", f"{PEER}:4711", f"[::ffff:{PEER}]:4711", f" {PEER}\t"])
@pytest.mark.parametrize(
    ("options", "end"),
    [
        pytest.param(BY_PROXY, "", id="proxies"),
        pytest.param({"TRUSTED_PROXY_COUNT": 1}, "", id="one proxy"),
        pytest.param({"TRUSTED_PROXY_COUNT": 2}, ",10.0.0.9", id="two proxies"),
    ],
)
def test_only_what_the_first_trusted_proxy_appended_counts(
    options: dict[str, Any], end: str, proxy: str, seen: str
) -> None:
    clients = {forged: found(options, proxy, f"{forged},{seen}{end}") for forged in FORGED}

    assert {forged[:80]: client for forged, client in clients.items() if client != PEER} == {}


@pytest.mark.thorough("slow")
@MANY
@given(
    st.lists(st.ip_addresses().map(str) | st.text(max_size=30) | st.sampled_from(FORGED[:20]), max_size=8),
    st.ip_addresses(),
    st.sampled_from([",", ", ", " , ", ",\t", ",,"]),
    st.sampled_from(["{}", " {}", "{}\t", "[{}]", "[{}]:65535"]),
)
def test_in_any_spelling_the_last_stranger_is_the_client(
    hops: list[str], client: Any, comma: str, spelling: str
) -> None:
    assume(not any(client in network for network in map(ip_network, PROXIES)))
    assume(client not in ip_network("::ffff:0:0/96") and client not in ip_network("64:ff9b::/96"))  # they are IPv4
    forged = comma.join([*hops, spelling.format(client)])
    assert found({**BY_PROXY, "IPV6_PREFIX": 128}, forwarded=forged) == str(client)


def test_headers_of_a_flood_do_not_fill_the_memory() -> None:
    with override_settings(QUOTA=BY_PROXY):
        clients = {client_ip(get(REMOTE_ADDR=PROXY, HTTP_X_FORWARDED_FOR=PEER))}
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()

        for number in range(500):
            forged = f"{number}:" + "f" * 8_000
            clients.add(client_ip(get(REMOTE_ADDR=PROXY, HTTP_X_FORWARDED_FOR=forged)))
            with pytest.raises(QuotaError):
                read_subject(f"ip:{forged}")
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()

    assert clients == {PEER, PROXY}
    assert grown < 200_000  # of 4 MB that were sent


SITE = """
import json, os, sys, types
from django.conf import settings
APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_quota"]
settings.configure(SECRET_KEY="x", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, INSTALLED_APPS=APPS, DATABASES={})
import django
django.setup()
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path
from django_quota.adapters import decide
from example_project import server

def who(request, site):
    with override_settings(QUOTA={"STORE": "memory", **json.loads(os.environ["SITES"])[site]}):
        return HttpResponse(decide(request, "1000/m").subject)

urlpatterns = [path("<site>", who)]
settings.ROOT_URLCONF = sys.modules[__name__]
for kind, make in (("asgi", get_asgi_application), ("wsgi", get_wsgi_application)):
    sys.modules[f"example_project.{kind}"] = types.SimpleNamespace(application=make())
server.main(int(sys.argv[1]), sys.argv[2])
"""
SITES: dict[str, dict[str, Any]] = {
    "stranger": {"TRUSTED_PROXIES": ["10.0.0.0/8"]},
    "proxy": {"TRUSTED_PROXIES": ["127.0.0.0/8"]},
    "header": {"TRUSTED_PROXIES": ["127.0.0.0/8"], "CLIENT_IP_HEADER": "CF-Connecting-IP"},
}


@pytest.fixture(scope="module", params=["asgi", "wsgi"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ask(kind: str) -> Iterator[Callable[[str, bytes], bytes]]:
    """What sends raw header lines to a site under a real server, and returns the subject that it saw."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SITES": json.dumps(SITES), "DJANGO_SETTINGS_MODULE": ""}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address, number = listener.getsockname(), listener.fileno()
        command = [sys.executable, "-c", SITE, str(number), kind]
        process = subprocess.Popen(command, env=environment, pass_fds=[number])

    def ask(site: str, headers: bytes) -> bytes:
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(f"GET /{site} HTTP/1.0\r\nHost: a\r\n".encode() + headers + b"\r\n")
            with HTTPResponse(connection) as reply:
                reply.begin()
                return reply.read() if reply.status == 200 else str(reply.status).encode()

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(60)


ASGI_TAKES_UNDERSCORES = django.VERSION < (5, 2, 13) or (6, 0) <= django.VERSION < (6, 0, 4)
"""Whether X_Forwarded_For is X-Forwarded-For for this Django (CVE-2026-3902, see SECURITY.md)."""

LINES = [
    b"",
    b"X-Forwarded-For: 203.0.113.9\r\n",
    b"X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-For: 203.0.113.8\r\n",
    b"x-forwarded-for:203.0.113.9\r\nX_Forwarded_For: 203.0.113.9\r\n",
    b"X_FORWARDED_FOR: 203.0.113.9\r\nX-Real-IP: 203.0.113.9\r\nForwarded: for=203.0.113.9\r\n",
    b"X-Forwarded-For: \xff\xfe, \xc3\xa9, 203.0.113.9\r\nRemote-Addr: 203.0.113.9\r\nREMOTE_ADDR: 203.0.113.9\r\n",
]


Ask = Callable[[str, bytes], bytes]


class TestUnderRealServers:
    """Nobody chooses their own address."""

    REAL, OWN = b"ip:198.51.100.7", b"ip:127.0.0.1"
    OF_PROXY = b"CF-Connecting-IP: 198.51.100.7\r\n"

    @pytest.mark.thorough("slow")
    def test_no_header_of_a_stranger_is_believed(self, ask: Ask) -> None:
        assert {lines: ask("stranger", lines) for lines in LINES} == dict.fromkeys(LINES, self.OWN)

    def test_only_the_last_header_of_a_proxy_is_believed(self, ask: Ask) -> None:
        last = b"X-Forwarded-For: 198.51.100.7\r\n"

        assert {lines: ask("proxy", lines + last) for lines in LINES} == dict.fromkeys(LINES, self.REAL)

    def test_a_header_with_underscores_is_not_believed(self, ask: Ask, kind: str) -> None:
        if kind == "asgi" and ASGI_TAKES_UNDERSCORES:
            pytest.skip("This Django takes X_Forwarded_For for X-Forwarded-For under ASGI")

        assert ask("proxy", b"X_Forwarded_For: 203.0.113.9\r\n") == self.OWN

    def test_the_header_of_the_settings_is_believed(self, ask: Ask) -> None:
        assert {lines: ask("header", lines + self.OF_PROXY) for lines in LINES} == dict.fromkeys(LINES, self.REAL)

    def test_no_other_header_takes_its_place(self, ask: Ask) -> None:
        assert {lines: ask("header", lines) for lines in LINES} == dict.fromkeys(LINES, self.OWN)

    @pytest.mark.parametrize("forged", [b"CF-Connecting-IP: 203.0.113.9\r\n", b"CF_Connecting_IP: 203.0.113.9\r\n"])
    def test_a_second_header_of_that_name_is_not_believed(self, ask: Ask, forged: bytes) -> None:
        answers = {ask("header", forged + self.OF_PROXY), ask("header", self.OF_PROXY + forged)}

        assert answers <= {self.REAL, self.OWN}


@pytest.mark.parametrize(
    ("value", "client"),
    [
        (PEER, PEER), (f" {PEER} ", PEER), (f"{PEER}:4711", PEER), (f"::ffff:{PEER}", PEER),
        ("[2001:4860::7]:443", "2001:4860::/64"), ("fe80::1%eth0", "fe80::/64"), ("[fe80::1%eth0]:443", "fe80::/64"),
        ("2001:4860:0:0:0:0:0:7:4711", "2001:4860::/64"), ("2001:4860::7:47110", "2001:4860::/64"),
        (f"::ffff:{PEER}:4711", PEER), (f"64:ff9b::{PEER}", PEER), (f"[64:ff9b::{PEER}]:443", PEER),
        (f"{' ' * 99}{PEER}", PEER),
        # without one address in it the proxy counts
        *((value, None) for value in (None, "", "unknown", f"{VICTIM}, {PEER}", f"for={VICTIM}", "1" * 99)),
        *((value, None) for value in (f"{VICTIM}:http", f"[{VICTIM}]http", f"{VICTIM}:1:2", ":443", "[]:443")),
        *((value, None) for value in (f"[{VICTIM}]:http", "[2001:4860::7]:http", "[2001:4860::7]:1:2", " ")),
    ],
)  # fmt: skip
def test_the_one_header_of_a_proxy_names_the_client(value: str | None, client: str | None) -> None:
    claimed = {} if value is None else {"HTTP_CF_CONNECTING_IP": value}
    assert found(BY_HEADER, **claimed) == (client or PROXY)
    assert found(BY_HEADER, "2001:db8::7", **claimed) == (client or "2001:db8::/64")


@pytest.mark.parametrize("zone", ["", "%eth0", "%wlan0"])
def test_the_zone_of_an_address_makes_no_client_of_its_own(zone: str) -> None:
    assert found({"IPV6_PREFIX": 128}, f"fe80::1{zone}") == "fe80::1"


@pytest.mark.parametrize(
    ("value", "client"),
    [("2001:4860::7:4711", "2001:4860::7:4711"), ("2001:4860::7:47110", "2001:4860::7")],
    ids=["a part of it", "a port"],
)
def test_the_end_of_an_ipv6_address_is_a_port_only_if_it_is_no_part_of_it(value: str, client: str) -> None:
    assert found({**BY_HEADER, "IPV6_PREFIX": 128}, HTTP_CF_CONNECTING_IP=value) == client


@pytest.mark.parametrize(
    "value", [f"{PEER}:47110", "2001:4860:0:0:ab:cd:ef:7:4711", "2001:4860::ab:cd:ef:7:4711", "2001:4860::7:47110"]
)
def test_the_viewer_address_of_cloudfront_ends_with_a_port(value: str) -> None:
    options = {**BY_HEADER, "CLIENT_IP_HEADER": "CloudFront-Viewer-Address"}
    client = found(options, HTTP_CLOUDFRONT_VIEWER_ADDRESS=value)
    assert client == (PEER if "." in value else "2001:4860::/64")


def test_a_viewer_address_without_a_port_is_taken_whole() -> None:
    options = {**BY_HEADER, "CLIENT_IP_HEADER": "CloudFront-Viewer-Address"}

    assert found(options, HTTP_CLOUDFRONT_VIEWER_ADDRESS="2001:4860:0:0:ab:cd:ef:7") == "2001:4860::/64"


COUNTED = {"TRUSTED_PROXY_COUNT": 1}
UNREADABLE = (
    "{} from {} is {}, which is not an IP address. Such a request counts for the address of the proxy, so all clients "
    "whose address cannot be read share a limit. Let the proxy write one address, such as 203.0.113.9, "
    "203.0.113.9:4711 or [2001:db8::7]:4711."
).format
MISSING = (
    "A request from {0} has no {1}, so it counts for the address of the proxy. This is right if the request is the "
    "proxy's own, such as a health check. If not, all its clients share a limit: let it send {1}."
).format
FORWARDED = "X-Forwarded-For"


@pytest.mark.parametrize(
    ("options", "meta", "level", "words"),
    [
        (
            BY_HEADER,
            {"HTTP_CF_CONNECTING_IP": " unknown "},
            "ERROR",
            UNREADABLE("Cf-Connecting-Ip", PROXY, "'unknown'"),
        ),
        (BY_PROXY, {"HTTP_X_FORWARDED_FOR": f"{PEER}, a\n"}, "ERROR", UNREADABLE(FORWARDED, PROXY, "'a'")),
        (COUNTED, {"HTTP_X_FORWARDED_FOR": f"{PEER}:http"}, "ERROR", UNREADABLE(FORWARDED, PROXY, f"'{PEER}:http'")),
        (COUNTED, {"HTTP_X_FORWARDED_FOR": "f" * 9_000}, "ERROR", UNREADABLE(FORWARDED, PROXY, "'" + "f" * 99)),
        (BY_HEADER, {}, "WARNING", MISSING(PROXY, "Cf-Connecting-Ip")),
        (BY_HEADER, {"HTTP_CF_CONNECTING_IP": " "}, "WARNING", MISSING(PROXY, "Cf-Connecting-Ip")),
        (COUNTED, {"HTTP_X_FORWARDED_FOR": " "}, "WARNING", MISSING(PROXY, FORWARDED)),
        (COUNTED, {}, "WARNING", MISSING(PROXY, FORWARDED)),
    ],
    ids=["header", "proxies", "count", "long", "no header", "blanks", "blanks in its place", "no header in its place"],
)  # fmt: skip
def test_an_address_that_a_proxy_does_not_name_is_logged_once(
    options: dict[str, Any], meta: dict[str, str], level: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_everything_again()
    assert [found(options, **meta) for _ in range(3)] == [PROXY] * 3

    (record,) = caplog.records

    assert (record.name, record.levelname, record.getMessage()) == ("django_quota.web", level, words)


def test_one_line_of_the_log_is_for_all_proxies_that_send_no_address(caplog: pytest.LogCaptureFixture) -> None:
    log_everything_again()
    for proxy in ("10.0.0.7", "10.0.0.8"):
        found(COUNTED, proxy)

    assert caplog.messages == [MISSING("10.0.0.7", FORWARDED)]


def test_one_problem_that_was_logged_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    log_everything_again()

    for options, forwarded in ((COUNTED, None), (COUNTED, "a"), (BY_HEADER, None)):
        found(options, PROXY, forwarded)

    assert caplog.messages == [
        MISSING(PROXY, FORWARDED), UNREADABLE(FORWARDED, PROXY, "'a'"), MISSING(PROXY, "Cf-Connecting-Ip")
    ]  # fmt: skip


def test_a_client_that_sends_the_header_itself_hides_no_proxy(caplog: pytest.LogCaptureFixture) -> None:
    log_everything_again()

    for peer in ("8.8.8.8", PROXY):
        found({}, peer, PEER)

    assert [message.partition(",")[0] for message in caplog.messages] == [f"X-Forwarded-For came from {PROXY}"]


def test_the_log_names_the_proxy_that_sent_what_is_not_an_address(caplog: pytest.LogCaptureFixture) -> None:
    log_everything_again()

    assert found(BY_PROXY, forwarded="a, 10.0.0.2") == "10.0.0.2"

    assert caplog.messages == [UNREADABLE(FORWARDED, "10.0.0.2", "'a'")]


@pytest.mark.parametrize(
    ("claimed", "words"),
    [
        ({"HTTP_X_REAL_IP": "a"}, UNREADABLE("X-Real-Ip", "the unix socket", "'a'")),
        ({}, MISSING("the unix socket", "X-Real-Ip")),
    ],
    ids=["no address", "no header"],
)
def test_a_proxy_on_a_unix_socket_is_logged_as_such(
    claimed: dict[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_everything_again()

    with pytest.raises(ConfigurationError):
        found({"TRUSTED_PROXIES": ["unix"], "CLIENT_IP_HEADER": "X-Real-Ip"}, "", **claimed)

    assert caplog.messages == [words]


def test_a_proxy_that_the_settings_do_not_name_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log_everything_again()

    assert [found({}, PROXY, PEER) for _ in range(2)] == [PROXY] * 2

    (record,) = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == (
        "django_quota.web",
        "WARNING",
        (
            'X-Forwarded-For came from 10.0.0.1, and QUOTA["TRUSTED_PROXIES"] is empty. If that is your proxy, all '
            "clients behind it count as one. Set, for example, \"TRUSTED_PROXIES\": ['10.0.0.1']."
        ),
    )


@pytest.mark.parametrize(
    ("options", "peer"),
    [
        pytest.param({}, "8.8.8.8", id="a client that sends the header itself"),
        pytest.param({}, "unknown", id="a peer without an address"),
        pytest.param(BY_PROXY, "192.168.0.1", id="a private peer that is not trusted"),
        pytest.param(COUNTED, PROXY, id="a count of proxies"),
    ],
)
def test_a_header_of_no_proxy_of_the_site_is_not_logged(
    options: dict[str, Any], peer: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_everything_again()

    with suppress(ConfigurationError):
        found(options, peer, "1.1.1.1")

    assert caplog.messages == []


@pytest.mark.parametrize(
    ("options", "meta"),
    [
        pytest.param({}, {"HTTP_CF_CONNECTING_IP": "unknown"}, id="a header that is not read"),
        pytest.param(BY_PROXY, {"HTTP_X_FORWARDED_FOR": f"a, {PEER}"}, id="before what a proxy appended"),
        pytest.param(BY_HEADER, {"HTTP_CF_CONNECTING_IP": PEER}, id="an address"),
        pytest.param(COUNTED, {"HTTP_X_FORWARDED_FOR": f"a, {PEER}:80"}, id="before what one proxy appended"),
    ],
)
def test_nothing_that_a_client_writes_is_logged(
    options: dict[str, Any], meta: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    log_everything_again()

    found(options, **meta)

    assert caplog.messages == []


def test_no_request_of_a_proxy_itself_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    log_everything_again()

    found(BY_PROXY)

    assert caplog.messages == []


@pytest.mark.parametrize(
    ("peer", "client"), [(f"{PEER}:4711", PEER), ("[2001:4860::7]:4711", "2001:4860::/64")], ids=["IPv4", "IPv6"]
)
def test_the_port_of_a_peer_makes_no_client_of_its_own(peer: str, client: str) -> None:
    assert found({}, peer) == client
    assert read_subject(f"ip:{peer}") == f"ip:{client}"


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        pytest.param(f"::ffff:{PEER}", PEER, id="mapped"),
        pytest.param(f"64:ff9b::{PEER}", PEER, id="NAT64"),
        pytest.param("64:ff9b:1::c633:6407", "64:ff9b:1::/64", id="a NAT64 of its own, which anybody may use"),
    ],
)
def test_an_ipv4_address_within_an_ipv6_address_is_the_client(peer: str, client: str) -> None:
    assert found({}, peer) == client
    assert read_subject(f"ip:{peer}") == f"ip:{client}"


@pytest.mark.parametrize("network", ["10.0.0.0/8", "::ffff:10.0.0.0/104", "64:ff9b::10.0.0.0/104"])
@pytest.mark.parametrize("proxy", ["10.0.0.1:4711", "[::ffff:10.0.0.1]:4711", "64:ff9b::10.0.0.1"])
def test_a_proxy_is_trusted_however_its_address_is_written(network: str, proxy: str) -> None:
    assert found({"TRUSTED_PROXIES": [network]}, proxy, PEER) == PEER


@MANY
@given(st.text(max_size=50) | st.ip_addresses().map(str) | st.text("0123456789abcdef.:[]%, /", max_size=50))
def test_anything_in_a_header_is_one_address_or_none(value: str) -> None:
    ip_network(found(BY_PROXY, forwarded=value))
    client = found(BY_HEADER, HTTP_CF_CONNECTING_IP=value)
    ip_network(client)
    assert client == PROXY or "," not in value


_octets = st.sampled_from(
    ["0", "00", "01", "1", "9", "10", "99", "100", "199", "249", "250", "255", "256", "300", "", "1\n"]
)


@MANY
@given(st.lists(_octets, min_size=3, max_size=5).map(".".join))
def test_an_ipv4_address_is_what_python_takes_for_one(text: str) -> None:
    try:
        known = f"ip:{IPv4Address(text)}"
    except ValueError:
        with pytest.raises(QuotaError):
            read_subject(f"ip:{text}")
    else:
        assert read_subject(f"ip:{text}") == known


@pytest.mark.parametrize("peer", ["", "unix", "unix:"])
def test_a_proxy_on_a_unix_socket_is_trusted_whatever_the_server_calls_it(peer: str) -> None:
    assert found({"TRUSTED_PROXIES": ["unix"]}, peer, PEER) == PEER


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"TRUSTED_PROXIES": ["unix"], "CLIENT_IP_HEADER": "X-Real-Ip"}, "X-Real-Ip"),
        ({"TRUSTED_PROXY_COUNT": 1}, "X-Forwarded-For"),
    ],
    ids=["a header", "a count"],
)
def test_on_a_unix_socket_a_missing_header_is_missed_by_its_name(options: dict[str, Any], name: str) -> None:
    claims = {f"HTTP_{each.upper().replace('-', '_')}": PEER for each in ("X-Real-Ip", "X-Forwarded-For")}
    assert found(options, "", **claims) == PEER
    del claims[f"HTTP_{name.upper().replace('-', '_')}"]

    with pytest.raises(ConfigurationError) as raised:
        found(options, "", **claims)

    assert str(raised.value) == (
        "The client's IP is unknown: REMOTE_ADDR is '', and no trusted proxy sent an address. Let the server put the "
        "peer's address into REMOTE_ADDR. Behind a proxy that connects by a unix socket, set "
        f'QUOTA["TRUSTED_PROXIES"] = ["unix"], and let the proxy set {name}.'
    )


@pytest.mark.parametrize(
    ("count", "forwarded", "client"),
    [
        (0, VICTIM, PEER), (1, f"1.1.1.1, {VICTIM}", VICTIM), (2, f"1.1.1.1,{VICTIM} ,10.0.0.9", VICTIM),
        (2, VICTIM, VICTIM), (1, None, PEER), (3, "", PEER), (1, f"{VICTIM}:80", VICTIM), (1, "unknown", PEER),
        (1, "[2001:4860::7]:443", "2001:4860::/64"), (2, f"unknown, {VICTIM}", VICTIM),
        (2, f"{VICTIM}, unknown", PEER), (1, f"{VICTIM},", PEER),
    ],
)  # fmt: skip
def test_of_a_count_of_proxies_the_address_in_its_place_from_the_right_counts(
    count: int, forwarded: str | None, client: str
) -> None:
    assert found({"TRUSTED_PROXY_COUNT": count}, PEER, forwarded) == client


NETWORKS = {32: PEER, 20: "198.51.96.0/20"}
"""How a client is named, by the IPV4_PREFIX of the settings."""


@pytest.fixture(params=NETWORKS)
def network_client(request: pytest.FixtureRequest, settings: Any) -> str:
    """The name of the client at PEER, with an IPV4_PREFIX."""
    settings.QUOTA = {"IPV4_PREFIX": request.param, "STORE": "memory"}
    return NETWORKS[request.param]


@pytest.mark.parametrize("written", [PEER, f"::ffff:{PEER}"], ids=["IPv4", "IPv4 as IPv6"])
def test_an_ipv4_client_counts_by_its_network(written: str, network_client: str) -> None:
    assert client_ip(get(REMOTE_ADDR=written)) == network_client
    assert read_subject(f"ip:{written}") == f"ip:{network_client}"


def test_the_subject_of_a_network_is_read_as_it_is(network_client: str) -> None:
    assert read_subject(f"ip:{network_client}") == f"ip:{network_client}"


@pytest.mark.usefixtures("network_client")
def test_an_ipv6_client_counts_by_its_own_prefix() -> None:
    assert client_ip(get(REMOTE_ADDR="2001:4860::7")) == "2001:4860::/64"


@pytest.mark.usefixtures("network_client")
@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("198.51.100.7/25", "198.51.100.0/25"),
        ("198.51.0.0/16", "198.51.0.0/16"),
        ("198.51.100.0/024", "198.51.100.0/24"),
        ("::ffff:198.51.100.7/121", "198.51.100.0/25"),
        ("2001:DB8::7/48", "2001:db8::/48"),
        ("2001:db8::7/128", "2001:db8::7/128"),
    ],
    ids=["smaller", "larger", "a zero before it", "IPv4 as IPv6", "IPv6", "one IPv6 address"],
)
def test_another_network_than_that_of_the_settings_is_a_subject_of_its_own(text: str, network: str) -> None:
    assert read_subject(f"ip:{text}") == f"ip:{network}"


def test_a_subject_names_an_address_of_64_characters_at_most() -> None:
    assert read_subject("ip:fe80::1%".ljust(64, "e")) == "ip:fe80::/64"
    with pytest.raises(QuotaError) as refused:
        read_subject("ip:fe80::1%".ljust(65, "e"))

    assert (
        str(refused.value) == "'ip:fe80::1%e...eeeeeeeeeeeee' is not an IP address. Use, for example, 'ip:203.0.113.9'."
    )


@pytest.mark.usefixtures("network_client")
@pytest.mark.parametrize("text", ["198.51.100.0/", "198.51.100.0/33", "198.51.100.0/24/24", "[2001:db8::]/64"])
def test_what_is_no_network_is_an_error(text: str) -> None:
    with pytest.raises(QuotaError) as refused:
        read_subject(f"ip:{text}")

    assert str(refused.value) == f"{text!r} is not a network. Use, for example, 'ip:198.51.100.0/24'."


@pytest.mark.usefixtures("network_client")
def test_exemptions_look_at_the_whole_address() -> None:
    rule = Rule.make("r", "1/m", exempt=[VICTIM])

    assert not decide(get(REMOTE_ADDR=VICTIM), rule).outcomes
    assert decide(get(REMOTE_ADDR="203.0.113.8"), rule).outcomes
