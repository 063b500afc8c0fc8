"""A hasher that counts, and a race of logins through it."""

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
    wait: ClassVar[Callable[[], object]] = staticmethod(lambda: None)

    def encode(self, password: str, salt: str) -> str:
        type(self).wait()
        self.hashed.append(password)
        return super().encode(password, salt)


def hashed_in_a_race(attempts: int) -> int:
    """Guess Ann's password this many times at once; return how many guesses were hashed.

    A guess waits at the hasher until every other guess is there too, or was refused.
    """
    everybody = threading.Barrier(attempts)

    def guess(_: int) -> None:
        request = RequestFactory().post("/login/", REMOTE_ADDR="203.0.113.9")
        try:
            authenticate(request, username="ann", password="guess")
        except QuotaExceeded:
            everybody.wait(PATIENCE)
        finally:
            connection.close()

    CountingHasher.hashed.clear()
    CountingHasher.wait = staticmethod(lambda: everybody.wait(PATIENCE))
    try:
        with ThreadPoolExecutor(attempts) as pool:
            list(pool.map(guess, range(attempts)))
    finally:
        CountingHasher.wait = staticmethod(lambda: None)
    return len(CountingHasher.hashed)
