"""A faulty server, of each version that this machine has, or of one. Each test leaves it as it found it."""

from collections.abc import Iterator

import pytest

from django_quota.testing import server_programs
from tests.chaos.servers import running
from tests.faults.faults import FaultyServer
from tests.support.stores import named, programs


@pytest.fixture(scope="module", params=programs(), ids=named)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    made = FaultyServer(request.param, tmp_path_factory.mktemp("server"))
    with running(made.server):
        yield made


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    made = FaultyServer(server_programs()[0], tmp_path_factory.mktemp("server"))
    with running(made.server):
        yield made
