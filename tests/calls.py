"""How the tests call a view: with a request of a known address, sync or async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

from django.http import HttpResponseBase
from django.test import RequestFactory


def get(method: str = "get", **meta: Any) -> Any:
    return getattr(RequestFactory(), method)("/", **{"REMOTE_ADDR": "192.0.2.1", **meta})


def run(view: Callable[..., Any], request: Any = None) -> HttpResponseBase:
    """Call a view, sync or async."""

    async def wait() -> HttpResponseBase:
        answer = view(get() if request is None else request)
        return await answer if isawaitable(answer) else answer  # type: ignore[no-any-return]

    return asyncio.run(wait())
