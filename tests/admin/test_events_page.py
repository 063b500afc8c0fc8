"""The page of events answers who was refused, when and why; it escapes what clients sent, and its work is bounded."""

import csv
import io
import re
from typing import Any, cast

import pytest
import redis
from django.contrib.auth.models import User
from django.http import QueryDict
from django.test import Client, RequestFactory
from django.utils import timezone

from django_quota import check
from django_quota.admin.events_page import _query_of, wanted_of
from django_quota.core.clock import now
from django_quota.engine.events import AppendEvents, EventRecord
from django_quota.engine.resolving import event_log_of
from django_quota.features.events import EVENTS_A_PAGE, SEARCHED, Event, EventFilter, Flood, with_floods
from django_quota.testing import freeze
from tests.admin.operators import operator
from tests.support.events import event_fields, record
from tests.support.selection import thorough
from tests.support.steps import MINUTE, SECOND, START
from tests.support.stores import current_store

PAGE = "/admin/django_quota/overview/events/"
OVERVIEW = "/admin/django_quota/overview/"


@pytest.fixture
def client(database: dict[str, Any]) -> Client:
    return operator("view_overview", "view_subject", "auth.view_user")


@pytest.fixture
def ann(database: dict[str, Any]) -> User:
    return User.objects.create_user("ann")


def log(*records: EventRecord) -> None:
    current_store().run(AppendEvents(event_log_of("quota", 100_000, 30), records), None)


def at(raw: redis.Redis, moment: int, **fields: Any) -> None:
    """Write an event of a moment (microseconds)."""
    raw.xadd("quota:1:{!}:events", event_fields(**fields), id=f"{moment // 1_000}-*")


def text_of(html: str) -> list[str]:
    """Return each event of a page as a line of text."""
    found = re.findall(r'<li class="quota-event">(.*?)</li>', html, re.DOTALL)
    return [" ".join(re.sub("<[^>]*>", " ", each).split()) for each in found]


def shown(client: Client, url: str = PAGE, **asked: Any) -> list[str]:
    answer = client.get(url, asked)
    assert answer.status_code == 200
    return text_of(answer.content.decode().replace("<wbr>", ""))


def searched(client: Client, **fields: str) -> list[str]:
    """Return the events that the form finds."""
    answer = client.post(PAGE, fields, follow=True)
    assert answer.status_code == 200
    return text_of(answer.content.decode().replace("<wbr>", ""))


@pytest.mark.usefixtures("redis_cache")
def test_a_refusal_is_one_sentence_from_its_user_to_its_end(client: Client, ann: User, raw: redis.Redis) -> None:
    more = {"capacity": 600, "remaining": 49, "cost": 50, "user": f"user:{ann.pk}", "until": START + MINUTE}
    at(raw, START, rule="api", subject=f"user:{ann.pk}", method="GET", path="/api/reports/", **more)

    with freeze(START):
        (line,) = shown(client)

    subject = f"ann (user:{ann.pk})"
    assert line == (
        f"04:40:00 refused {subject} GET /api/reports/ by api: needed 50, 49 of 600 are left, until 04:41:00 UTC"
    )


@pytest.mark.usefixtures("memory_store")
def test_the_digits_of_an_event_are_grouped(client: Client) -> None:
    log(record(capacity=1_000_000, remaining=49_000, cost=50_000, until=START))

    (line,) = shown(client)

    assert "needed 50,000, 49,000 of 1,000,000 are left" in line


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("url", [PAGE, OVERVIEW], ids=["the page of events", "the overview"])
def test_the_user_of_another_subject_is_named(client: Client, ann: User, raw: redis.Redis, url: str) -> None:
    at(raw, START, subject="ip:192.0.2.1", user=f"user:{ann.pk}", method="GET", path="/api/reports/")

    (line,) = shown(client, url)

    assert "refused ip:192.0.2.1 ann GET /api/reports/ by a:" in line


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    ("now", "until", "words"),
    [
        pytest.param(START, START + MINUTE, "until 04:41:00 UTC", id="today"),
        pytest.param(START, START + 1_440 * MINUTE, "until November 22, 04:40:00 UTC", id="tomorrow"),
        pytest.param(START, START + 1_160 * MINUTE, "until November 22", id="midnight"),
        pytest.param(START, START + 365 * 1_440 * MINUTE, "until Nov. 21, 2026, 04:40:00 UTC", id="another year"),
        pytest.param(START + 1_440 * MINUTE, START + MINUTE, "until November 21, 04:41:00 UTC", id="yesterday"),
        pytest.param(START, 0, "for good", id="never"),
    ],
)
def test_the_day_of_an_end_is_written_unless_it_is_today(
    client: Client, raw: redis.Redis, now: int, until: int, words: str
) -> None:
    at(raw, START, until=until)

    with freeze(now):
        (line,) = shown(client)

    assert line.endswith(f", {words}")


@pytest.fixture
def several(redis_cache: Any, raw: redis.Redis, ann: User) -> None:
    at(raw, START, rule="api", subject="ip:192.0.2.1", user=f"user:{ann.pk}", path="/reports/")
    at(raw, START + MINUTE, rule="login", subject="ip:192.0.2.9", path="/login/")
    at(raw, START + 2 * MINUTE, kind="near", rule="api", subject=f"user:{ann.pk}", share=800)


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("fields", "found"),
    [
        pytest.param({}, ["04:42:00", "04:41:00", "04:40:00"], id="nothing"),
        pytest.param({"find": "ann"}, ["04:42:00", "04:40:00"], id="a user name"),
        pytest.param({"find": "an"}, ["04:42:00", "04:40:00"], id="the beginning of a user name"),
        pytest.param({"find": "192.0.2.9"}, ["04:41:00"], id="an address"),
        pytest.param({"find": "ip:192.0.2.9"}, ["04:41:00"], id="a subject"),
        pytest.param({"find": "192.0"}, ["04:41:00", "04:40:00"], id="a part of a subject"),
        pytest.param({"find": "bob"}, [], id="nobody"),
        pytest.param({"rule": "log"}, ["04:41:00"], id="a rule"),
        pytest.param({"path": "/rep"}, ["04:40:00"], id="a path"),
        pytest.param({"path": "/re\0p"}, ["04:40:00"], id="a path with a null byte"),
        pytest.param({"kind": "near"}, ["04:42:00"], id="a kind"),
        pytest.param({"since": "2025-11-21T04:41"}, ["04:42:00", "04:41:00"], id="since a minute"),
        pytest.param({"until": "2025-11-21T04:41"}, ["04:41:00", "04:40:00"], id="until the end of a minute"),
        pytest.param({"since": "2025-11-21T04:41", "until": "2025-11-21T04:41"}, ["04:41:00"], id="a minute"),
        pytest.param({"since": "2025-11-21T04:41:01"}, ["04:42:00"], id="since a second"),
        pytest.param({"since": "2025-11-21T05:42+01:00"}, ["04:42:00"], id="since a minute of another time zone"),
        pytest.param({"kind": "odd"}, ["04:42:00", "04:41:00", "04:40:00"], id="not a kind"),
        pytest.param({"until": "1969-12-31T23:59"}, [], id="until before all moments"),
        pytest.param({"rule": " log "}, ["04:41:00"], id="a rule between spaces"),
        pytest.param({"find": " ann "}, ["04:42:00", "04:40:00"], id="a user name between spaces"),
        pytest.param({"since": "yesterday"}, ["04:42:00", "04:41:00", "04:40:00"], id="not a moment"),
        pytest.param({"since": "0001-01-01", "until": "9999-12-31"}, ["04:42:00", "04:41:00", "04:40:00"], id="all"),
        pytest.param({"find": "ann", "rule": "api", "kind": "refused"}, ["04:40:00"], id="several"),
    ],
)
def test_the_form_finds_events(client: Client, fields: dict[str, str], found: list[str]) -> None:
    assert [line.split()[0] for line in searched(client, **fields)] == found


MINUTE_OF_START = START - START % MINUTE


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        pytest.param("", EventFilter(subjects=[]), id="all"),
        pytest.param("kind=near&rule=a&path=/b", EventFilter(["near"], subjects=[], rule="a", path="/b"), id="names"),
        pytest.param("kind=odd", EventFilter(subjects=[]), id="not a kind"),
        pytest.param("subject=a&subject=b&part=c", EventFilter(subjects=["a", "b"], subject="c"), id="subjects"),
        pytest.param("since=2025-11-21T04:40", EventFilter(subjects=[], since=MINUTE_OF_START), id="since"),
        pytest.param(
            "until=2025-11-21T04:40", EventFilter(subjects=[], until=MINUTE_OF_START + MINUTE - 1), id="until"
        ),
        pytest.param("since=1970-01-01&until=0001-01-01", EventFilter(subjects=[], since=1, until=1), id="the first"),
        pytest.param(f"path={'x' * 321}", EventFilter(subjects=[], path="x" * 320), id="a long path"),
        pytest.param("subject=a&" * 321, EventFilter(subjects=["a"] * 320), id="many subjects"),
    ],
)
def test_a_url_asks_for_events(query: str, wanted: EventFilter) -> None:
    assert wanted_of(QueryDict(query)) == wanted


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("fields", "query"),
    [
        pytest.param({"find": "ann", "rule": " a b ", "kind": ""}, "rule=a+b&subject={ann}", id="a user"),
        pytest.param({"find": "192.0"}, "part=192.0", id="a part"),
        pytest.param({"find": "ip:192.0.2.9", "path": "/a"}, "path=%2Fa&subject=ip%3A192.0.2.9", id="a subject"),
        pytest.param({"path": "x" * 321}, f"path={'x' * 320}", id="a long path"),
        pytest.param({"path": "\ud800"}, "path=%3F", id="what no URL can hold"),
        pytest.param({"find": " "}, "", id="nothing"),
    ],
)
def test_a_search_is_in_the_url(client: Client, ann: User, fields: dict[str, str], query: str) -> None:
    request = RequestFactory().get("/")
    request.POST = cast("Any", fields)
    request.user = User(is_active=True, is_superuser=True)

    assert _query_of(request) == query.format(ann=f"user%3A{ann.pk}")


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("use_tz", "moment"), [(True, "2025-11-21T05:41"), (False, "2025-11-21T13:41")], ids=["USE_TZ", "without"]
)
def test_a_moment_of_the_form_is_local(client: Client, settings: Any, use_tz: bool, moment: str) -> None:
    """In the time zone of the request with USE_TZ, else in that of the settings."""
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Tokyo"

    with timezone.override("Europe/Berlin"):  # as a middleware does for a request
        found = searched(client, since=moment, until=moment)

    assert ["by login" in line for line in found] == [True]


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        pytest.param({"subject": ["user:7"]}, ["Only events of: ann (user:7) . Show all"], id="a user"),
        pytest.param(
            {"subject": ["ip:192.0.2.1", "org:7"]}, ["Only events of: ip:192.0.2.1 , org:7 . Show all"], id="two"
        ),
        pytest.param({"part": "192.0"}, ["Only events of: 192.0 . Show all"], id="a part"),
        pytest.param({"rule": "api"}, [], id="all subjects"),
    ],
)
def test_the_page_says_whose_events_it_shows(client: Client, asked: dict[str, Any], words: list[str]) -> None:
    User.objects.create_user("ann", pk=7)

    page = client.get(PAGE, asked).content.decode()

    lines = re.findall('<p class="quota-key">(.*?)</p>', page, re.DOTALL)
    assert [" ".join(re.sub("<[^>]*>", " ", line).split()) for line in lines] == words


@pytest.mark.usefixtures("memory_store")
def test_a_filter_has_at_most_320_characters(client: Client) -> None:
    long = "x" * 320

    page = client.get(PAGE, {"path": f"{long}y"}).content.decode()

    assert f'value="{long}"' in page


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("asked", "more"),
    [
        pytest.param({}, "?csv=1", id="all"),
        pytest.param({"rule": "api", "before": "99999999999999-0"}, "before=99999999999999-0&amp;csv=1", id="a page"),
    ],
)
def test_the_link_to_the_file_keeps_what_was_asked(client: Client, asked: dict[str, str], more: str) -> None:
    (link,) = re.findall(r'href="(\?[^"]*csv=1)"', client.get(PAGE, asked).content.decode())

    assert link.endswith(more)
    assert all(f"{name}={value}" in link for name, value in asked.items())


@pytest.mark.usefixtures("several")
def test_a_plain_value_never_becomes_part_of_a_url(client: Client) -> None:
    answer = client.post(PAGE, {"find": "post:phone=+15550001"})

    assert "15550001" not in answer["Location"]


@pytest.mark.usefixtures("several")
def test_a_network_is_an_error_that_names_what_to_write(client: Client) -> None:
    page = client.post(PAGE, {"find": "192.0.2.0/24"}).content.decode()

    assert "it is a network. Use one address." in page


@pytest.mark.usefixtures("either_store")
def test_every_store_has_the_page(client: Client) -> None:
    check("0/m", "user:7", name="api")

    assert [line.partition(" ")[2] for line in shown(client)] == [
        "refused user:7 by api: needed 1, 0 of 0 are left, for good"
    ]


@pytest.mark.usefixtures("memory_store")
def test_names_of_users_are_for_those_who_may_see_users(ann: User) -> None:
    log(record(subject="ip:192.0.2.1", user=f"user:{ann.pk}"))
    client = operator("view_overview", name="looks")

    assert f"user:{ann.pk}" in shown(client)[0]
    assert "ann" not in shown(client)[0]
    assert searched(client, find="ann") == []


@pytest.mark.usefixtures("memory_store")
def test_the_page_needs_the_permission_of_the_overview(database: Any) -> None:
    assert operator("view_subject").get(PAGE).status_code == 403


HOSTILE = '"><script>alert(1)</script>=1+1'


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("url", [PAGE, OVERVIEW])
def test_what_clients_send_is_escaped_in_html(client: Client, url: str) -> None:
    User.objects.create_user(HOSTILE, pk=77)
    log(record(rule=HOSTILE, subject=f"name:{HOSTILE}", user="user:77", method=HOSTILE, path=f"/{HOSTILE}"))

    page = client.get(url).content.decode()

    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)") >= 4


@pytest.mark.usefixtures("memory_store")
def test_what_clients_send_is_no_formula_in_csv(client: Client) -> None:
    log(record(rule="=1+1", subject="name:@SUM(1)", method="+1", path="/a;=cmd", user="user:7"))

    answer = cast("Any", client.get(PAGE, {"csv": "1"}))

    header, row = csv.reader(io.StringIO(answer.getvalue().decode()))
    found = dict(zip(header, row, strict=True))
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert (found["rule"], found["method"], found["path"]) == ("'=1+1", "'+1", "/a;'=cmd")
    assert found["user"] == "user:7"


@pytest.mark.usefixtures("redis_cache")
def test_a_row_in_csv_has_each_field_of_an_event(client: Client, raw: redis.Redis) -> None:
    fields = {"cost": 2, "capacity": 600, "remaining": 49, "until": START + MINUTE, "level": 3, "share": 800}
    at(raw, START, kind="near", rule="api", subject="org:7", user="user:7", method="GET", path="/a/", **fields)
    at(raw, START, rule="login")

    answer = cast("Any", client.get(PAGE, {"csv": "1", "rule": "api"}))

    assert answer["Content-Disposition"] == 'attachment; filename="events.csv"'
    assert answer.getvalue().decode() == (
        '"at","kind","rule","subject","user","method","path","cost","capacity","remaining","until","level","share"\r\n'
        '"2025-11-21T04:40:00+00:00","near","api","org:7","user:7","GET","/a/","2","600","49",'
        '"2025-11-21T04:41:00+00:00","3","0.8"\r\n'
    )


@pytest.mark.usefixtures("memory_store")
def test_a_file_has_more_events_than_a_page(client: Client) -> None:
    log(*[record(subject=f"org:{number}") for number in range(103)])

    answer = cast("Any", client.get(PAGE, {"csv": "1"}))

    assert len(answer.getvalue().splitlines()) == 1 + 103


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("until", "cell"),
    [pytest.param(START, "2025-11-21T04:40:00+00:00", id="an end"), pytest.param(0, "", id="no end")],
)
def test_the_end_of_an_event_in_csv_is_a_moment_if_there_is_one(client: Client, until: int, cell: str) -> None:
    log(record(kind="banned", until=until))

    answer = cast("Any", client.get(PAGE, {"csv": "1"}))

    (row,) = csv.DictReader(io.StringIO(answer.getvalue().decode()))
    assert row["until"] == cell


@pytest.mark.usefixtures("memory_store")
def test_the_next_page_goes_on_with_older_events(client: Client) -> None:
    log(*[record(subject=f"org:{number}") for number in range(103)])
    first = client.get(PAGE, {"rule": "a"}).content.decode()

    (older,) = re.findall(r'href="([^"]*before=[^"]*)" class="button">Older</a>', first)
    second = client.get(PAGE + older.replace("&amp;", "&")).content.decode()

    assert len(text_of(first)) == 100
    assert ">Newest</a>" not in first
    assert [line.split()[2] for line in text_of(second)] == ["org:2", "org:1", "org:0"]
    assert '<a href="?rule=a" class="button">Newest</a>' in second
    assert ">Older</a>" not in second


@pytest.mark.usefixtures("memory_store")
def test_a_page_after_the_last_event_leads_to_the_newest(client: Client) -> None:
    page = client.get(PAGE, {"before": "1-0"}).content.decode()

    assert "No event matches." in page
    assert '<a href="?" class="button">Newest</a>' in page
    assert "Download as CSV" not in page


@pytest.mark.usefixtures("either_store")
@pytest.mark.parametrize("before", ["", "x", "1-", "9" * 30 + "-1", "1-1; DROP", "99999-1.1.1"])
def test_a_wrong_id_shows_the_newest_events(client: Client, before: str) -> None:
    check("0/m", "user:7")

    assert len(shown(client, before=before)) == 1


@pytest.mark.usefixtures("memory_store")
def test_it_says_that_events_are_off(client: Client, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}

    assert "EVENTS is 0, so nothing is written down." in client.get(PAGE).content.decode()


@pytest.fixture(params=[SEARCHED + 500, thorough("scale", 100_000)])
def many(request: Any, redis_cache: Any, raw: redis.Redis) -> None:
    """Events of one subject, each of another second."""
    with raw.pipeline(transaction=False) as pipeline:
        begins = now() // 1_000 - request.param * 1_000
        for number in range(request.param):
            pipeline.xadd("quota:1:{!}:events", event_fields(kind="near"), id=f"{begins + 1_000 * number}-0")
        pipeline.execute()
    raw.config_resetstat()


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("url", "asked", "calls"),
    [
        pytest.param(PAGE, {}, 1, id="the newest"),
        pytest.param(PAGE, {"subject": "nobody"}, SEARCHED // EVENTS_A_PAGE + 1, id="nobody"),
        pytest.param(PAGE, {"until": "2020-01-01T00:00"}, 1, id="long ago"),
        pytest.param(PAGE, {"csv": "1"}, SEARCHED // EVENTS_A_PAGE + 1, id="csv"),
        pytest.param(OVERVIEW, {}, 2, id="the overview"),
        pytest.param(OVERVIEW, {"subject": "nobody"}, SEARCHED // EVENTS_A_PAGE + 1, id="nobody on the overview"),
    ],
)
def test_no_list_reads_more_than_a_bounded_part_of_the_events(
    client: Client, raw: redis.Redis, url: str, asked: dict[str, str], calls: int
) -> None:
    assert client.get(url, asked).status_code == 200

    stats = cast("Any", raw).info("commandstats")["cmdstat_xrevrange"]
    assert stats["calls"] <= calls


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("many")
def test_a_search_that_ends_early_offers_to_go_on(client: Client) -> None:
    page = client.get(PAGE, {"subject": "nobody"}).content.decode()

    assert "5,000 events were searched. There are older ones." in page
    assert "before=" in page


# --- floods -----------------------------------------------------------------------------------------------------------


def feed(client: Client) -> list[str]:
    """Return the events of the overview."""
    return shown(client, OVERVIEW)


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    ("subjects", "words"),
    [
        pytest.param("user:{}", "refused 30 users since 04:40:00 UTC", id="users"),
        pytest.param("ip:192.0.2.{}", "refused 30 addresses since 04:40:00 UTC", id="addresses"),
        pytest.param("user:{}+org:7", "refused 30 subjects since 04:40:00 UTC", id="others"),
    ],
)
def test_a_flood_is_one_line(client: Client, raw: redis.Redis, subjects: str, words: str) -> None:
    for number in range(30):
        at(raw, START + number * SECOND, rule="flash_sale", subject=subjects.format(number))
    at(raw, START + MINUTE, rule="api", subject="org:1")

    with freeze(START):
        lines = feed(client)

    assert [line.partition(" ")[2].partition(" by ")[0] for line in lines] == ["refused org:1", f"flash_sale {words}"]


@pytest.mark.usefixtures("redis_cache")
def test_a_flood_of_one_subject_says_how_often_it_was_refused(client: Client, raw: redis.Redis) -> None:
    for number in range(12):
        at(raw, START + number * SECOND, rule="api", subject="ip:192.0.2.1")

    with freeze(START):
        lines = feed(client)

    assert lines == ["04:40:11 refused ip:192.0.2.1 by api, 12 times since 04:40:00 UTC"]


@pytest.mark.usefixtures("redis_cache")
def test_few_refusals_are_lines_of_their_own(client: Client, raw: redis.Redis) -> None:
    for number in range(4):
        at(raw, START + number * SECOND, rule="api", subject=f"user:{number}")

    assert len(feed(client)) == 4


@pytest.mark.usefixtures("redis_cache")
def test_a_flood_ends_after_ten_minutes_without_a_refusal(client: Client, raw: redis.Redis) -> None:
    for number in range(12):
        at(raw, START + number * SECOND + (20 * MINUTE if number >= 6 else 0), rule="api", subject=f"user:{number}")

    with freeze(START):
        lines = feed(client)

    assert [line.partition("refused ")[2] for line in lines] == [
        "6 users since 05:00:06 UTC",
        "6 users since 04:40:00 UTC",
    ]


def folded(*refused: tuple[str, str, float], kind: str = "refused") -> list[tuple[int, int] | str | None]:
    """Return the lines that events become: the number of events and of subjects for a flood, else the subject.

    Each event has a rule, a subject and a second; the newest is first.
    """
    events = [
        Event.read(f"{int(START // 1_000 + second * 1_000)}-0", event_fields(kind, rule=rule, subject=subject))
        for rule, subject, second in refused
    ]
    return [
        (len(each.events), each.subjects) if isinstance(each, Flood) else each.subject for each in with_floods(events)
    ]


def spread(number: int, gap: float, rule: str = "api", subject: str = "user:{}") -> list[tuple[str, str, float]]:
    """Return this number of refusals, `gap` seconds apart, of one subject for each `{}` that is filled."""
    return [(rule, subject.format(each), each * gap) for each in reversed(range(number))]


@pytest.mark.parametrize(
    ("refused", "lines"),
    [
        pytest.param(spread(5, 1), [(5, 5)], id="five subjects"),
        pytest.param(spread(4, 1), ["user:3", "user:2", "user:1", "user:0"], id="four subjects"),
        pytest.param(spread(5, 1, subject="ip:1"), [(5, 1)], id="one subject five times"),
        pytest.param(spread(4, 1, subject="ip:1"), ["ip:1"] * 4, id="one subject four times"),
        pytest.param([*spread(5, 1, subject="ip:1"), ("api", "ip:2", -1)], [(5, 1), "ip:2"], id="one of two subjects"),
        pytest.param(spread(5, 600), [(5, 5)], id="ten minutes apart"),
        pytest.param(spread(5, 600.001), [f"user:{each}" for each in (4, 3, 2, 1, 0)], id="further apart"),
        pytest.param(
            [*spread(3, 1), *spread(3, 1, "web")], [f"user:{each}" for each in (2, 1, 0)] * 2, id="of two rules"
        ),
        pytest.param([("web", "ip:9", 9), *spread(5, 1)], ["ip:9", (5, 5)], id="after a later refusal"),
    ],
)
def test_five_refusals_close_in_time_are_one_line(refused: Any, lines: list[Any]) -> None:
    assert folded(*refused) == lines


def test_bans_are_no_flood() -> None:
    assert folded(*spread(5, 1, subject="ip:1"), kind="banned") == ["ip:1"] * 5


@pytest.mark.parametrize(
    ("subjects", "kind"),
    [
        pytest.param(["user:1", "user:2"], "user", id="users"),
        pytest.param(["user:1", "ip:192.0.2.1"], "", id="a user and an address"),
        pytest.param(["user:1", f"~{'0' * 64}"], "user", id="a user and a name too long to keep"),
        pytest.param([f"~{'0' * 64}"], "", id="a name too long to keep"),
        pytest.param(["user:1+ip:192.0.2.1"], "", id="a user at an address"),
        pytest.param(["user:1", "user:1+ip:192.0.2.1"], "", id="a user, and one at an address"),
    ],
)
def test_the_subjects_of_a_flood_have_a_kind_if_all_have_the_same(subjects: list[str], kind: str) -> None:
    events = [Event.read("1-0", event_fields(subject=subject)) for subject in subjects]

    assert Flood(events, len(events)).kind_of_subjects == kind


@pytest.mark.parametrize(("subjects", "subject"), [(1, "user:1"), (2, None)], ids=["one", "two"])
def test_a_flood_has_a_subject_if_only_one_was_refused(subjects: int, subject: str | None) -> None:
    events = [Event.read("1-0", event_fields(subject="user:1"))]

    assert Flood(events, subjects).subject == subject


@pytest.mark.usefixtures("redis_cache")
def test_a_flood_links_to_its_events(client: Client, raw: redis.Redis) -> None:
    for number in range(6):
        at(raw, START + number * SECOND, rule="flash sale", subject=f"user:{number}")
    page = client.get(OVERVIEW).content.decode()

    (link,) = re.findall(r'href="(/admin/django_quota/overview/events/\?[^"]*)"', page)

    assert len(shown(client, link.replace("&amp;", "&"))) == 6


@pytest.mark.usefixtures("redis_cache")
def test_a_flood_of_a_user_names_the_user_with_a_link_to_the_refusals(
    client: Client, raw: redis.Redis, ann: User
) -> None:
    for number in range(6):
        at(raw, START + number * SECOND, rule="api", subject=f"user:{ann.pk}")
    at(raw, START + MINUTE, rule="api", subject="org:7")
    page = client.get(OVERVIEW).content.decode()

    (link,) = re.findall(r'href="(/admin/django_quota/overview/events/\?[^"]*)"', page)

    assert f">ann (user:{ann.pk})</a>" in page
    assert len(shown(client, link.replace("&amp;", "&"))) == 6


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    ("subjects", "line"),
    [
        pytest.param("user:{}", "a name too long to keep refused 6 users since 04:40:00 UTC", id="of many"),
        pytest.param("user:7", "refused user:7 6 times since 04:40:00 UTC", id="of one"),
        pytest.param(f"~{'0' * 64}", "refused a name too long to keep 6 times since 04:40:00 UTC", id="of a long name"),
    ],
)
def test_a_flood_by_a_rule_with_a_name_too_long_to_keep_is_a_line(
    client: Client, raw: redis.Redis, subjects: str, line: str
) -> None:
    for number in range(6):
        at(raw, START + number * SECOND, rule=f"~{'0' * 64}", subject=subjects.format(number))

    with freeze(START):
        (found,) = feed(client)

    assert found == f"04:40:05 {line}"


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("page", [PAGE, OVERVIEW], ids=["events", "overview"])
def test_the_events_of_a_day_have_one_heading(client: Client, page: str) -> None:
    for number, days in enumerate((0, 0, 1, 1)):
        with freeze(START + days * 1_440 * MINUTE + number * SECOND):
            check("0/m", f"org:{number}")

    with freeze(START + 1_440 * MINUTE):
        html = client.get(page).content.decode()

    found = re.findall(r'<li class="quota-(?:day">([^<]*)|(event)")', html)
    assert found == [("Nov. 22, 2025, UTC", ""), *[("", "event")] * 2, ("Nov. 21, 2025, UTC", ""), *[("", "event")] * 2]
