"""A store of several servers, each of which says what a test wants, or fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django_quota.exceptions import QuotaError


class Servers:
    """A store of some servers: by the name of each, what it says, or the error of its connection."""

    def __init__(self, **said: Any) -> None:
        self._said = said
        self.redis = self

    def servers(self) -> list[str]:
        return list(self._said)

    @contextmanager
    def commands(self, server: str) -> Iterator[Any]:
        said = self._said[server]
        if isinstance(said, QuotaError):
            raise said
        yield self.client(said)

    def client(self, said: Any) -> Any:
        """Return the client of a server that says this."""
        raise NotImplementedError
