"""Slots of the settings: `at_once` in `RULES`, which the middleware takes for the requests that fit."""

from typing import Any

import pytest
from django.core.checks import run_checks
from django.http import HttpResponse
from django.test import Client
from django.urls import path

from django_quota import check, peek, slot
from django_quota.exceptions import RuleError
from django_quota.testing import freeze
from tests.support.calls import both, fetch
from tests.support.slot_views import SITE_SLOT, held, statuses, with_rules
from tests.support.slots import calls, is_asked_for_by
from tests.support.steps import START

pytestmark = pytest.mark.usefixtures("slot_site")

each_way = pytest.mark.parametrize(
    ("kind", "url"),
    [("sync", "/export/"), ("async", "/export/async/"), ("async", "/export/")],
    ids=["sync", "async", "a sync view under async"],
)


@each_way
class TestRequestsThatFit:
    def test_a_request_holds_the_slot_until_it_is_answered(self, kind: str, url: str) -> None:
        (response,) = fetch(kind, url)

        assert response.content == b"1"

    def test_an_answered_request_gives_it_back(self, kind: str, url: str) -> None:
        fetch(kind, url)

        assert held("exports") == 0

    def test_a_request_without_a_free_slot_is_refused(self, kind: str, url: str) -> None:
        with slot("exports", 1):
            (refused,) = fetch(kind, url)

        assert (refused.status_code, refused.headers["RateLimit"]) == (429, '"exports";r=0;t=30')

    def test_a_request_that_does_not_fit_takes_none(self, kind: str, url: str) -> None:
        with slot("exports", 1):
            assert statuses("/other/", kind) == [200]


class TestOptions:
    def test_each_subject_of_the_key_has_its_own(self, settings: Any) -> None:
        with_rules(settings, exports={**SITE_SLOT, "key": ["ip", "path"]})

        with slot("exports", 1, subject="ip:127.0.0.1+path:/export/"):
            assert statuses("/export/") + statuses("/export/async/") == [429, 200]

    def test_a_request_that_exclude_fits_takes_none(self, settings: Any) -> None:
        with_rules(settings, exports={**SITE_SLOT, "exclude": "/export/async/"})

        with slot("exports", 1):
            assert statuses("/export/") + statuses("/export/async/") == [429, 200]

    def test_a_lease_lasts_as_long_as_the_option_says(self, settings: Any) -> None:
        def left(request: Any) -> HttpResponse:
            return HttpResponse(str(slot("exports", 1).holders()[0][1]))

        settings.ROOT_URLCONF = (path("export/", left),)
        with_rules(settings, exports={**SITE_SLOT, "lease": "2m"})

        with freeze(START):
            (response,) = fetch("sync", "/export/")

        assert response.content == b"120.0"

    def test_a_slot_that_does_not_block_lets_the_request_in(self, settings: Any) -> None:
        with_rules(settings, shown={**SITE_SLOT, "block": False})

        with slot("shown", 1):
            (allowed,) = fetch("sync", "/export/")

        assert (allowed.status_code, allowed.wsgi_request.quota.allowed) == (200, False)

    def test_limiting_that_is_off_lets_everybody_in(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}

        with slot("exports", 1):
            assert statuses("/export/") == [200]

    def test_a_slot_is_not_a_rate(self) -> None:
        with pytest.raises(RuleError, match=r"\['exports'\] is a concurrency limit \(at_once\), not a rate"):
            check("exports", "user:1")


@both
class TestWithRulesAndOtherSlots:
    @pytest.fixture(autouse=True)
    def rules(self, slot_site: None, settings: Any) -> None:
        rate = {"rate": "9/m", "match": "/", "cost": 3}
        with_rules(settings, rate=rate, first={"at_once": 1, "match": "/"}, exports=SITE_SLOT)

    def test_a_refused_slot_gives_back_what_the_rules_took(self, kind: str) -> None:
        with slot("exports", 1):
            assert statuses("/export/", kind, 5) == [429] * 5

        assert peek("rate", "ip:127.0.0.1").remaining == 9

    def test_a_refused_slot_gives_back_the_other_slots(self, kind: str) -> None:
        with slot("exports", 1):
            fetch(kind, "/export/")

        assert held("first") == 0

    def test_an_answered_request_gives_all_slots_back(self, kind: str) -> None:
        fetch(kind, "/export/")

        assert (held("first"), held("exports")) == (0, 0)

    def test_a_request_that_a_rule_refuses_asks_for_no_slot(self, kind: str) -> None:
        asked: list[Any] = []
        fetch(kind, "/export/", 3)

        with calls(before=lambda operation: asked.extend([operation] * bool(is_asked_for_by(operation)))):
            assert statuses("/export/", kind) == [429]

        assert asked == []


@both
def test_what_a_refused_slot_gave_back_is_not_settled(kind: str, settings: Any) -> None:
    paid = {"rate": "1000/h", "match": "/", "settle": lambda request, response: 40}
    with_rules(settings, paid=paid, exports=SITE_SLOT)

    with slot("exports", 1):
        assert statuses("/export/", kind) == [429]

    assert peek("paid", "ip:127.0.0.1").remaining == 1_000


def test_an_error_of_a_view_gives_the_slot_back(settings: Any) -> None:
    def fail(request: Any) -> Any:
        raise ZeroDivisionError

    settings.ROOT_URLCONF = (path("export/", fail),)

    assert Client(raise_request_exception=False).get("/export/").status_code == 500
    assert held("exports") == 0


KNOWN = "Known: at_once, block, key, lease, on_unavailable, renew, share, tier, wait."
TWO_RULES = "Write two rules: one with 'rate', one with 'at_once'."
NOT_BOTH = "cannot be combined with 'at_once', which limits how many run at once."
RANGE = "is not a whole number from 1 to 1,000,000."
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "a rate": ({"rate": "9/m"}, f"'rate' {NOT_BOTH}", TWO_RULES),
    "a ban": ({"ban": {"after": "1/m", "for": "1h"}}, f"'ban' {NOT_BOTH}", TWO_RULES),
    "an unknown option": ({"leese": 5}, "'leese' is not an option of a slot.", "Did you mean 'lease'?"),
    "a name": ({"name": "x"}, "'name' is not an option of a slot.", KNOWN),
    "a limit": ({"at_once": "3"}, f"at_once='3' {RANGE}", "Use, for example, 3."),
    "a limit of 0": ({"at_once": 0}, f"at_once=0 {RANGE}", "Use, for example, 3."),
    "a limit above a million": ({"at_once": 1_000_001}, f"at_once=1000001 {RANGE}", "Use, for example, 3."),
    "True": ({"at_once": True}, f"at_once=True {RANGE}", "Use, for example, 3."),
    "no match": (
        {"match": None},
        "it has no 'match', so it limits nothing.",
        "Use, for example, 'match': '/export/', or @concurrency on a view.",
    ),
    "a match": ({"match": "/export?"}, "match='/export?' never matches: paths are", ""),
    "exclude": ({"exclude": "/export?"}, "exclude='/export?' never matches: paths are", ""),
    "a wait": (
        {"wait": "soon"},
        "wait='soon' is not a duration from 0 to 366 days.",
        "Use, for example, 30 (seconds), '10m' or timedelta(days=1).",
    ),
    "on_unavailable": ({"on_unavailable": "open"}, "on_unavailable='open' is not 'allow', 'deny' or 'local'.", ""),
    "a share of no tier": (
        {"share": {"batch": 0.5}},
        "There is no tier= to say who is in tier 'batch'.",
        "Add tier=, a function of the request that returns the tier. Known: anonymous, authenticated.",
    ),
}


@pytest.mark.parametrize(("given", "words", "hint"), WRONG.values(), ids=WRONG)
class TestWrongOptions:
    def test_a_system_check_reports_it(self, given: Any, words: str, hint: str, settings: Any) -> None:
        with_rules(settings, exports={**SITE_SLOT, **given})

        (found,) = run_checks(tags=["django_quota"])

        assert found.id == "django_quota.E006"
        assert found.msg.startswith(f"QUOTA[\"RULES\"]['exports']: {words}")
        assert str(found.hint).startswith(hint)

    def test_a_request_fails_with_the_same_words(self, given: Any, words: str, hint: str, settings: Any) -> None:
        with_rules(settings, exports={**SITE_SLOT, **given})

        with pytest.raises(RuleError) as refused:
            fetch("sync", "/export/")

        assert str(refused.value).startswith(f"QUOTA[\"RULES\"]['exports']: {words} {hint}".rstrip())


@pytest.mark.parametrize("limit", [1, 1_000_000])
def test_a_slot_is_for_one_to_a_million(limit: int, settings: Any) -> None:
    with_rules(settings, exports={**SITE_SLOT, "at_once": limit})

    (response,) = fetch("sync", "/export/")

    assert response.headers["RateLimit-Policy"] == f'"exports";q={limit};qu="concurrent-requests"'


def test_a_system_check_reports_a_wrong_key(settings: Any) -> None:
    with_rules(settings, exports={**SITE_SLOT, "key": "usr"})

    (found,) = run_checks(tags=["django_quota"])

    assert (found.id, "'user'" in str(found.hint)) == ("django_quota.E009", True)


@pytest.mark.parametrize(
    ("given", "middleware", "code"),
    [({}, True, ""), ({}, False, "W003"), ({"match": "nowhere"}, True, "W006"), ({"key": "user"}, True, "W005")],
    ids=["all is well", "no middleware", "no such view", "no user"],
)
def test_the_checks_look_at_slots_as_at_rules(given: Any, middleware: bool, code: str, settings: Any) -> None:
    settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"] if middleware else []
    with_rules(settings, exports={**SITE_SLOT, **given})

    found = run_checks(tags=["django_quota"])

    assert [str(each.id).removeprefix("django_quota.") for each in found][:1] == [code] * bool(code)
    assert all("'exports'" in each.msg for each in found)
