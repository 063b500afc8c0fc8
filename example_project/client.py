"""An HTTP client that keeps its connection and its cookies, as a browser does."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.client import HTTPConnection
from http.cookies import SimpleCookie
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

TIMEOUT = 60.0


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Message
    body: str
    at: float
    """When it arrived, by `time.monotonic`."""

    @property
    def admitted(self) -> bool:
        """Whether the view ran."""
        return self.status == HTTPStatus.OK

    @property
    def retry_after(self) -> int:
        """The seconds of Retry-After; 0 if there is none."""
        return int(self.headers.get("Retry-After", "0"))

    @property
    def said(self) -> dict[str, Any]:
        """The JSON object of the body; empty if the body is not one."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def left(self) -> list[int]:
        """What each limit has left, from the RateLimit header."""
        return [int(left) for left in re.findall(r";r=(\d+)", self.headers.get("RateLimit", ""))]

    @property
    def quotas(self) -> dict[str, int]:
        """What each limit admits in its window, by name, from the RateLimit-Policy header."""
        policies = re.findall(r'"([^"]*)";q=(\d+)', self.headers.get("RateLimit-Policy", ""))
        return {name: int(quota) for name, quota in policies}


class Visitor:
    """A visitor with a connection and cookies of their own. A context manager."""

    def __init__(
        self, port: int, cookies: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        self.cookies = dict(cookies or {})
        self.headers = {"Accept": "application/json", **(headers or {})}
        """The headers of every request."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._connection.close()

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.send("GET", url, headers=headers)

    def post(self, url: str, fields: Mapping[str, str] | None = None) -> Reply:
        """Send a form, with the CSRF token from the cookie of an earlier page."""
        return self.send("POST", url, fields=fields or {})

    def send(
        self,
        method: str,
        url: str,
        *,
        fields: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request and keep the cookies of the reply."""
        sent = {**self.headers, **(headers or {})}
        body = None
        if fields is not None:
            body = urlencode(fields)
            sent["Content-Type"] = "application/x-www-form-urlencoded"
            sent["X-CSRFToken"] = self.cookies.get("csrftoken", "")
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        self._connection.request(method, url, body, sent)
        response = self._connection.getresponse()
        text = response.read().decode(errors="replace")
        for header in response.headers.get_all("Set-Cookie", []):
            self.cookies.update((name, morsel.value) for name, morsel in SimpleCookie(header).items())
        return Reply(response.status, response.headers, text, time.monotonic())
