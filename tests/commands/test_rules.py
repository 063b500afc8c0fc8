"""`quota_rules` shows which rules a request meets, in their order, and what they have left."""

import re
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
from django_quota.limiting.override_rows import set_override
from django_quota.testing import freeze
from tests.support import commands
from tests.support.outages import no_answer
from tests.support.steps import START

costly = Mock(side_effect=RuntimeError("a cost is asked for only when something is taken"))
no_tenant = Mock(side_effect=RuntimeError("no tenant"))


def host_of(request: Any) -> str:
    return str(request.get_host())


def by_name(request: Any) -> str:
    return f"name:{request.user.get_username() or 'anonymous'}"


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


HERE = "ip:127.0.0.1"


@pytest.mark.parametrize(
    ("words", "rules"),
    [
        pytest.param(["/search/"], ["flood", "outer"], id="by GET"),
        pytest.param(["/search/?q=1"], ["flood", "outer"], id="with a query"),
        pytest.param(
            ["/search/", "--method", "post"], ["flood", "outer", "inner"], id="by POST, which more rules limit"
        ),
        pytest.param(["/orders/"], ["flood", "orders", "reads"], id="a class by GET"),
        pytest.param(["/orders/", "--method", "HEAD"], ["flood", "orders", "reads"], id="a class by HEAD"),
        pytest.param(["/orders/", "--method", "POST"], ["flood", "orders", "writes"], id="a class by POST"),
        pytest.param(["/orders/", "--method", "PUT"], ["flood", "orders", "writes"], id="a class by another name"),
        pytest.param(["/nowhere/"], ["flood"], id="to no URL of the site"),
    ],
)
def test_the_rules_that_a_request_meets_are_shown_in_their_order(words: list[str], rules: list[str]) -> None:
    assert [rule for rule, _, _ in met(*words)] == rules


def test_each_rule_shows_what_is_left() -> None:
    check("flood", HERE, 40)

    assert met("/search/") == [("flood", HERE, 60), ("outer", HERE, 3)]


def test_each_path_of_a_rule_is_shown(settings: Any) -> None:
    match = {"path": ["/orders/", "/items/"], "host": "testserver"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"shop": {"rate": "10/m", "match": match}}}

    rows = {row["rule"]: row for row in said("--json")}

    assert rows["shop"]["match"] == ["/orders/", "/items/", "host:testserver"]


def test_each_rate_of_a_rule_is_shown_with_what_is_left_of_it(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"both": {"rate": "10/m; 1000/h", "match": "/"}}}
    check("both", HERE, 4)

    assert said("/nowhere/").startswith(
        f"both (settings) for {HERE}\n  10/m: 6 of 10 left\n  1000/h: 996 of 1,000 left\n"
    )


def test_a_rule_of_a_view_says_so() -> None:
    assert f"outer (view) for {HERE}\n  3/m: 3 of 3 left\n" in said("/search/")
    assert [row["from"] for row in said("/search/", "--json")] == ["settings", "view"]


@pytest.mark.parametrize("words", [[], ["/search/"]], ids=["all rules", "a request"])
def test_a_note_says_that_nothing_is_limited(words: list[str], settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "ENABLED": False}

    note = said(*words).splitlines()[-1]

    assert note == "Limits are switched off (ENABLED is false), so everything is allowed."


def test_a_subject_that_is_blocked_for_good_is_never_admitted(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"only": {"rate": "9/m", "match": "/"}}}
    set_override("*", HERE, {"mode": "blocked"})

    assert "(never admitted, blocked)\n" in said("/nowhere/")


def test_showing_the_rules_takes_nothing() -> None:
    for _ in range(2):
        met("/orders/")

    assert peek("orders", HERE).remaining == 9


def test_the_address_of_the_client_can_be_given() -> None:
    assert met("/nowhere/", "--ip", "203.0.113.9") == [("flood", "ip:203.0.113.9", 100)]


def test_the_user_can_be_given_by_name() -> None:
    ann = User.objects.create_user("ann")

    subjects = {rule: subject for rule, subject, _ in met("/search/", "--user", "ann")}

    assert subjects == {"flood": HERE, "outer": f"user:{ann.pk}"}


def test_a_ban_is_shown_with_the_time_that_is_left() -> None:
    check("flood", HERE, 40)

    with freeze(START):
        ban("flood", HERE, 600)
        shown = said("/search/")

    assert f"flood (settings) for {HERE}\n  100/m: 60 of 100 left (refused for 10 minutes, banned)" in shown


def test_a_note_says_that_no_url_of_the_site_has_this_path() -> None:
    *_, note = said("/nowhere/").splitlines()

    assert note == "Note: no URL of the site is '/nowhere/', so only configured rules apply."


def test_a_rule_whose_key_fails_is_shown_with_the_error(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"tenant": {"rate": "9/m", "match": "/", "key": no_tenant}}}

    assert "tenant (settings): not known, RuntimeError: no tenant\n" in said("/search/")


@pytest.mark.parametrize(
    ("rule", "shown"),
    [
        pytest.param({"rate": None}, "only (settings) for ip:127.0.0.1\n  unlimited\n", id="no rate"),
        pytest.param({"rate": "0/m"}, "  0/m: 0 of 0 left (never admitted)\n", id="nothing is admitted"),
        pytest.param({"rate": "9/m", "shadow": True}, "  9/m: 9 of 9 left (a shadow rule)\n", id="a shadow rule"),
        pytest.param({"rate": "2000/m"}, "  2000/m: 2,000 of 2,000 left\n", id="a large number"),
        pytest.param(
            {"rate": {"anonymous": None, "authenticated": "9/m"}, "daily": True},
            "  unlimited: 0 used\n",
            id="a tier without a limit",
        ),
    ],
)
def test_a_rule_that_is_no_plain_limit_is_shown_in_words(rule: dict[str, Any], shown: str, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"only": {"match": "/", **rule}}}

    assert shown in said("/nowhere/")


@pytest.mark.parametrize(
    ("hosts", "words", "host"),
    [
        pytest.param([], [], "localhost", id="none"),
        pytest.param(["*"], [], "localhost", id="any"),
        pytest.param(["shop.example", "b.example"], [], "shop.example", id="the first that is allowed"),
        pytest.param(["*", "shop.example"], [], "shop.example", id="the first that is a name"),
        pytest.param([".shop.example"], [], "shop.example", id="a domain with its subdomains"),
        pytest.param(["shop.example", "b.example"], ["--host", "b.example"], "b.example", id="the host that is given"),
    ],
)
def test_the_request_is_to_a_host_that_the_site_allows(
    hosts: list[str], words: list[str], host: str, settings: Any
) -> None:
    settings.ALLOWED_HOSTS = hosts
    settings.DEBUG = not hosts  # as Django allows localhost
    settings.QUOTA = {**settings.QUOTA, "RULES": {"only": {"rate": "9/m", "match": "/", "key": host_of}}}

    ((_, subject, _),) = met("/nowhere/", *words)

    assert subject.rpartition(":")[2] == host


def test_json_has_each_limit_of_a_rule(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"only": {"rate": "9/m", "match": "/"}}}
    limit = {"rate": "9/m", "used": 0, "limit": 9, "remaining": 9, "retry_after": 0.0, "why": "", "shadow": False}

    (row,) = said("/nowhere/", "--json")

    assert row == {"rule": "only", "from": "settings", "subject": HERE, "limits": [limit], "problem": ""}


def test_a_request_that_nothing_limits_is_told_so(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {}}

    assert "No rule applies to this request.\n" in said("/nowhere/")


def test_a_rule_by_a_field_of_the_query_sees_it(settings: Any) -> None:
    rule = {"rate": "9/m", "match": "/", "key": "get:q"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"only": rule}}

    ((_, one, _),), ((_, two, _),) = met("/nowhere/?q=1"), met("/nowhere/?q=2")

    assert one != two


def test_a_request_of_nobody_has_a_user_who_is_not_logged_in(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"only": {"rate": "9/m", "match": "/", "key": by_name}}}

    ((_, subject, _),) = met("/nowhere/")

    assert subject.endswith(":name:anonymous")


def test_a_rule_from_which_the_request_is_exempt_is_left_out(settings: Any) -> None:
    rule = {"rate": "9/m", "match": "/", "exempt": "127.0.0.0/8"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"only": rule, "each": {"rate": "9/m", "match": "/"}}}

    assert [rule for rule, _, _ in met("/nowhere/")] == ["each"]


def test_a_note_says_that_the_memory_of_other_processes_is_not_seen(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory"}

    assert 'Note: QUOTA["STORE"] is "memory", so what other processes have used is not seen.' in said("/search/")


def test_a_store_that_does_not_answer_is_an_error() -> None:
    with no_answer(), pytest.raises(CommandError, match="it did not report what the limits have left"):
        said("/nowhere/")


def test_a_quiet_command_prints_what_was_asked_for() -> None:
    assert "flood (settings)" in said("/nowhere/", "--verbosity", "0")


class TestAllRules:
    """Without a path."""

    def test_every_rule_of_the_site_is_listed(self) -> None:
        rules = {"flood", "orders", "idle", "outer", "inner", "reads", "writes"}

        assert {row["rule"] for row in said("--json")} == rules

    @pytest.mark.parametrize(
        "line",
        [
            pytest.param("flood: 100/m by ip, at /\n", id="of the settings"),
            pytest.param("reads: 4/m by ip\n", id="of a view"),
        ],
    )
    def test_a_line_says_rate_key_place(self, line: str) -> None:
        assert line in said()

    @pytest.mark.parametrize(
        "row",
        [
            pytest.param({"rule": "flood", "rate": "100/m", "key": "ip", "match": ["/"]}, id="of the settings"),
            pytest.param({"rule": "outer", "rate": "3/m", "key": "user", "match": []}, id="of a view"),
        ],
    )
    def test_json_has_each_rule(self, row: dict[str, Any]) -> None:
        assert row in said("--json")

    def test_a_rule_that_cannot_be_read_is_listed_with_the_error(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"wrong": "10/x"}}

        assert re.search(r"^wrong: .*'x' is not a unit", said(), re.MULTILINE)

    def test_a_rule_that_cannot_be_read_has_its_problem_in_json(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"wrong": "10/x"}}

        (row,) = [row for row in said("--json") if row["rule"] == "wrong"]

        assert (list(row), "'x' is not a unit" in row["problem"]) == (["rule", "problem"], True)

    def test_a_line_has_each_rate_and_each_place(self, settings: Any) -> None:
        rule = {"rate": ["9/m", "90/h"], "match": ["/a/", "/b/"], "key": ("ip", "path")}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"wide": rule, "free": None}}

        lines = said().splitlines()

        assert lines[:2] == ["wide: 9/m; 90/h by ip, path, at /a/, /b/", "free: unlimited by ip"]

    def test_a_quiet_command_prints_what_was_asked_for(self) -> None:
        assert "flood: 100/m by ip, at /\n" in said("--verbosity", "0")


BAD_INPUT = {
    "no slash": ("search/", "'search/' is not a path. Begin it with a slash: /search/"),
    "unknown user": ("/search/ --user nobody", "--user 'nobody' is not the name, e-mail address or key of a user."),
    "several users": (
        "/search/ --user a@shop.example",
        "--user 'a@shop.example' is one of several users. Use a key: 41, 42.",
    ),
    "no address": ("/search/ --ip nowhere", "--ip 'nowhere' is not an IP address. Use, for example, 203.0.113.9."),
    "host not allowed": (
        "/search/ --host evil.example",
        "Invalid HTTP_HOST header: 'evil.example'. You may need to add 'evil.example' to ALLOWED_HOSTS.",
    ),
    "no path": ("--user ann", "--user needs a PATH, for example quota_rules /search/ --user ann."),
}


@pytest.mark.parametrize(("words", "error"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_an_error(words: str, error: str, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["localhost"]
    for key, name in ((41, "ann"), (42, "bob")):
        User.objects.create_user(name, "a@shop.example", pk=key)

    with pytest.raises(CommandError) as caught:
        said(*words.split())

    assert str(caught.value) == error
