"""A hasher that counts: a site names it by its path."""

from collections.abc import Callable
from typing import ClassVar

from django.contrib.auth.hashers import MD5PasswordHasher


class CountingHasher(MD5PasswordHasher):
    """Counts how often a password is hashed; `wait` runs before each hash."""

    algorithm = "counting"
    hashed: ClassVar[list[str]] = []
    wait: ClassVar[Callable[[], object]] = staticmethod(lambda: None)

    def encode(self, password: str, salt: str) -> str:
        type(self).wait()
        self.hashed.append(password)
        return super().encode(password, salt)
