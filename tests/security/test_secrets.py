"""Secrets are put everywhere, and then searched for everywhere: Redis, logs, signals, errors, pages, commands."""

import asyncio
import io
import logging
import pprint
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from asgiref.sync import sync_to_async
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.http import HttpResponse, QueryDict
from django.test import RequestFactory, override_settings
from django.views.debug import ExceptionReporter
from django_redis.pool import ConnectionFactory

from django_quota import acheck, aonce, areset, check, counter, once, peek, quota, slot
from django_quota.adapters import digest
from django_quota.conf import current
from django_quota.core.flow import Flow, IOCall, run_async, run_sync
from django_quota.exceptions import QuotaError, RuleError, StoreUnavailable
from django_quota.signals import banned, near_limit, refused, store_back, store_lost
from tests.admin.operators import superuser
from tests.security.pages import ROOT, addresses
from tests.support.calls import get, run
from tests.support.counts import count_what_waits
from tests.support.stores import CLUSTER_CLIENT

MARK = "5ENTINEL"
HEADER, COOKIE, FIELD, SESSION, VALUE, ONCE, VISITOR, PASSWORD = (
    f"{MARK}-{kind}" for kind in ("header", "cookie", "field", "session", "value", "once", "visitor", "password")
)
OURS = {"DIGEST_KEY": f"{MARK}-digest-key"}


@pytest.fixture
def raw(one_redis: Any, settings: Any) -> Iterator[redis.Redis]:
    """Django's default cache on an emptied Redis that asks for a password; yields a client of it that may do all."""
    one_redis.execute_command("ACL", "SETUSER", "keeper", "reset", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    url = f"{settings.CACHES['default']['LOCATION']}?username=keeper&password={PASSWORD}"
    settings.CACHES["default"]["LOCATION"] = url
    settings.SECRET_KEY, settings.QUOTA = f"{MARK}-secret-key", OURS
    yield one_redis
    one_redis.execute_command("ACL", "DELUSER", "keeper")


def everything(client: Any) -> str:
    """Return everything in a Redis: keys, fields, values, members."""
    read: dict[bytes, Callable[[Any], Any]] = {
        b"string": client.get, b"hash": client.hgetall, b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers, b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"stream": client.xrange, b"none": repr,  # it has expired meanwhile
    }  # fmt: skip
    found = {key: read[client.type(key)](key) for key in client.scan_iter()}
    assert len(found) > 10
    return repr(found)


def carrying(key: Any) -> Any:
    body: Any = {"phone": FIELD, "user": {"phone": FIELD}} if key == "json:user.phone" else {"phone": FIELD}
    kind: Any = {"content_type": "application/json"} if key == "json:user.phone" else {}
    request: Any = RequestFactory().post("/", body, REMOTE_ADDR="192.0.2.1", HTTP_X_API_KEY=HEADER, **kind)
    request.COOKIES["device"] = COOKIE
    request.GET = QueryDict(f"token={FIELD}")
    request.session = SimpleNamespace(session_key=SESSION, has_key=bool, ahas_key=sync_to_async(bool))
    return request


async def view_async(request: Any) -> HttpResponse:
    return HttpResponse()


KEYS: tuple[Any, ...] = ("header:X-Api-Key", "cookie:device", "post:phone", "get:token", "session", "json:user.phone")
KEYS += (("header:X-Api-Key", "ip"),)


def play() -> None:
    """Do everything that takes a secret in."""
    banning: dict[str, Any] = {"ban": {"after": "1/m", "for": ["1h"]}, "warn_at": 0.5}
    views: dict[str, Any] = {"sync": lambda request: HttpResponse(), "async": view_async}
    for kind, view in views.items():
        for key in KEYS:
            limited = quota("2/m", key=key, name=f"{kind} by {key}", **banning)(view)
            assert [run(limited, carrying(key)).status_code for _ in range(4)] == [200, 200, 429, 429]
            run(quota("1/m", key=key, name="shadow", shadow=True)(view), carrying(key))
        for distinct in ("header:X-Api-Key", "post:phone"):
            run(quota("1/m", key="ip", name="devices", distinct=distinct)(view), carrying(distinct))
    for value in (VALUE, VALUE.encode()):
        for verb in (check, peek):
            verb("2/m", "user:1", name="values", distinct=True, value=value)
    once("event", ONCE)
    once("event", ONCE.encode())
    asyncio.run(aonce("event", ONCE + "2"))
    asyncio.run(acheck("2/m", "user:1", name="values", distinct=True, value=VALUE))
    counter("visitors").unique("user:1", VISITOR)
    with slot("export", 1, subject=f"post.phone:{digest(FIELD.casefold())}"):
        pass


@pytest.fixture
def heard() -> Iterator[list[Any]]:
    """All that our signals say."""
    found: list[Any] = []

    def hear(**said: Any) -> None:
        found.append({name: value for name, value in said.items() if name != "signal"})

    signals = (refused, banned, near_limit, store_lost, store_back)
    for signal in signals:
        signal.connect(hear)
    yield found
    for signal in signals:
        signal.disconnect(hear)


@pytest.mark.django_db(transaction=True)
def test_no_place_shows_what_clients_send(raw: Any, heard: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = f"post.phone:{digest(FIELD.casefold())}"
    play()
    count_what_waits()
    shown = {"Redis": everything(raw), "signals": repr(heard)}
    assert all(kind in shown["Redis"] for kind in ("header.x-api-key:", "post.phone:"))
    assert len(heard) > 10

    root, said = superuser(), io.StringIO()
    for address in addresses():
        reply = root.get(address, {"sizes": "1", "subject": secret})
        shown[address] = "" if reply.streaming else reply.content.decode(errors="replace")
        reply.close()
    found = root.post(f"{ROOT}django_quota/subject/", {"find": f"post:phone={FIELD}"})
    assert found.status_code == 302
    assert digest(FIELD.casefold()) in found["Location"]
    shown["the address of a search"] = found["Location"]
    commands = "status @|status @ --json|events|events --json|override set @ 9/m|override list|sweep|rollup|reset @"
    for words in commands.replace("@", secret).split("|"):
        call_command(*f"quota_{words}".split(), stdout=said, stderr=said)
    call_command("check", stdout=said, stderr=said)
    assert secret in said.getvalue()
    shown |= {"commands": said.getvalue(), "Redis in the end": everything(raw), "signals in the end": repr(heard)}
    shown["logs"] = caplog.text.replace(f"post:phone={FIELD}", "")

    assert [place for place, text in shown.items() if MARK in text] == []


# --- the password of Redis --------------------------------------------------------------------------------------------


def frames_of(error: BaseException | None) -> Iterator[str]:
    """Return what a report shows of an error and its causes: the locals of each frame."""
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            if "tests" not in trace.tb_frame.f_code.co_filename:
                yield trace.tb_frame.f_code.co_qualname + pprint.pformat(trace.tb_frame.f_locals)
            trace = trace.tb_next
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


FAULTS = {
    "well": (),
    "WRONGPASS": ("resetpass", ">another"),
    "NOPERM": ("resetpass", f">{PASSWORD}", "-@all", "+auth", "+hello"),
    "off": ("off",),
}


def inject(fault: str, client: Any) -> None:
    """In a frame of its own, since frames that are reported hold no password of the test's."""
    client.execute_command("ACL", "SETUSER", "keeper", *FAULTS[fault])
    client.execute_command("CLIENT", "KILL", "USER", "keeper", "SKIPME", "yes")


WAYS: list[Callable[[], Any]] = [
    lambda: once("event", ONCE),
    lambda: asyncio.run(aonce("event", ONCE)),
    lambda: asyncio.run(areset("1/m", "user:1")),
    lambda: check("1/m", "user:1"),
    lambda: slot("a", 1).acquire().release(),
    lambda: asyncio.run(slot("b", 1).aacquire()),
    lambda: call_command("quota_status", "user:1", "--json", stdout=io.StringIO(), stderr=io.StringIO()),
]


def failures(ways: list[Callable[[], Any]]) -> list[Exception]:
    """Make calls, each with a store of its own; return how they failed."""
    found: list[Exception] = []
    for way in ways:
        with override_settings(QUOTA={**OURS, "CACHE": "default"}):  # closes what was open
            try:
                way()
            except (QuotaError, CommandError) as error:
                found.append(error)
    return found


def report_of(error: Exception) -> str:
    """Return what Django reports of an error, without the settings: CACHES is shown there."""
    report = ExceptionReporter(get(), type(error), error, error.__traceback__).get_traceback_html()
    return str(report.partition('id="settings-info"')[0])


@pytest.mark.django_db
@pytest.mark.parametrize("fault", FAULTS)
def test_the_password_is_in_nothing_that_is_said_of_a_fault(
    fault: str, raw: Any, heard: list[Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    # As redis-py 6 and 7 have it.
    monkeypatch.setattr("redis.asyncio.ConnectionPool.__repr__", lambda pool: f"<Pool({pool.connection_kwargs})>")
    inject(fault, raw)
    for pool in ConnectionFactory._pools.values():
        pool.disconnect()

    errors = failures(WAYS)

    assert len(errors) >= (0 if fault == "well" else 6)
    assert any("reason" in said for said in heard) == (fault != "well")
    shown = {str(error): "".join([str(error), repr(error), *frames_of(error)]) for error in errors}
    assert [error for error, text in shown.items() if PASSWORD in text or f"{MARK}-secret" in text] == []
    assert [error for error in errors if PASSWORD in report_of(error)] == []
    assert MARK not in repr(heard)
    assert MARK not in caplog.text


def by_parts(request: Any) -> list[str]:
    return [request.path]


def by_form(request: Any) -> dict[str, str]:
    return dict(request.POST.items())


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    "call", [check, lambda *given, **key: asyncio.run(acheck(*given, **key))], ids=["sync", "async"]
)
@pytest.mark.parametrize("key", [("post:username", by_parts), by_form], ids=["after the form", "the form"])
def test_a_form_is_in_no_local_of_ours_after_a_configuration_error(key: Any, call: Any) -> None:
    request = RequestFactory().post("/", {"username": "ann", "password": PASSWORD})
    with pytest.raises(RuleError, match="identifies nobody") as caught:
        call("5/m", request, key=key)
    frames = [*frames_of(caught.value)]
    assert len(frames) > 3
    assert not [frame for frame in frames if PASSWORD in frame]


def secret() -> str:
    return PASSWORD


def fail() -> None:
    raise StoreUnavailable("it is away")


def reading_a_secret() -> Flow[None]:
    yield IOCall(secret, sync_to_async(secret))
    yield IOCall(fail, sync_to_async(fail))


@pytest.mark.parametrize("run", [run_sync, lambda flow: asyncio.run(run_async(flow))], ids=["sync", "async"])
def test_what_a_call_has_returned_is_in_no_local_of_ours_when_the_next_one_fails(run: Callable[..., Any]) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        run(reading_a_secret())

    frames = [*frames_of(caught.value)]
    assert [frame for frame in frames if "results" in frame]
    assert not [frame for frame in frames if PASSWORD in frame]


ENDS = f"user:{PASSWORD}@b@example.org"


@pytest.mark.parametrize("client", ["django_redis.client.DefaultClient", CLUSTER_CLIENT])
@pytest.mark.parametrize(
    "location",
    [
        pytest.param(f"https://{ENDS}", id="of the web"),
        pytest.param(f"redis+x://{ENDS}", id="an unknown scheme"),
        pytest.param(f"h:6379?password={PASSWORD}", id="no scheme"),
        pytest.param([f"http://{ENDS}"] * 2, id="several"),
    ],
)
def test_no_error_about_a_location_shows_its_password(location: Any, client: str) -> None:
    alias = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": {"CLIENT_CLASS": client}}

    with override_settings(CACHES={"default": alias}, QUOTA={}):
        with pytest.raises(QuotaError) as caught:
            once("a", "b")
        findings = repr(run_checks(tags=["django_quota"]))

    assert PASSWORD not in f"{caught.value} {findings}"


POOL = f"<redis.connection.ConnectionPool(<redis.connection.Connection(host=h,password=a&{PASSWORD} {PASSWORD},db=0)>)>"


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        ("ResponseError", f"unknown command `AUTH`, with args beginning with: `{PASSWORD}`, "),
        ("ResponseError", f"unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' '{PASSWORD}' "),
        ("ResponseError", f"Error connecting to redis://user:{PASSWORD}@10.0.0.5:6379/0."),
        ("ResponseError", f"cannot parse redis://h/0?username={PASSWORD}&password={PASSWORD}"),
        ("InvalidResponse", f"b'AUTH {PASSWORD}'"),
        ("ConnectionError", f"No master found for 'quotas' : <redis.client.Redis({POOL})> - Error('{PASSWORD}')"),
        ("ConnectionError", f"No master found for 'quotas' : <redis.asyncio.client.Redis({POOL})>"),
    ],
)
def test_what_a_server_or_a_client_says_of_a_password_is_left_out(
    kind: str, reply: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Mock(side_effect=getattr(redis.exceptions, kind)(reply))
    monkeypatch.setattr("redis.connection.AbstractConnection.connect", failing)
    with override_settings(QUOTA={}), pytest.raises(StoreUnavailable) as caught:  # its store is new
        once("event", "1")
    error = caught.value
    assert PASSWORD not in f"{error.reason} {error!r} {traceback.format_exception(error)} {[*frames_of(error)]}"


TOKEN: Any = type("Token", (), {"__repr__": lambda self: VALUE})()
"""A value of no type that can be counted; its text is a secret."""


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ({}, lambda: check("1/m", "user:1", value=VALUE)),
        ({}, lambda: check("1/m", "user:1", distinct=True, value=TOKEN)),
        ({}, lambda: once("event", TOKEN)),
        ({"DIGEST_KEY": [VALUE]}, lambda: check("1/m", get(HTTP_X_KEY="x"), key="header:X-Key")),
        ({"METRICS_TOKEN": f"{VALUE} {VALUE}"}, lambda: current().metrics_token),
    ],
)
def test_a_value_or_a_setting_that_is_wrong_is_not_repeated_in_the_error(
    setting: dict[str, Any], wrong: Callable[[], object]
) -> None:
    with override_settings(QUOTA={"STORE": "memory", **setting}), pytest.raises(QuotaError) as caught:
        wrong()
    assert VALUE not in str(caught.value)
