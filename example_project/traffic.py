"""The requests of today: real requests by some users, some within their limits and some beyond.

They send addresses in X-Forwarded-For, as a proxy on this machine would, so that they use up nobody else's limits.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from example_project.client import Visitor

MAX_VISITORS_AT_ONCE = 4


@dataclass(frozen=True)
class Visit:
    """The requests of one visitor."""

    address: str
    who: str = ""
    """The user that they sign in as; empty for a guest."""
    gets: tuple[tuple[str, int], ...] = ()
    """URLs of the site, and how often to request each."""
    guesses: int = 0
    """How many wrong passwords they try."""


VISITS = (
    Visit("203.0.113.5", "ada", (("/api/items/", 12), ("/api/search/?q=an&limit=60", 5))),
    Visit("203.0.113.17", "boris", (("/api/items/", 12), ("/api/export/", 3))),
    Visit("203.0.113.40", "hana", (("/api/items/", 20), ("/api/search/?q=e", 8))),
    Visit("203.0.113.77", "kamala", (("/api/search/?q=s&limit=100", 8),)),  # six searches fit into her limit
    Visit("198.51.100.8", "jonas", (("/api/export/", 7),)),
    Visit("198.51.100.140", "", (("/api/items/", 14),)),
    Visit("198.51.100.141", "", (("/api/search/?q=rope", 11),)),
    Visit("192.0.2.66", guesses=7),
    Visit("192.0.2.67", guesses=9),
    Visit("2001:db8:7::1", guesses=6),
)


def send_traffic(port: int) -> None:
    """Send all requests, several visitors at once. Raises `OSError` if the site does not answer."""
    with ThreadPoolExecutor(MAX_VISITORS_AT_ONCE) as pool:
        for _ in pool.map(lambda visit: _send(visit, port), VISITS):
            pass


def _send(visit: Visit, port: int) -> None:
    with Visitor(port, headers={"X-Forwarded-For": visit.address}) as visitor:
        if visit.who or visit.guesses:
            visitor.get("/")  # for its cookie and CSRF token
        if visit.who:
            visitor.post("/sign-in/", {"who": visit.who})
        for url, times in visit.gets:
            for _ in range(times):
                visitor.get(url)
        for number in range(visit.guesses):
            visitor.post("/try/login/", {"password": f"guess {number}"})
