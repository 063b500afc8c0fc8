"""Fixtures of the admin's tests."""

import pytest

from django_quota.operating import lookup


@pytest.fixture(autouse=True)
def no_login_names_of_another_test() -> None:
    lookup._newest_login_names.cache_clear()
