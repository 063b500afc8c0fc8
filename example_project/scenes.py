"""The scenes of the example: the one list that the addresses, the front page and the demo are made of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from example_project import views


@dataclass(frozen=True)
class Scene:
    """A limited view, and what to send it to see its limit at work."""

    slug: str
    title: str
    shows: str
    view: Callable[..., Any]
    sends: int
    """How many requests are sent to see it."""
    admits: int
    """How many of them the rule promises to let in."""
    method: str = "GET"
    at_once: bool = False
    """Whether they are sent all at the same time; else one after another."""
    field: str = ""
    """The form field that tells who is limited."""
    header: str = ""
    """The header that tells who is limited: each run makes up a new value."""
    signs_in: bool = False
    """Whether it differs for who is signed in."""
    full: int = 0
    """What is left when nothing is used, where that is not the rate's count: the size of a bucket."""

    @property
    def url(self) -> str:
        """Where it is."""
        return f"/try/{self.slug}/"

    @property
    def source(self) -> str:
        """The view as it is written, decorators and all, but for the types in its head."""
        source = inspect.getsource(inspect.unwrap(self.view)).rstrip()
        return re.sub(r"\(request: \w+\) -> \w+:", "(request):", source)

    @property
    def button(self) -> str:
        """What the button on the front page says."""
        return f"Send {self.sends} {'at once' if self.at_once else 'requests'}"


SCENES = (
    Scene(
        slug="ip",
        title="Ten a minute",
        shows="Each address gets ten requests in any minute. Not ten a calendar minute: no sixty seconds hold eleven.",
        view=views.hello,
        sends=12,
        admits=10,
    ),
    Scene(
        slug="download",
        title="Five downloads in 30 minutes",
        shows="The window is whatever you write. A refusal says when the oldest download stops counting.",
        view=views.download,
        sends=7,
        admits=5,
    ),
    Scene(
        slug="sms",
        title="A code a minute, five a day",
        shows="Two limits by phone number: both must have room, and a refusal uses up neither. Another number is free. "
        "The number itself is never stored, only a keyed digest.",
        view=views.sms_code,
        sends=3,
        admits=1,
        method="POST",
        field="phone",
    ),
    Scene(
        slug="members",
        title="Guests 10, members 100",
        shows="The rate is a function of the request. Try it as a guest, then sign in and try again.",
        view=views.members,
        sends=12,
        admits=10,
        signs_in=True,
    ),
    Scene(
        slug="crowd",
        title="Forty at once",
        shows="Forty requests with the same API key, at the same time. Each is decided in one script call in Redis, so "
        "none slips through between looking and counting.",
        view=views.crowd,
        sends=40,
        admits=10,
        at_once=True,
        header="X-Api-Key",
    ),
    Scene(
        slug="bursts",
        title="Bursts, then a steady refill",
        shows="A token bucket on an async view: five at once are fine, and every two seconds bring one more.",
        view=views.bursts,
        sends=8,
        admits=5,
        full=5,
    ),
    Scene(
        slug="queue",
        title="A queue that drains evenly",
        shows="A leaky bucket does not turn the next ones away, it says how long to hold them back: two leave "
        "a second, five may wait.",
        view=views.queue,
        sends=8,
        admits=5,
        at_once=True,
        full=5,
    ),
    Scene(
        slug="stacked",
        title="Three limits, one call",
        shows="Three decorators, decided together in one round trip. Whom one refuses has used nothing of the others.",
        view=views.stacked,
        sends=12,
        admits=3,
    ),
)
