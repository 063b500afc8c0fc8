"""The page of bans: it lists, finds and lifts the bans of all subjects, and shows those that began lately."""

import json
import re
from html import unescape
from typing import Any

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
OVERVIEW = "/admin/django_quota/overview/"
SUBJECT = "ip:203.0.113.9"
MODEL = "django.contrib.auth.backends.ModelBackend"
OPTIONS = {"rate": "9/m", "ban": {"after": "9/m", "for": ["10m", "1h"]}}


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
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


def found(client: Client, text: str, rule: str = "") -> list[str]:
    answer = client.post(PAGE, {"find": text, "rule": rule})
    assert answer.status_code == 302, answer.content.decode()
    page = client.get(answer.url).content.decode()  # type: ignore[attr-defined]
    return [row[0] for row in words_of(page, "Bans in force")]


def pair(subject: str, rule: str = "login") -> str:
    return json.dumps([subject, rule])


def lift(client: Client, *pairs: str, **given: Any) -> str:
    """Select bans, confirm, and return what the question and the answer said."""
    question = client.post(f"{PAGE}lift/", {"ban": pairs, **given}).content.decode()
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', question))
    answer = client.post(f"{PAGE}lift/", {name: unescape(value) for name, value in fields.items()}, follow=True)
    assert answer.redirect_chain[-1][0].partition("?")[0] == PAGE
    return question + answer.content.decode()


@pytest.mark.usefixtures("either_store")
def test_the_bans_of_a_subject_are_found_and_lifted_in_each_store() -> None:
    client, ann = superuser(), User.objects.create_user("ann")
    subject = f"user:{ann.pk}"
    for banned, rule in ((subject, "login"), (subject, "search"), (SUBJECT, "search")):
        ban(banned, rule, "10m")
    assert found(client, "203.0.113.9") == [SUBJECT]
    assert found(client, "ann") == [f"ann ({subject})"] * 2
    rows = shown(client, subject=subject)
    assert sorted((row[1], row[4]) for row in rows) == [("login", "ban 1"), ("search", "ban 1")]
    assert all(re.search(r", 20\d\d, .* (UTC|\w{3,4})$", row[3]) for row in rows)
    client.post(f"{PAGE}lift/", {"ban": pair(subject)})
    assert not peek("login", subject)  # the question changes nothing
    page = lift(client, pair(subject), pair(subject, "search"), subject=subject)
    assert "This ends 2 bans." in page
    assert "2 bans were lifted." in page
    assert (peek("login", subject).allowed, peek("search", subject).allowed) == (True, True)
    assert not peek("search", SUBJECT)
    assert found(client, "ann") == []
    assert "None of these bans was in force any more." in lift(client, pair(subject))
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.change_message) == (subject, "Lift ban: 2 bans were lifted.")


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
def test_many_bans_have_pages_and_a_search_finds_others(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.usefixtures("listing_store")
def test_the_first_to_end_is_first_and_the_history_tells_what_became_of_each() -> None:
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
    unban("user:7")
    for span in ("30m", "40m"):
        ban(SUBJECT, "login", span)
    history = [(row[0], row[5]) for row in shown(client, "History")]
    replaced = (SUBJECT, "replaced by a newer one")
    assert history == [(SUBJECT, "in force"), replaced, ("user:7", "lifted"), (SUBJECT, "in force")]
    assert [row[0] for row in shown(client, "History", subject="user:7")] == ["user:7"]
    unban(SUBJECT)
    ban("é" * 200, "login", "10m")  # too long to keep, and so to be lifted here
    assert shown(client)[0][0] == shown(client, "History")[0][0] == "a name too long to keep"
    assert 'type="checkbox"' not in client.get(PAGE).content.decode()


@pytest.mark.usefixtures("redis_cache")
def test_it_is_searched_by_name_address_part_and_rule_and_names_need_a_permission() -> None:
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
    client = operator("view_ban")
    assert found(client, "anna") == []
    page = client.get(PAGE).content.decode()
    assert f"<span>user:{anna.pk}</span>" in page
    assert not re.search('anna|type="checkbox"|[?]name=login', page)


@pytest.mark.usefixtures("redis_cache")
def test_a_value_and_a_failed_login_are_shown_without_their_digests(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "LOGIN": {"1/10m": ["username", "ip"]}}
    settings.AUTHENTICATION_BACKENDS = ["django_quota.contrib.auth.LoginQuotaBackend", MODEL]
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    User.objects.create_user("ann0")
    client = superuser()
    texts = ("login:username=ann0+ip:198.51.100.8", "header:X-Api-Key=secret")
    for text in texts:
        ban(parse_subject_input(text), "login", "10m")
    names = [row[0] for row in shown(client)]
    assert names[0] == "Failed logins of ann0 at 198.51.100.8"
    assert re.fullmatch(r"header\.x-api-key:[0-9a-f]{6}…", names[1])
    assert [found(client, text) for text in (texts[1], "login:username=ann0")] == [names[1:], names[:1]]
    assert "secret" not in client.post(PAGE, {"find": texts[1]})["Location"]
    wrong = client.post(PAGE, {"find": "login:typo=marked"}).content.decode()
    assert ("errornote" in wrong, "marked" in wrong) == (True, False)
    for _ in range(2):
        Client(REMOTE_ADDR="198.51.100.8").post("/admin/login/", {"username": "ann0", "password": "wrong"})
    DailyCounter.objects.create(subject=parse_subject_input(texts[0]), rule="login", day="2026-11-21")
    for url in (OVERVIEW, "/admin/django_quota/dailycounter/"):
        assert f"{names[0]}</a>" in client.get(url).content.decode()
    assert "ann0" not in operator("view_overview").get(OVERVIEW).content.decode()


@pytest.mark.usefixtures("redis_cache")
def test_all_that_a_search_finds_are_lifted_at_once_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    client = superuser()
    for number in range(25):
        ban(f"ip:192.0.2.{number}", "login", "10m")
    ban(SUBJECT, "search", "10m")
    assert "Lift all 25 bans of this list" in client.get(PAGE, {"rule": "login"}).content.decode()
    page = lift(client, all="1", rule="login")
    for words in ("This ends 25 bans.", "and 5 more", "25 bans were lifted."):
        assert words in page
    assert [row[:2] for row in shown(client)] == [[SUBJECT, "search"]]
    assert LogEntry.objects.count() == 25
    monkeypatch.setattr(page_of_bans, "MAX_LIFTED", 1)
    ban("user:7", "login", "10m")
    answer = client.post(f"{PAGE}lift/", {"all": "1"}, follow=True)
    assert "You can lift at most 1 bans at once." in answer.content.decode()
    assert not peek("login", "user:7")


@pytest.mark.usefixtures("redis_cache")
def test_round_trips_are_bounded_and_a_silent_store_is_reported(
    raw: redis.Redis, django_assert_num_queries: Any, settings: Any
) -> None:
    client = superuser()
    for number in range(8):
        ban(f"user:{number}", "login", "10m")
    client.get(PAGE)
    raw.config_resetstat()
    with django_assert_num_queries(3):  # two of the admin: who it is; one of ours: the names
        assert client.get(PAGE).status_code == 200
    calls = {name: each["calls"] for name, each in raw.info("commandstats").items()}
    assert sum(calls[name] for name in ("cmdstat_zcount", "cmdstat_zrangebyscore", "cmdstat_xrevrange")) == 3
    assert not {"cmdstat_keys", "cmdstat_scan"} & set(calls)
    assert f'<dt><a href="{PAGE}">Bans</a></dt>' in client.get(OVERVIEW).content.decode()
    assert PAGE not in operator("view_overview").get(OVERVIEW).content.decode()
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nowhere/redis.sock"}}
    assert "The bans cannot be read now." in client.get(PAGE).content.decode()
    answer = client.post(f"{PAGE}lift/", {"bans": f"[{pair(SUBJECT)}]", "confirmed": "yes"}, follow=True)
    assert "None of these bans" not in answer.content.decode()
