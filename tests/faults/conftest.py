"""A faulty server, of each version that this machine has."""

from collections.abc import Iterator

import pytest

from tests.faults.faults import FaultyServer, faulty_server
from tests.support.stores import named, programs


@pytest.fixture(scope="module", params=programs(), ids=named)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    """A server that each test leaves as it found it."""
    with faulty_server(request.param, tmp_path_factory.mktemp("server")) as made:
        yield made
