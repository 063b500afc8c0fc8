"""A server that may be harmed, of each version that this machine has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_quota.testing import server_programs
from tests.conftest import _named
from tests.failures.harms import Place, placed


@pytest.fixture(scope="module", params=server_programs(), ids=_named)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place whose tests leave its server as they found it."""
    with placed(request.param, tmp_path_factory.mktemp("place")) as made:
        yield made
