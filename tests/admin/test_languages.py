"""Pages and forms of the admin in the language of the reader."""

import re
from html import unescape
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.utils import translation

from django_quota import Rule, counter, quota, slot
from django_quota.core.errors import QuotaError
from django_quota.core.rates import parse_override_rates
from django_quota.error_texts import error_in_words
from django_quota.models import QuotaOverride
from django_quota.operating.lookup import smaller_hint
from django_quota.subjects.subject import override_subject
from django_quota.testing import clear
from tests.admin.operators import superuser
from tests.support.catalogs import LANGUAGES
from tests.support.selection import thorough

LIST = "/admin/django_quota/quotaoverride/"
RULES = {
    "api": {
        "rate": {"anonymous": "5/m", "authenticated": None},
        "exempt": ["10.0.0.0/8", "staff"],
        "ban": {"after": "20/m", "for": ["10m", "2h", "1d"]},
    },
    "bucket": {"rate": "10/m", "algorithm": "token_bucket"},
    "window": {"rate": "10/m"},
}
FILLED = {
    "subject": "user:42",
    "rule": "*",
    "mode": "rate",
    "rate": "100/m",
    "reason": "",
    "label": "",
    "_anyway": "1",
    "starts_0": "",
    "starts_1": "",
    "expires_0": "",
    "expires_1": "",
}


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.MIDDLEWARE = [
        middleware
        for given in settings.MIDDLEWARE
        for middleware in (
            given,
            *(["django.middleware.locale.LocaleMiddleware"] if given.endswith("SessionMiddleware") else []),
        )
    ]
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory", "RULES": RULES}


def released_late(name: str) -> None:
    held = slot(name, 1).acquire()
    clear()
    held.release()


def words(html: str) -> str:
    """Return what a person reads: no tags, and one space between words."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", html)))


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("language", "shown"),
    [
        (
            "de",
            [
                "5/m für anonymous, unbegrenzt für authenticated",
                "10.0.0.0/8, Mitarbeiter",
                "nach 20 Ablehnungen in 1 Minute, für 10 Minuten, 2 Stunden, 1 Tag",
            ],
        ),
        (
            "zh-hans",
            [
                "anonymous：5/m, authenticated：无限制",  # noqa: RUF001
                "10.0.0.0/8, 工作人员",
                "1 分钟内被拒绝 20 次后，封禁 10 分钟, 2 小时, 1 天",  # noqa: RUF001
            ],
        ),
    ],
    ids=["de", "zh-hans"],
)
def test_a_rule_page_shows_its_options_in_the_language(language: str, shown: list[str]) -> None:
    client = superuser(headers={"accept-language": language})

    page = words(client.get(f"{LIST}rule/", {"name": "api"}).content.decode())

    assert [each for each in shown if each not in page] == []
    assert re.findall(r"\b(?:after|refusals?|minutes?|hours?|days?|for|unlimited|staff)\b", page) == []


WRONG = {
    "a count without a window": {"rate": "10"},
    "an unknown unit": {"rate": "10/parsec"},
    "a window that is too long": {"rate": "10/50000h"},
    "a count that is too large": {"rate": "9999999999999/m"},
    "no count": {"rate": "many"},
    "text after the unit": {"rate": "10/m today"},
    "a change of no size": {"rate": "x0"},
    "a unit of the calendar": {"rate": "10/month", "rule": "window"},
    "more units for a bucket": {"rate": "+500", "rule": "bucket"},
    "two rates of one window": {"rate": "10/m; 20/m", "rule": "window"},
    "too fine for a bucket": {"rate": "1000000000/s", "rule": "bucket"},
    "a subject without a value": {"subject": "user:"},
    "a wrong address": {"subject": "ip:203.0.113"},
    "a wrong network": {"subject": "ip:203.0.113.0/99"},
    "a wrong date": {"expires_0": "soon", "expires_1": "12:00"},
    "an end before the start": {
        "starts_0": "2030-01-02",
        "starts_1": "12:00",
        "expires_0": "2030-01-01",
        "expires_1": "12:00",
    },
}
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|„[^“]*“|“[^”]*”|algorithm=\S+|\b(?:IPv6|IP|Client|month|year|token_bucket)\b")


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("given", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("language", ["de", thorough("variants", "zh-hans")])
def test_a_form_says_what_is_wrong_in_the_language(language: str, given: dict[str, str]) -> None:
    def errors_in(asked: str) -> list[str]:
        client = superuser(f"reads {asked}", headers={"accept-language": asked})
        form = client.post(f"{LIST}add/", FILLED | given).context["adminform"].form
        return [str(text) for texts in form.errors.values() for text in texts]

    errors = errors_in(language)

    english = {"zh-hans": r"[A-Za-z]{3,}", "de": r"\b(?:the|is|not|a|use|it|of|and|for|rate)\b"}[language]
    assert errors
    assert re.findall(english, _QUOTED.sub("", " ".join(errors))) == []
    assert errors != errors_in("en")


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"subject": "user:"}, id="a wrong subject"),
        pytest.param({"rate": "10/parsec"}, id="a wrong rate"),
        pytest.param({"rule": "bucket", "rate": "+500"}, id="a rate that does not fit its rule"),
    ],
)
def test_a_row_that_cannot_be_saved_says_why_in_the_language(given: dict[str, str]) -> None:
    row = QuotaOverride(**{"subject": "user:42", "rate": "5/m", **given})

    with translation.override("de"), pytest.raises(ValidationError) as caught:
        row.clean()

    (text,) = caught.value.messages
    assert re.findall(r"\b(?:the|is|not|a|use|it|of|and|for|rate)\b", _QUOTED.sub("", text)) == []


RAISING = pytest.mark.parametrize(
    ("read", "text"),
    [
        (parse_override_rates, "10/parsec"),
        (override_subject, "user:"),
        (override_subject, "ip:203.0.113.0/99"),
        (lambda value: counter("views").incr("user:1", value), "7"),
        (lambda value: counter("views").unique("user:1", value == "7"), "7"),
        (lambda day: counter("views").get("user:1", day=day), "today"),
        (released_late, "export"),
        (lambda rate: Rule.from_setting("api", rate), "10/parsec"),
        (lambda rate: Rule.from_setting("api", {"rate": {"pro": rate}}), "10/parsec"),
        (lambda option: Rule.from_setting("api", {option: 5}), "burst"),
        (lambda tz: Rule.from_setting("api", {"rate": "5/m", "tz": tz}), "UTC"),
    ],
    ids=[
        *("rate", "subject", "network", "amount", "value", "day", "lost lease"),
        *("rule", "tier", "no rate", "algorithm"),
    ],
)
"""Calls that raise, each with what is wrong in it."""


@pytest.mark.parametrize("language", LANGUAGES)
@RAISING
def test_an_error_is_translated_for_its_reader(read: Any, text: str, language: str) -> None:
    with pytest.raises(QuotaError) as caught:
        read(text)

    with translation.override("en"):
        english = error_in_words(caught.value)
    with translation.override(language):
        translated = error_in_words(caught.value)

    assert english == str(caught.value)
    assert translated != english


@pytest.mark.parametrize("language", LANGUAGES)
@RAISING
def test_an_error_is_english_in_logs(read: Any, text: str, language: str) -> None:
    with pytest.raises(QuotaError) as caught:
        read(text)
    english = str(caught.value)

    with translation.override(language):
        assert str(caught.value) == english


def test_the_error_of_a_rate_of_a_ban_is_translated_as_a_whole() -> None:
    with pytest.raises(QuotaError) as caught:
        Rule.make("api", "5/m", ban={"after": "20/month", "for": "1h"})

    with translation.override("zh-hans"):
        translated = error_in_words(caught.value)

    assert re.findall(r"[A-Za-z]{3,}", _QUOTED.sub("", translated)) == ["ban"]  # the name of the option


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_network_that_is_smaller_than_a_client_is_reported_in_the_language(language: str) -> None:
    small = smaller_hint("ip:2001:db8::/96", {(4, 32), (6, 64)})

    with translation.override(language):
        translated = smaller_hint("ip:2001:db8::/96", {(4, 32), (6, 64)})

    assert "is smaller than a /64" in small
    assert translated not in ("", small)


@pytest.mark.usefixtures("database")
def test_a_question_says_in_the_language_which_override_keeps_a_rule_from_being_raised() -> None:
    QuotaOverride.objects.create(subject="user:42", rule="window", mode="exempt")
    client = superuser(headers={"accept-language": "de"})

    page = client.get("/admin/django_quota/subject/action/raise/", {"subject": "user:42", "on": "window"})

    assert "eine Sonderregel ist in Kraft: befreit" in words(page.content.decode())


BROKEN = {"rate": "10/parsec", "tier": {"rate": {"pro": "many"}}, "unrated": {"key": "ip"}, "bucket": {"rate": 5}}


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("page", ["rule", "subject"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_page_says_in_the_language_why_a_rule_cannot_be_read(name: str, page: str, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {name: BROKEN[name]}}
    client = superuser(headers={"accept-language": "zh-hans"})
    if page == "rule":
        said = client.get(f"{LIST}rule/?name={name}").context["problem"]
    else:
        said = client.get("/admin/django_quota/subject/?subject=user:42").context["snapshot"].unread[name]
    assert {*re.findall(r"[A-Za-z]{3,}", _QUOTED.sub("", said))} <= {"QUOTA", "int"}  # names in Python


@pytest.mark.usefixtures("memory_store")
def test_the_page_of_a_refusal_without_a_language_is_english(rf: Any) -> None:
    with translation.override(None):
        page: Any = quota("0/m")(lambda _: None)(rf.get("/", headers={"accept": "text/html"}))
    assert b'<html lang="en"' in page.content
