"""Who is limited: from a request (or a user, or a text) to a subject such as `ip:203.0.113.9`. No store, no rules.

A key is compiled once, when its rule is first used. Resolving it is a flow that yields what it cannot know without
waiting: the driver, sync or async, answers with the value. So the logic stands here once.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Generator
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv6Network, ip_address
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeAlias

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.utils.module_loading import import_string

from django_quota.conf import UNIX, Network, conf, current
from django_quota.exceptions import ConfigurationError, RuleError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable


class Ask:
    """A question that the driver answers: by `now()` where it may block, by awaiting `later()` where it may not."""

    __slots__ = ("later", "now")

    def __init__(self, now: Callable[[], Any], later: Callable[[], Awaitable[Any]]) -> None:
        self.now = now
        self.later = later


Flow: TypeAlias = Generator[Ask, Any, Any]
"""What a driver runs: it yields questions, is sent their answers, and returns its result."""

Resolver: TypeAlias = Callable[[HttpRequest], "str | Flow | None"]
"""From a request to a part of a subject; None where the request does not have it."""

GLOBAL = "global"

FULL_IPV6 = 128
"""The bits of a whole IPv6 address."""


def answer(flow: Any) -> Any:
    """Run a flow where blocking is allowed; return its result. What is no flow needs no waiting and is returned."""
    if not isinstance(flow, GeneratorType):
        return flow
    try:
        question = next(flow)
        while True:
            question = flow.send(question.now())
    except StopIteration as done:
        return done.value


async def aanswer(flow: Any) -> Any:
    """Run a flow where blocking is not allowed; see `answer`."""
    if not isinstance(flow, GeneratorType):
        return flow
    try:
        question = next(flow)
        while True:
            question = flow.send(await question.later())
    except StopIteration as done:
        return done.value


def call(function: Callable[..., Any], request: HttpRequest) -> Flow:
    """Call a user's function of the request, sync or async; the flow's result is what it returns."""
    value = function(request)
    if not inspect.isawaitable(value):
        return value

    def refuse() -> Any:
        if inspect.iscoroutine(value):
            value.close()
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigurationError(f"{name} is async and cannot be awaited in a sync view; a sync function would do.")

    async def wait() -> Any:
        return await value

    return (yield Ask(refuse, wait))


# --- what a key may be ------------------------------------------------------------------------------------------------


def subject_flow(key: object, request: HttpRequest) -> Flow:
    """Return (as the flow's result) the subject of a request for a key of a rule.

    What the request does not have falls back to its IP: leaving a header out gives nobody a free pass, nor puts all
    who do into one bucket. Raises `ConfigurationError` where there is no address either, `RuleError` where the key is
    none.
    """
    parts = []
    for resolver in compile_key(key):
        part = resolver(request)
        if part is not None and not isinstance(part, str):
            part = yield from part
        parts.append(ip_subject(request) if part is None else part)
    return parts[0] if len(parts) == 1 else "+".join(parts)


def compile_key(key: object) -> tuple[Resolver, ...]:
    """Return the resolvers of a key's parts. Raises `RuleError` where it is not a key."""
    if isinstance(key, str):
        return _compile_text(key)
    if isinstance(key, tuple):
        if not key:
            raise RuleError("key=() names nothing; 'ip' would do.")
        return tuple(resolver for part in key for resolver in compile_key(part))
    if callable(key):
        return (partial(_from_callable, key),)
    raise RuleError(f"key={key!r} is not a key; 'ip', 'user', 'header:X-Api-Key' or a function would do.")


@lru_cache(maxsize=256)
def _compile_text(key: str) -> tuple[Resolver, ...]:
    if key in _PLAIN:
        return (_PLAIN[key],)
    kind, colon, name = key.partition(":")
    if kind in _NAMED and name.strip():
        return (partial(_NAMED[kind], name.strip()),)
    if kind in _NAMED:
        raise RuleError(f"key={key!r} does not say which; {kind + ':' + _EXAMPLES[kind]!r} would do.")
    if not colon and "." in key:
        return (partial(_from_callable, _imported(key)),)
    known = [*_PLAIN, *(f"{kind}:{name}" for kind, name in _EXAMPLES.items())]
    raise RuleError(f"key={key!r} is not a key.{did_you_mean(key, known)}")


def _imported(path: str) -> Callable[[HttpRequest], Any]:
    try:
        function = import_string(path)
    except ImportError as error:
        raise RuleError(f"key={path!r} cannot be imported: {error}.") from error
    if not callable(function):
        raise RuleError(f"key={path!r} is {type(function).__name__}, not a function of the request.")
    return function  # type: ignore[no-any-return]


def _user(request: HttpRequest) -> Flow | None:
    if not hasattr(request, "user"):
        return None
    return _user_flow(request)


def _user_flow(request: HttpRequest) -> Flow:
    # request.user loads lazily, by SQL: under async it must be awaited.
    later = getattr(request, "auser", None)
    if later is None:

        async def later() -> Any:
            return request.user

    user = yield Ask(lambda: request.user, later)
    return user_subject(user) if getattr(user, "is_authenticated", False) else None


def _from_header(name: str, request: HttpRequest) -> str | None:
    return _secret("header", name.lower(), request.headers.get(name))


def _from_cookie(name: str, request: HttpRequest) -> str | None:
    return _secret("cookie", name, request.COOKIES.get(name))


def _from_get(name: str, request: HttpRequest) -> str | None:
    return _secret("get", name, request.GET.get(name))


def _from_post(name: str, request: HttpRequest) -> str | None:
    return _secret("post", name, request.POST.get(name))


def _from_callable(function: Callable[[HttpRequest], Any], request: HttpRequest) -> Flow:
    value = yield from call(function, request)
    if value is None or value == "":
        return None
    if is_user(value):
        return user_subject(value)
    return f"key.{_escape(getattr(function, '__qualname__', type(function).__qualname__))}:{_escape(str(value))}"


def ip_subject(request: HttpRequest) -> str:
    """Return the subject of the request's client address: `ip:203.0.113.9`, `ip:2001:db8::/64`."""
    return f"ip:{client_ip(request)}"


_PLAIN: dict[str, Resolver] = {
    "ip": ip_subject,
    "user": _user,
    "user_or_ip": _user,
    "path": lambda request: f"path:{_escape(request.path)}",
    GLOBAL: lambda request: GLOBAL,  # noqa: ARG005
}
_NAMED: dict[str, Callable[[str, HttpRequest], str | None]] = {
    "header": _from_header,
    "cookie": _from_cookie,
    "get": _from_get,
    "post": _from_post,
}
_EXAMPLES = {"header": "X-Api-Key", "cookie": "device", "get": "token", "post": "phone"}


# --- parts ------------------------------------------------------------------------------------------------------------


def _escape(value: str) -> str:
    """Keep a part from running into the next: parts of a tuple are joined by a plus sign."""
    return value.replace("%", "%25").replace("+", "%2B")


def _secret(kind: str, name: str, value: str | None) -> str | None:
    """Return the part for what a client sent: a keyed digest, so that no secret reaches Redis, logs or the admin."""
    if not value:
        return None
    key = _digest_key(conf.digest_key)
    digest = hashlib.blake2b(value.encode(errors="surrogatepass"), key=key, digest_size=16).hexdigest()
    return f"{kind}.{_escape(name)}:{digest}"


@lru_cache(maxsize=4)
def _digest_key(secret: str) -> bytes:
    return hashlib.sha256(b"django_quota.subjects" + secret.encode()).digest()


def is_user(value: object) -> bool:
    """Say whether a value is a user: a model with a key, or an anonymous visitor."""
    return hasattr(value, "is_authenticated") and hasattr(value, "pk")


def user_subject(user: Any) -> str:
    """Return the subject of a user: `user:42`. Raises `RuleError` for one without a primary key."""
    if user.pk is None:
        raise RuleError(
            f"{user!r} has no primary key to limit by: pass the request (an anonymous visitor falls back to the IP), "
            "or a subject such as 'ip:203.0.113.9'."
        )
    return f"user:{_escape(str(user.pk))}"


def named_subject(subject: str) -> str:
    """Return a subject that was given as text in its one spelling: addresses as `ip_subject` writes them."""
    if subject.startswith("ip:"):
        return _named_address(subject, current().ipv6_prefix)
    if not subject:
        raise RuleError("An empty text is no subject; 'ip:203.0.113.9', 'user:42' or 'global' would do.")
    return subject


@lru_cache(maxsize=4096)
def _named_address(subject: str, ipv6_prefix: int) -> str:
    network, slash, prefix = subject.removeprefix("ip:").partition("/")
    address = _canonical(network, int(prefix) if slash and prefix.isdecimal() else ipv6_prefix)
    if address is None or (slash and not prefix.isdecimal()):
        raise RuleError(f"{subject!r} does not hold an IP address; 'ip:203.0.113.9' would do.")
    return f"ip:{address}"


# --- the client's address ---------------------------------------------------------------------------------------------


def client_ip(request: HttpRequest) -> str:
    """Return the address of the client; IPv6 as its network (/64 unless set).

    It is the peer's own, unless the peer is one of `TRUSTED_PROXIES`: then X-Forwarded-For is walked from the right,
    past the proxies that are trusted too, to the first address that is not. What stands left of it was written by the
    client and is never looked at. Raises `ConfigurationError` where there is no address at all.
    """
    peer = request.META.get("REMOTE_ADDR") or ""
    settings = current()
    proxies = settings.trusted_proxies
    if proxies and _is_trusted(peer, proxies):
        peer = _walk(peer, request.META.get("HTTP_X_FORWARDED_FOR", ""), proxies)
    address = _canonical(peer, settings.ipv6_prefix)
    if address is None:
        raise ConfigurationError(
            f"The client's IP is unknown: REMOTE_ADDR is {peer!r} and no trusted proxy names one. Behind a proxy that "
            'connects by a unix socket, QUOTA["TRUSTED_PROXIES"] = ["unix"] would do, and the proxy must set '
            "X-Forwarded-For."
        )
    return address


def _walk(peer: str, forwarded: str, proxies: Iterable[Network | str]) -> str:
    nearest = peer
    for hop in reversed(forwarded.split(",")):
        address = _bare(hop.strip())
        if _canonical(address, FULL_IPV6) is None:
            break  # not an address: the proxy that passed it on is the last one that can be believed
        nearest = address
        if not _is_trusted(address, proxies):
            break
    return nearest


def _bare(hop: str) -> str:
    """Strip the port that some proxies add: `1.2.3.4:567`, `[2001:db8::1]:567`."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    host, colon, _ = hop.partition(":")
    return host if colon and "." in host else hop


@lru_cache(maxsize=4096)
def _canonical(text: str, ipv6_prefix: int) -> str | None:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if ipv6_prefix == FULL_IPV6:
        return str(address)
    return str(IPv6Network((int(address), ipv6_prefix), strict=False))


@lru_cache(maxsize=4096)
def _trusted_by(peer: str, proxies: tuple[Network | str, ...]) -> bool:
    if not peer:
        return UNIX in proxies
    canonical = _canonical(peer, FULL_IPV6)
    if canonical is None:
        return False
    address = ip_address(canonical)
    return any(not isinstance(network, str) and address in network for network in proxies)


def _is_trusted(peer: str, proxies: Iterable[Network | str]) -> bool:
    return _trusted_by(peer, tuple(proxies))


def is_async_callable(value: object) -> bool:
    """Say whether calling a value gives something to await."""
    return callable(value) and (iscoroutinefunction(value) or iscoroutinefunction(getattr(value, "__call__", None)))  # noqa: B004
