"""What a refusal that is raised inside a view does to the view's transaction, and what a view may return."""

import asyncio
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.template import Context, Template
from django.test import AsyncClient, Client, RequestFactory
from django.utils.functional import SimpleLazyObject

from django_quota import Decision, acheck, check, concurrency, quota
from tests.support.calls import run

pytestmark = pytest.mark.usefixtures("memory_store")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("atomic", [True, False])
def test_a_refusal_in_a_view_rolls_its_transaction_back_where_there_is_one(
    atomic: bool, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic)
    assert client.get("/writes/").status_code == 429
    assert User.objects.count() == (0 if atomic else 1)


def refused_inside(request: HttpRequest) -> HttpResponse:
    check("0/m", request, name="inside").raise_if_refused()
    raise AssertionError


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("limit", [quota("9/m", name="outside"), concurrency(1, name="outside")], ids=["rate", "slot"])
def test_a_refusal_in_a_view_leaves_the_transaction_of_its_caller_alone(limit: Any) -> None:
    with transaction.atomic():
        User.objects.create_user("ann")
        assert limit(refused_inside)(RequestFactory().get("/")).status_code == 429
        assert not transaction.get_rollback()


def test_a_template_shows_what_one_rule_has_left() -> None:
    shown = "{% with a=r.quota|of_rule:name %}{{ a.remaining }},{% endwith %}"
    page = Template("{% load quota %}{% for name in names %}" + shown + "{% endfor %}")

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(page.render(Context({"r": request, "names": ["api", "flood", "other"]})))

    limited: Any = quota("5/m", name="api", key="ip")(quota("2/m", name="flood", key="ip")(view))
    assert limited(RequestFactory().get("/")).content.decode() == "4,1,,"


def asks_the_database(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse(User.objects.get().username, status=429)


@quota("0/m")
async def refused_by_a_decorator(request: HttpRequest) -> HttpResponse:
    raise AssertionError


@quota("9/m")
async def refused_by_hand(request: HttpRequest) -> HttpResponse:
    (await acheck("0/m", request)).raise_if_refused()
    raise AssertionError


@concurrency(1, name="one")
async def in_a_slot(request: HttpRequest, depth: int = 1) -> HttpResponse:
    return await in_a_slot(request, depth - 1) if depth else HttpResponse()


@pytest.mark.parametrize("answer", ["function", "429.html", "mine.html"])
class TestAnswersUnderASGI:
    """What a site shows who is refused may ask the database, which must not happen in the event loop."""

    @pytest.fixture(autouse=True)
    def _answer(self, answer: str, settings: Any, transactional_db: None) -> None:
        User.objects.create(username="ann")
        if answer == "function":
            settings.QUOTA = {**settings.QUOTA, "RESPONSE": asks_the_database}
        else:
            loader = ("django.template.loaders.locmem.Loader", {answer: "{{ request.user.username }}"})
            options = {**settings.TEMPLATES[0]["OPTIONS"], "loaders": [loader]}
            settings.TEMPLATES = [{**settings.TEMPLATES[0], "APP_DIRS": False, "OPTIONS": options}]
            settings.QUOTA = {**settings.QUOTA, "TEMPLATE": answer}

    @pytest.mark.parametrize("view", [refused_by_a_decorator, refused_by_hand, in_a_slot], ids=lambda v: v.__name__)
    def test_of_a_view(self, view: Any) -> None:
        request = RequestFactory().get("/", headers={"Accept": "text/html"})
        request.user = SimpleLazyObject(User.objects.get)  # type: ignore[assignment]
        reply: Any = run(view, request)
        assert (reply.status_code, reply.text) == (429, "ann")

    @pytest.mark.parametrize("path", ["/free/", "/nowhere/"])
    def test_of_the_middleware(self, path: str, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"shut": {"rate": "0/m", "match": "/"}}}

        async def ask() -> Any:
            client = AsyncClient()
            await client.aforce_login(await User.objects.aget())
            return await client.get(path, headers={"Accept": "text/html"})

        reply = asyncio.run(ask())
        assert (reply.status_code, reply.text) == (429, "ann")
