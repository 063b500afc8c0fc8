"""What goes wrong with a Cluster leaves as our errors, whatever it is; what its caller does wrong leaves as it is."""

from __future__ import annotations

import asyncio
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from django_quota import counter, slot
from django_quota.exceptions import StoreUnavailable
from django_quota.limiter import get_limiter
from django_quota.stores.slots import Address
from tests.clusters import Cluster
from tests.conftest import CLUSTER_CLIENT

REPLIES = {
    "a list": b"*1\r\n:1\r\n",
    "no text": b"+\xff\xfe\r\n",
    "no type": b"?!\r\n",
    "no number": b":x\r\n",
    "another length": b"$-5\r\n",
    "a word": b"$3\r\nabc\r\n",
}


class Handler(socketserver.StreamRequestHandler):
    """Has all slots, and answers everything else by what makes no sense."""

    reply = b""

    def handle(self) -> None:
        while command := self.command():
            self.wfile.write(self.answer(command))

    def command(self) -> list[bytes]:
        line = self.rfile.readline()
        return [self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:] or 0))]

    def answer(self, command: list[bytes]) -> bytes:
        port: int = self.server.server_address[1]  # type: ignore[assignment, index]
        if command[0] == b"CLUSTER":
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$2\r\nid\r\n" % port
        return b"+OK\r\n" if command[0] == b"CLIENT" else self.reply


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up."""


@pytest.fixture(params=REPLIES)
def odd(request: pytest.FixtureRequest, settings: Any) -> Iterator[Any]:
    handler = type("Odd", (Handler,), {"reply": REPLIES[request.param]})
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        location = f"redis://127.0.0.1:{server.server_address[1]}/0"
        options = {"CLIENT_CLASS": CLUSTER_CLIENT, "SOCKET_TIMEOUT": 0.2, "SOCKET_CONNECT_TIMEOUT": 0.2}
        settings.CACHES = {
            "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
        }
        settings.QUOTA = {}
        store: Any = get_limiter().store
        at = Address(*server.server_address[:2])  # type: ignore[arg-type]
        store._router.table.learn([[0, 16383, list(at)]], at)  # as it is known before a server goes mad
        yield store
        server.shutdown()
        thread.join()


def time_of(store: Any) -> None:
    with store.commands() as client:
        client.time()


WAYS: dict[str, Callable[[Any], Any]] = {
    "commands": time_of,
    "a slot": lambda store: slot("a", 1, wait=0.1).acquire(),
    "a slot, async": lambda store: asyncio.run(slot("a", 1, wait=0.1).aacquire()),
    "what waits": lambda store: asyncio.run(store.acall(("XREAD", "STREAMS", "quota:1:{!}:e", "0"), 0.1)),
    "a transfer": lambda store: counter("a").transfer("user:1", "user:2", 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_reply_that_makes_no_sense_is_a_store_that_is_unavailable_or_none(way: str, odd: Any) -> None:
    with suppress(StoreUnavailable):
        WAYS[way](odd)


@pytest.mark.parametrize("error", [ValueError("its own"), KeyError("its own"), LookupError()])
def test_an_error_of_who_uses_a_client_is_its_own(error: Exception, cluster: Cluster) -> None:
    store: Any = get_limiter().store

    def use() -> None:
        with store.commands() as client:
            client.time()
            raise error

    with pytest.raises(type(error)) as caught:
        use()
    assert caught.value is error
