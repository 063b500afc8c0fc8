"""Ports for the servers of the tests, which no other program takes before they listen or while they start again.

They are below the ports that systems give to outgoing connections: from 32,768 on by default.
"""

import random
import socket
from contextlib import ExitStack

import redis

LOWEST, HIGHEST = 10_000, 22_000
BUS = 10_000  # so far above its port the servers of a Cluster talk to each other

_chance = random.SystemRandom()  # others may run the same tests at the same time, from the same seed
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Return ports that are free, as are those of the bus, and that have not been given before."""
    found: list[int] = []
    with ExitStack() as probes:
        while len(found) < count:
            port = _chance.randint(LOWEST, HIGHEST)
            try:
                for number in (port, port + BUS):
                    probe = probes.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", number))
            except OSError:
                continue
            if port not in _given:
                _given.add(port)
                found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers_ping(port: int) -> bool:
    try:
        with redis.Redis(port=port, socket_timeout=5) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False
