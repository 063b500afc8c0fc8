"""Who is limited: from a request (or a user, or a text) to a subject such as `ip:203.0.113.9`. No store, no rules.

A key is compiled once, when its rule is first used. Resolving it is a flow that yields what it cannot know without
waiting: the driver, sync or async, answers with the value. So the logic stands here once.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import unicodedata
from collections.abc import Callable, Generator
from functools import lru_cache, partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeAlias

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest, QueryDict
from django.utils.encoding import force_bytes
from django.utils.functional import LazyObject

from django_quota.addresses import canonical_part, client_ip
from django_quota.conf import conf, current
from django_quota.dotted import function_at
from django_quota.exceptions import ConfigurationError, RuleError, SubjectKeyError, did_you_mean
from django_quota.rules import Rule, is_lambda, path_of

if TYPE_CHECKING:
    from collections.abc import Awaitable


class Ask:
    """A question that the driver answers: by `now()` where it may block, by awaiting `later()` where it may not."""

    __slots__ = ("later", "now")

    def __init__(self, now: Callable[[], Any], later: Callable[[], Awaitable[Any]]) -> None:
        self.now = now
        self.later = later


Flow: TypeAlias = Generator[Ask, Any, Any]
"""What a driver runs: it yields questions, is sent their answers (or their errors are raised in it), and returns its
result."""

Resolver: TypeAlias = Callable[[HttpRequest], "str | Flow | None"]
"""From a request to a part of a subject; None where the request does not have it."""

GLOBAL = "global"


def answer(flow: Any) -> Any:
    """Run a flow where blocking is allowed; return its result. What is no flow needs no waiting and is returned."""
    if not isinstance(flow, GeneratorType):
        return flow
    try:
        question = next(flow)
        while True:
            try:
                value = question.now()
            except BaseException as error:  # noqa: BLE001 — the flow hears of all, and lets it pass where it is not its own
                question = flow.throw(error)
            else:
                question = flow.send(value)
    except StopIteration as done:
        return done.value


async def aanswer(flow: Any) -> Any:
    """Run a flow where blocking is not allowed; see `answer`."""
    if not isinstance(flow, GeneratorType):
        return flow
    try:
        question = next(flow)
        while True:
            try:
                value = await question.later()
            except BaseException as error:  # noqa: BLE001 — as in `answer`
                question = flow.throw(error)
            else:
                question = flow.send(value)
    except StopIteration as done:
        return done.value


def call(function: Callable[..., Any], request: HttpRequest) -> Flow:
    """Call a user's function of the request, sync or async; the flow's result is what it returns."""
    try:
        value = function(request)
    except SynchronousOnlyOperation as error:  # it asks the database, in an event loop: there it needs a thread
        return (yield Ask(partial(_raise, error), partial(sync_to_async(function), request)))
    if not inspect.isawaitable(value):
        return value

    async def wait() -> Any:
        return await value

    def run() -> Any:
        try:
            return async_to_sync(wait)()
        except RuntimeError as error:
            if not inspect.iscoroutine(value) or inspect.getcoroutinestate(value) != inspect.CORO_CREATED:
                raise
            value.close()
            name = getattr(function, "__qualname__", repr(function))
            hint = "The async twin of what you call would do, or a sync function."
            raise ConfigurationError(f"{name} is async and cannot be awaited here.", hint) from error

    return (yield Ask(run, wait))


def _raise(error: Exception) -> Any:
    raise error


# --- what a key may be ------------------------------------------------------------------------------------------------


def subject_flow(key: object, request: HttpRequest, *, exact: bool = False) -> Flow:
    """Return (as the flow's result) the subject of a request for a key of a rule.

    What the request does not have falls back to its IP: leaving a header out gives nobody a free pass, nor puts all
    who do into one bucket. `exact`: whether fields of a form count as they were sent, and not as they were meant; see
    `_from_field`. Raises `ConfigurationError` where there is no address either, `RuleError` where the key is none.
    """
    parts = []
    for resolver in compile_key(key, exact=exact):
        part = resolver(request)
        if part is not None and not isinstance(part, str):
            part = yield from part
        parts.append(ip_subject(request) if part is None else part)
    return parts[0] if len(parts) == 1 else "+".join(parts)


def compile_key(key: object, *, exact: bool = False) -> tuple[Resolver, ...]:
    """Return the resolvers of a key's parts; see `subject_flow`. Raises `RuleError` where it is not a key."""
    try:
        return _compile(key, exact)
    except TypeError:  # a function that cannot be a key of the cache
        return _compile.__wrapped__(key, exact)


def check_keys(rule: Rule) -> None:
    """Raise `RuleError` where the key of a rule, or what it tells apart, is no key."""
    compile_key(rule.key)
    if rule.distinct is not None and rule.distinct is not True:
        try:
            compile_key(rule.distinct)
        except SubjectKeyError as error:
            raise SubjectKeyError(f"distinct={rule.distinct!r} does not tell what to count.", error.hint) from None


@lru_cache(maxsize=256)
def _compile(key: object, exact: bool) -> tuple[Resolver, ...]:
    if isinstance(key, str):
        return _compile_text(key, exact=exact)
    if isinstance(key, tuple):
        if not key:
            raise SubjectKeyError("key=() names nothing.", "'ip' would do.")
        return tuple(resolver for part in key for resolver in compile_key(part, exact=exact))
    if callable(key):
        if is_lambda(key):
            raise SubjectKeyError(
                f"key={path_of(key)} is a lambda, which has no name. Its subjects would be others whenever its line "
                "moves, and no block or ban would hold for them any more.",
                "Write it as a function: def by_tenant(request): ...",
            )
        return (partial(_from_callable, key),)
    raise SubjectKeyError(f"key={key!r} is not a key.", "'ip', 'user', 'header:X-Api-Key' or a function would do.")


def _compile_text(key: str, *, exact: bool) -> tuple[Resolver, ...]:
    if key in _PLAIN:
        return (_PLAIN[key],)
    kind, colon, name = key.partition(":")
    if kind in _FIELDS and name.strip():
        return (partial(_FIELDS[kind], name.strip(), exact),)
    if kind in _NAMED and name.strip():
        return (partial(_NAMED[kind], name.strip()),)
    if kind in _EXAMPLES:
        raise SubjectKeyError(f"key={key!r} does not say which.", f"{kind + ':' + _EXAMPLES[kind]!r} would do.")
    if not colon and "." in key:
        return (partial(_from_callable, function_at("key", key, SubjectKeyError)),)
    known = [*_PLAIN, *(f"{kind}:{name}" for kind, name in _EXAMPLES.items())]
    raise SubjectKeyError(f"key={key!r} is not a key.", did_you_mean(key, known).strip())


def user_flow(request: HttpRequest) -> Flow:
    """Return (as the flow's result) the user of a request, loaded; None where no middleware has put one there."""
    user: Any = getattr(request, "user", None)
    if not isinstance(user, LazyObject):
        return user

    # It loads, mostly by SQL, when it is first looked at: under async that must be awaited. What a middleware other
    # than Django's own has put there, request.auser does not know.
    def load() -> Any:
        bool(getattr(user, "is_authenticated", False))
        return user

    later: Any = sync_to_async(load)
    if getattr(user.__dict__.get("_setupfunc"), "__module__", "") == _DJANGOS_OWN:
        later = request.auser
    return (yield Ask(load, later))


_DJANGOS_OWN = "django.contrib.auth.middleware"


def _user(request: HttpRequest) -> Flow | str | None:
    user = getattr(request, "user", None)
    return _lazy_user(request) if isinstance(user, LazyObject) else _known_user(user)


def _lazy_user(request: HttpRequest) -> Flow:
    return _known_user((yield from user_flow(request)))


def _known_user(user: Any) -> str | None:
    if not getattr(user, "is_authenticated", False):
        return None
    if getattr(user, "pk", None) is None:
        raise RuleError(
            f"The request's user is a {type(user).__name__} without a primary key, so there is nothing to limit by.",
            "Give the class a `pk`, or use a function of the request as the key.",
        )
    return user_subject(user)


def _from_header(name: str, request: HttpRequest) -> str | None:
    return _secret("header", name.lower(), request.headers.get(name))


def _from_cookie(name: str, request: HttpRequest) -> str | None:
    return _secret("cookie", name, request.COOKIES.get(name))


def _from_get(name: str, exact: bool, request: HttpRequest) -> str | None:
    return _from_field("get", name, request.GET, exact=exact)


def _from_post(name: str, exact: bool, request: HttpRequest) -> Flow:
    if has_unread_body(request):
        # Parsing it takes long: under async in a thread, so that other requests go on.
        fields = yield Ask(partial(_form_of, request), partial(sync_to_async(_form_of), request))
    else:
        fields = request.POST
    return _from_field("post", name, fields, exact=exact)


def has_unread_body(request: HttpRequest) -> bool:
    """Say whether the form of a request is still to be read: a long one takes a tenth of a second."""
    return request.method == "POST" and request.content_type in _FORMS and not hasattr(request, "_post")


_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
"""The bodies that `request.POST` reads. It is empty for others, and for other methods, and then reads nothing."""


def _form_of(request: HttpRequest) -> QueryDict:
    return request.POST


def _from_field(kind: str, name: str, fields: QueryDict, *, exact: bool) -> str | None:
    """Return the part for a field of a form.

    Two values that Django's own forms take for one are one: blanks around it do not count, nor does the way in which a
    letter is put together (NFKC), nor the case, in which an e-mail address or a user's name is found again. `exact`: as
    it was sent, where different values are counted, so that nobody has two for one.
    """
    value = fields.get(name)
    if value and not exact:
        value = value.strip()
        if len(value) <= LONGEST_FOLDED:
            value = unicodedata.normalize("NFKC", value).casefold()
    return _secret(kind, name, value)


LONGEST_FOLDED = 1_000
"""Characters of a field above which it is no name that anybody has: folding it takes long, and is left out."""


def _from_callable(function: Callable[[HttpRequest], Any], request: HttpRequest) -> Flow:
    value = yield from call(function, request)
    if value is None or value == "":
        return None
    if value is getattr(request, "user", None) and isinstance(value, LazyObject):
        return (yield from _lazy_user(request))
    if is_user(value):
        return _known_user(value)
    if isinstance(value, (dict, list, set, tuple)) or _is_shown_by_address(value):
        raise RuleError(
            f"{path_of(function)} returned {type(value).__name__}, which names nobody.",
            "A text, a number or a user would do, such as str(value.pk).",
        )
    return f"key.{_escape(path_of(function))}:{_escape(str(value))}"


def _is_shown_by_address(value: object) -> bool:
    """Say whether the text of a value is its place in memory: another one for each request."""
    shown = type(value)
    return shown.__str__ is object.__str__ and shown.__repr__ is object.__repr__


def ip_subject(request: HttpRequest) -> str:
    """Return the subject of the request's client address: `ip:203.0.113.9`, `ip:2001:db8::/64`."""
    return f"ip:{client_ip(request)}"


def path_subject(path: str) -> str:
    """Return the subject of a path: `path:/reports/`."""
    return f"path:{_escape(path)}"


_PLAIN: dict[str, Resolver] = {
    "ip": ip_subject,
    "user": _user,
    "user_or_ip": _user,
    "path": lambda request: path_subject(request.path_info),
    GLOBAL: lambda request: GLOBAL,  # noqa: ARG005
}
_NAMED: dict[str, Callable[[str, HttpRequest], str | None]] = {
    "header": _from_header,
    "cookie": _from_cookie,
}
_FIELDS: dict[str, Callable[[str, bool, HttpRequest], str | Flow | None]] = {"get": _from_get, "post": _from_post}
_EXAMPLES = {"header": "X-Api-Key", "cookie": "device", "get": "token", "post": "phone"}


# --- parts ------------------------------------------------------------------------------------------------------------


def _escape(value: str) -> str:
    """Keep a part from running into the next (parts of a tuple are joined by a plus sign) or out of its line."""
    return _UNSAFE.sub(_percent, value)


_UNSEEN = (
    r"\x00-\x1f\x7f-\x9f\u2028\u2029"  # they end a line, or steer a terminal
    r"\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # they hide
    r"\ud800-\udfff"  # halves of characters, as JSON may hold them: no page and no database takes them
)  # no subject has them: two that look the same would not be, or a reader would break on them
_UNSAFE = re.compile(f"[%+{_UNSEEN}]")
_UNPRINTABLE = re.compile(f"[{_UNSEEN}]")


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogatepass"))


def _secret(kind: str, name: str, value: str | None) -> str | None:
    """Return the part for what a client sent: a keyed digest, so that no secret reaches Redis, logs or the admin."""
    return f"{kind}.{_escape(name)}:{digest(value)}" if value else None


def digest(value: str | bytes) -> str:
    """Return the keyed digest of a value, in 32 hexadecimal digits."""
    data = value.encode(errors="surrogatepass") if isinstance(value, str) else value
    return hashlib.blake2b(data, key=_digest_key(conf.digest_key), digest_size=16).hexdigest()


@lru_cache(maxsize=4)
def _digest_key(secret: str | bytes) -> bytes:
    return hashlib.sha256(b"django_quota.subjects" + force_bytes(secret)).digest()


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
    if subject.startswith("ip:") or "+ip:" in subject:
        prefix = current().ipv6_prefix
        return _UNPRINTABLE.sub(_percent, "+".join(canonical_part(part, prefix) for part in subject.split("+")))
    if not subject:
        raise RuleError("An empty text is no subject; 'ip:203.0.113.9', 'user:42' or 'global' would do.")
    return _UNPRINTABLE.sub(_percent, subject)


def subject_of(given: object, whose: str) -> str:
    """Return the subject that a text or a user means; `whose`: what it is the subject of, for the error.

    Raises `RuleError` where it is neither.
    """
    if isinstance(given, str):
        return named_subject(given)
    if is_user(given):
        return user_subject(given)
    raise RuleError(f"{given!r} is no subject of {whose}: a text such as 'user:42', or a user, would do.")


def is_async_callable(value: object) -> bool:
    """Say whether calling a value gives something to await."""
    return callable(value) and (iscoroutinefunction(value) or iscoroutinefunction(getattr(value, "__call__", None)))  # noqa: B004
