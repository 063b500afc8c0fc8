"""What a refusal that is raised inside a view does to the view's transaction, and what a view may return."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpRequest
from django.test import Client, RequestFactory
from django.utils.functional import SimpleLazyObject

from django_quota import acheck, check, quota

pytestmark = pytest.mark.usefixtures("memory_store")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("atomic", [True, False])
def test_a_refusal_in_a_view_rolls_its_transaction_back_where_there_is_one(
    atomic: bool, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic)
    assert client.get("/writes/").status_code == 429
    assert User.objects.count() == (0 if atomic else 1)


def test_what_a_view_returns_beside_a_response_is_left_to_django() -> None:
    nothing: Any = quota("1/m", name="nothing")(lambda request: None)
    assert nothing(RequestFactory().get("/")) is None


def request_of(user: object) -> HttpRequest:
    request = RequestFactory().get("/")
    request.user = user  # type: ignore[assignment]
    return request


@pytest.mark.parametrize("loaded", [True, False])
def test_a_lazy_user_of_another_middleware_is_the_same_sync_and_async(loaded: bool) -> None:
    """A token's user, say, whom the session behind request.auser does not know."""
    user = SimpleLazyObject(lambda: User(pk=7))
    if loaded:
        assert user.pk == 7
    assert check("9/m", request_of(user), key="user").subject == "user:7"
    other = SimpleLazyObject(lambda: User(pk=7))
    assert asyncio.run(acheck("9/m", request_of(other), key="user")).subject == "user:7"
