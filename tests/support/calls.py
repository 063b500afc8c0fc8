"""How the tests call a view: with a request of a known address, sync or async."""

import asyncio
import sys
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponseBase
from django.test import AsyncClient, Client, RequestFactory

from django_quota import acheck, aonce, check, once
from django_quota.core.flow import run_async, run_sync
from django_quota.core.matching import Match, Target
from django_quota.engine.decide import Decide
from django_quota.engine.events import AppendEvents
from django_quota.subjects.keys import subject_flow
from tests.support.stores import spy

both = pytest.mark.parametrize("kind", ["sync", "async"])
both_ways = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


def get(method: str = "get", **meta: Any) -> Any:
    return getattr(RequestFactory(), method)("/", **{"REMOTE_ADDR": "192.0.2.1", **meta})


def always(value: object) -> Callable[[HttpRequest], Any]:

    def key(request: HttpRequest) -> object:
        return value

    return key


def run(view: Callable[..., Any], request: Any = None) -> Any:

    async def wait() -> HttpResponseBase:
        answer = view(get() if request is None else request)
        return await answer if isawaitable(answer) else answer  # type: ignore[no-any-return]

    return asyncio.run(wait())


def called(is_async: bool, function: Callable[..., Any], twin: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Call a function, or its async twin."""
    return asyncio.run(twin(*given, **options)) if is_async else function(*given, **options)


def remaining_both_ways() -> list[int | None]:
    """Return what is left after a sync and after an async hit; None where Redis did not decide."""

    async def asked() -> int | None:
        return (await acheck("5/m", "user:1")).remaining

    return [check("5/m", "user:1").remaining, asyncio.run(asked())]


RAISING_CALLS: list[Callable[[], object]] = [lambda: once("a", "b"), lambda: asyncio.run(aonce("a", "b"))]
"""A sync and an async call that raise the store's errors, where a check decides by itself."""


def calls_in(function: Callable[[], object]) -> int:
    """Return how many functions a function calls, those of C among them."""
    calls = 0

    def count(_frame: object, event: str, _given: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note every call of the store from now on, sync and async, but those that write the events of a decision."""
    calls: list[int] = []
    spy(
        monkeypatch,
        lambda operation: None if isinstance(operation, AppendEvents) else calls.append(1),
        background=False,
    )
    return calls


def operations_of(monkeypatch: pytest.MonkeyPatch, *kinds: type) -> list[Any]:
    """Note the operations of these classes that the store is asked to run from now on, also in rounds."""
    asked: list[Any] = []
    spy(monkeypatch, before=lambda operation: asked.append(operation) if isinstance(operation, kinds) else None)
    return asked


def limits_of_each_call(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note of each call that decides how many limits it has."""
    counted: list[int] = []

    def note(operation: Any) -> None:
        if isinstance(operation, Decide):
            counted.append(sum(len(hit.limits) for hit in operation.hits))

    spy(monkeypatch, note, background=False)
    return counted


def matches_that_are_compared(monkeypatch: pytest.MonkeyPatch) -> list[Match]:
    compared: list[Match] = []
    matches = Match.matches

    def comparing(match: Match, target: Target, *, unknown: bool = True) -> bool:
        compared.append(match)
        return matches(match, target, unknown=unknown)

    monkeypatch.setattr(Match, "matches", comparing)
    return compared


def before_the_next_answer_is_read(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    left = [act]
    spy(monkeypatch, after=lambda _: left and left.pop()(), background=False)


def subject_of(key: Any, request: HttpRequest) -> str:
    return str(run_sync(subject_flow(key, request)))


async def asubject_of(key: Any, request: HttpRequest) -> str:
    return str(await run_async(subject_flow(key, request)))


def fetch(kind: str, path: str, times: int = 1, **headers: str) -> list[Any]:
    if kind == "sync":
        client = Client()
        return [client.get(path, headers=headers) for _ in range(times)]

    async def ask() -> list[Any]:
        aclient = AsyncClient()
        return [await aclient.get(path, headers=headers) for _ in range(times)]

    return asyncio.run(ask())
