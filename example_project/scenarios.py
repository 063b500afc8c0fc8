"""The scenarios: one list from which the URLs, the front page and the demo are made."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from example_project import api, views
from example_project.initial_state import CREDITS, STOCK
from example_project.people import DEMO, DEMO_PRO
from example_project.rules import RULES


@dataclass(frozen=True)
class Given:
    """A value that differs between requests: a form field, or a header for GET."""

    name: str
    label: str
    """Its label on the front page."""
    value: str
    """The value of a single request, until the visitor types another."""
    each: tuple[str, ...] = ()
    """The values of the requests of a run; if empty, `value` for each."""


@dataclass(frozen=True)
class Scenario:
    """A view, and the requests that show its limit at work."""

    group: str
    """Its heading on the front page."""
    slug: str
    title: str
    shows: str
    view: Callable[..., Any]
    sends: int
    """How many requests a run sends."""
    admits: int
    """How many of them must be admitted."""
    declines: int = 0
    """How many of them the view itself must decline."""
    declines_with: HTTPStatus | None = None
    """The status of a declined request."""
    method: str = "GET"
    at_once: bool = False
    """Whether all requests are sent at the same time, instead of one after another."""
    from_server: bool = False
    """Whether the server sends the requests of the front page: a browser sends six at once at most."""
    given: Given | None = None
    """The value that differs between requests."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers of every request."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The form fields of every request."""
    fresh_header: str = ""
    """The header that identifies the client; each run makes up a new value."""
    signs_in: tuple[str, ...] = ()
    """The users that a visitor may sign in as."""
    full: int = 0
    """What is left when nothing is used, if that is not the count of the rate: the size of a bucket."""
    tells_limits: bool = True
    """Whether every reply has RateLimit headers, not only a refusal."""
    tells: bool = False
    """Whether the front page shows the body of the replies."""
    rules: tuple[str, ...] = ()
    """The configured rules that limit the view."""
    problem: str = "quota-exceeded"
    """The problem type of a refusal, from the list of the IANA."""
    path: str = ""
    """The URL, if it is not under `/try/`."""

    @property
    def url(self) -> str:
        """The URL of the view."""
        return self.path or f"/try/{self.slug}/"

    @property
    def source(self) -> str:
        """The source of the view with its decorators, without type hints, and its rules."""
        source = inspect.getsource(inspect.unwrap(self.view)).rstrip()
        source = re.sub(r"\(request: \w+\) -> \w+:.*", "(request):", source)
        if not self.rules:
            return source
        # JSON and Python write these values alike
        shown = [f'QUOTA["RULES"]["{rule}"] = {json.dumps(RULES[rule])}' for rule in self.rules]
        return "\n".join([source, "", "# in the settings", *shown])

    @property
    def headers_json(self) -> str:
        """`headers` for the front page."""
        return json.dumps(dict(self.headers))

    @property
    def fields_json(self) -> str:
        """`fields` for the front page."""
        return json.dumps(dict(self.fields))

    @property
    def each_json(self) -> str:
        """The values of the requests for the front page."""
        return json.dumps(self.given.each if self.given else ())

    @property
    def button(self) -> str:
        """The label of the button on the front page."""
        return f"Send {self.sends} {'at once' if self.at_once else 'requests'}"


LIMITS, TOGETHER = "Limits", "Many at the same time"
PEOPLE, API = "People and their accounts", "An API under configured rules"

SCENARIOS = (
    Scenario(
        group=LIMITS,
        slug="ip",
        title="Ten a minute",
        shows="Each address gets ten requests in any sixty seconds, whenever they begin: never eleven.",
        view=views.hello,
        sends=12,
        admits=10,
    ),
    Scenario(
        group=LIMITS,
        slug="download",
        title="Five downloads in 30 minutes",
        shows="The window is whatever you write. A refusal says when the oldest download stops counting.",
        view=views.download,
        sends=7,
        admits=5,
    ),
    Scenario(
        group=LIMITS,
        slug="bursts",
        title="Bursts, then a steady refill",
        shows="A token bucket on an async view: five at once are fine, and every two seconds bring one more.",
        view=views.bursts,
        sends=8,
        admits=5,
        full=5,
    ),
    Scenario(
        group=LIMITS,
        slug="queue",
        title="A queue that drains evenly",
        shows="A leaky bucket does not refuse the next requests. It says how long to hold them back: two leave each "
        "second, five may wait.",
        view=views.queue,
        sends=8,
        admits=5,
        at_once=True,
        full=5,
    ),
    Scenario(
        group=LIMITS,
        slug="stacked",
        title="Three limits, one call",
        shows="Three decorators are decided together in one round trip. If one refuses, the others do not count the "
        "request.",
        view=views.stacked,
        sends=12,
        admits=3,
    ),
    Scenario(
        group=LIMITS,
        slug="tokens",
        title="A budget of tokens",
        shows="You only know afterwards what an answer of a language model costs. So each call reserves its estimate, "
        "4,000, and returns what it did not use: here 2,500. A call needs room for its whole estimate. Five calls"
        " find it; the sixth does not, although 2,500 are left.",
        view=views.ask_model,
        sends=7,
        admits=5,
        tells_limits=False,
        tells=True,
        rules=("tokens",),
    ),
    Scenario(
        group=TOGETHER,
        slug="crowd",
        title="Forty at once",
        shows="Forty requests with the same API key, at the same time. One script call in Redis decides each, so no "
        "request slips through between the check and the count.",
        view=views.crowd,
        sends=40,
        admits=10,
        at_once=True,
        fresh_header="X-Api-Key",
    ),
    Scenario(
        group=TOGETHER,
        slug="report",
        title="Ten inside an expensive view",
        shows="The view takes a second, and ten requests may run it at once. A request that ends makes room. So does "
        "one that crashes, when its lease expires.",
        view=views.report,
        sends=14,
        admits=10,
        at_once=True,
        from_server=True,
    ),
    Scenario(
        group=TOGETHER,
        slug="sale",
        title="A flash sale",
        shows=f"A stock of {STOCK}, one for each buyer. Thirty buyers try twice at once. Exactly {STOCK} are sold, "
        'and nobody gets two. The other requests get "sold out" (409) or "you had your try" (429).',
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
    Scenario(
        group=TOGETHER,
        slug="credits",
        title="Credits from Ann to Bob",
        shows=f"Ann has {CREDITS} credits and sends Bob 30, five times at once. Three transfers succeed. Both accounts "
        f"change or neither does, no account goes below zero, and the total stays {CREDITS}.",
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
    Scenario(
        group=PEOPLE,
        slug="sms",
        title="A code a minute, five a day",
        shows="Two limits by phone number. Both must have room, and a refusal uses up neither. Another number has "
        "limits of its own. The number itself is never stored, only a keyed digest.",
        view=views.sms_code,
        sends=3,
        admits=1,
        method="POST",
        given=Given("phone", "Phone number", "+1 555 0100"),
    ),
    Scenario(
        group=PEOPLE,
        slug="members",
        title="Guests 10, members 100",
        shows="The rate is a function of the request: a guest gets ten a minute, a member who has signed in a hundred.",
        view=views.members,
        sends=12,
        admits=10,
        signs_in=(DEMO,),
    ),
    Scenario(
        group=PEOPLE,
        slug="login",
        title="Five failed logins, then a ban",
        shows="The view declines five wrong passwords. The sixth try bans the address: for ten minutes, then an hour, "
        'then a day. During a ban even the right password, "correct horse", is refused. Before the ban it resets '
        "the limit. Each account also has a limit of its own, for all addresses together.",
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
    Scenario(
        group=PEOPLE,
        slug="devices",
        title="Three devices an account",
        shows="The limit counts different devices, not requests: a, b and c, then a and b again, which are known, then "
        "d, which is one too many. Only d is refused.",
        view=views.devices,
        sends=6,
        admits=5,
        given=Given("X-Device", "Device", "a", tuple("abcabd")),
        headers={"X-Account": "acme"},
    ),
    Scenario(
        group=API,
        slug="tiers",
        title="A plain view, three tiers",
        shows="The view has no decorator. A configured rule says where it applies and who gets how much: guests 10"
        " a minute, users 100, pros 1,000.",
        view=api.items,
        path="/api/items/",
        sends=12,
        admits=10,
        signs_in=(DEMO, DEMO_PRO),
        rules=("api",),
    ),
    Scenario(
        group=API,
        slug="joined",
        title="Two rules and a decorator, one call",
        shows="The API's rule, a rule of its own and a decorator limit the export. All three are decided together in "
        "one round trip. If the decorator refuses, the others do not count the request.",
        view=api.export,
        path="/api/export/",
        headers={"X-Forwarded-For": "203.0.113.201"},
        sends=8,
        admits=4,
        rules=("api", "api-export"),
    ),
    Scenario(
        group=API,
        slug="cost",
        title="A search costs what it asks for",
        shows="Thirty units a minute. A search costs one unit for every twenty results, so this one, for a hundred, "
        "costs five, and six fit. Searches by staff are free.",
        view=api.search,
        path="/api/search/?limit=100",
        headers={"X-Forwarded-For": "203.0.113.202"},
        sends=8,
        admits=6,
        rules=("api-search", "api"),
    ),
)
