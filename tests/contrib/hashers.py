"""A hasher that counts, and a race of logins through it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from django.contrib.auth import authenticate
from django.contrib.auth.hashers import MD5PasswordHasher
from django.db import connection
from django.test import RequestFactory

from django_quota.exceptions import QuotaExceeded

PATIENCE = 60


class CountingHasher(MD5PasswordHasher):
    """Counts how often a password is hashed; `wait` runs before each hash."""

    algorithm = "counting"
    hashed: ClassVar[list[str]] = []
    wait: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    def encode(self, password: str, salt: str) -> str:
        type(self).wait()
        self.hashed.append(password)
        return super().encode(password, salt)


def hashed_in_a_race(attempts: int) -> int:
    """Guess Ann's password this many times at once; return how many guesses were hashed.

    A guess waits at the hasher until every other guess is there too, or was refused.
    """
    lock, everybody, arrived = threading.Lock(), threading.Event(), 0

    def arrive() -> None:
        nonlocal arrived
        with lock:
            arrived += 1
            if arrived == attempts:
                everybody.set()

    def wait() -> None:
        arrive()
        assert everybody.wait(PATIENCE)

    def guess(_: int) -> None:
        request = RequestFactory().post("/login/", REMOTE_ADDR="203.0.113.9")
        before = len(CountingHasher.hashed)
        try:
            authenticate(request, username="ann", password="guess")
        except QuotaExceeded:
            arrive()
        else:
            if getattr(request, "axes_locked_out", False) and before == len(CountingHasher.hashed):
                arrive()
        finally:
            connection.close()

    CountingHasher.hashed.clear()
    CountingHasher.wait = staticmethod(wait)
    try:
        with ThreadPoolExecutor(attempts) as pool:
            list(pool.map(guess, range(attempts)))
    finally:
        CountingHasher.wait = staticmethod(lambda: None)
    return len(CountingHasher.hashed)
