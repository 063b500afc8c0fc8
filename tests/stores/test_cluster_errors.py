"""An error of the caller of a Cluster's client leaves as it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clusters import Cluster
from tests.support.stores import current_store


@pytest.mark.parametrize("error", [ValueError("its own"), KeyError("its own"), LookupError()])
def test_an_error_of_the_caller_stays_as_it_is(error: Exception, cluster: Cluster) -> None:
    store: Any = current_store()

    def use() -> None:
        with store.commands() as client:
            client.time()
            raise error

    with pytest.raises(type(error)) as caught:
        use()
    assert caught.value is error
