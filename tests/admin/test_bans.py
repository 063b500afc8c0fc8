"""The page of bans: it lists, finds and lifts the bans of all subjects, and shows those that began lately."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any
from urllib.parse import unquote

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from django_quota import ban, check, peek, unban
from django_quota.admin import bans as page_of_bans
from django_quota.models import DailyCounter
from django_quota.operating import bans as service
from django_quota.operating.lookup import parse_subject_input
from django_quota.testing import server_programs
from tests.admin.operators import operator, superuser
from tests.support.stores import caches

pytestmark = pytest.mark.usefixtures("database")

PAGE = "/admin/django_quota/ban/"
SUBJECT = "ip:203.0.113.9"
OPTIONS = {"rate": "9/m", "ban": {"after": "9/m", "for": ["10m", "1h"]}}


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"login": OPTIONS, "search": OPTIONS, "unbanning": "10/m"}}


def words_of(page: str, title: str) -> list[list[str]]:
    """Return the cells of the table below a title, row by row."""
    section = page.split(f"<h2>{title}</h2>")[1].split("</section>", maxsplit=1)[0]
    rows = re.findall(r"<tr>\s*(<th scope=\"row\">.*?)</tr>", section, re.DOTALL)
    return [
        [" ".join(unescape(re.sub(r"<[^>]*>", "", cell)).split()) for cell in re.split(r"</t[hd]>", row)[:-1]]
        for row in rows
    ]


def shown(client: Client, title: str = "Bans in force", **query: Any) -> list[list[str]]:
    answer = client.get(PAGE, query)
    assert answer.status_code == 200
    return words_of(answer.content.decode(), title)


def found(client: Client, text: str, rule: str = "") -> list[str]:
    """Return the first cells of the bans that a search finds."""
    answer = client.post(PAGE, {"find": text, "rule": rule})
    assert answer.status_code == 302, answer.content.decode()
    page = client.get(answer.url).content.decode()  # type: ignore[attr-defined]
    return [row[0] for row in words_of(page, "Bans in force")]


def pair(subject: str, rule: str = "login") -> str:
    return json.dumps([subject, rule])


def lift(client: Client, *pairs: str, **given: Any) -> str:
    """Select bans, confirm, and return what the question said."""
    asked = client.post(f"{PAGE}lift/", {"ban": pairs, **given})
    assert asked.status_code == 200
    question = asked.content.decode()
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', question))
    answer = client.post(f"{PAGE}lift/", {name: unescape(value) for name, value in fields.items()}, follow=True)
    assert answer.redirect_chain[-1][0].partition("?")[0] == PAGE
    return question + answer.content.decode()


@pytest.mark.usefixtures("either_store")
def test_the_bans_of_a_subject_are_found_and_lifted_in_each_store() -> None:
    client = superuser()
    ann = User.objects.create_user("ann")
    subject = f"user:{ann.pk}"
    ban(subject, "login", "10m")
    ban(subject, "search", "20m")
    ban(SUBJECT, "search", "20m")
    assert found(client, "203.0.113.9") == [SUBJECT]
    assert found(client, "ann") == [f"ann ({subject})"] * 2
    rows = shown(client, subject=subject)
    assert [(row[1], row[4]) for row in rows] == [("login", "ban 1"), ("search", "ban 1")]
    assert all(re.search(r", 20\d\d, .* (UTC|\w{3,4})$", row[3]) for row in rows)
    page = lift(client, pair(subject), pair(subject, "search"), subject=subject)
    assert "This ends 2 bans." in page
    assert "2 bans were lifted." in page
    assert (peek("login", subject).allowed, peek("search", subject).allowed) == (True, True)
    assert not peek("search", SUBJECT)
    assert found(client, "ann") == []
    entry = LogEntry.objects.get(object_id=subject)
    assert entry.change_message == "Lift ban: 2 bans were lifted."


@pytest.fixture(params=["redis", "sqlite"])
def listing_store(request: pytest.FixtureRequest, started: Any, settings: Any) -> None:
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
class TestList:
    def test_the_first_to_end_is_first_with_its_beginning_and_links(self) -> None:
        client = superuser()
        for _ in range(4):
            check("2/m", SUBJECT, name="strict", ban={"after": "2/m", "for": ["20m"]})
        ban("user:7", "login", "10m")
        rows = shown(client)
        assert [row[:2] for row in rows] == [["user:7", "login"], [SUBJECT, "strict"]]
        assert all(re.search(r", 20\d\d, ", row[2]) and row[4] == "ban 1" for row in rows)
        page = client.get(PAGE).content.decode()
        assert '<a href="/admin/django_quota/subject/?subject=user%3A7">user:7</a>' in page
        assert '<a href="/admin/django_quota/quotaoverride/rule/?name=strict">strict</a>' in page
        assert '<option value="strict">' in page

    def test_it_is_searched_by_name_address_part_and_rule(self) -> None:
        client = superuser()
        anna, annika = (User.objects.create_user(name) for name in ("anna", "annika"))
        ban(anna, "login", "10m")
        ban(f"user:{annika.pk}+ip:198.51.100.8", "search", "20m")
        ban(SUBJECT, "login", "30m")
        both = [f"anna (user:{anna.pk})", f"annika (user:{annika.pk})+ip:198.51.100.8"]
        assert found(client, "anna") == both[:1]
        assert found(client, "ann") == both
        assert found(client, "ann", "search") == found(client, "198.51.100.8") == both[1:]
        assert found(client, "113") == [SUBJECT]
        assert found(client, "", "login") == [both[0], SUBJECT]
        assert found(client, "ip:192.0.2.1") == []
        assert len(found(client, "")) == 3

    def test_names_are_for_those_who_may_see_users(self) -> None:
        anna = User.objects.create_user("anna")
        ban(anna, "login", "10m")
        client = operator("view_ban")
        assert found(client, "anna") == []
        page = client.get(PAGE).content.decode()
        assert "anna" not in page
        assert f"<span>user:{anna.pk}</span>" in page
        assert 'type="checkbox"' not in page
        assert "?name=login" not in page

    def test_a_value_and_a_failed_login_are_shown_without_their_digests(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "LOGIN": {"5/10m": ["username", "ip"]}}
        User.objects.create_user("ann0")
        client = superuser()
        for text in ("login:username=ann0+ip:198.51.100.8", "header:X-Api-Key=secret"):
            ban(parse_subject_input(text), "login", "10m")
        names = [row[0] for row in shown(client)]
        assert names[0] == "Failed logins of ann0 at 198.51.100.8"
        assert re.fullmatch(r"header\.x-api-key:[0-9a-f]{6}…", names[1])
        assert found(client, "header:X-Api-Key=secret") == names[1:]
        assert found(client, "login:username=ann0") == names[:1]
        assert "secret" not in client.post(PAGE, {"find": "header:X-Api-Key=secret"})["Location"]
        wrong = client.post(PAGE, {"find": "login:typo=marked"}).content.decode()
        assert "errornote" in wrong
        assert "marked" not in wrong

    def test_many_bans_have_pages_and_a_search_finds_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(page_of_bans, "PER_PAGE", 2)
        client = superuser()
        for number in range(5):
            ban(f"ip:192.0.2.{number}", "login", 600 + number)
        pages = [[row[0] for row in shown(client, p=number, rule="login")] for number in (1, 2, 3)]
        assert pages == [["ip:192.0.2.0", "ip:192.0.2.1"], ["ip:192.0.2.2", "ip:192.0.2.3"], ["ip:192.0.2.4"]]
        page = client.get(f"{PAGE}?p=2&rule=login").content.decode()
        assert "Page 2 of 3" in page
        assert 'href="?rule=login&amp;p=3"' in page
        for module in (service, page_of_bans):
            monkeypatch.setattr(module, "MOST", 1)
        assert [row[0] for row in shown(client)] == ["ip:192.0.2.0"]
        assert "Of 5 bans, this list has only the 1 that end first." in client.get(PAGE).content.decode()
        assert found(client, "ip:192.0.2.4") == ["ip:192.0.2.4"]

    def test_names_too_long_to_keep_are_listed_and_not_lifted_here(self) -> None:
        client = superuser()
        ban("é" * 200, "login", "10m")
        for title in ("Bans in force", "History"):
            assert [row[0] for row in shown(client, title)] == ["a name too long to keep"]
        assert 'type="checkbox"' not in client.get(PAGE).content.decode()

    def test_the_history_tells_what_became_of_each_ban(self) -> None:
        client = superuser()
        assert "There are no events yet." in client.get(PAGE).content.decode()
        ban(SUBJECT, "login", "10m")
        ban("user:7", "login", "10m")
        unban("user:7")
        ban(SUBJECT, "login", "20m")
        rows = shown(client, "History")
        assert [(row[0], row[5]) for row in rows] == [
            (SUBJECT, "in force"),
            ("user:7", "lifted"),
            (SUBJECT, "replaced by a newer one"),
        ]
        assert [row[0] for row in shown(client, "History", subject="user:7")] == ["user:7"]


@pytest.mark.parametrize(("store", "why"), [("memory", "The memory store keeps"), ("redis", "EVENTS is 0, so")])
def test_without_events_there_is_no_list_but_a_search(store: str, why: str, started: Any, settings: Any) -> None:
    settings.CACHES = caches(started(server_programs()[0]))
    settings.QUOTA = {**settings.QUOTA, "EVENTS": 0, **({"STORE": "memory"} if store == "memory" else {})}
    client = superuser()
    ban("user:70", "login", "10m")
    page = client.get(PAGE).content.decode()
    assert page.count(why) == 2
    assert "user:70" not in page
    assert found(client, "user:70") == ["user:70"]


@pytest.mark.usefixtures("listing_store")
def test_no_list_of_other_pages_has_the_digest_of_a_failed_login(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "LOGIN": {"1/10m": ["username", "ip"]}}
    settings.AUTHENTICATION_BACKENDS = [
        "django_quota.contrib.auth.LoginQuotaBackend",
        "django.contrib.auth.backends.ModelBackend",
    ]
    User.objects.create_user("ann0")
    client = superuser()
    for _ in range(2):
        Client(REMOTE_ADDR="198.51.100.8").post("/admin/login/", {"username": "ann0", "password": "wrong"})
    words = "Failed logins of ann0 at 198.51.100.8</a>"
    page = client.get("/admin/django_quota/overview/").content.decode()
    assert page.count(words) == 2
    (subject,) = set(re.findall(rf'\?subject=([^"]+)">{words}', page))
    DailyCounter.objects.create(subject=unquote(subject), rule="login", day="2026-11-21")
    assert client.get("/admin/django_quota/dailycounter/").content.decode().count(words) == 1
    assert "ann0" not in operator("view_overview").get("/admin/django_quota/overview/").content.decode()


@pytest.mark.usefixtures("listing_store")
class TestLifting:
    def test_all_that_a_search_finds_are_lifted_at_once(self) -> None:
        client = superuser()
        for number in range(60):
            ban(f"ip:192.0.2.{number}", "login", "10m")
        ban(SUBJECT, "search", "10m")
        assert "Lift all 60 bans of this list" in client.get(PAGE, {"rule": "login"}).content.decode()
        page = lift(client, all="1", rule="login")
        assert "This ends 60 bans." in page
        assert "and 40 more" in page
        assert "60 bans were lifted." in page
        assert [row[:2] for row in shown(client)] == [[SUBJECT, "search"]]
        assert LogEntry.objects.count() == 60

    def test_the_question_changes_nothing(self) -> None:
        client = superuser()
        ban(SUBJECT, "login", "10m")
        assert "This ends 1 ban." in client.post(f"{PAGE}lift/", {"ban": pair(SUBJECT)}).content.decode()
        client.get(f"{PAGE}lift/", {"bans": f"[{pair(SUBJECT)}]", "confirmed": "yes"})
        assert not peek("login", SUBJECT)
        assert not LogEntry.objects.exists()

    def test_a_ban_that_has_ended_meanwhile_is_not_logged(self) -> None:
        client = superuser()
        assert "None of these bans was in force any more." in lift(client, pair(SUBJECT))
        assert not LogEntry.objects.exists()

    def test_lifting_needs_the_permission(self) -> None:
        ban(SUBJECT, "login", "10m")
        client = operator("view_ban")
        assert client.post(f"{PAGE}lift/", {"ban": pair(SUBJECT)}).status_code == 403
        assert lift(operator("view_ban", "lift_ban", name="lifter"), pair(SUBJECT)).count("1 ban was lifted.") == 1

    def test_too_many_at_once_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(page_of_bans, "MAX_LIFTED", 1)
        for number in range(2):
            ban(f"user:{number}", "login", "10m")
        answer = superuser().post(f"{PAGE}lift/", {"all": "1"}, follow=True)
        assert "You can lift at most 1 bans at once." in answer.content.decode()
        assert not peek("login", "user:1")

    def test_a_form_that_names_no_ban_is_refused(self) -> None:
        client = superuser()
        for bans in ("[", "7", "[7]", '[["a"]]', "[[null, null]]", ""):
            answer = client.post(f"{PAGE}lift/", {"bans": bans, "confirmed": "yes"}, follow=True)
            assert re.search("The request names no ban|Select the bans to lift", answer.content.decode())


@pytest.mark.usefixtures("redis_cache")
class TestStore:
    def test_round_trips_and_queries_are_bounded(self, raw: redis.Redis, django_assert_num_queries: Any) -> None:
        client = superuser()
        for number in range(60):
            ban(f"user:{number}", "login", "10m")
        client.get(PAGE)
        raw.config_resetstat()
        with django_assert_num_queries(3):  # two of the admin: who it is; one of ours: the names
            assert client.get(PAGE).status_code == 200
        calls = {name: each["calls"] for name, each in raw.info("commandstats").items()}
        assert sum(calls[name] for name in ("cmdstat_zcount", "cmdstat_zrangebyscore", "cmdstat_xrevrange")) == 3
        assert not {"cmdstat_keys", "cmdstat_scan"} & set(calls)

    def test_it_reports_a_store_that_does_not_answer(self, settings: Any) -> None:
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nowhere/redis.sock"}}
        client = superuser()
        assert "The bans cannot be read now." in client.get(PAGE).content.decode()
        answer = client.post(f"{PAGE}lift/", {"bans": f"[{pair(SUBJECT)}]", "confirmed": "yes"}, follow=True)
        assert "None of these bans" not in answer.content.decode()

    def test_the_index_and_the_overview_link_to_it(self) -> None:
        ban(SUBJECT, "login", "10m")
        links = (f'<dt><a href="{PAGE}">Bans</a></dt>', f'<a href="{PAGE}">All bans</a>')
        page = superuser().get("/admin/django_quota/overview/").content.decode()
        assert all(link in page for link in links)
        assert f'href="{PAGE}"' in operator("view_ban", name="clerk").get("/admin/").content.decode()
        assert PAGE not in operator("view_overview").get("/admin/django_quota/overview/").content.decode()
