"""What each store says that it can do."""

from __future__ import annotations

import pytest

from django_quota import check, peek
from django_quota.conf import current
from tests.support.stores import current_store

pytestmark = pytest.mark.usefixtures("either_store")


def test_a_store_names_the_keys_that_match_a_pattern() -> None:
    for subject in ("user:1", "user:1", "user:2", "ip:192.0.2.1"):
        check("5/m", subject, name="search")
    store, prefix = current_store(), current().prefix
    of_users = {name for name in store.names(f"{prefix}:1:{{user:*") if ":r:" in name}
    assert {name.split("}")[0] for name in of_users} == {f"{prefix}:1:{{user:1", f"{prefix}:1:{{user:2"}
    assert list(store.names("another:*")) == []


def test_only_what_one_process_counts_is_forgotten() -> None:
    check("5/m", "user:1")
    current_store().clear_memory()
    assert peek("5/m", "user:1").remaining == (4 if current_store().is_shared else 5)


def test_a_shared_store_has_the_commands_of_redis_or_the_tables_of_a_database() -> None:
    store = current_store()
    assert [store.redis, store.database].count(store) == store.is_shared
    assert [store.redis, store.database].count(None) == 2 - store.is_shared
