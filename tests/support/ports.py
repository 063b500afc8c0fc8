"""Ports for the servers of the tests, which no other program takes before they listen or while they start again."""

import random
import socket

import redis

LOWEST, HIGHEST = 10_000, 22_000
BUS = 10_000  # so far above its port the servers of a Cluster talk to each other

_chance = random.SystemRandom()  # others may run the same tests at the same time, from the same seed
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def free_port() -> int:
    """Return a port that is free, as is that of the bus, and that has not been given before."""
    port = _chance.choice([port for port in range(LOWEST, HIGHEST) if port not in _given])
    try:
        for number in (port, port + BUS):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", number))
    except OSError:
        return free_port()
    _given.add(port)
    return port


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers_ping(port: int) -> bool:
    try:
        with redis.Redis(port=port, socket_timeout=5) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False
