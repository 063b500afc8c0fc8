"""A strict Content-Security-Policy: scripts, styles and everything else only from this site, nothing inline.

Django 6 has a middleware of its own for this; this one works with every supported Django.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase
from django.utils.functional import SimpleLazyObject, empty

POLICY = "default-src 'self'; img-src 'self' data:"
"""The icons of Django's admin are data URLs."""


class ContentSecurityPolicy:
    """Set the Content-Security-Policy of every reply; `request.csp_nonce` is a nonce for a page's own style."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        nonce = SimpleLazyObject(lambda: secrets.token_urlsafe(16))
        request.csp_nonce = nonce  # type: ignore[attr-defined]
        response = self.get_response(request)
        if iscoroutinefunction(self.get_response):
            return _when_there(response, nonce)
        return _said(response, nonce)


async def _when_there(response: Awaitable[HttpResponseBase], nonce: Any) -> HttpResponseBase:
    return _said(await response, nonce)


def _said(response: HttpResponseBase, nonce: Any) -> HttpResponseBase:
    used = nonce._wrapped is not empty  # noqa: SLF001 — whether a page has asked for it
    response["Content-Security-Policy"] = f"{POLICY}; style-src 'self' 'nonce-{nonce}'" if used else POLICY
    return response
