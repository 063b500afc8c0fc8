"""Sends a scene's requests to the site: one after another, or from as many threads at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from uuid import uuid4

from example_project.client import Reply, Visitor
from example_project.scenes import Scene

READY_TIMEOUT = 60.0
"""Seconds within which all threads must be ready to send."""


def one_after_another(scene: Scene, visitor: Visitor, values: Sequence[str] = ()) -> list[Reply]:
    """Send the scene's requests as one visitor; `values`: what they bring, in the place of what the scene says."""
    headers = _headers(scene)
    return [_send(scene, visitor, value, headers) for value in values or _values(scene)]


def at_once(scene: Scene, port: int) -> Iterator[Reply]:
    """Send the scene's requests from as many threads, all let go at the same moment; yield the replies as they come."""
    together = threading.Barrier(scene.sends)
    headers = _headers(scene)
    with Visitor(port) as first:
        if scene.method == "POST":
            first.get("/")
        cookies = first.cookies

    def send(value: str) -> Reply:
        with Visitor(port, cookies) as visitor:
            together.wait(READY_TIMEOUT)
            return _send(scene, visitor, value, headers)

    with ThreadPoolExecutor(scene.sends) as pool:
        for sent in as_completed([pool.submit(send, value) for value in _values(scene)]):
            yield sent.result()


def _values(scene: Scene) -> Sequence[str]:
    """Return what each request brings that may differ."""
    given = scene.given
    return (given.each if given else ()) or (given.value if given else "",) * scene.sends


def _headers(scene: Scene) -> dict[str, str]:
    """Return the headers of a run: somebody whom the limit has never seen, where it goes by a fresh one."""
    return {**scene.headers, **({scene.fresh_header: uuid4().hex} if scene.fresh_header else {})}


def _send(scene: Scene, visitor: Visitor, value: str, headers: dict[str, str]) -> Reply:
    given = {scene.given.name: value} if scene.given else {}
    if scene.method == "POST":
        return visitor.send(scene.method, scene.url, fields={**scene.fields, **given}, headers=headers)
    return visitor.send(scene.method, scene.url, headers={**headers, **given})
