"""One Redis is enough here: what is shown does not depend on its version."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from django_quota.testing import RedisServer, server_programs
from tests.support.stores import caches


@pytest.fixture
def one_redis(started: Callable[[Path], RedisServer], settings: Any) -> Iterator[redis.Redis]:
    """Django's default cache on an emptied Redis; yields a plain client of it, to look at what lies there."""
    server = started(server_programs()[0])
    settings.CACHES = caches(server)
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client
