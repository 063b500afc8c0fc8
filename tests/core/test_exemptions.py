"""Exemptions from a rule: networks, staff, and functions of the request."""

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse

from django_quota import quota
from django_quota.exceptions import RuleError
from tests.support.calls import calls_of, get, run

LIMITED, FREE = [200, 429], [200, 200]
NETWORK, FORGED = "192.0.2.0/24", {"HTTP_X_FORWARDED_FOR": "10.0.0.1"}
PARTNER = {"HTTP_X_PARTNER": "yes"}


def is_partner(request: HttpRequest) -> bool:
    return request.headers.get("X-Partner") == "yes"


async def is_partner_async(request: HttpRequest) -> bool:
    return is_partner(request)


def statuses(exempt: Any, request: Any, is_async: bool = False) -> list[int]:
    async def view_async(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    limited = quota("1/m", key="ip", exempt=exempt)(view_async if is_async else lambda request: HttpResponse())
    return [run(limited, request).status_code for _ in range(2)]


pytestmark = pytest.mark.usefixtures("memory_store")


@pytest.mark.parametrize(
    ("exempt", "meta", "proxies", "expected"),
    [
        ({"10.0.0.0/8", NETWORK}, {}, [], FREE), (NETWORK, {"REMOTE_ADDR": "198.51.100.1"}, [], LIMITED),
        ("2001:db8::1", {"REMOTE_ADDR": "2001:db8::1"}, [], FREE),
        ("2001:db8::1", {"REMOTE_ADDR": "2001:db8::2"}, [], LIMITED),
        (NETWORK, {"REMOTE_ADDR": "::ffff:192.0.2.1"}, [], FREE),
        # A forged header exempts nobody; behind a trusted proxy the client's address counts.
        ("10.0.0.0/8", FORGED, [], LIMITED), ("10.0.0.0/8", FORGED, ["192.0.2.1"], FREE),
    ],
)  # fmt: skip
def test_an_address_in_the_network_is_exempt(
    exempt: Any, meta: dict[str, str], proxies: list[str], expected: list[int], settings: Any
) -> None:
    settings.QUOTA = {**settings.QUOTA, "TRUSTED_PROXIES": proxies}
    assert statuses(exempt, get(**meta)) == expected


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (User(pk=1, is_staff=True), FREE), (User(pk=1), LIMITED), (AnonymousUser(), LIMITED),
        (User(pk=1, is_staff=True, is_active=False), LIMITED), (None, LIMITED),
    ],
)  # fmt: skip
def test_active_staff_is_exempt(is_async: bool, user: Any, expected: list[int]) -> None:
    request = get()
    if user is not None:
        request.user = user
    assert statuses("staff", request, is_async) == expected


@pytest.mark.parametrize(("function", "is_async"), [(is_partner, False), (is_partner, True), (is_partner_async, True)])
def test_a_true_answer_of_a_function_exempts_without_a_call(
    function: Any, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = calls_of(monkeypatch)
    assert statuses(["10.0.0.0/8", function], get(**PARTNER), is_async) == FREE
    assert calls == []
    assert statuses(["10.0.0.0/8", function], get(), is_async) == LIMITED
    with pytest.raises(RuleError, match=r"exempt=.*is_partner_async is async"):
        statuses(is_partner_async, get())


def test_a_configured_rule_takes_the_dotted_path_of_a_function(settings: Any) -> None:
    exempt = {"10.0.0.0/8", "tests.core.test_exemptions.is_partner"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"api": {"rate": "1/m", "exempt": exempt}}}
    view = quota(rule="api")(lambda request: HttpResponse())
    requests = [get(**PARTNER), get(**PARTNER), get(), get()]
    assert [run(view, request).status_code for request in requests] == [*FREE, *LIMITED]
