"""What is said of every kind of refusal, side by side: to the visitor, by the decision, and in the log."""

import json
import logging
import re
from typing import Any
from urllib.parse import quote as quoted

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.backends import BaseBackend
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import re_path
from django.utils import translation

from django_quota import Decision, Rule, acheck, check, quota, slot
from django_quota.adapters import refusal_details, refusal_response
from django_quota.exceptions import QuotaExceeded, StoreUnavailable
from django_quota.http import responses
from django_quota.middleware import QuotaMiddleware
from django_quota.testing import freeze
from tests.support.calls import fetch
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.steps import SECOND, START

pytestmark = pytest.mark.usefixtures("memory_store")

IP = "ip:203.0.113.9"


def limited(rate: str, *costs: int, name: str = "search", subject: str = IP, **options: Any) -> Decision:
    rule = Rule.make(name, rate, **options)
    return [check(rule, subject, cost) for cost in costs][-1]


def full(name: str, limit: int, subject: str) -> Decision:
    with pytest.raises(QuotaExceeded) as refused:
        [slot(name, limit, subject=subject).acquire() for _ in range(limit + 1)]
    return refused.value.decision


def of_batch(cost: int = 1) -> Decision:
    rule = Rule.make("api", "10/m", share={"critical": 1.0, "batch": 0.5}, tier=lambda request: "batch")
    return [check(rule, "global", each, tier="batch") for each in (5, cost)][-1]


def blocked(ends: int = START + 86_400 * SECOND) -> Decision:
    override(f"b 0 {ends} -", "search", "user:8")
    return limited("10/m", 1, subject="user:8")


def blocked_closed() -> Decision:
    override("b 0 0 -", "search", "user:8")
    return limited("0/m", 1, subject="user:8")


def unanswered() -> Decision:
    with no_answer():
        return limited("10/m", 1, on_unavailable="deny")


class NoOne(BaseBackend):
    def authenticate(self, request: Any, username: Any = None, password: Any = None, **kwargs: Any) -> Any:
        return None


def of_the_view() -> Decision:
    request = RequestFactory().get("/")
    QuotaMiddleware(plain).process_exception(request, StoreUnavailable("it is gone"))
    decision: Decision = request.quota  # type: ignore[attr-defined]
    return decision


def locked_out() -> Decision:
    request = RequestFactory().post("/login/", REMOTE_ADDR="203.0.113.9")
    for _ in range(5):
        assert authenticate(request, username="ann", password="guess") is None
    with pytest.raises(QuotaExceeded) as refused:
        authenticate(request, username="ann", password="guess")
    return refused.value.decision


NO_TIME = "Trying again will not help."
IN_A_MINUTE, AGAIN = "Please try again in 60 seconds.", "; try again in 1 minute."
IN_TEN_DAYS = "Please try again in 10 days."

SENTENCES: dict[str, tuple[Any, str, str]] = {
    "rate, by address": (
        lambda: limited("1/m", 1, 1),
        f"The limit is 1 per minute. {IN_A_MINUTE}",
        f"Rule 'search' admits 1 per minute for {IP}{AGAIN}",
    ),
    "calendar quota, cost above what is left": (
        lambda: limited("10000/month", 9_000, 2_000, name="plan", subject="org:7", algorithm="calendar"),
        "The limit is 10,000 per month. This request counts as 2,000, and 1,000 of 10,000 are left. " + IN_TEN_DAYS,
        (
            "Rule 'plan' admits 10,000 per month for org:7. "
            "This hit needs 2,000; 1,000 of 10,000 are left until 1 December."
        ),
    ),
    "token bucket": (
        lambda: limited("30/m", *[1] * 6, name="bursts", algorithm="token_bucket", burst=5),
        "The limit is 30 per minute, at most 5 at once. Please try again in 2 seconds.",
        f"Rule 'bursts' admits 30 per minute, at most 5 at once, for {IP}; try again in 2 seconds.",
    ),
    "token bucket, cost above what is left": (
        lambda: limited("30/m", 4, 4, name="bursts", algorithm="token_bucket", burst=5),
        (
            "The limit is 30 per minute, at most 5 at once. This request counts as 4, and 1 of 5 are left. Please try "
            "again in 6 seconds."
        ),
        (
            f"Rule 'bursts' admits 30 per minute, at most 5 at once, for {IP}. This hit needs 4; 1 of 5 are left; try "
            "again in 6 seconds."
        ),
    ),
    "cost above the limit": (
        lambda: limited("10/m", 11),
        f"The limit is 10 per minute. This request counts as 11, more than the 10 that are ever left. {NO_TIME}",
        f"A cost of 11 is more than rule 'search' (10 per minute) ever admits for {IP}; waiting does not help.",
    ),
    "concurrency": (
        lambda: full("export", 3, "user:7"),
        "The limit is 3 at once. Please try again in 30 seconds.",
        "All 3 slots 'export' of user:7 are held; try again in 30 seconds.",
    ),
    "distinct": (
        lambda: [check("2/d", "user:7", name="devices", distinct=True, value=value) for value in "abc"][-1],
        "The limit is 2 per day, and each different value counts once. Please try again in 24 hours.",
        "Rule 'devices' admits 2 different values per day for user:7; try again in 1 day.",
    ),
    "ban": (
        lambda: limited("1/m", 1, 1, 1, name="login", ban={"after": "1/m", "for": "10m"}),
        "Access is blocked. Please try again in 10 minutes.",
        f"Rule 'login' refuses {IP}, which is banned; try again in 10 minutes.",
    ),
    "block until a moment": (
        blocked,
        "Access is blocked. Please try again in 24 hours.",
        "Rule 'search' refuses user:8, blocked by an operator; try again in 1 day.",
    ),
    "block for good": (
        lambda: blocked(ends=0),
        f"Access is blocked. {NO_TIME}",
        "Rule 'search' refuses user:8, blocked by an operator; waiting does not help.",
    ),
    "block for good of a rate of 0": (
        blocked_closed,
        f"Access is blocked. {NO_TIME}",
        "Rule 'search' refuses user:8, blocked by an operator; waiting does not help.",
    ),
    "ban of a hit that costs more than is left": (
        lambda: limited("5/m", 5, 2, 2, name="login", ban={"after": "1/m", "for": "10m"}),
        "Access is blocked. Please try again in 10 minutes.",
        f"Rule 'login' refuses {IP}, which is banned; try again in 10 minutes.",
    ),
    "a rate of 0": (
        lambda: limited("0/m", 1),
        "This is closed until further notice.",
        "Rule 'search' admits nothing (0 per minute).",
    ),
    "fail closed": (
        unanswered,
        "This cannot be served right now. Please try again shortly.",
        "Rule 'search' refuses, since the store did not answer; try again shortly.",
    ),
    "fail closed, by an error of the view": (
        of_the_view,
        "This cannot be served right now. Please try again shortly.",
        "The store did not answer a call of the view; try again shortly.",
    ),
    "load share": (
        of_batch,
        f"The limit is 10 per minute. Near it, other requests take precedence. {IN_A_MINUTE}",
        f"Rule 'api' admits 10 per minute, of which these requests may fill 5, for global{AGAIN}",
    ),
    "load share, cost above what is left": (
        lambda: of_batch(2),
        (
            "The limit is 10 per minute. Near it, other requests take precedence. This request counts as 2, and 0 of 5 "
            f"are left. {IN_A_MINUTE}"
        ),
        (
            "Rule 'api' admits 10 per minute, of which these requests may fill 5, for global. This hit needs 2; 0 of 5 "
            f"are left{AGAIN}"
        ),
    ),
    "locked out of logins": (
        locked_out,
        "Too many failed logins: the limit is 5 per 10 minutes. Please try again in 10 minutes.",
        f"Rule 'login-username-ip' admits 5 per 10 minutes for login.username:…+{IP}; try again in 10 minutes.",
    ),
}
"""By kind of refusal: what a visitor reads, and what a log says."""


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_refusal_says_the_same_in_every_form(kind: str, settings: Any) -> None:
    settings.AUTHENTICATION_BACKENDS = ["django_quota.contrib.auth.LoginQuotaBackend", f"{__name__}.NoOne"]
    make, sentence, explained = SENTENCES[kind]
    with freeze(START):
        decision = make()
        text, problem = (answer(decision, accept) for accept in ("text/plain", "application/problem+json"))
        said = decision.explain()
    assert (text.text, json.loads(problem.content)["detail"]) == (f"{sentence}\n", sentence)
    assert text.status_code == (503 if kind.startswith("fail closed") else 429)
    assert ("Retry-After" in text.headers) == ("try again" in sentence)
    assert re.sub("login.username:[0-9a-f]{32}", "login.username:…", said) == explained


def test_where_no_backend_limits_logins_a_rule_may_have_the_name_of_such_a_limit() -> None:
    with freeze(START):
        decision = limited("1/m", 1, 1, name="login-username-ip")

    assert refusal_details(decision).message == f"The limit is 1 per minute. {IN_A_MINUTE}"


@pytest.mark.parametrize("language", ["zh-hans", "zh-hant"])
def test_no_space_is_between_two_sentences_in_chinese(language: str) -> None:
    with freeze(START), translation.override(language):
        said = refusal_details(limited("1/m", 1, 1)).message

    assert (said.count("\N{IDEOGRAPHIC FULL STOP}"), said[-1]) == (2, "\N{IDEOGRAPHIC FULL STOP}")
    assert "\N{IDEOGRAPHIC FULL STOP} " not in said


def answer(decision: Decision, accept: str) -> Any:
    return refusal_response(RequestFactory().get("/", headers={"Accept": accept}), decision)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 second"), (1.5, "2 seconds"), (119, "119 seconds"), (119.5, "2 minutes"), (121, "3 minutes"),
        (7_199, "120 minutes"), (7_200, "2 hours"), (7_201, "3 hours"), (172_799, "48 hours"), (172_800, "2 days"),
        (172_801, "3 days"),
    ],
)  # fmt: skip
def test_a_wait_is_rounded_up_in_one_unit(seconds: float, words: str) -> None:
    outcome = limited("1/m", 2).outcomes[0]._replace(retry_after=seconds, cost=1)

    assert (
        refusal_details(Decision.of((outcome,))).message == f"The limit is 1 per minute. Please try again in {words}."
    )


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        ("3/s", "3 per second"), ("3/m", "3 per minute"), ("3/h", "3 per hour"), ("3/d", "3 per day"),
        ("3/week", "3 per week"), ("3/month", "3 per month"), ("3/year", "3 per year"), ("3/5s", "3 per 5 seconds"),
        ("3/5m", "3 per 5 minutes"), ("3/5h", "3 per 5 hours"), ("3/5d", "3 per 5 days"), ("3/2week", "3 per 2 weeks"),
        ("3/2month", "3 per 2 months"), ("3000/m", "3,000 per minute"),
    ],
)  # fmt: skip
def test_a_rate_is_said_in_words(rate: str, words: str) -> None:
    options = {"algorithm": "calendar"} if rate.endswith(("month", "year")) else {}

    decision = limited(rate, 9_000, **options)

    assert refusal_details(decision).message.startswith(f"The limit is {words}. This request counts as 9,000")


# --- the log: once a second for each rule, short, and one line whatever the client sent -------------------------------


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


def raised(request: HttpRequest) -> HttpResponse:
    check("1/h", request, key="path", name="raised").raise_if_refused()
    return plain(request)


async def raised_async(request: HttpRequest) -> HttpResponse:
    (await acheck("1/h", request, key="path", name="raised")).raise_if_refused()
    return plain(request)


VIEWS: dict[str, Any] = {
    "decorated": quota("1/h", key="path", name="decorated")(plain), "raised": raised, "site": plain,
    "raised-async": raised_async,
}  # fmt: skip
urlpatterns = [re_path(rf"(?s:^{name}/)", view) for name, view in VIEWS.items()]


@pytest.fixture
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.QUOTA = {**settings.QUOTA, "RULES": {"site": {"rate": "1/h", "key": "path", "match": "/site/"}}}
    responses._last_logged.cache_clear()


def statuses(path: str, times: int = 2) -> list[int]:
    kind = "async" if "-async" in path else "sync"
    return [response.status_code for response in fetch(kind, path, times)]


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("view", VIEWS)
def test_a_flood_is_logged_once_a_second_for_each_rule(view: str, site: None, caplog: pytest.LogCaptureFixture) -> None:
    rule = view.removesuffix("-async")
    with freeze(START):
        assert statuses(f"/{view}/", 5) == [200, 429, 429, 429, 429]
        assert statuses(f"/{view}/more/") == [200, 429]
    assert logged(caplog) == [f"Too many requests: rule '{rule}' refuses 'path:/{view}/'."]
    assert caplog.records[-1].name == "django.request"

    found = []
    for later in (SECOND - 1, SECOND):
        with freeze(START + later):
            found.append((statuses(f"/{view}/", 3), len(logged(caplog))))

    assert found == [([429] * 3, 1), ([429] * 3, 2)]


def test_a_flood_is_logged_at_once_after_the_clock_was_set_back(site: None, caplog: pytest.LogCaptureFixture) -> None:
    for moment in (START, START - 3_600 * SECOND):
        with freeze(moment):
            assert statuses(f"/decorated/{moment}/") == [200, 429]

    assert len(logged(caplog)) == 2


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("sent", ["a" * 5_000, "a\nERROR django.request \x1b[2J\x1b]0;x\x07\u202e\u2028"])
def test_what_a_client_sent_makes_a_short_line_without_escape_sequences(
    view: str, sent: str, site: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert statuses(f"/{view}/{quoted(sent)}") == [200, 429]
    decision = Decision.without_limit("q\x1b[2J" * 100, "z\n" * 1_000, allowed=False, enforced=True)  # made by hand
    assert answer(decision, "text/plain").status_code == 429
    line, other = logged(caplog)
    assert line.isprintable() is other.isprintable() is True
    assert len(line) < 300
    assert (other.count("q"), other.count("z")) == (1 + 40, 100)
