"""Send the requests of a scenario, one after another or all at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from uuid import uuid4

from example_project.client import Reply, Visitor
from example_project.scenarios import Scenario

READY_TIMEOUT = 60.0
"""Seconds to wait until all threads are ready to send."""


def one_after_another(scenario: Scenario, visitor: Visitor, values: Sequence[str] = ()) -> list[Reply]:
    """Send the requests as one visitor, with `values` in place of those of the scenario."""
    headers = _headers(scenario)
    return [_send(scenario, visitor, value, headers) for value in values or _values(scenario)]


def at_once(scenario: Scenario, port: int) -> Iterator[Reply]:
    """Send each request from a thread of its own, all at the same moment; yield the replies as they come."""
    together = threading.Barrier(scenario.sends)
    headers = _headers(scenario)
    with Visitor(port) as first:
        if scenario.method == "POST":
            first.get("/")
        cookies = first.cookies

    def send(value: str) -> Reply:
        with Visitor(port, cookies) as visitor:
            together.wait(READY_TIMEOUT)
            return _send(scenario, visitor, value, headers)

    with ThreadPoolExecutor(scenario.sends) as pool:
        for sent in as_completed([pool.submit(send, value) for value in _values(scenario)]):
            yield sent.result()


def _values(scenario: Scenario) -> Sequence[str]:
    """Return the value of each request."""
    given = scenario.given
    return (given.each if given else ()) or (given.value if given else "",) * scenario.sends


def _headers(scenario: Scenario) -> dict[str, str]:
    """Return the headers of a run, with a new value in `fresh_header` so that the limit starts unused."""
    return {**scenario.headers, **({scenario.fresh_header: uuid4().hex} if scenario.fresh_header else {})}


def _send(scenario: Scenario, visitor: Visitor, value: str, headers: dict[str, str]) -> Reply:
    given = {scenario.given.name: value} if scenario.given else {}
    if scenario.method == "POST":
        return visitor.send(scenario.method, scenario.url, fields={**scenario.fields, **given}, headers=headers)
    return visitor.send(scenario.method, scenario.url, headers={**headers, **given})
