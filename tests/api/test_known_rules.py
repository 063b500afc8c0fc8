"""The rules that a project is known to have, by name, and what else is known of them before anything is counted."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import path

from django_quota import Rule, quota
from django_quota.core.algorithms import ALGORITHMS
from django_quota.exceptions import RateError, RuleError
from django_quota.limiting import known_rules as known
from django_quota.limiting.known_rules import known_rule, known_rules, rules_named


@quota("7/month", key="user", name="viewed", algorithm="calendar")
def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@quota("7/m", key="ip/16", name="search")
def same_name(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("view/", view), path("same/", same_name)]

RULES: dict[str, Any] = {
    "search": {"rate": "10/m", "key": "ip"},
    "calls": "10/m",
    "months": {"rate": "5/month", "algorithm": "calendar"},
    "kept": {"rate": "5/month", "algorithm": "calendar", "store": "database"},
    "wrong": "10/fortnight",
}


@pytest.fixture(autouse=True)
def site(memory_store: None, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}
    settings.ROOT_URLCONF = __name__


def test_the_known_rules_are_those_of_the_settings_and_of_the_views() -> None:
    found = known_rules()

    assert list(found)[: len(RULES)] == list(RULES)
    assert isinstance(found["viewed"], Rule)


def test_a_rule_of_the_settings_precedes_one_of_a_view() -> None:
    rule = known_rules()["search"]

    assert isinstance(rule, Rule)
    assert str(rule.rates[0]) == "10/m"


def test_a_rule_that_cannot_be_read_is_known_with_the_reason() -> None:
    wrong = known_rules()["wrong"]

    assert isinstance(wrong, str)
    assert "10/fortnight" in wrong


def test_a_number_as_the_name_of_a_rule_is_known_as_a_string(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {5: "10/m"}}

    assert set(known_rules()) == {"5", "search", "viewed"}


def test_a_site_without_urls_knows_the_rules_of_its_settings(settings: Any) -> None:
    del settings.ROOT_URLCONF

    assert list(known_rules()) == list(RULES)


def test_the_long_rules_are_those_of_months_that_do_not_count_in_the_database() -> None:
    assert known.long_rules() == ["months", "viewed"]


def test_the_keys_are_known_of_rules_of_requests_alone() -> None:
    found = known.known_keys()

    assert {name: list(map(str, keys)) for name, keys in found.items()} == {"search": ["ip"], "viewed": ["user"]}


def test_the_keys_are_known_of_a_rule_for_paths_and_without_what_a_rule_counts(settings: Any) -> None:
    devices = {"rate": "9/d", "key": "user", "distinct": "header:X-Device"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"paths": {"rate": "9/m", "match": "/api/"}, "devices": devices}}

    found = known.known_keys()

    assert (found["paths"], found["devices"]) == (["ip"], ["user"])


def test_clients_count_by_addresses_and_by_the_networks_of_the_rules(settings: Any) -> None:
    nets = {"fours": {"rate": "9/m", "key": "ip/16"}, "both": {"rate": "9/m", "key": "ip/24,48"}}
    settings.QUOTA = {**settings.QUOTA, "RULES": {**RULES, **nets}}

    assert known.known_sizes() == {(4, 32), (4, 24), (4, 16), (6, 64), (6, 48)}


@pytest.mark.parametrize(
    ("given", "name", "rate"),
    [
        pytest.param("search", "search", "10/m", id="a rule of the settings"),
        pytest.param("viewed", "viewed", "7/month", id="a rule of a view"),
        pytest.param("20/h", "20/h", "20/h", id="a rate"),
        pytest.param(Rule.make("own", "3/m"), "own", "3/m", id="a rule"),
    ],
)
def test_a_rule_can_be_named_by(given: Any, name: str, rate: str) -> None:
    rule = known_rule(given)

    assert (rule.name, str(rule.rates[0])) == (name, rate)


@pytest.mark.parametrize("given", ["user:42", "ip:203.0.113.9", "org-1.a_b:7"])
def test_a_subject_in_the_place_of_a_rule_is_named(given: str) -> None:
    with pytest.raises(RuleError) as caught:
        known_rule(given)

    assert str(caught.value) == (
        f"'{given}' is a subject, not a rule or a rate. Calls take the rule first, then the subject: "
        "check('10/m', 'user:42')."
    )


@pytest.mark.parametrize(("given", "kind"), [(5, "int"), (["10/m"], "list")], ids=["a number", "a list"])
def test_a_value_in_the_place_of_a_rule_that_is_not_a_string_is_an_error_of_the_rate(given: Any, kind: str) -> None:
    with pytest.raises(RateError, match=f"is not a rate: it is {kind}, not a string"):
        known_rule(given)


def test_of_a_long_subject_in_the_place_of_a_rule_the_error_shows_both_ends() -> None:
    with pytest.raises(RuleError) as caught:
        known_rule("user:" + "7" * 99)

    assert str(caught.value).startswith("'user:7777777...7777777777777' is a subject, not a rule or a rate. ")


@pytest.mark.parametrize(
    ("given", "near"),
    [("serch", "search"), ("vieved", "viewed")],
    ids=["that of a rule of the settings", "that of a rule of a view"],
)
def test_an_unknown_name_is_an_error_with_the_nearest_name(given: str, near: str) -> None:
    with pytest.raises(RuleError) as caught:
        known_rule(given)

    assert str(caught.value) == (
        f"'{given}' is not a rate, nor a rule of the settings or the views. Did you mean '{near}'? For a rule "
        f"that only a call names, pass it: Rule.make('{given}', rate)."
    )


def test_a_name_that_is_almost_a_rate_is_an_error_of_the_rate() -> None:
    with pytest.raises(RateError) as caught:
        known_rule("10/fortnight")

    assert caught.value.text == "10/fortnight"


@pytest.mark.parametrize(
    ("given", "is_subject"),
    [
        ("user:42", True),
        ("User:42", False),
        ("search", False),
        ("10/m", False),
        (":42", False),
        (SimpleNamespace(pk=7), True),
        (RequestFactory().get("/"), True),
        (42, False),
        (None, False),
    ],
    ids=["a subject", "a large letter", "a name", "a rate", "no kind", "a user", "a request", "a number", "nothing"],
)
def test_a_subject_is_known_by_its_looks(given: Any, is_subject: bool) -> None:
    assert known.looks_like_subject(given) is is_subject


def test_a_rate_as_a_name_means_a_rule_of_each_algorithm_that_takes_it() -> None:
    windows, months = rules_named("10/m"), rules_named("5/month")

    assert isinstance(windows, list)
    assert isinstance(months, list)
    assert {rule.name for rule in windows} == {"10/m"}
    assert sorted(rule.algorithm for rule in windows) == sorted(ALGORITHMS)
    assert [rule.algorithm for rule in months] == ["calendar"]


@pytest.mark.parametrize("name", ["nothing", "10 per minute"], ids=["not a rate", "another spelling"])
def test_a_name_that_is_not_a_rate_means_no_rule(name: str) -> None:
    assert rules_named(name) == (
        "neither the settings nor the views have this name, and it does not contain the rate and options"
    )


def test_a_finder_adds_rules_of_an_integration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "rule_finders", [*known.rule_finders])
    seen: list[int] = []

    def find(patterns: Any) -> list[Rule]:
        seen.append(len(list(patterns)))
        return [Rule.make("integrated", "3/m")]

    assert known.register_rule_finder(find) is find
    names = [list(known_rules()) for _ in range(2)]

    assert ["integrated" in found for found in names] == [True, True]
    assert seen == [2]  # the views are read once


def test_a_finder_that_the_views_register_when_they_are_loaded_is_asked_at_once(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "rule_finders", [])

    class Urls:
        @property
        def urlpatterns(self) -> list[Any]:
            if not known.rule_finders:
                known.register_rule_finder(lambda _: [Rule.make("integrated", "3/m")])
            return []

    settings.ROOT_URLCONF = Urls()

    assert "integrated" in known_rules()
