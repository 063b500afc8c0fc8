"""`quota_rules` shows which rules a request meets, in their order, and what they have left."""

from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError
from django.http import HttpResponse
from django.urls import path
from django.views import View

from django_quota import ban, check, peek, quota
from django_quota.testing import freeze
from tests.support import commands
from tests.support.steps import START

costly = Mock(side_effect=RuntimeError("a cost is asked for only when something is taken"))
no_tenant = Mock(side_effect=RuntimeError("no tenant"))


class Orders(View):
    @quota("4/m", name="reads")
    def get(self, request: Any) -> HttpResponse:
        return HttpResponse()

    @quota("5/m", name="writes")
    def post(self, request: Any) -> HttpResponse:
        return HttpResponse()

    put = post


@quota("3/m", name="outer", key="user")
@quota("2/m", name="inner", methods=["POST"])
def search(request: Any) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("search/", search), path("orders/", Orders.as_view())]
RULES = {
    "flood": {"rate": "100/m", "match": "/", "cost": costly, "ban": {"after": "9/m", "for": "1h"}},
    "orders": {"rate": "9/m", "match": "/orders/"},
    "idle": "7/m",
}


@pytest.fixture(autouse=True)
def site(settings: Any, database: Any, redis_cache: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}


said = partial(commands.said, "quota_rules")


def met(*words: str) -> list[tuple[str, str, int]]:
    """Return the rules of a request, each with its subject and what is left."""
    return [(row["rule"], row["subject"], row["limits"][0]["remaining"]) for row in said(*words, "--json")]


def test_the_rules_of_a_request_are_shown_in_their_order_with_what_is_left() -> None:
    ann = User.objects.create_user("ann")
    here, whose = "ip:127.0.0.1", f"user:{ann.pk}"
    check("flood", here, 40)
    for _ in range(2):  # nothing is taken
        assert met("/search/?q=1") == [("flood", here, 60), ("outer", here, 3)]
        assert met("/search/", "--method", "post", "--user", "ann", "--ip", "203.0.113.9") == [
            ("flood", "ip:203.0.113.9", 100), ("outer", whose, 3), ("inner", "ip:203.0.113.9", 2),
        ]  # fmt: skip
    assert [rule for rule, _, _ in met("/orders/")] == ["flood", "orders", "reads"]
    for method in ("POST", "PUT"):
        assert [rule for rule, _, _ in met("/orders/", "--method", method)] == ["flood", "orders", "writes"]
    with freeze(START):
        ban("ip:127.0.0.1", "flood", 600)
        assert "flood (settings) for ip:127.0.0.1\n  100/m: 60 of 100 left (refused for 10 minutes, banned)" in said(
            "/search/"
        )
    assert peek("orders", here).remaining == 9


def test_a_path_that_is_no_url_meets_the_rules_of_the_settings_and_no_path_lists_all(settings: Any) -> None:
    assert met("/nowhere/") == [("flood", "ip:127.0.0.1", 100)]
    assert "no URL of the site is '/nowhere/'" in said("/nowhere/")
    shown = said()
    assert "flood: 100/m by ip, at /\n" in shown
    assert "reads: 4/m by ip\n" in shown
    assert {row["rule"] for row in said("--json")} == {"flood", "orders", "idle", "outer", "inner", "reads", "writes"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"tenant": {"rate": "9/m", "match": "/", "key": no_tenant}}}
    assert "tenant (settings): not known, RuntimeError: no tenant" in said("/search/")


def test_bad_input_is_an_error(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["localhost"]
    for words, why in (
        (("search/",), "Begin it with a slash"),
        (("/search/", "--user", "nobody"), "of no user"),
        (("/search/", "--host", "evil.example"), "evil.example"),
        (("--user", "ann"), "needs a PATH"),
    ):
        with pytest.raises(CommandError, match=why):
            said(*words)
