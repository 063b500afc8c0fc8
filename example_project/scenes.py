"""The scenes of the example: the one list that the addresses, the front page and the demo are made of."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from example_project import api, views
from example_project.people import DEMO, DEMO_PRO
from example_project.rules import RULES
from example_project.start import CREDITS, STOCK


@dataclass(frozen=True)
class Given:
    """What the requests of a scene bring that may differ: a field of the form, or, where they are GETs, a header."""

    name: str
    label: str
    """What the front page calls it."""
    value: str
    """What a single request brings, until the visitor writes something else."""
    each: tuple[str, ...] = ()
    """What the requests of a run bring, in turn; where empty, what a single one does."""


@dataclass(frozen=True)
class Scene:
    """A view, and what to send it to see its limit at work."""

    group: str
    """The heading that it stands under."""
    slug: str
    title: str
    shows: str
    view: Callable[..., Any]
    sends: int
    """How many requests are sent to see it."""
    admits: int
    """How many of them are promised to be let in."""
    declines: int = 0
    """How many of them the view itself is promised to say no to."""
    declines_with: HTTPStatus | None = None
    """The status by which it does."""
    method: str = "GET"
    at_once: bool = False
    """Whether they are sent all at the same time; else one after another."""
    from_server: bool = False
    """Whether the server sends them for the front page: a browser keeps no more than six waiting for an answer."""
    given: Given | None = None
    """What the requests bring, where it is not the same each time."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers that every request brings."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The fields of the form that every request brings."""
    fresh_header: str = ""
    """The header that tells who is limited: each run makes up a new value."""
    signs_in: tuple[str, ...] = ()
    """The users that one may sign in as to see it differ."""
    full: int = 0
    """What is left when nothing is used, where that is not the rate's count: the size of a bucket."""
    tells_limits: bool = True
    """Whether every reply tells the limits in its headers; else only a refusal does."""
    tells: bool = False
    """Whether the front page shows what the replies say."""
    rules: tuple[str, ...] = ()
    """The rules of the settings that it is limited by."""
    problem: str = "quota-exceeded"
    """What kind of problem a refusal says it is: those of the IANA's list."""
    path: str = ""
    """Where it is, where it has an address of its own."""

    @property
    def url(self) -> str:
        """Where it is."""
        return self.path or f"/try/{self.slug}/"

    @property
    def source(self) -> str:
        """The view as it is written, decorators and all, but for the types in its head; with its rules."""
        source = inspect.getsource(inspect.unwrap(self.view)).rstrip()
        source = re.sub(r"\(request: \w+\) -> \w+:.*", "(request):", source)
        if not self.rules:
            return source
        # texts, numbers, lists and dicts, which Python writes alike
        shown = [f'QUOTA["RULES"]["{rule}"] = {json.dumps(RULES[rule])}' for rule in self.rules]
        return "\n".join([source, "", "# in the settings", *shown])

    @property
    def headers_json(self) -> str:
        """The headers that every request brings, for the front page."""
        return json.dumps(dict(self.headers))

    @property
    def fields_json(self) -> str:
        """The fields that every request brings, for the front page."""
        return json.dumps(dict(self.fields))

    @property
    def each_json(self) -> str:
        """What the requests of a run bring in turn, for the front page."""
        return json.dumps(self.given.each if self.given else ())

    @property
    def button(self) -> str:
        """What the button on the front page says."""
        return f"Send {self.sends} {'at once' if self.at_once else 'requests'}"


LIMITS, TOGETHER = "Limits", "Many at the same time"
PEOPLE, API = "People and their accounts", "An API under rules of the settings"

SCENES = (
    Scene(
        group=LIMITS,
        slug="ip",
        title="Ten a minute",
        shows="Each address gets ten requests in any minute. Not ten a calendar minute: no sixty seconds hold eleven.",
        view=views.hello,
        sends=12,
        admits=10,
    ),
    Scene(
        group=LIMITS,
        slug="download",
        title="Five downloads in 30 minutes",
        shows="The window is whatever you write. A refusal says when the oldest download stops counting.",
        view=views.download,
        sends=7,
        admits=5,
    ),
    Scene(
        group=LIMITS,
        slug="bursts",
        title="Bursts, then a steady refill",
        shows="A token bucket on an async view: five at once are fine, and every two seconds bring one more.",
        view=views.bursts,
        sends=8,
        admits=5,
        full=5,
    ),
    Scene(
        group=LIMITS,
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
        group=LIMITS,
        slug="stacked",
        title="Three limits, one call",
        shows="Three decorators, decided together in one round trip. Whom one refuses has used nothing of the others.",
        view=views.stacked,
        sends=12,
        admits=3,
    ),
    Scene(
        group=LIMITS,
        slug="tokens",
        title="A budget of tokens",
        shows="What a language model's answer costs is known only afterwards. So each call holds its estimate, 4,000, "
        "and gives back what it did not use: here 2,500. A call needs room for its whole estimate: five find it, and "
        "the sixth does not, though 2,500 are left.",
        view=views.ask_model,
        sends=7,
        admits=5,
        tells_limits=False,
        tells=True,
        rules=("tokens",),
    ),
    Scene(
        group=TOGETHER,
        slug="crowd",
        title="Forty at once",
        shows="Forty requests with the same API key, at the same time. Each is decided in one script call in Redis, so "
        "none slips through between looking and counting.",
        view=views.crowd,
        sends=40,
        admits=10,
        at_once=True,
        fresh_header="X-Api-Key",
    ),
    Scene(
        group=TOGETHER,
        slug="report",
        title="Ten inside an expensive view",
        shows="The view takes a second, and ten may be in it at once. Whoever leaves makes room; who crashes does too, "
        "once the lease is over.",
        view=views.report,
        sends=14,
        admits=10,
        at_once=True,
        from_server=True,
    ),
    Scene(
        group=TOGETHER,
        slug="sale",
        title="A flash sale",
        shows=f"A stock of {STOCK}, one for each: thirty buyers try twice, all at once. Exactly {STOCK} are sold, "
        "none to the same buyer twice. The rest hear that it is sold out (409) or that they had their try (429).",
        view=views.flash_sale,
        sends=60,
        admits=STOCK,
        declines=10,
        declines_with=HTTPStatus.CONFLICT,
        method="POST",
        at_once=True,
        given=Given("buyer", "Buyer", "you", tuple(f"buyer {number}" for number in range(1, 31)) * 2),
        tells=True,
    ),
    Scene(
        group=TOGETHER,
        slug="credits",
        title="Credits from Ann to Bob",
        shows=f"Ann has {CREDITS} and sends Bob 30, five times at once. Three go through; both accounts change or "
        f"neither does, none goes below zero, and together they keep {CREDITS}.",
        view=views.send_credits,
        sends=5,
        admits=3,
        declines=2,
        declines_with=HTTPStatus.CONFLICT,
        method="POST",
        at_once=True,
        tells_limits=False,
        tells=True,
    ),
    Scene(
        group=PEOPLE,
        slug="sms",
        title="A code a minute, five a day",
        shows="Two limits by phone number: both must have room, and a refusal uses up neither. Another number is free. "
        "The number itself is never stored, only a keyed digest.",
        view=views.sms_code,
        sends=3,
        admits=1,
        method="POST",
        given=Given("phone", "Phone number", "+1 555 0100"),
    ),
    Scene(
        group=PEOPLE,
        slug="members",
        title="Guests 10, members 100",
        shows="The rate is a function of the request. Try it as a guest, then sign in and try again.",
        view=views.members,
        sends=12,
        admits=10,
        signs_in=(DEMO,),
    ),
    Scene(
        group=PEOPLE,
        slug="login",
        title="Five failed logins, then a ban",
        shows="The view says no to five wrong passwords; the sixth try bans the address, for ten minutes, then an "
        "hour, then a day. Until then even the right one, “correct horse”, is refused. Given in time, it forgives the "
        "wrong ones. An account has a limit of its own, from wherever it is tried.",
        view=views.log_in,
        sends=7,
        admits=0,
        declines=5,
        declines_with=HTTPStatus.FORBIDDEN,
        method="POST",
        given=Given("password", "Password", "guess", ("guess",) * 6 + ("correct horse",)),
        fields={"username": "ann"},
        tells=True,
        rules=("login", "login-account"),
        problem="abnormal-usage-detected",
    ),
    Scene(
        group=PEOPLE,
        slug="devices",
        title="Three devices an account",
        shows="What is counted is not requests but different devices: a, b, c, then a and b again, which are known, "
        "and d, which is one too many. Only d is refused.",
        view=views.devices,
        sends=6,
        admits=5,
        given=Given("X-Device", "Device", "a", tuple("abcabd")),
        headers={"X-Account": "acme"},
    ),
    Scene(
        group=API,
        slug="tiers",
        title="A plain view, three tiers",
        shows="Nothing stands on the view: a rule of the settings says where it holds, and who gets how much. Guests "
        "get 10 a minute, whoever is signed in 100, a pro 1,000. Try it as each of them.",
        view=api.items,
        path="/api/items/",
        sends=12,
        admits=10,
        signs_in=(DEMO, DEMO_PRO),
        rules=("api",),
    ),
    Scene(
        group=API,
        slug="joined",
        title="Two rules and a decorator, one call",
        shows="The export is under the API's rule, under a rule of its own, and under a decorator. The three are "
        "decided together in one round trip: whom the decorator refuses has used nothing of the others.",
        view=api.export,
        path="/api/export/",
        headers={"X-Forwarded-For": "203.0.113.201"},
        sends=8,
        admits=4,
        rules=("api", "api-export"),
    ),
    Scene(
        group=API,
        slug="cost",
        title="A search costs what it asks for",
        shows="Thirty units a minute, and a search takes one for every twenty results: five here, as it asks for a "
        "hundred. Six fit. The staff's searches are free.",
        view=api.search,
        path="/api/search/?limit=100",
        headers={"X-Forwarded-For": "203.0.113.202"},
        sends=8,
        admits=6,
        rules=("api-search", "api"),
    ),
)
