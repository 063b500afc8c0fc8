"""Events say who sent which request, in every store, and are kept by number and by days."""

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils.functional import SimpleLazyObject
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import acheck, ban, check, quota
from django_quota.core.clock import DAY
from django_quota.engine.decide import Decide
from django_quota.engine.events import AppendEvents, EventLog, EventRecord, EventSource
from django_quota.engine.operations import lua_source
from django_quota.engine.resolving import event_log_of
from django_quota.exceptions import StoreUnavailable
from django_quota.features.events import Event, EventFilter, EventReader, MemoryEvents, entry_time, event_log
from django_quota.limiting.registry import get_limiter
from django_quota.models import QuotaOverride
from django_quota.stores.memory import MemoryStore
from django_quota.subjects.sources import source_of
from django_quota.testing import freeze
from tests.support.calls import both, run
from tests.support.events import event_fields, record
from tests.support.inputs import inputs
from tests.support.steps import SECOND, START
from tests.support.stores import current_store

ANN = SimpleNamespace(pk=7, is_authenticated=True, get_username=lambda: "ann")


def request_of(user: Any = ANN, path: str = "/api/reports/?secret=1", method: str = "get") -> Any:
    request = getattr(RequestFactory(), method)(path, REMOTE_ADDR="192.0.2.1")
    request.user = user
    return request


def logged(**wanted: Any) -> list[Event]:
    return event_log(current_store(), "quota").last(100, EventFilter(**wanted))


def sources() -> list[tuple[str | None, str, str]]:
    return [(event.user, event.method, event.path) for event in logged()]


@quota("0/m", key="ip", name="reports")
def reports(request: Any) -> Any:
    raise AssertionError


@quota("0/m", key="ip", name="reports")
async def reports_async(request: Any) -> Any:
    raise AssertionError


def test_a_request_without_a_method_has_none_in_its_events() -> None:
    request = HttpRequest()
    request.path = "/api/"

    assert source_of(request) == EventSource("", "", "/api/")


@both
@pytest.mark.usefixtures("either_store")
def test_the_event_of_a_refusal_says_who_sent_which_request(kind: str) -> None:
    assert run(reports if kind == "sync" else reports_async, request_of()).status_code == 429

    (event,) = logged()
    assert (event.kind, event.rule, event.subject) == ("refused", "reports", "ip:192.0.2.1")
    assert (event.user, event.method, event.path) == ("user:7", "GET", "/api/reports/")
    assert (event.cost, event.remaining, event.capacity) == (1, 0, 0)


@pytest.mark.usefixtures("either_store")
def test_an_event_says_how_many_units_were_needed_of_how_many() -> None:
    check("600/d", "user:7", 551)
    check("600/d", "user:7", 50)

    event = logged(kinds=["refused"])[0]

    assert (event.cost, event.remaining, event.capacity) == (50, 49, 600)


@pytest.mark.usefixtures("either_store")
def test_the_event_of_a_ban_says_who_sent_the_request() -> None:
    for _ in range(2):
        check("1/m", request_of(), ban={"after": "1/m", "for": "1h"}, key="ip")

    (event,) = logged(kinds=["banned"])
    assert (event.level, event.user, event.path) == (1, "user:7", "/api/reports/")


@pytest.mark.usefixtures("either_store")
def test_the_event_of_a_limit_that_is_near_says_who_sent_the_request() -> None:
    for _ in range(4):
        check("5/m", request_of(), key="ip", warn_at=0.8)

    (event,) = logged()
    assert (event.kind, event.share, event.remaining, event.user) == ("near", 0.8, 1, "user:7")


@pytest.mark.usefixtures("either_store")
def test_a_limit_that_is_near_is_the_one_of_the_event() -> None:
    for second in range(12):
        with freeze(START + second * SECOND):
            check("9/s; 100/d", "user:8", 7, warn_at=0.8)

    with freeze(START):
        assert [(event.capacity, event.remaining) for event in logged()] == [(100, 16)]


@both
@pytest.mark.usefixtures("either_store")
def test_a_call_with_a_request_says_who_sent_it(kind: str) -> None:
    if kind == "sync":
        check("0/m", request_of())
    else:
        asyncio.run(acheck("0/m", request_of()))

    assert sources() == [("user:7", "GET", "/api/reports/")]


@both
@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("address", "phone"), [("0/m", "9/m"), ("9/m", "0/m")], ids=["before the body is read", "after it is read"]
)
def test_each_of_two_decisions_on_a_request_says_who_sent_it(kind: str, address: str, phone: str) -> None:
    async def aview(request: Any) -> HttpResponse:
        return HttpResponse()

    view: Any = aview if kind == "async" else lambda request: HttpResponse()
    limited = quota(address, key="ip", name="address")(quota(phone, key="post:phone", name="phone")(view))

    run(limited, request_of(method="post"))

    assert sources() == [("user:7", "POST", "/api/reports/")]


@pytest.mark.usefixtures("either_store")
def test_a_call_without_a_request_says_nothing_of_one() -> None:
    check("0/m", "user:7")

    assert sources() == [(None, "", "")]


@pytest.mark.usefixtures("either_store")
def test_a_refusal_by_an_override_says_who_sent_the_request(database: Any) -> None:
    QuotaOverride.objects.create(subject="ip:192.0.2.1", mode="blocked")

    run(reports, request_of())
    get_limiter().unasked.flush()

    assert sources() == [("user:7", "GET", "/api/reports/")]


@pytest.mark.usefixtures("either_store")
def test_a_refusal_from_memory_says_who_sent_the_request(settings: Any) -> None:
    view = quota("1/h", key="ip", name="cached", cache_refusals=10, warn_at=None)(lambda request: HttpResponse())
    for number, path in enumerate(["/first/", "/second/", "/third/"]):
        with freeze(START + 2 * number * SECOND):
            run(view, request_of(path=path))
            get_limiter().unasked.flush()

    with freeze(START):
        assert [path for _, _, path in sources()] == ["/second/", "/third/"]


@pytest.mark.usefixtures("memory_store")
def test_the_setting_leaves_requests_out(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "EVENT_REQUESTS": False}

    run(reports, request_of())

    assert sources() == [(None, "", "")]


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("user", "shown"),
    [
        pytest.param(None, None, id="none"),
        pytest.param(AnonymousUser(), None, id="anonymous"),
        pytest.param("a string", None, id="not a user"),
        pytest.param(User(pk=8), "user:8", id="a user"),
        pytest.param(SimpleNamespace(pk=None, is_authenticated=True), None, id="without a key"),
    ],
)
def test_the_user_of_a_request_is_its_subject(user: Any, shown: str | None) -> None:
    run(reports, request_of(user))

    assert sources()[0][0] == shown


@pytest.mark.usefixtures("memory_store")
def test_a_refusal_loads_no_user() -> None:
    def load() -> Any:
        raise AssertionError("it asks the database")

    run(reports, request_of(SimpleLazyObject(load)))

    assert sources()[0][0] is None


@pytest.mark.usefixtures("memory_store")
def test_a_user_that_was_loaded_before_is_known() -> None:
    user: Any = SimpleLazyObject(lambda: ANN)
    assert user.pk == 7

    run(reports, request_of(user))

    assert sources()[0][0] == "user:7"


@pytest.mark.usefixtures("either_store")
@pytest.mark.parametrize(
    ("path", "kept"),
    [
        pytest.param("/a?token=secret#there", "/a", id="a query"),
        pytest.param("/a%0a%1b[2J%00%E2%80%AE", r"/a\n\x1b[2J\x00\u202e", id="control characters"),
        pytest.param("/" + 300 * "a", "/" + 199 * "a", id="a long one"),
        pytest.param("/" + 199 * "%1b", "/" + 49 * r"\x1b" + r"\x1", id="one that is long when escaped"),
        pytest.param("/<script>é", "/<script>é", id="markup"),
    ],
)
def test_a_path_is_kept_without_its_query_or_control_characters(path: str, kept: str) -> None:
    request = request_of(path="/")
    request.path = RequestFactory().get(path).path

    check("0/m", request)

    assert sources()[0][2] == kept


@pytest.mark.usefixtures("memory_store")
def test_what_is_admitted_writes_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    store = current_store()

    def run_noted(operation: Any, now: int | None = None) -> Any:
        asked.append(operation)
        return type(store).run(store, operation, now)

    monkeypatch.setattr(store, "run", run_noted)

    check("5/m", request_of(), key="ip")

    assert [type(operation) for operation in asked] == [Decide]
    assert "/api/reports/" not in str(asked[0].words(None))


@both
@pytest.mark.usefixtures("either_store")
def test_a_decision_holds_if_its_event_cannot_be_written(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = current_store()
    for name in ("run", "arun"):
        monkeypatch.setattr(store, name, failing_to_append(getattr(store, name)))

    decision = check("0/m", "user:1") if kind == "sync" else asyncio.run(acheck("0/m", "user:1"))

    assert (decision.allowed, decision.degraded) == (False, False)
    assert caplog.messages == ["1 events could not be written: The quota store is unavailable: gone"]


def failing_to_append(run_one: Callable[..., Any]) -> Callable[..., Any]:
    def fail(operation: Any, now: int | None = None) -> Any:
        if isinstance(operation, AppendEvents):
            raise StoreUnavailable("gone")
        return run_one(operation, now)

    return fail


# --- how many are kept, and for how long ------------------------------------------------------------------------------


def append(*records: EventRecord, log: EventLog, now: int | None = None) -> None:
    current_store().run(AppendEvents(log, records), now)


def test_redis_keeps_no_event_for_longer_than_its_days(redis_cache: Any, raw: redis.Redis) -> None:
    log = event_log_of("quota", 100, 30)
    seconds, _ = raw.time()
    for days in (40, 31, 29):
        fields: Any = record(subject=f"user:{days}")._asdict()
        raw.xadd(log.keys[0], fields, id=f"{(seconds - days * 86_400) * 1_000}-0")

    append(record(subject="user:0"), log=log)

    assert [event.subject for event in logged()] == ["user:29", "user:0"]
    assert 29 * 86_400 < raw.ttl(log.keys[0]) <= 30 * 86_400


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    ("quota", "days"),
    [pytest.param({}, 90, id="unless set"), pytest.param({"EVENT_DAYS": 2}, 2, id="as the setting says")],
)
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda: check("0/m", "user:7"), id="a refusal"),
        pytest.param(lambda: ban("banning", "user:7", 60), id="a ban"),
    ],
)
def test_the_setting_says_for_how_many_days_redis_keeps_events(
    write: Callable[[], object], quota: dict[str, Any], days: int, settings: Any, raw: redis.Redis
) -> None:
    settings.QUOTA = {**quota, "RULES": {"banning": {"rate": "1/m", "ban": {"after": "9/m", "for": "1h"}}}}

    write()

    assert (days - 1) * 86_400 < raw.ttl("quota:1:{!}:events") <= days * 86_400


@pytest.mark.usefixtures("redis_cache")
def test_a_ban_that_was_copied_is_on_the_list_and_is_no_event(raw: redis.Redis) -> None:
    log = event_log_of("quota", 100, 30)

    append(record(kind="listed", rule="r", subject="user:7", until=START + DAY), log=log, now=START)

    assert raw.zrange(log.bans, 0, -1, withscores=True) == [(b"user:7 r", START + DAY)]
    assert not raw.exists(log.keys[0])


@pytest.mark.usefixtures("redis_cache")
def test_a_new_ban_takes_ten_that_have_ended_off_the_list(raw: redis.Redis) -> None:
    log = event_log_of("quota", 100, 30)
    raw.zadd(log.bans, {f"user:{number} r": START - 11 + number for number in range(14)})

    append(record(kind="banned", rule="r", subject="user:99", until=START + DAY), log=log, now=START)

    assert raw.zrange(log.bans, 0, -1) == [b"user:10 r", b"user:11 r", b"user:12 r", b"user:13 r", b"user:99 r"]


@pytest.mark.usefixtures("redis_cache")
def test_the_list_of_bans_lives_as_long_as_the_longest_of_them(raw: redis.Redis) -> None:
    log = event_log_of("quota", 100, 30)

    for days in (3, 1):
        append(record(kind="banned", subject=f"user:{days}", until=START + days * DAY), log=log, now=START)

    assert 3 * 86_400 <= raw.ttl(log.bans) <= 3 * 86_400 + 3_600


@pytest.mark.usefixtures("memory_store")
def test_memory_keeps_no_event_for_longer_than_its_days() -> None:
    log = event_log_of("quota", 100, 30)
    for days in (0, 10, 31):
        append(record(subject=f"user:{days}"), log=log, now=START + days * DAY)

    with freeze(START + 31 * DAY):
        assert [event.subject for event in logged()] == ["user:10", "user:31"]


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(("later", "kept"), [(0, ["user:1", "user:2"]), (1_000, ["user:2"])], ids=["then", "later"])
def test_memory_keeps_an_event_until_its_days_have_passed(later: int, kept: list[str]) -> None:
    log, now = event_log_of("quota", 100, 30), START + 30 * DAY + later
    append(record(subject="user:1"), log=log, now=START)
    append(record(subject="user:2"), log=log, now=START + DAY)

    append(record(subject="user:3"), log=log, now=now)

    with freeze(now):
        assert [event.subject for event in logged()] == [*kept, "user:3"]


@pytest.mark.usefixtures("memory_store")
def test_memory_keeps_so_many_events() -> None:
    log = event_log_of("quota", 2, 30)

    append(*[record(subject=f"user:{number}") for number in range(5)], log=log)

    assert [event.subject for event in logged()] == ["user:3", "user:4"]


RECORDS = st.lists(
    st.builds(
        record,
        kind=st.sampled_from(["refused", "banned", "near", "lifted"]),
        rule=st.text(max_size=20),
        subject=st.text(min_size=1, max_size=20).map("name:{}".format),
        until=st.integers(0, 2**53),
        level=st.integers(0, 9),
        capacity=st.integers(0, 10**12),
        remaining=st.integers(0, 10**12),
        share=st.integers(0, 1000),
        cost=st.integers(0, 10**12),
        user=st.text(max_size=9),
        method=st.text(max_size=9),
        path=st.text(max_size=30),
    ),
    max_size=6,
)


@pytest.mark.usefixtures("redis_cache")
@inputs(100, suppress_health_check=list(HealthCheck))
@given(records=RECORDS)
def test_the_script_writes_what_its_specification_writes(raw: redis.Redis, records: list[EventRecord]) -> None:
    log, memory = event_log_of("quota", 100, 30), MemoryStore()
    raw.delete(*log.keys)

    replies = [store.run(AppendEvents(log, records), START) for store in (current_store(), memory)]

    pages: list[Any] = raw.xrange(log.keys[0])  # type: ignore[assignment]
    with freeze(START):
        of_memory = MemoryEvents(memory, "quota").after("0-0")
    of_script = [Event.read(entry.id, decoded(page)) for entry, (_, page) in zip(of_memory, pages, strict=True)]
    assert replies == [len(records)] * 2
    assert of_script == [entry.event for entry in of_memory]


def decoded(page: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in page.items()}


def test_the_script_lists_the_fields_of_an_event() -> None:
    listed = lua_source("append_events").partition("FIELDS = {")[2].partition("}")[0]

    assert tuple(re.findall(r"'(\w+)'", listed)) == EventRecord._fields


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def five(either_store: None) -> list[str]:
    """Five events; their ids, the oldest first."""
    log = event_log_of("quota", 100, 30)
    for number in range(5):
        append(record(subject=f"user:{number}"), log=log)
    return [event.id for event in logged()]


def test_events_before_an_id_are_read(five: list[str]) -> None:
    found = event_log(current_store(), "quota").newest(2, five[3])

    assert [entry.id for entry in found] == [five[2], five[1]]


def test_events_after_an_id_are_read(five: list[str]) -> None:
    reader = event_log(current_store(), "quota")

    assert [entry.id for entry in reader.after(five[2])] in (five[3:], [])  # a database waits for older transactions


def test_a_page_of_events_is_read_at_a_time(five: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_quota.features.events.EVENTS_A_PAGE", 2)
    reader = event_log(current_store(), "quota")

    assert [entry.id for entry in reader.after("0-0")] in (five[:2], [])  # a database waits for older transactions


@pytest.mark.usefixtures("memory_store")
def test_of_a_dozen_events_at_a_moment_those_after_an_id_are_read() -> None:
    with freeze(START):
        append(*[record()] * 12, log=event_log_of("quota", 100, 30), now=START)
        ids = [event.id for event in logged()]

        assert [entry.id for entry in event_log(current_store(), "quota").after(ids[8])] == ids[9:]


@pytest.mark.usefixtures("five")
def test_the_last_events_are_found_however_many_came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventReader.search, "__defaults__", (2, ""))  # a page of the admin searches 5,000

    assert [event.subject for event in logged(subject="user:0")] == ["user:0"]


@pytest.mark.usefixtures("either_store")
@pytest.mark.parametrize("before", [0, 5], ids=["an empty log", "a log of five"])
def test_a_new_reader_begins_with_the_next_event(before: int) -> None:
    log, reader = event_log_of("quota", 100, 30), event_log(current_store(), "quota")
    append(*[record(subject=f"user:{number}") for number in range(before)], log=log)

    begin = reader.last_id()
    append(record(subject="user:9"), log=log)

    found = [entry.event and entry.event.subject for entry in reader.after(begin)]
    assert found in (["user:9"], [])  # a database waits for older transactions


@pytest.mark.parametrize(
    ("after_first", "after_last", "number"),
    [
        pytest.param(0, 999, 5, id="from the first to the last"),
        pytest.param(-9_000, -1_000_000, 0, id="before the first"),
        pytest.param(1_000_000, 2_000_000, 0, id="after the last"),
    ],
)
def test_events_from_one_moment_to_another_are_read(
    five: list[str], after_first: int, after_last: int, number: int
) -> None:
    """The moments are in microseconds after those of the first and of the last event."""
    since, until = entry_time(five[0]) + after_first, entry_time(five[-1]) + after_last

    assert len(event_log(current_store(), "quota").newest(9, since=since, until=until)) == number


def test_an_id_of_a_log_has_its_pattern(five: list[str]) -> None:
    assert event_log(current_store(), "quota").id_pattern.fullmatch(five[0])


def test_a_search_goes_on_after_the_last_event_that_it_saw(five: list[str]) -> None:
    reader = event_log(current_store(), "quota")

    first = reader.search(2, EventFilter())
    second = reader.search(9, EventFilter(), before=first.last)

    assert [event.subject for event in first.events] == ["user:4", "user:3"]
    assert [event.subject for event in second.events] == ["user:2", "user:1", "user:0"]
    assert second.last == ""


@pytest.mark.parametrize(
    ("count", "most", "subject", "found"),
    [
        pytest.param(2, 2, "", (["user:4", "user:3"], True, 3), id="as many as are wanted and searched"),
        pytest.param(3, 2, "", (["user:4", "user:3"], False, 3), id="fewer than are wanted"),
        pytest.param(3, 2, "nobody", ([], False, 3), id="none of those searched"),
        pytest.param(1, 2, "user:3", (["user:3"], True, 3), id="the last one searched"),
        pytest.param(9, 5, "", ([f"user:{number}" for number in (4, 3, 2, 1, 0)], True, None), id="all that there are"),
        pytest.param(9, None, "user:0", (["user:0"], True, None), id="one without a bound"),
    ],
)
def test_a_search_says_what_it_has_found_and_where_it_ended(
    five: list[str], count: int, most: int | None, subject: str, found: tuple[list[str], bool, int | None]
) -> None:
    names, is_whole, last = found

    search = event_log(current_store(), "quota").search(count, EventFilter(subject=subject), most)

    assert [event.subject for event in search.events] == names
    assert (search.is_whole, search.last) == (is_whole, "" if last is None else five[last])


class TestFiveSeconds:
    """Events of five seconds, of which two have the same moment."""

    @pytest.fixture(autouse=True)
    def ids(self, either_store: None) -> Iterator[list[str]]:
        """The ids, the oldest first."""
        log, redis_servers = event_log_of("quota", 100, 30), current_store().redis
        with freeze(START + 10 * SECOND):
            for place, second in enumerate((0, 1, 1, 2, 3, 4)):
                moment, event = START + second * SECOND, record(subject=f"user:{second}")
                if redis_servers is None:
                    append(event, log=log, now=moment)
                    continue
                with redis_servers.commands() as client:  # a script takes the clock of Redis
                    client.xadd(log.keys[0], event._asdict(), id=f"{moment // 1_000}-{place}")
            yield [event.id for event in logged()]

    @pytest.mark.parametrize(
        ("bounds", "found"),
        [
            pytest.param({"since": START + 1 * SECOND}, [2, 1], id="since"),
            pytest.param({"since": START + 1 * SECOND + 1_000}, [], id="since later"),
            pytest.param({"until": START + 1 * SECOND}, [2, 1, 0], id="until"),
            pytest.param({"until": START + 9 * SECOND}, [2, 1, 0], id="until later"),
            pytest.param({"until": START + 1 * SECOND - 1_000}, [0], id="until earlier"),
        ],
    )
    def test_those_before_an_id_may_be_of_a_time(self, bounds: Any, found: list[int], ids: list[str]) -> None:
        entries = event_log(current_store(), "quota").newest(9, ids[3], **bounds)

        assert [entry.id for entry in entries] == [ids[number] for number in found]

    def test_of_two_at_a_moment_the_first_is_before_the_second(self, ids: list[str]) -> None:
        entries = event_log(current_store(), "quota").newest(9, ids[2])

        assert [entry.id for entry in entries] == [ids[1], ids[0]]


@pytest.mark.usefixtures("five")
@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        pytest.param({"since": 10**17}, 0, id="since"),
        pytest.param({"since": 1}, 5, id="since the beginning"),
        pytest.param({"until": 1}, 0, id="until"),
        pytest.param({"until": 10**17}, 5, id="until the end"),
    ],
)
def test_events_of_a_time_are_read(wanted: dict[str, int], found: int) -> None:
    assert len(logged(**wanted)) == found


MILLISECONDS = START // 1_000


@pytest.mark.parametrize(
    ("until", "lasts"),
    [
        pytest.param(0, 0, id="without an end"),
        pytest.param(START + 1_500_700, 1_200_000, id="to the millisecond"),
        pytest.param(START, 0, id="of the past"),
    ],
)
def test_an_event_lasts_until_its_end(until: int, lasts: int) -> None:
    assert Event.read(f"{MILLISECONDS + 300}-0", event_fields(until=until)).lasts == lasts


def test_the_moments_of_an_event_have_their_parts_of_a_second_in_json() -> None:
    found = Event.read(f"{MILLISECONDS + 300}-0", event_fields(until=START + 1_500_700)).as_json()

    assert (found["at"], found["until"]) == ("2025-11-21T04:40:00.300000+00:00", "2025-11-21T04:40:01.500700+00:00")


@pytest.mark.parametrize(("path", "who"), [("", "user:7"), ("/login/", None)], ids=["by hand", "by a request"])
def test_a_ban_was_set_by_its_user_if_no_request_caused_it(path: str, who: str | None) -> None:
    assert Event.read("1-0", event_fields("banned", user="user:7", path=path)).set_by == who


@pytest.mark.parametrize("name", ["kind", "share", "reason"])
def test_an_entry_without_a_field_is_an_error_that_names_it(name: str) -> None:
    fields = event_fields()
    del fields[name]

    with pytest.raises(ValueError, match=f"^entry 1-0 has no '{name}'$"):
        Event.read("1-0", fields)


def test_an_entry_of_another_kind_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match=r"^entry 1-0 is of the kind 'gone'$"):
        Event.read("1-0", event_fields("gone"))


EVENT = Event("1000-0", "refused", "api", "ip:192.0.2.1+user:9", 0, 0, 5, 0, 0.0, 1, "user:7", "GET", "/api/x/")


@pytest.mark.parametrize(
    ("wanted", "is_wanted"),
    [
        pytest.param({}, True, id="nothing"),
        pytest.param({"kinds": ["near", "refused"]}, True, id="the kind"),
        pytest.param({"kinds": ["near"]}, False, id="another kind"),
        pytest.param({"rules": ["api"]}, True, id="the rule"),
        pytest.param({"rules": ["ap"]}, False, id="another rule"),
        pytest.param({"rule": "ap"}, True, id="a part of the rule"),
        pytest.param({"rule": "web", "path": "/x"}, False, id="a part of another rule"),
        pytest.param({"path": "/x"}, True, id="a part of the path"),
        pytest.param({"path": "/y"}, False, id="another path"),
        pytest.param({"rule": "ap", "path": "/y"}, False, id="a part of the rule, and another path"),
        pytest.param({"subjects": ["user:7"]}, True, id="the user"),
        pytest.param({"subjects": ["user:9"]}, True, id="a part of the subject"),
        pytest.param({"subjects": ["user:1"]}, False, id="another user"),
        pytest.param({"subjects": ["ip:192.0.2.1+user:9"]}, True, id="the whole subject"),
        pytest.param({"subject": "192.0"}, True, id="letters of the subject"),
        pytest.param({"subject": "192.1"}, False, id="letters that it does not have"),
        pytest.param({"subject": "192.1", "subjects": ["user:7"]}, True, id="such letters, or the user"),
        pytest.param({"since": SECOND, "until": SECOND}, True, id="the moment"),
        pytest.param({"since": SECOND + 1}, False, id="later"),
        pytest.param({"until": SECOND - 1}, False, id="earlier"),
    ],
)
def test_a_filter_chooses_events(wanted: dict[str, Any], is_wanted: bool) -> None:
    assert EventFilter(**wanted)(EVENT) == is_wanted


@pytest.mark.parametrize(
    ("wanted", "is_wanted"),
    [
        pytest.param({}, True, id="nothing"),
        pytest.param({"kinds": ["refused"], "path": "/x"}, True, id="what is known"),
        pytest.param({"rule": "api"}, False, id="a part of the rule"),
        pytest.param({"rules": ["api"]}, False, id="the rule"),
        pytest.param({"subject": "192.0"}, False, id="letters of the subject"),
        pytest.param({"subjects": ["user:9"]}, False, id="a part of the subject"),
        pytest.param({"subjects": ["user:7"]}, True, id="the user"),
    ],
)
def test_a_filter_chooses_events_whose_names_are_too_long_to_keep(wanted: dict[str, Any], is_wanted: bool) -> None:
    assert EventFilter(**wanted)(replace(EVENT, rule=None, subject=None)) == is_wanted


def test_an_event_whose_subject_is_too_long_to_keep_has_no_address() -> None:
    assert replace(EVENT, subject=None).as_json()["ip"] is None
