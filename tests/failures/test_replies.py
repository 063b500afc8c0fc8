"""Well-formed replies that are none to what was asked: no answer, whether one server or a Cluster says them."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import QuotaError, QuotaExceeded, quota
from django_quota.limiter import get_limiter
from django_quota.operations.usage import ReadDays
from django_quota.outages import ongoing
from django_quota.plans import _known
from django_quota.stores.breaker import Breaker
from django_quota.stores.cluster_store import ClusterStore
from django_quota.stores.errands import Errands
from django_quota.usage import ausage, usage
from tests.calls import get
from tests.conftest import CLUSTER_CLIENT
from tests.failures.calls import ALGORITHMS, CALLS, DECIDES, RAISES, SERVES, WAYS, Call, do, plain, plain_async
from tests.failures.places import caches_at, with_site
from tests.failures.sockets import Listener
from tests.inputs import inputs

SLOTS = b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$2\r\nid\r\n"
NOW = 1_763_700_000_000_000


def wire(value: Any) -> bytes:
    """Return a value as it goes over the wire."""
    match value:
        case None:
            return b"_\r\n"
        case int():
            return b":%d\r\n" % value
        case str():
            data = value.encode()
            return b"$%d\r\n%s\r\n" % (len(data), data)
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(value), value)
        case Exception():
            return b"-%s\r\n" % str(value).encode()
    return b"*%d\r\n%s" % (len(value), b"".join(map(wire, value)))


class Odd:
    """A server that greets well, has all slots, and answers all else by the replies that it is given, in turn."""

    def __init__(self) -> None:
        self._listener = Listener(self._serve)
        self.port = self._listener.port
        self.replies: Iterator[Any] = itertools.repeat(None)

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as asked:
            while line := asked.readline():
                command = [asked.read(int(asked.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:]))]
                connection.sendall(self._answer(command))

    def _answer(self, command: list[bytes]) -> bytes:
        match command[0].upper():
            case b"CLUSTER":
                return SLOTS % self.port
            case b"CLIENT" | b"SCRIPT":
                return b"+OK\r\n"
            case b"HELLO":
                return b"%1\r\n$5\r\nproto\r\n:3\r\n"
        return wire(next(self.replies))

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(scope="module")
def odd() -> Iterator[Odd]:
    made = Odd()
    yield made
    made.close()


@pytest.fixture(params=["server", "cluster"])
def place(request: pytest.FixtureRequest, odd: Odd, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Odd:
    """The settings lead there, as to one server or as to a Cluster; no errand takes a reply away."""
    monkeypatch.setattr(Errands, "due", lambda errands: ())
    caches = caches_at(f"redis://127.0.0.1:{odd.port}/0")
    if request.param == "cluster":
        caches["default"]["OPTIONS"]["CLIENT_CLASS"] = CLUSTER_CLIENT
    settings.CACHES = caches
    with_site(settings)
    return odd


def apart(view: Any, **options: Any) -> Any:
    """Limit a view by two subjects, which lie in two slots."""
    for key in ("ip", "global"):
        view = quota("9000/m", key=key, name=f"apart-{key}", **options)(view)
    return view


def device() -> Any:
    return get(HTTP_X_DEVICE="a")


def views() -> Iterator[Call]:
    """Yield calls whose plans are taken in turn, and undone: in all ways that an undoing knows."""
    telling: dict[str, Any] = {"ban": {"after": "5/m", "for": ["1m"]}, "warn_at": 0.5}
    for name, options in {**ALGORITHMS, "distinct": {"distinct": "header:X-Device"}, "telling": telling}.items():
        view, aview = apart(plain, **options), apart(plain_async, **options)

        def serve(_: Any, view: Any = view) -> Any:
            return view(device())

        async def aserve(_: Any, aview: Any = aview) -> Any:
            return await aview(device())

        yield Call(f"two subjects {name}", f"{SERVES} allow", serve, aserve)


def read_days() -> list[Any]:
    store: Any = get_limiter().store
    replies: list[Any] = store.run_all([ReadDays([f"quota:1:{{user:{n}}}:day:2026-11-21"]) for n in range(2)], None)
    assert all(isinstance(reply, list) and len(reply) == 1 for reply in replies)
    return replies


async def aread_days() -> list[Any]:
    return await sync_to_async(read_days)()


ASKED = [
    *(call for call in CALLS if "before" not in call.name and not call.name.startswith(("waiting", "lock"))),
    Call("usage", RAISES, lambda _: usage("user:7"), lambda _: ausage("user:7")),
    Call("several", RAISES, lambda _: read_days(), lambda _: aread_days()),
    *(2 * list(views())),
]

numbers = st.one_of(st.integers(-3, 9), st.integers(0, 2**53), st.integers(), st.just(NOW))
texts = st.one_of(
    st.sampled_from(["", "1", "r 0 0 5/m", "r 0 0 nonsense", "x", "-1"]), st.text(max_size=9), st.binary(max_size=5)
)
errors = st.builds(Exception, st.sampled_from(["ERR no", "WRONGTYPE Operation", "LOADING", "NOSCRIPT", "MOVED 1 x"]))
anything = st.recursive(
    st.one_of(st.none(), numbers, texts, errors), lambda parts: st.lists(parts, max_size=6), max_leaves=12
)


@st.composite
def decisions(draw: st.DrawFn) -> list[Any]:
    """Make what looks much like the reply to a decision."""
    limits = draw(st.sampled_from([1, 1, 1, 2, 0, 3]))
    small = st.integers(-1, 5)
    answers = [[draw(st.integers(0, 1)), draw(small), draw(small), draw(numbers)] for _ in range(limits)]
    notes = draw(st.lists(st.tuples(st.integers(-1, 9), st.integers(-1, 9), st.one_of(numbers, texts)), max_size=3))
    verdict = draw(st.integers(-2, 2))
    return [NOW, verdict, *itertools.chain(*answers), *itertools.chain(*notes)]


@st.composite
def rows(draw: st.DrawFn) -> list[Any]:
    """Make what looks much like the reply to another script."""
    return [draw(st.integers(-5, 3)), *draw(st.lists(st.one_of(numbers, texts), max_size=7))]


replies = st.lists(st.one_of(anything, decisions(), rows()), min_size=1, max_size=5)


def ask(odd: Odd, call: Call, way: str, answers: Sequence[Any]) -> Any:
    """Make a call that gets these replies, the last of them again and again."""
    odd.replies = itertools.chain(answers, itertools.repeat(answers[-1]))
    limiter = get_limiter()
    store: Any = limiter.store
    _known.clear()
    store.close()
    if isinstance(store, ClusterStore):
        store._nodes._nodes.clear()  # and their breakers
    else:
        store.breaker = Breaker()
    try:
        return do(call, way, None)
    finally:
        ongoing.discard(limiter.outages)


@pytest.mark.parametrize("way", WAYS)
@given(call=st.sampled_from(ASKED), answers=replies)
@inputs(400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_answered_no_call_stumbles_over_it(way: str, place: Odd, call: Call, answers: list[Any]) -> None:
    try:
        answer = ask(place, call, way, answers)
    except QuotaExceeded:
        assert call.name in ("reserve", "settle", "cancel", "slot")  # which raise it where they are refused
    except QuotaError:
        assert not call.kind.startswith((DECIDES, SERVES))
    else:
        assert not call.kind.startswith(SERVES) or answer.status_code in (200, 429, 503)
