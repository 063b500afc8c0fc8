"""Nobody chooses their own address, whatever headers they send: wherever it is learned, and under real servers."""

import os
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import django
import pytest
from django.test import override_settings
from hypothesis import assume, given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.adapters import client_ip, decide, subject_of
from django_quota.exceptions import ConfigurationError, QuotaError
from tests.support.calls import always, get
from tests.support.inputs import inputs

ROOT = Path(__file__).resolve().parents[2]
PROXIES = ["10.0.0.0/8", "2001:db8::/32"]
MANY = inputs(400)

PEER = "198.51.100.7"
VICTIM = "203.0.113.9"
FORGED = [
    VICTIM, f"{VICTIM}, 10.0.0.1", f"10.0.0.1, {VICTIM}", f"::ffff:{VICTIM}", f"[::ffff:{VICTIM}]:443",
    f"{VICTIM}:8080", f" \t{VICTIM}\t ", f'"{VICTIM}"', f"for={VICTIM}", "fe80::1%eth0", "[2001:4860::1%25lo]:1",
    f",,{VICTIM},,", f"{VICTIM},", "unix", "unknown", "localhost", "127.0.0.1", "::1", "0.0.0.0", "\xa0\xff\xe9",
    "\u0662\u0660\u0663.\u0660.\u0661\u0661\u0663.\u0669", "203.0.113.009", "3405803785", "0xcb007109",
    ", ".join([VICTIM] * 10_000), ", ".join(["10.0.0.1"] * 10_000), "," * 10_000, "1" * 100_000,
]  # fmt: skip
CLAIMS = [
    "HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP", "HTTP_CLIENT_IP", "HTTP_TRUE_CLIENT_IP",
    "HTTP_CF_CONNECTING_IP", "HTTP_X_CLUSTER_CLIENT_IP", "HTTP_X_CLIENT_IP", "HTTP_VIA", "HTTP_REMOTE_ADDR",
]  # fmt: skip
"""Headers by which software names a client's address. Only the first is ever read, and of a trusted proxy alone."""


class TestHeaders:
    @pytest.mark.parametrize("claim", CLAIMS)
    @pytest.mark.parametrize("proxies", [[], PROXIES], ids=["no proxy", "proxies"])
    def test_none_is_believed_of_who_is_no_proxy(self, claim: str, proxies: list[str]) -> None:
        with override_settings(QUOTA={"TRUSTED_PROXIES": proxies, "STORE": "memory"}):
            assert {client_ip(get(REMOTE_ADDR=PEER, **{claim: forged})) for forged in FORGED} == {PEER}
            for key in ("ip", "user", "user_or_ip", "header:X-None", ("ip", "path"), always(None)):
                request = get(REMOTE_ADDR=PEER, **{claim: VICTIM})
                assert f"ip:{PEER}" in decide(request, Rule.make("r", "99/m", key=key)).subject
        if proxies:
            assert {by_header(None, PEER, **{claim: forged}) for forged in FORGED} == {PEER}

    @pytest.mark.parametrize("claim", CLAIMS[1:])
    def test_of_a_proxy_only_x_forwarded_for_is(self, claim: str) -> None:
        with override_settings(QUOTA={"TRUSTED_PROXIES": PROXIES}):
            for forged in FORGED:
                request = get(REMOTE_ADDR="10.0.0.1", HTTP_X_FORWARDED_FOR=PEER, **{claim: forged})
                assert client_ip(request) == PEER
                assert client_ip(get(REMOTE_ADDR="10.0.0.1", **{claim: forged})) == "10.0.0.1"
        if "CF_" not in claim:
            assert by_header(PEER, **{claim: VICTIM}) == PEER
            assert by_header(None, **{claim: VICTIM}) == "10.0.0.1"

    @pytest.mark.parametrize("proxy", ["10.0.0.1", "::ffff:10.0.0.1", "2001:db8::7", "2001:DB8:0::7%eth0"])
    @pytest.mark.parametrize("seen", [PEER, f"::ffff:{PEER}", f"{PEER}:4711", f"[::ffff:{PEER}]:4711", f" {PEER}\t"])
    def test_what_the_proxy_appended_counts_and_nothing_left_of_it(self, proxy: str, seen: str) -> None:
        with override_settings(QUOTA={"TRUSTED_PROXIES": PROXIES}):
            for forged in FORGED:
                assert client_ip(get(REMOTE_ADDR=proxy, HTTP_X_FORWARDED_FOR=f"{forged},{seen}")) == PEER

    @MANY
    @given(
        st.lists(st.ip_addresses().map(str) | st.text(max_size=30) | st.sampled_from(FORGED[:20]), max_size=8),
        st.ip_addresses(),
        st.sampled_from([",", ", ", " , ", ",\t", ",,"]),
        st.sampled_from(["{}", " {}", "{}\t", "[{}]", "[{}]:65535"]),
    )
    def test_in_any_spelling_the_last_stranger_is_the_client(
        self, hops: list[str], client: Any, comma: str, spelling: str
    ) -> None:
        assume(not any(client in network for network in map(ip_network, PROXIES)))
        assume(getattr(client, "ipv4_mapped", None) is None)
        forged = comma.join([*hops, spelling.format(client)])
        with override_settings(QUOTA={"TRUSTED_PROXIES": PROXIES, "IPV6_PREFIX": 128}):
            assert client_ip(get(REMOTE_ADDR="10.0.0.1", HTTP_X_FORWARDED_FOR=forged)) == str(client)

    @MANY
    @given(st.ip_addresses(v=4), st.integers(1, 128))
    def test_an_ipv4_address_in_an_ipv6_one_is_the_same_client(self, client: Any, prefix: int) -> None:
        with override_settings(QUOTA={"IPV6_PREFIX": prefix}):
            spellings = (
                f"{client}",
                f"::ffff:{client}",
                f"::FFFF:{client}%eth0",
                ip_address(f"::ffff:{client}").exploded,
            )
            assert {client_ip(get(REMOTE_ADDR=spelt)) for spelt in spellings} == {str(client)}

    def test_headers_of_a_flood_do_not_fill_the_memory(self) -> None:
        with override_settings(QUOTA={"TRUSTED_PROXIES": PROXIES}):
            client_ip(get(REMOTE_ADDR="10.0.0.1", HTTP_X_FORWARDED_FOR=PEER))
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            for number in range(500):
                forged = f"{number}:" + "f" * 8_000
                assert client_ip(get(REMOTE_ADDR="10.0.0.1", HTTP_X_FORWARDED_FOR=forged)) == "10.0.0.1"
                with pytest.raises(QuotaError):
                    subject_of(f"ip:{forged}")
            grown = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
        assert grown < 200_000  # of 4 MB that were sent


SITE = """
import os, socket, sys
from django.conf import settings
APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_quota"]
settings.configure(
    SECRET_KEY="x", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, INSTALLED_APPS=APPS, DATABASES={},
    QUOTA={
        "STORE": "memory", "TRUSTED_PROXIES": os.environ["PROXIES"].split(), "CLIENT_IP_HEADER": os.environ["HEADER"],
    },
)
import django
django.setup()
from django.http import HttpResponse
from django.urls import path
from django_quota import quota

@quota("1000/m", key="ip", name="r")
def who(request):
    return HttpResponse(request.quota.subject)

urlpatterns = [path("", who)]
if __name__ == "__main__":
    from example_project import server
    from django.core.asgi import get_asgi_application
    from django.core.wsgi import get_wsgi_application
    settings.ROOT_URLCONF = sys.modules[__name__]
    import types
    for kind, make in (("asgi", get_asgi_application), ("wsgi", get_wsgi_application)):
        module = types.ModuleType(f"example_project.{kind}")
        module.application = make()
        sys.modules[module.__name__] = module
    server.main(int(sys.argv[1]), sys.argv[2])
"""


@contextmanager
def served(folder: Path, kind: str, proxies: str, header: str = "") -> Iterator[Callable[[bytes], bytes]]:
    """Run a site under a real server; yield what sends it raw header lines and returns the subject that it saw."""
    (folder / "site.py").write_text(SITE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PROXIES": proxies, "HEADER": header}
    environment["DJANGO_SETTINGS_MODULE"] = ""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = listener.getsockname()
        process = subprocess.Popen(
            [sys.executable, str(folder / "site.py"), str(listener.fileno()), kind],
            cwd=folder,
            env=environment,
            pass_fds=[listener.fileno()],
        )

    def ask(headers: bytes) -> bytes:
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\nHost: a\r\n" + headers + b"\r\n")
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
    b"X-Forwarded-For: 203.0.113.9\r\n",
    b"X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-For: 203.0.113.8\r\n",
    b"x-forwarded-for:203.0.113.9\r\nX_Forwarded_For: 203.0.113.9\r\n",
    b"X_FORWARDED_FOR: 203.0.113.9\r\nX-Real-IP: 203.0.113.9\r\nForwarded: for=203.0.113.9\r\n",
    b"X-Forwarded-For: \xff\xfe, \xc3\xa9, 203.0.113.9\r\nRemote-Addr: 203.0.113.9\r\nREMOTE_ADDR: 203.0.113.9\r\n",
]


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_under_real_servers_nobody_chooses_their_address(kind: str, tmp_path: Path) -> None:
    with served(tmp_path, kind, "10.0.0.0/8") as ask:  # a stranger stays who they are
        assert {ask(lines) for lines in [b"", *LINES]} == {b"ip:127.0.0.1"}
    with served(tmp_path, kind, "127.0.0.0/8") as ask:  # the last that a proxy saw counts
        assert {ask(lines + b"X-Forwarded-For: 198.51.100.7\r\n") for lines in [b"", *LINES]} == {b"ip:198.51.100.7"}
        if kind == "wsgi" or not ASGI_TAKES_UNDERSCORES:
            assert ask(b"X_Forwarded_For: 203.0.113.9\r\n") == b"ip:127.0.0.1"
    with served(tmp_path, kind, "127.0.0.0/8", "CF-Connecting-IP") as ask:  # a second line chooses nobody
        real = b"CF-Connecting-IP: 198.51.100.7\r\n"
        assert ask(real + b"X-Forwarded-For: 203.0.113.9\r\nX-Real-IP: 203.0.113.9\r\n") == b"ip:198.51.100.7"
        assert ask(b"X-Forwarded-For: 203.0.113.9\r\n") == b"ip:127.0.0.1"
        for forged in (b"CF-Connecting-IP: 203.0.113.9\r\n", b"CF_Connecting_IP: 203.0.113.9\r\n"):
            assert {ask(forged + real), ask(real + forged)} <= {b"ip:198.51.100.7", b"ip:127.0.0.1"}


def by_header(value: str | None, peer: str = "10.0.0.1", **meta: Any) -> str:
    claimed = {} if value is None else {"HTTP_CF_CONNECTING_IP": value}
    with override_settings(QUOTA={"TRUSTED_PROXIES": PROXIES, "CLIENT_IP_HEADER": "CF-Connecting-IP"}):
        return client_ip(get(REMOTE_ADDR=peer, **claimed, **meta))


class TestOneHeader:
    @pytest.mark.parametrize(
        ("value", "found"),
        [
            (PEER, PEER), (f" {PEER} ", PEER), (f"{PEER}:4711", PEER), (f"::ffff:{PEER}", PEER),
            ("2001:4860::7", "2001:4860::/64"), ("[2001:4860::7]:443", "2001:4860::/64"),
            ("fe80::1%eth0", "fe80::/64"),
            # without one address in it the proxy counts
            *((value, None) for value in (None, "", "unknown", f"{VICTIM}, {PEER}", f"for={VICTIM}", "1" * 99)),
        ],
    )  # fmt: skip
    def test_of_a_proxy_it_names_the_client(self, value: str | None, found: str | None) -> None:
        assert by_header(value) == (found or "10.0.0.1")
        assert by_header(value, "2001:db8::7") == (found or "2001:db8::/64")

    @MANY
    @given(st.text(max_size=50) | st.ip_addresses().map(str) | st.text("0123456789abcdef.:[]%, /", max_size=50))
    def test_anything_in_it_is_one_address_or_none(self, value: str) -> None:
        with override_settings(QUOTA={"TRUSTED_PROXIES": PROXIES}):
            ip_network(client_ip(get(REMOTE_ADDR="10.0.0.1", HTTP_X_FORWARDED_FOR=value)))
        found = by_header(value)
        ip_network(found)
        assert found == "10.0.0.1" or "," not in value


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"TRUSTED_PROXIES": ["unix"], "CLIENT_IP_HEADER": "X-Real-IP"}, ["X-Real-Ip", "X-Forwarded-For"]),
        ({"TRUSTED_PROXY_COUNT": 1}, ["X-Forwarded-For", "X-Real-IP"]),
    ],
)
def test_on_a_unix_socket_a_missing_header_is_missed_by_its_name(options: dict[str, Any], names: list[str]) -> None:
    named, ignored = ("HTTP_" + name.upper().replace("-", "_") for name in names)
    with override_settings(QUOTA=options):
        assert client_ip(get(REMOTE_ADDR="", **{named: PEER})) == PEER
        with pytest.raises(ConfigurationError, match=f"set {names[0]}"):
            client_ip(get(REMOTE_ADDR="", **{ignored: PEER}))


def by_count(count: int, forwarded: str | None, peer: str = PEER) -> str:
    claimed = {} if forwarded is None else {"HTTP_X_FORWARDED_FOR": forwarded}
    with override_settings(QUOTA={"TRUSTED_PROXY_COUNT": count}):
        return client_ip(get(REMOTE_ADDR=peer, **claimed))


class TestACountOfProxies:
    @pytest.mark.parametrize(
        ("count", "forwarded", "found"),
        [
            (1, VICTIM, VICTIM), (1, f"1.1.1.1, {VICTIM}", VICTIM), (2, f"1.1.1.1,{VICTIM} ,10.0.0.9", VICTIM),
            (2, VICTIM, VICTIM), (1, None, PEER), (3, "", PEER), (1, f"{VICTIM}:80", VICTIM),
            (1, "[2001:4860::7]:443", "2001:4860::/64"), (1, "fe80::1%lo", "fe80::/64"), (1, "unknown", PEER),
            (2, f"unknown, {VICTIM}", VICTIM), (2, f"{VICTIM}, unknown", PEER), (1, f"{VICTIM},", PEER),
            (0, VICTIM, PEER),
        ],
    )  # fmt: skip
    def test_the_address_in_its_place_from_the_right_counts(
        self, count: int, forwarded: str | None, found: str
    ) -> None:
        assert by_count(count, forwarded) == found

    @pytest.mark.parametrize("count", [1, 2])
    @pytest.mark.parametrize("forged", FORGED)
    def test_what_a_client_writes_left_of_it_is_not_believed(self, forged: str, count: int) -> None:
        hops = [PEER, "10.0.0.9"][:count]
        assert by_count(count, ",".join([forged, *hops]), "10.0.0.1") == PEER


class TestNetworksOfIPv4:
    @pytest.mark.parametrize(("bits", "found"), [(32, PEER), (24, "198.51.100.0/24"), (20, "198.51.96.0/20")])
    def test_a_client_counts_by_its_network_and_exemptions_look_at_the_whole_address(
        self, bits: int, found: str
    ) -> None:
        rule = Rule.make("r", "1/m", exempt=[VICTIM])
        with override_settings(QUOTA={"IPV4_PREFIX": bits, "STORE": "memory"}):
            for spelt in (PEER, f"::ffff:{PEER}"):
                assert client_ip(get(REMOTE_ADDR=spelt)) == found
                assert subject_of(f"ip:{spelt}") == f"ip:{found}"
            assert subject_of(f"ip:{found}") == f"ip:{found}"
            assert client_ip(get(REMOTE_ADDR="2001:4860::7")) == "2001:4860::/64"
            for text in ("198.51.100.0/25", "198.51.0.0/16", "198.51.100.0/024", "198.51.100.0/"):
                with pytest.raises(QuotaError):
                    subject_of(f"ip:{text}")
            assert not decide(get(REMOTE_ADDR=VICTIM), rule).outcomes
            assert decide(get(REMOTE_ADDR="203.0.113.8"), rule).outcomes
