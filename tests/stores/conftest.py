"""The database store, where a test needs it as it is."""

from collections.abc import Iterator
from typing import Any

import pytest

from django_quota.stores.database.store import DatabaseStore
from tests.support.stores import empty_database, store_on


@pytest.fixture
def on_postgres(postgres: dict[str, Any], settings: Any, django_db_blocker: Any) -> Iterator[DatabaseStore]:
    """The store on PostgreSQL, empty."""
    with store_on(postgres, settings, django_db_blocker) as made:
        empty_database(made)
        yield made


@pytest.fixture
def on_sqlite(sqlite_file: dict[str, Any], settings: Any, django_db_blocker: Any) -> Iterator[DatabaseStore]:
    """The store on a file of its own."""
    with store_on(sqlite_file, settings, django_db_blocker) as made:
        yield made


@pytest.fixture
def sqlite_file(tmp_path: Any) -> dict[str, Any]:
    """A database in a file, as DATABASES has it. The store makes its tables itself."""
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "site.sqlite3")}
