"""The page of bans: it lists, finds and lifts the bans of all subjects, and shows those that began recently."""

import json
import re
from datetime import UTC, datetime
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from django_quota import Rule, ban, check, peek, unban
from django_quota.admin import bans as page_of_bans
from django_quota.core.errors import StoreUnavailable
from django_quota.features import bans as service
from django_quota.models import DailyCounter, QuotaOverride
from django_quota.operating.lookup import parse_subject_input
from django_quota.testing import server_programs
from tests.admin.operators import operator, superuser
from tests.admin.texts import NO_ANSWER, messages_of
from tests.support.stores import caches

PAGE = "/admin/django_quota/ban/"
OVERVIEW = "/admin/django_quota/overview/"
SUBJECT = "ip:203.0.113.9"
MODEL = "django.contrib.auth.backends.ModelBackend"
OPTIONS = {"rate": "9/m", "ban": {"after": "9/m", "for": ["10m", "1h"]}}


@pytest.fixture(autouse=True)
def rules(database: Any, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"login": OPTIONS, "search": OPTIONS}}


def words_of(page: str, title: str) -> list[list[str]]:
    """Return the cells of the table below a title, row by row."""
    section = page.split(f"<h2>{title}</h2>")[1].split("</section>", maxsplit=1)[0]
    rows = re.findall(r"<tr>\s*(<th scope=\"row\">.*?)</tr>", section, re.DOTALL)
    words = [[re.sub(r"<[^>]*>", "", cell) for cell in re.split(r"</t[hd]>", row)[:-1]] for row in rows]
    return [[" ".join(unescape(cell).split()) for cell in row] for row in words]


def shown(client: Client, title: str = "Bans in force", **query: Any) -> list[list[str]]:
    answer = client.get(PAGE, query)
    assert answer.status_code == 200
    return words_of(answer.content.decode(), title)


def subjects(client: Client, title: str = "Bans in force", **query: Any) -> list[str]:
    """Return the subjects of a table, as the page shows them."""
    return [row[0] for row in shown(client, title, **query)]


def found(client: Client, text: str, rule: str = "") -> list[str]:
    answer = client.post(PAGE, {"find": text, "rule": rule})
    assert answer.status_code == 302, answer.content.decode()
    page = client.get(answer.url).content.decode()  # type: ignore[attr-defined]
    return [row[0] for row in words_of(page, "Bans in force")]


def offered(client: Client, **query: Any) -> list[str]:
    """Return what the checkboxes of the list send."""
    page = client.get(PAGE, query).content.decode()
    return [unescape(value) for value in re.findall(r'name="ban" value="([^"]*)"', page)]


def pair(subject: str, rule: str = "login") -> str:
    return json.dumps([subject, rule])


def lift(client: Client, *pairs: str, **given: Any) -> str:
    """Select bans, confirm, and return what the question and the answer said."""
    question = client.post(f"{PAGE}lift/", {"ban": pairs, **given}).content.decode()
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', question))

    answer = client.post(f"{PAGE}lift/", {name: unescape(value) for name, value in fields.items()}, follow=True)

    assert answer.redirect_chain[-1][0].partition("?")[0] == PAGE
    return question + answer.content.decode()


def banned_ann() -> str:
    """Ban Ann from two rules, and somebody else from one; return Ann's subject."""
    ann = f"user:{User.objects.create_user('ann').pk}"
    for banned, rule in ((ann, "login"), (ann, "search"), (SUBJECT, "search")):
        ban(rule, banned, "10m")
    return ann


@pytest.mark.usefixtures("either_store")
class TestInEachStore:
    @pytest.fixture(autouse=True)
    def ann(self, rules: None, either_store: None) -> str:
        return banned_ann()

    @pytest.mark.parametrize(
        ("text", "number"), [("203.0.113.9", 1), ("ann", 2)], ids=["a bare address", "the name of a user"]
    )
    def test_a_search_finds_all_bans_of_a_subject(self, text: str, number: int, ann: str) -> None:
        shown_as = {"203.0.113.9": SUBJECT, "ann": f"ann ({ann})"}[text]

        assert found(superuser(), text) == [shown_as] * number

    def test_the_bans_of_a_subject_are_listed_by_rule_with_their_level(self, ann: str) -> None:
        rows = shown(superuser(), subject=ann)

        assert sorted((row[1], row[4]) for row in rows) == [("login", "First ban"), ("search", "First ban")]

    def test_a_row_says_when_the_ban_ends(self, ann: str) -> None:
        rows = shown(superuser(), subject=ann)

        assert [row[3] for row in rows if not re.search(r", 20\d\d, .* (UTC|\w{3,4})$", row[3])] == []

    def test_a_confirmed_lift_ends_the_selected_bans(self, ann: str) -> None:
        client = superuser()

        page = lift(client, *offered(client, subject=ann), subject=ann)

        assert "This ends 2 bans." in page
        assert "2 bans were lifted." in page
        assert peek("login", ann)
        assert peek("search", ann)


@pytest.mark.usefixtures("listing_store")
@pytest.mark.parametrize(
    ("query", "rule"),
    [pytest.param({}, "old", id="of a ban"), pytest.param({"rule": "never"}, "never", id="that is asked for")],
)
def test_the_search_offers_a_rule_that_the_settings_do_not_have(query: dict[str, str], rule: str) -> None:
    ban(Rule.make("old", OPTIONS["rate"], ban=OPTIONS["ban"]), SUBJECT, "10m")

    page = superuser().get(PAGE, query).content.decode()

    assert f'<option value="{rule}"' in page


@pytest.mark.usefixtures("memory_store")
class TestLifting:
    @pytest.fixture(autouse=True)
    def ann(self, rules: None, memory_store: None) -> str:
        return banned_ann()

    def test_the_question_lifts_nothing(self, ann: str) -> None:
        superuser().post(f"{PAGE}lift/", {"ban": pair(ann)})

        assert not peek("login", ann)

    def test_a_lift_leaves_the_bans_of_others(self, ann: str) -> None:
        lift(superuser(), pair(ann), pair(ann, "search"))

        assert not peek("search", SUBJECT)

    def test_a_lifted_ban_is_no_longer_listed(self, ann: str) -> None:
        client = superuser()

        lift(client, pair(ann), pair(ann, "search"))

        assert found(client, "ann") == []

    def test_a_ban_that_is_gone_hides_no_other_that_is_lifted(self, ann: str) -> None:
        unban("*", ann)

        answer = lift(superuser(), pair(ann), pair(SUBJECT, "search"))

        assert "1 ban was lifted." in answer
        assert "None of these bans" not in answer

    def test_a_ban_that_is_gone_cannot_be_lifted(self, ann: str) -> None:
        unban("*", ann)

        assert "None of these bans was in force any more." in lift(superuser(), pair(ann))

    @pytest.mark.parametrize("rule", ["api:v2", "two words", "50%", "größer"])
    def test_a_ban_of_a_rule_with_any_name_can_be_lifted(self, rule: str, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {rule: OPTIONS}}
        ban(rule, SUBJECT, "10m")

        assert "1 ban was lifted." in lift(superuser(), pair(SUBJECT, rule))
        assert peek(rule, SUBJECT)

    def test_a_lift_is_logged_once_for_the_subject(self, ann: str) -> None:
        lift(superuser(), pair(ann), pair(ann, "search"))

        entry = LogEntry.objects.get()
        assert (entry.object_id, entry.change_message) == (ann, "Lift ban: 2 bans were lifted.")

    def test_a_ban_that_was_gone_is_not_logged(self, ann: str) -> None:
        unban("*", ann)

        lift(superuser(), pair(ann))

        assert not LogEntry.objects.exists()

    @pytest.mark.parametrize(
        "bans",
        ["[", "7", "[7]", '[["a"]]', "[[null, null]]", pytest.param("[" * 100_000, id="brackets without an end")],
    )
    def test_a_form_that_names_no_ban_is_refused(self, bans: str) -> None:
        answer = superuser().post(f"{PAGE}lift/", {"bans": bans, "confirmed": "yes"}, follow=True)

        assert messages_of(answer) == [("error", "The request names no ban.")]

    def test_a_form_that_names_no_ban_leads_back_to_the_filter(self) -> None:
        fields = {"bans": "[7]", "confirmed": "yes", "subject": SUBJECT, "rule": "login"}

        answer = superuser().post(f"{PAGE}lift/", fields)

        assert answer["Location"] == f"{PAGE}?subject={quote(SUBJECT)}&rule=login"

    def test_only_the_bans_that_were_in_force_are_counted(self, ann: str) -> None:
        unban("search", ann)

        page = lift(superuser(), pair(ann), pair(ann, "search"))

        assert "1 ban was lifted." in page
        assert LogEntry.objects.get().change_message == "Lift ban: 1 ban was lifted."

    def test_a_form_without_a_ban_says_what_to_do(self) -> None:
        answer = superuser().post(f"{PAGE}lift/", {"confirmed": "yes", "rule": "login"}, follow=True)

        assert messages_of(answer) == [("warning", "Select the bans to lift.")]
        assert answer.redirect_chain == [(f"{PAGE}?rule=login", 302)]

    def test_a_wrong_subject_in_the_filter_is_refused(self) -> None:
        answer = superuser().post(f"{PAGE}lift/", {"subject": "ip:nowhere", "all": "1"}, follow=True)

        assert messages_of(answer) == [
            ("error", "'ip:nowhere' is not an IP address. Use, for example, 'ip:203.0.113.9'.")
        ]
        assert answer.redirect_chain == [(PAGE, 302)]

    def test_a_lift_leads_back_to_the_filter(self, ann: str) -> None:
        fields = {"bans": f"[{pair(ann)}]", "confirmed": "yes", "subject": [ann, SUBJECT], "rule": "login"}

        answer = superuser().post(f"{PAGE}lift/", fields)

        assert answer["Location"] == f"{PAGE}?subject={quote(ann)}&subject={quote(SUBJECT)}&rule=login"

    def test_a_block_beside_a_ban_of_the_same_subject_is_counted_with_it(self, ann: str) -> None:
        for rule in ("login", "search"):
            block(ann, rule=rule)
        rows = [json.dumps([ann, "login", True]), json.dumps([ann, "search", True]), pair(ann)]

        answer = lift(superuser(), *rows)

        assert "3 bans were lifted." in answer
        assert LogEntry.objects.get().change_message == "Lift ban: 3 bans were lifted."

    def test_the_block_of_a_network_can_be_lifted(self) -> None:
        block("ip:198.51.100.0/24")

        assert "1 ban was lifted." in lift(superuser(), '["ip:198.51.100.0/24", "*", true]')
        assert not QuotaOverride.objects.exists()

    def test_a_block_that_has_ended_is_not_lifted(self) -> None:
        block(SUBJECT, expires=datetime(2001, 1, 1, tzinfo=UTC))

        assert "None of these bans was in force any more." in lift(superuser(), json.dumps([SUBJECT, "*", True]))
        assert QuotaOverride.objects.exists()


@pytest.fixture(params=["redis", "sqlite"])
def listing_store(request: pytest.FixtureRequest, rules: None, started: Any, settings: Any) -> None:
    """A store with a list of bans, and with events."""
    if request.param == "redis":
        server = started(server_programs()[0])
        settings.CACHES = caches(server)
        with redis.Redis.from_url(server.url) as raw:
            raw.flushall()
    else:
        alias = request.getfixturevalue("states_on_sqlite")
        settings.QUOTA = {**settings.QUOTA, "STORE": "database", "DATABASE": alias}


@pytest.mark.usefixtures("listing_store")
class TestManyBans:
    @pytest.fixture(autouse=True)
    def five_bans(self, listing_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two on a page."""
        monkeypatch.setattr(page_of_bans, "PER_PAGE", 2)
        for number in range(5):
            ban("login", f"ip:192.0.2.{number}", 600 + number)

    @pytest.fixture
    def room_for_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (service, page_of_bans):
            monkeypatch.setattr(module, "MOST_BANS", 1)

    @pytest.mark.parametrize(("number", "numbers"), [(1, [0, 1]), (2, [2, 3]), (3, [4])])
    def test_a_page_has_the_next_to_end(self, number: int, numbers: list[int]) -> None:
        assert subjects(superuser(), p=number, rule="login") == [f"ip:192.0.2.{each}" for each in numbers]

    @pytest.mark.parametrize(
        ("query", "link"),
        [
            pytest.param("p=2&rule=login", "?rule=login&amp;p={}", id="a search"),
            pytest.param("p=2", "?&amp;p={}", id="all bans"),
        ],
    )
    def test_a_page_leads_to_those_beside_it_of_the_same_search(self, query: str, link: str) -> None:
        page = superuser().get(f"{PAGE}?{query}").content.decode()

        assert "Page 2 of 3" in page
        assert f'<a href="{link.format(1)}">Previous</a>' in page
        assert f'<a href="{link.format(3)}">Next</a>' in page

    def test_a_row_names_who_set_a_ban_before_those_of_the_history(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(page_of_bans, "PER_PAGE", 1)
        ban("login", SUBJECT, 60, by=User.objects.create_user("ann"))
        ban("login", "user:7", 700)

        (row,) = shown(superuser())

        assert (row[0], row[5]) == (SUBJECT, "by ann")

    @pytest.mark.usefixtures("room_for_one")
    def test_of_more_bans_than_are_listed_the_first_to_end_are_shown(self) -> None:
        client = superuser()

        assert subjects(client) == ["ip:192.0.2.0"]
        words = "Of 5 bans, this list has only the 1 that end first. A search for a subject finds all its bans."
        assert words in client.get(PAGE).content.decode()

    @pytest.mark.usefixtures("room_for_one")
    def test_a_search_finds_a_ban_that_is_not_listed(self) -> None:
        assert found(superuser(), "ip:192.0.2.4") == ["ip:192.0.2.4"]


@pytest.mark.usefixtures("listing_store")
def test_a_store_without_events_has_no_list_of_bans(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}

    page = superuser().get(PAGE).content.decode()

    assert "EVENTS is 0, so there is no list of bans. Find those of a subject." in page
    assert "Nobody is banned." not in page


@pytest.mark.usefixtures("listing_store")
class TestListing:
    """Of a ban by the limiter, for 20 minutes, and one in code, for 10."""

    @pytest.fixture(autouse=True)
    def two_bans(self, listing_store: None) -> None:
        for _ in range(4):
            check("2/m", SUBJECT, name="strict", ban={"after": "2/m", "for": ["20m"]})
        ban("login", "user:7", "10m")

    def test_the_first_to_end_is_first(self) -> None:
        assert [row[:2] for row in shown(superuser())] == [["user:7", "login"], [SUBJECT, "strict"]]

    def test_a_row_says_when_the_ban_began(self) -> None:
        assert [row[2] for row in shown(superuser()) if not re.search(r", 20\d\d, ", row[2])] == []

    def test_a_row_says_how_many_bans_there_were(self) -> None:
        assert [row[4] for row in shown(superuser())] == ["First ban", "First ban"]

    @pytest.mark.parametrize(
        "link",
        [
            pytest.param('<a href="/admin/django_quota/subject/?subject=user%3A7">user:7</a>', id="the subject"),
            pytest.param('<a href="/admin/django_quota/quotaoverride/rule/?name=strict">strict</a>', id="the rule"),
        ],
    )
    def test_a_row_has_links(self, link: str) -> None:
        assert link in superuser().get(PAGE).content.decode()

    def test_the_history_shows_what_became_of_each_ban(self) -> None:
        unban("*", "user:7")
        for span in ("30m", "40m"):
            ban("login", SUBJECT, span)

        assert [(row[0], row[6]) for row in shown(superuser(), "History")] == [
            (SUBJECT, "in force"),
            (SUBJECT, "replaced by a newer one"),
            ("user:7", "lifted"),
            (SUBJECT, "in force"),
        ]

    def test_the_history_is_as_long_as_a_page(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_quota.admin.bans.PER_PAGE", 2)
        for number in range(3):
            ban("login", f"user:{number}", "10m")

        assert len(subjects(superuser(), "History")) == 2

    def test_the_history_can_be_that_of_one_subject(self) -> None:
        assert subjects(superuser(), "History", subject="user:7") == ["user:7"]


@pytest.mark.usefixtures("listing_store")
class TestSubjectTooLongToKeep:
    @pytest.fixture(autouse=True)
    def banned(self, listing_store: None) -> None:
        ban("login", "é" * 200, "10m")

    @pytest.mark.parametrize("title", ["Bans in force", "History"])
    def test_it_is_listed_without_its_name(self, title: str) -> None:
        assert subjects(superuser(), title) == ["a name too long to keep"]

    def test_it_cannot_be_selected(self) -> None:
        assert 'type="checkbox"' not in superuser().get(PAGE).content.decode()


@pytest.mark.usefixtures("listing_store")
@pytest.mark.parametrize(
    ("rule", "subject"),
    [pytest.param("login", "é" * 200, id="a subject"), pytest.param("é" * 200, "user:7", id="a rule")],
)
def test_a_ban_with_a_name_too_long_to_keep_is_not_offered_to_be_lifted(rule: str, subject: str, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {rule: OPTIONS}}
    ban(rule, subject, "10m")
    settings.QUOTA = {**settings.QUOTA, "RULES": {"login": OPTIONS}}  # a long name of a rule that is gone
    client = superuser()

    assert offered(client) == []
    assert "of this list" not in client.get(PAGE).content.decode()
    answer = client.post(f"{PAGE}lift/", {"all": "1"}, follow=True)
    assert messages_of(answer) == [("warning", "Select the bans to lift.")]


@pytest.mark.usefixtures("listing_store")
def test_a_ban_of_a_rule_with_a_name_too_long_to_keep_can_be_lifted(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"é" * 40: OPTIONS}}
    ban("é" * 40, "user:7", "10m")
    client = superuser()

    (row,) = offered(client)

    assert "1 ban was lifted." in lift(client, row)
    assert shown(client) == []


@pytest.mark.usefixtures("redis_cache")
class TestSearch:
    @pytest.fixture(autouse=True)
    def anna(self, rules: None, redis_cache: Any) -> str:
        """Of three bans: of Anna, of Annika at an address, and of another address. Returns how Anna is shown."""
        anna, annika = (User.objects.create_user(name) for name in ("anna", "annika"))
        ban("login", anna, "10m")
        ban("search", f"user:{annika.pk}+ip:198.51.100.8", "20m")
        ban("login", SUBJECT, "30m")
        return f"anna (user:{anna.pk})"

    @pytest.mark.parametrize(
        ("text", "rule", "banned"),
        [
            pytest.param("anna", "", ["anna"], id="a whole name"),
            pytest.param("ann", "", ["anna", "annika"], id="the beginning of names"),
            pytest.param("ann", "search", ["annika"], id="the beginning of names, with a rule"),
            pytest.param("198.51.100.8", "", ["annika"], id="one part of a subject"),
            pytest.param("113", "", ["address"], id="a part of an address"),
            pytest.param("", "login", ["anna", "address"], id="a rule"),
            pytest.param(" ", "", ["anna", "annika", "address"], id="a blank"),
        ],
    )
    def test_a_search_finds_bans(self, text: str, rule: str, banned: list[str], anna: str) -> None:
        annika = f"annika (user:{User.objects.get(username='annika').pk})+ip:198.51.100.8"
        names = {"anna": anna, "annika": annika, "address": SUBJECT}

        assert found(superuser(), text, rule) == [names[each] for each in banned]

    def test_without_the_permission_to_view_users_no_name_is_found(self) -> None:
        assert found(operator("view_ban"), "anna") == []

    def test_without_the_permission_to_view_users_no_name_is_shown(self) -> None:
        page = operator("view_ban").get(PAGE).content.decode()

        assert f"<span>user:{User.objects.get(username='anna').pk}</span>" in page
        assert "anna" not in page

    def test_the_question_before_a_lift_names_users(self, anna: str) -> None:
        question = superuser().post(f"{PAGE}lift/", {"all": "1", "rule": "login"}).content.decode()

        assert f">{anna}</a>, login" in question

    @pytest.mark.parametrize("part", ['type="checkbox"', "?name=login"], ids=["lifting", "links to rules"])
    def test_what_needs_a_permission_is_hidden_without_it(self, part: str) -> None:
        assert part in superuser().get(PAGE).content.decode()
        assert part not in operator("view_ban").get(PAGE).content.decode()


@pytest.mark.usefixtures("redis_cache")
class TestHiddenValues:
    """Of bans of a failed login and of a header, whose values are kept as digests."""

    LOGIN = "login:username=ann0+ip:198.51.100.8"
    HEADER = "header:X-Api-Key=secret"
    SHOWN_LOGIN = "Failed logins of ann0 at 198.51.100.8"

    @pytest.fixture(autouse=True)
    def two_bans(self, rules: None, redis_cache: Any, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "LOGIN": {"1/10m": ["username", "ip"]}}
        settings.AUTHENTICATION_BACKENDS = ["django_quota.contrib.auth.LoginQuotaBackend", MODEL]
        User.objects.create_user("ann0")
        for text in (self.LOGIN, self.HEADER):
            ban("login", parse_subject_input(text), "10m")

    def fail_to_log_in(self) -> None:
        for _ in range(2):
            Client(REMOTE_ADDR="198.51.100.8").post("/admin/login/", {"username": "ann0", "password": "wrong"})

    def test_a_failed_login_is_shown_by_the_name_of_its_user(self) -> None:
        assert self.SHOWN_LOGIN in subjects(superuser())

    def test_a_header_is_shown_by_the_beginning_of_its_digest(self) -> None:
        (name,) = set(subjects(superuser())) - {self.SHOWN_LOGIN}

        assert re.fullmatch(r"header\.x-api-key:[0-9a-f]{6}…", name)

    @pytest.mark.parametrize(
        ("text", "beginning"),
        [(HEADER, "header.x-api-key:"), ("login:username=ann0", SHOWN_LOGIN)],
        ids=["a header", "the user of a failed login"],
    )
    def test_a_plain_value_finds_the_ban(self, text: str, beginning: str) -> None:
        (name,) = found(superuser(), text)

        assert name.startswith(beginning)

    def test_a_plain_value_is_not_in_the_url(self) -> None:
        assert "secret" not in superuser().post(PAGE, {"find": self.HEADER})["Location"]

    def test_wrong_text_is_an_error_that_does_not_repeat_it(self) -> None:
        wrong = superuser().post(PAGE, {"find": "login:typo=marked"}).content.decode()

        assert "errornote" in wrong
        assert "marked" not in wrong

    def test_the_overview_shows_a_failed_login_by_the_name_of_its_user(self) -> None:
        client = superuser()

        self.fail_to_log_in()

        assert f"{self.SHOWN_LOGIN}</a>" in client.get(OVERVIEW).content.decode()

    def test_daily_counters_show_a_failed_login_by_the_name_of_its_user(self) -> None:
        DailyCounter.objects.create(subject=parse_subject_input(self.LOGIN), rule="login", day="2026-11-21")

        assert f"{self.SHOWN_LOGIN}</a>" in superuser().get("/admin/django_quota/dailycounter/").content.decode()

    def test_without_the_permission_to_view_users_the_overview_has_no_name(self) -> None:
        client = operator("view_overview")

        self.fail_to_log_in()

        assert "ann0" not in client.get(OVERVIEW).content.decode()


@pytest.mark.usefixtures("redis_cache")
class TestLiftingAll:
    @pytest.fixture(autouse=True)
    def bans_of_two_rules(self, rules: None, redis_cache: Any) -> None:
        """25 of one rule, one of another."""
        for number in range(25):
            ban("login", f"ip:192.0.2.{number}", "10m")
        ban("search", SUBJECT, "10m")

    def test_the_list_offers_it(self) -> None:
        assert "Lift all 25 bans of this list" in superuser().get(PAGE, {"rule": "login"}).content.decode()

    def test_the_question_names_twenty(self) -> None:
        question = superuser().post(f"{PAGE}lift/", {"all": "1", "rule": "login"}).content.decode()

        assert "This ends 25 bans." in question
        assert "and 5 more" in question
        assert "Yes: lift 25 bans" in question

    @pytest.mark.thorough("slow")
    def test_all_that_the_search_found_are_lifted(self) -> None:
        client = superuser()

        assert "25 bans were lifted." in lift(client, all="1", rule="login")
        assert [row[:2] for row in shown(client)] == [[SUBJECT, "search"]]

    def test_each_subject_gets_an_entry_in_the_log(self) -> None:
        lift(superuser(), all="1", rule="login")

        assert LogEntry.objects.count() == 25

    def test_blocks_that_the_search_did_not_find_stay(self) -> None:
        block("user:9", rule="search")

        lift(superuser(), all="1", rule="login")

        assert QuotaOverride.objects.get().subject == "user:9"

    def test_as_many_as_a_bound_can_be_lifted_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(page_of_bans, "MAX_LIFTED", 25)

        assert "25 bans were lifted." in lift(superuser(), all="1", rule="login")

    def test_more_than_a_bound_cannot_be_lifted_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(page_of_bans, "MAX_LIFTED", 1)

        answer = superuser().post(f"{PAGE}lift/", {"all": "1", "confirmed": "yes"}, follow=True)

        assert messages_of(answer) == [("error", "You can lift at most 1 bans at once. Filter the list first.")]
        assert not peek("search", SUBJECT)


@pytest.mark.usefixtures("redis_cache")
class TestTrips:
    @pytest.fixture
    def client(self, rules: None, redis_cache: Any) -> Client:
        """A client that has read the page once, with eight bans."""
        for number in range(8):
            ban("login", f"user:{number}", "10m")
        client = superuser()
        client.get(PAGE)
        return client

    def test_the_names_of_all_users_are_one_query(self, client: Client, django_assert_num_queries: Any) -> None:
        with django_assert_num_queries(5):  # two of the admin: who it is; the blocks; the names
            client.get(PAGE)

    def test_the_page_asks_redis_three_times_without_a_scan(self, client: Client, raw: redis.Redis) -> None:
        raw.config_resetstat()

        client.get(PAGE)

        calls = {name: each["calls"] for name, each in raw.info("commandstats").items()}
        assert sum(calls[name] for name in ("cmdstat_zcount", "cmdstat_zrangebyscore", "cmdstat_xrevrange")) == 3
        assert not {"cmdstat_keys", "cmdstat_scan"} & set(calls)


@pytest.mark.usefixtures("redis_cache")
class TestLinkOfTheOverview:
    def test_it_leads_to_the_bans(self) -> None:
        assert f'<dt><a href="{PAGE}">Bans</a></dt>' in superuser().get(OVERVIEW).content.decode()

    def test_it_is_hidden_from_those_who_may_not_see_bans(self) -> None:
        ban("login", SUBJECT, "10m")

        shown = operator("view_overview").get(OVERVIEW).content.decode()

        assert PAGE not in shown
        assert "All bans" not in shown


@pytest.mark.usefixtures("memory_store")
class TestMemoryStore:
    def test_the_page_says_that_it_has_no_list(self) -> None:
        assert "The memory store keeps no list of bans." in superuser().get(PAGE).content.decode()

    def test_the_page_has_a_history(self) -> None:
        check("1/m", "ip:192.0.2.77", ban={"after": "1/m", "for": "1h"})
        check("1/m", "ip:192.0.2.77", ban={"after": "1/m", "for": "1h"})

        history = superuser().get(PAGE).content.decode().partition("Bans that began recently")[2]

        assert "ip:192.0.2.77" in history


@pytest.mark.usefixtures("redis_cache")
class TestEvents:
    def test_the_history_says_that_there_are_none_yet(self) -> None:
        assert "There are no events yet." in superuser().get(PAGE).content.decode()

    @pytest.fixture
    def no_events(self, rules: None, redis_cache: Any, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}
        ban("login", SUBJECT, "10m")

    @pytest.mark.usefixtures("no_events")
    @pytest.mark.parametrize(
        "words",
        [
            "EVENTS is 0, so there is no list of bans.",
            "EVENTS is 0, so no events say when bans began.",
        ],
        ids=["a list", "a history"],
    )
    def test_without_events_the_page_says_what_it_lacks(self, words: str) -> None:
        assert words in superuser().get(PAGE).content.decode()

    @pytest.mark.usefixtures("no_events")
    def test_without_events_a_search_finds_a_ban(self) -> None:
        assert found(superuser(), SUBJECT) == [SUBJECT]


class TestWithoutTheStore:
    @pytest.fixture(autouse=True)
    def no_store(self, rules: None, settings: Any) -> None:
        default = settings.CACHES["default"]
        settings.CACHES = {"default": {**default, "LOCATION": "unix:///nowhere/redis.sock"}}

    def test_the_page_says_that_bans_cannot_be_read(self) -> None:
        assert "The bans cannot be read now." in superuser().get(PAGE).content.decode()

    def test_the_page_lists_the_blocks(self) -> None:
        block()

        assert subjects(superuser()) == [SUBJECT]

    @pytest.mark.parametrize(
        ("query", "listed"),
        [
            pytest.param({"rule": "login"}, ["user:7"], id="a rule"),
            pytest.param({"subject": SUBJECT}, [SUBJECT], id="a subject"),
        ],
    )
    def test_the_page_lists_the_blocks_that_a_filter_finds(self, query: dict[str, str], listed: list[str]) -> None:
        block()
        block("user:7", rule="login")

        assert subjects(superuser(), **query) == listed

    def test_all_blocks_of_the_list_can_be_lifted(self) -> None:
        block()

        assert "1 ban was lifted." in lift(superuser(), all="1")

    def test_a_lift_does_not_say_that_there_was_no_ban(self) -> None:
        fields = {"bans": f"[{pair(SUBJECT)}]", "confirmed": "yes"}

        answer = superuser().post(f"{PAGE}lift/", fields, follow=True)

        assert messages_of(answer) == [("error", NO_ANSWER)]

    def test_a_block_is_lifted_though_a_ban_is_not(self) -> None:
        block()
        fields = {"bans": json.dumps([[SUBJECT, "*", True], [SUBJECT, "login"]]), "confirmed": "yes"}

        answer = superuser().post(f"{PAGE}lift/", fields, follow=True)

        assert messages_of(answer) == [("error", NO_ANSWER), ("success", "1 ban was lifted.")]
        assert LogEntry.objects.get().change_message == "Lift ban: 1 ban was lifted."


def block(subject: str = SUBJECT, **given: Any) -> QuotaOverride:
    return QuotaOverride.objects.create(subject=subject, mode="blocked", **given)


@pytest.mark.usefixtures("redis_cache")
def test_the_page_lists_the_blocks_where_the_store_stops_answering_halfway(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_bans(named: Any) -> Any:
        if list(named):
            raise StoreUnavailable("gone")
        return 0, {}

    ban("login", "user:7", "10m")
    block()
    monkeypatch.setattr(page_of_bans, "read_bans", read_bans)

    page = superuser().get(PAGE).content.decode()

    assert "The bans cannot be read now." in page
    assert [row[0] for row in words_of(page, "Bans in force")] == [SUBJECT]


@pytest.mark.usefixtures("memory_store")
class TestHistoryOfBlocks:
    def test_it_has_bans_of_rules_beside_blocks_with_the_newest_first(self) -> None:
        ban("login", SUBJECT, "10m")
        block("user:7")
        ban("login", "org:7", "10m")

        assert subjects(superuser(), "History") == ["org:7", "user:7", SUBJECT]

    @pytest.mark.parametrize(
        ("given", "state"),
        [
            pytest.param({}, "in force", id="in force"),
            pytest.param({"expires": datetime(2025, 12, 4, tzinfo=UTC)}, "ended", id="ended"),
            pytest.param({"starts": datetime(2099, 12, 4, tzinfo=UTC)}, "not yet begun", id="later"),
        ],
    )
    def test_a_block_has_its_state(self, given: dict[str, Any], state: str) -> None:
        block(reason="spam", created_by="root", **given)

        (row,) = shown(superuser(), "History")
        assert row[4:] == ["Block", "spam (by root)", state]

    def test_the_user_of_a_block_that_has_ended_is_named(self) -> None:
        ann = f"user:{User.objects.create_user('ann').pk}"
        block(ann, expires=datetime(2025, 12, 4, tzinfo=UTC))

        assert subjects(superuser(), "History") == [f"ann ({ann})"]

    def test_a_user_without_a_ban_is_named_as_the_one_whose_bans_are_shown(self) -> None:
        ann = f"user:{User.objects.create_user('ann').pk}"

        page = superuser().get(PAGE, {"subject": ann}).content.decode()

        assert f">ann ({ann})</a>" in page

    def test_it_is_as_long_as_a_page(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(page_of_bans, "PER_PAGE", 2)
        for number in range(3):
            block(f"team:{number}", starts=datetime(2020, 1, 1 + number, tzinfo=UTC))
        ban("login", SUBJECT, "10m")

        assert subjects(superuser(), "History") == [SUBJECT, "team:2"]

    def test_a_block_is_in_it_since_its_start(self) -> None:
        block("team:1", starts=datetime(2020, 1, 2, tzinfo=UTC), expires=datetime(2020, 1, 3, tzinfo=UTC))
        block("team:2", starts=datetime(2020, 1, 1, tzinfo=UTC), expires=datetime(2020, 1, 3, tzinfo=UTC))

        assert subjects(superuser(), "History") == ["team:1", "team:2"]


@pytest.mark.usefixtures("redis_cache")
class TestBlocksBesideBans:
    """Of three blocks, and three bans that end one after the other."""

    @pytest.fixture(autouse=True)
    def three_of_each(self, rules: None, redis_cache: Any) -> None:
        for number in range(3):
            block(f"team:{number}", rule="search")
            ban("login", f"org:{number}", 600 + number)

    @pytest.mark.parametrize(
        ("number", "listed"),
        [
            pytest.param(1, ["team:2", "team:1"], id="blocks"),
            pytest.param(2, ["team:0", "org:0"], id="both"),
            pytest.param(3, ["org:1", "org:2"], id="bans"),
        ],
    )
    def test_pages_go_on_from_blocks_to_bans(
        self, number: int, listed: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(page_of_bans, "PER_PAGE", 2)

        assert subjects(superuser(), p=number) == listed

    @pytest.mark.parametrize(
        ("query", "listed"),
        [
            pytest.param({"rule": "search"}, ["team:2", "team:1", "team:0"], id="the rule of the blocks"),
            pytest.param({"rule": "login"}, ["org:0", "org:1", "org:2"], id="the rule of the bans"),
            pytest.param({"subject": ["team:1", "org:2"]}, ["team:1", "org:2"], id="two subjects"),
            pytest.param({"subject": ["0", "team:1"]}, ["team:1", "team:0", "org:0"], id="a part beside a subject"),
            pytest.param({"subject": ["0", "1"], "rule": "login"}, ["org:0", "org:1"], id="two parts with a rule"),
            pytest.param({"subject": [*["x:1"] * 19, "team:0"]}, ["team:0"], id="the last of twenty subjects"),
            pytest.param({"subject": [*["x:1"] * 20, "team:0"]}, [], id="one of more than twenty"),
        ],
    )
    def test_a_filter_finds_both(self, query: dict[str, Any], listed: list[str]) -> None:
        assert subjects(superuser(), **query) == listed

    @pytest.mark.thorough("slow")
    @pytest.mark.parametrize(
        ("permission", "number", "left"),
        [
            pytest.param("lift_ban", 3, ["team:2", "team:1", "team:0"], id="to lift bans"),
            pytest.param("delete_quotaoverride", 3, ["org:0", "org:1", "org:2"], id="to delete overrides"),
        ],
    )
    def test_a_permission_lifts_its_part_of_the_list(self, permission: str, number: int, left: list[str]) -> None:
        client = operator("view_ban", permission)

        assert f"Lift all {number} bans of this list" in client.get(PAGE).content.decode()
        assert f"{number} bans were lifted." in lift(client, all="1")
        assert subjects(client) == left

    def test_all_are_counted_for_who_may_lift_both(self) -> None:
        assert "Lift all 6 bans of this list" in superuser().get(PAGE).content.decode()

    def test_rules_to_choose_are_those_with_a_ban_or_in_the_list(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"plain": "9/m", "search": OPTIONS, "another": OPTIONS}}

        context = superuser().get(PAGE, {"rule": "of-a-call"}).context

        assert context["rules"] == ["another", "login", "of-a-call", "search"]

    @pytest.mark.thorough("slow")
    def test_a_page_has_fifty(self) -> None:
        QuotaOverride.objects.bulk_create(
            QuotaOverride(subject=f"org:{number}", mode="blocked") for number in range(51)
        )

        assert len(subjects(superuser())) == 50


@pytest.mark.usefixtures("memory_store")
class TestSettingABan:
    """A ban that somebody sets is a block with a reason and an end; the list has it beside the bans of rules."""

    @pytest.fixture(autouse=True)
    def ann(self, rules: None, memory_store: None) -> str:
        return f"user:{User.objects.create_user('ann').pk}"

    @staticmethod
    def set_ban(client: Client, **given: Any) -> Any:
        form = {"subject": "ann", "rule": "", "span": "7d", "until": "", "reason": "spam", "note": ""}
        return client.post(f"{PAGE}set/", {**form, **given}, follow=True)

    def test_it_is_in_force_at_once(self, ann: str) -> None:
        self.set_ban(superuser())

        assert not peek("login", ann)

    def test_the_list_has_its_reason_beside_the_one_who_set_it(self) -> None:
        client = superuser()

        self.set_ban(client)

        (row,) = shown(client)
        assert [row[1], row[4], row[5]] == ["all rules", "Block", "spam (by root)"]

    def test_it_says_who_is_banned_until_when(self, ann: str) -> None:
        answer = self.set_ban(superuser(), until="2099-12-04T18:00")

        words = f"{ann}: all rules blocked, until Dec. 4, 2099, 6 p.m. UTC (spam)"
        assert messages_of(answer) == [("success", words)]
        assert answer.redirect_chain == [(PAGE, 302)]

    def test_the_history_of_the_subject_has_the_note(self, ann: str) -> None:
        self.set_ban(superuser(), note="https://example.org/reports/7")

        entry = LogEntry.objects.get()
        assert (entry.object_id, entry.user.username) == (ann, "root")
        assert re.fullmatch(r"Ban: all rules blocked, until .* \(spam\)\. https://.*/7", entry.change_message)

    def test_it_may_end_at_a_moment(self, ann: str) -> None:
        self.set_ban(superuser(), until="2099-12-04T18:00")

        assert QuotaOverride.objects.get(subject=ann).expires == datetime(2099, 12, 4, 18, tzinfo=UTC)

    def test_it_says_which_rules_it_leaves_alone(self, ann: str) -> None:
        QuotaOverride.objects.create(subject=ann, rule="search", mode="rate", rate="x2")

        page = self.set_ban(superuser()).content.decode()

        assert "These rules have an override of their own, which takes precedence: search" in page

    def test_it_may_be_of_one_rule(self, ann: str) -> None:
        self.set_ban(superuser(), rule="search")

        assert peek("login", ann)
        assert not peek("search", ann)

    @pytest.mark.parametrize("subject", ["user:999", "org:999"], ids=["a user that there is not", "another kind"])
    def test_it_may_be_of_a_subject_that_nobody_has_yet(self, subject: str) -> None:
        self.set_ban(superuser(), subject=subject)

        assert QuotaOverride.objects.get().subject == subject

    def test_it_may_be_of_a_network(self) -> None:
        client = superuser()

        self.set_ban(client, subject="198.51.100.0/24")

        assert subjects(client) == ["ip:198.51.100.0/24"]
        assert not peek("login", "ip:198.51.100.7")

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"reason": ""}, "This field is required."),
            ({"until": "2001-01-01T00:00"}, "It must be in the future."),
            ({"subject": "nobody"}, "No request has the subject"),
            ({"subject": "login:typo=x"}, "login:username="),
        ],
        ids=["no reason", "an end in the past", "an unknown name", "a wrong subject"],
    )
    def test_the_form_says_what_is_wrong(self, given: dict[str, str], says: str) -> None:
        assert says in self.set_ban(superuser(), **given).content.decode()
        assert not QuotaOverride.objects.exists()

    @pytest.mark.parametrize(
        ("sees_users", "says"),
        [
            pytest.param(True, "Nobody&#x27;s name or e-mail begins with", id="who may see users"),
            pytest.param(False, "You may not see users, so no name is looked up.", id="who may not"),
        ],
    )
    def test_the_form_tells_why_a_name_is_not_found(self, *, sees_users: bool, says: str) -> None:
        rights = ["view_ban", "add_quotaoverride", "change_quotaoverride", *["auth.view_user"] * sees_users]

        assert says in self.set_ban(operator(*rights), subject="nobody").content.decode()

    def test_the_name_of_several_users_is_an_error(self) -> None:
        for name in ("bob", "eve"):
            User.objects.create_user(name, "same@example.org")

        shown = self.set_ban(superuser(), subject="same@example.org").content.decode()

        assert "Several users have this name." in shown
        assert not QuotaOverride.objects.exists()

    def test_a_rule_whose_name_is_too_long_for_a_row_is_an_error_of_its_field(self, settings: Any) -> None:
        rule = "x" * 201
        settings.QUOTA = {**settings.QUOTA, "RULES": {rule: "9/m"}}

        answer = self.set_ban(superuser(), rule=rule)

        assert list(answer.context["form"].errors) == ["rule"]
        assert not QuotaOverride.objects.exists()
        assert not LogEntry.objects.exists()

    def test_without_the_permission_to_view_users_a_name_is_looked_up_for_nobody(self) -> None:
        answer = self.set_ban(operator("view_ban", "add_quotaoverride", "change_quotaoverride"))

        assert list(answer.context["form"].errors) == ["subject"]
        assert not QuotaOverride.objects.exists()

    @pytest.mark.parametrize("permission", ["add_quotaoverride", "change_quotaoverride"])
    def test_it_needs_both_permissions_to_save_overrides(self, permission: str) -> None:
        assert self.set_ban(operator("view_ban", permission)).status_code == 403

    @pytest.mark.parametrize(
        ("permission", "left"),
        [
            pytest.param("delete_quotaoverride", (0, False), id="to delete overrides"),
            pytest.param("lift_ban", (1, True), id="to lift bans"),
        ],
    )
    def test_a_permission_lifts_its_kind_alone(self, permission: str, left: tuple[int, bool], ann: str) -> None:
        block(ann, rule="login")
        ban("search", ann, "10m")

        lift(operator("view_ban", permission), pair(ann, "search"), json.dumps([ann, "login", True]))

        assert (QuotaOverride.objects.count(), bool(peek("search", ann))) == left

    @pytest.mark.parametrize("page", ["lift/?all=1&confirmed=yes", "set/?subject=user:9&reason=spam&span=1d"])
    def test_a_link_does_nothing(self, page: str, ann: str) -> None:
        block(ann)

        superuser().get(f"{PAGE}{page}")

        assert QuotaOverride.objects.get().subject == ann

    @pytest.mark.parametrize(
        ("permission", "words"),
        [
            pytest.param("delete_quotaoverride", "Lift all 2 bans of this list", id="to delete overrides"),
            pytest.param("lift_ban", "Lift the one ban of this list", id="to lift bans"),
        ],
    )
    def test_the_button_counts_what_a_permission_lifts(self, permission: str, words: str, ann: str) -> None:
        for rule in ("login", "search"):
            block(ann, rule=rule)
        ban("search", ann, "10m")

        assert words in operator("view_ban", permission).get(PAGE, {"subject": ann}).content.decode()

    def test_a_page_has_fifty_blocks(self) -> None:
        QuotaOverride.objects.bulk_create(QuotaOverride(subject=f"org:{each}", mode="blocked") for each in range(51))

        assert len(shown(superuser())) == 50

    def test_whoever_may_lift_nothing_is_refused(self, ann: str) -> None:
        block(ann)

        answer = operator("view_ban").post(f"{PAGE}lift/", {"all": "1", "confirmed": "yes"})

        assert answer.status_code == 403
        assert QuotaOverride.objects.exists()

    def test_the_form_offers_the_rules_by_name(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"b": "9/m", "a": "9/m"}}

        shown = superuser().get(f"{PAGE}set/").content.decode()

        offered = re.findall(
            r'<option value="([^"]*)"[^>]*>', shown.partition('name="rule"')[2].partition("</select>")[0]
        )
        assert [rule for rule in offered if rule in ("", "a", "b")] == ["", "a", "b"]

    def test_the_form_proposes_a_day_for_the_subject_of_its_link(self) -> None:
        shown = superuser().get(f"{PAGE}set/", {"subject": "user:7"}).content.decode()

        assert '<option value="1d" selected>' in shown
        assert 'value="user:7"' in shown

    def test_a_ban_of_your_own_address_needs_a_tick(self) -> None:
        client = superuser()

        question = self.set_ban(client, subject="127.0.0.1").content.decode()

        assert "This blocks you" in question
        assert not QuotaOverride.objects.exists()
        self.set_ban(client, subject="127.0.0.1", _locks_me_out="1")
        assert QuotaOverride.objects.exists()

    def test_it_is_lifted_from_the_list(self, ann: str) -> None:
        client = superuser()
        self.set_ban(client)

        page = lift(client, *offered(client))

        assert "1 ban was lifted." in page
        assert peek("login", ann)

    def test_lifting_one_leaves_others_of_the_same_subject_or_rule(self, ann: str) -> None:
        for subject, rule in ((ann, "search"), (ann, "login"), (SUBJECT, "search")):
            block(subject, rule=rule)

        lift(superuser(), json.dumps([ann, "search", True]))

        left = QuotaOverride.objects.order_by("pk").values_list("subject", "rule")
        assert list(left) == [(ann, "login"), (SUBJECT, "search")]

    def test_all_of_the_list_are_lifted_with_the_bans_of_rules(self, ann: str) -> None:
        client = superuser()
        self.set_ban(client)
        ban("search", ann, "10m")

        assert "2 bans were lifted." in lift(client, all="1", subject=ann)
        assert shown(client) == []

    @pytest.mark.parametrize(
        ("query", "number"),
        [({"rule": "search"}, 0), ({"subject": "user:999"}, 0), ({"subject": "user"}, 1), ({}, 1)],
        ids=["another rule", "another subject", "a part of the subject", "nothing"],
    )
    def test_a_search_looks_at_its_subject(self, query: dict[str, str], number: int) -> None:
        client = superuser()

        self.set_ban(client)

        assert len(shown(client, **query)) == number

    def test_a_block_of_a_list_is_left_to_the_overrides(self) -> None:
        QuotaOverride.objects.create(subject="ip:198.51.100.0/24", mode="blocked", label="crawlers")

        assert shown(superuser()) == []

    def test_it_needs_the_permission_to_add_overrides(self) -> None:
        client = operator("view_ban", "lift_ban")

        assert f"{PAGE}set/" not in client.get(PAGE).content.decode()
        assert self.set_ban(client).status_code == 403

    def test_to_lift_it_needs_the_permission_to_delete_overrides(self, ann: str) -> None:
        self.set_ban(superuser())
        client = operator("view_ban", "lift_ban")

        assert 'type="checkbox"' not in client.get(PAGE).content.decode()
        assert "Select the bans to lift." in lift(client, json.dumps([ann, "*", True]))
        assert QuotaOverride.objects.exists()


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("page", ["", "set/", "lift/"])
def test_whoever_may_change_bans_but_not_see_them_has_no_page(page: str) -> None:
    client = operator("lift_ban", "add_quotaoverride", "change_quotaoverride", "delete_quotaoverride")

    assert client.post(f"{PAGE}{page}").status_code == 403


@pytest.mark.usefixtures("redis_cache")
def test_the_list_says_why_code_set_a_ban(rules: None, redis_cache: Any) -> None:
    ban("login", SUBJECT, "10m", reason="too fast", by="the watchdog")

    (row,) = shown(superuser())

    assert row[5] == "too fast (by the watchdog)"


@pytest.mark.usefixtures("memory_store")
def test_a_ban_has_the_reason_of_its_own_event_beside_that_of_an_earlier_ban() -> None:
    ban("login", SUBJECT, "10m", reason="too fast")
    ban("login", SUBJECT, "20m", reason="far too fast")

    (row,) = shown(superuser(), subject=SUBJECT)

    assert row[5] == "far too fast"
