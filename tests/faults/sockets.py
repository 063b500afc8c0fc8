"""Servers that are not Redis, and a proxy that cuts connections at any byte."""

import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

ADDRESS = ("127.0.0.1", 0)


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Take connections on a port, which is yielded, each in a thread that `serve`s it; all end with the block."""
    listener = socket.create_server(ADDRESS)
    opened: set[socket.socket] = set()
    threads: list[threading.Thread] = []

    def guarded(connection: socket.socket) -> None:
        with suppress(OSError, ValueError):  # the other side, or the end of the block, has ended it
            serve(connection)
        opened.discard(connection)
        connection.close()

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                opened.add(connection)
                threads.append(threading.Thread(target=guarded, args=(connection,)))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for connection in list(opened):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


@contextmanager
def saying(words: bytes) -> Iterator[int]:
    """Answer whatever comes with these words; yields the port."""

    def serve(connection: socket.socket) -> None:
        while connection.recv(65_536):
            connection.sendall(words)

    with listening(serve) as port:
        yield port


class ConnectionFault(NamedTuple):
    """What happens to a connection after a number of bytes in one direction."""

    after: int
    how: str
    """`"end"`, `"reset"`, `"stall"`, or `"garbage"` in the place of what would follow."""
    of_request: bool = False


GARBAGE = b"\xff\xfe\r\n$-7\r\n*x\r\n"


class Firewall:
    """Stands before a Redis. It can forget connections; new ones work.

    `how`: what comes of a packet of a forgotten connection: `"reset"`, or `"silence"`.
    """

    def __init__(self, port: int, how: str) -> None:
        self._behind = port
        self._how = how
        self._used: dict[socket.socket, float] = {}
        """When each connection was used last."""

    def forget(self, idle: float = 0) -> None:
        """Forget the connections that nobody has used for so many seconds."""
        for client, used in list(self._used.items()):
            if time.monotonic() - used >= idle:
                self._used.pop(client, None)

    def serve(self, client: socket.socket) -> None:
        self._used[client] = time.monotonic()
        with socket.create_connection(("127.0.0.1", self._behind)) as server:
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(65_536)
                    if not data:
                        return
                    if client in self._used:
                        self._used[client] = time.monotonic()
                        (server if source is client else client).sendall(data)
                    elif self._how == "reset":
                        reset(client)
                        return


def reset(client: socket.socket) -> None:
    """Close a connection by RST: its other side hears that it is unknown."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


class Proxy:
    """Stands before a Redis, and hands on byte by byte; the next connection meets a fault, where there is one."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self.fault: ConnectionFault | None = None
        self.replied = 0
        """Bytes that came back over the last connection without a fault."""
        self.port = 0

    def serve(self, client: socket.socket) -> None:
        fault, self.fault = self.fault, None
        with socket.create_connection(("127.0.0.1", self._behind)) as server:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            seen = {client: 0, server: 0}
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(65_536)
                    if not data:
                        return
                    if fault is not None and fault.of_request is (source is client):
                        data = data[: fault.after - seen[source]]
                    seen[source] += len(data)
                    if fault is None:  # before it is sent: who has it may look at once
                        self.replied = seen[server]
                    (server if source is client else client).sendall(data)
                    if fault is None:
                        continue
                    if fault.of_request is (source is client) and seen[source] >= fault.after:
                        self._do(fault, client)
                        return

    def _do(self, fault: ConnectionFault, client: socket.socket) -> None:
        if fault.how == "reset":
            reset(client)
        elif fault.how == "garbage":
            client.sendall(GARBAGE)  # and then the end: what waits for more would wait for its time-out
        elif fault.how == "stall":
            while client.recv(65_536):
                pass
