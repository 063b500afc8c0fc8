"""Subjects: a request, a user or a text becomes the name of who is limited, such as `ip:203.0.113.9`.

A key is compiled into resolvers once, when its rule is first used. A resolver that has to wait is a flow.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import re
import reprlib
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.contrib.sessions.backends.signed_cookies import SessionStore as SignedCookieSession
from django.core.exceptions import BadRequest, RequestDataTooBig, SynchronousOnlyOperation
from django.http import HttpRequest, QueryDict, RawPostDataException
from django.utils.encoding import force_bytes
from django.utils.functional import LazyObject

from django_quota.conf import current, import_function
from django_quota.core.errors import (
    ConfigurationError,
    QuotaError,
    RateError,
    RuleError,
    SubjectKeyError,
    did_you_mean,
)
from django_quota.core.flow import Flow, IOCall
from django_quota.core.rates import validate_cost
from django_quota.core.rules import ANONYMOUS, AUTHENTICATED, Exemption, Rule, dotted_path, is_lambda
from django_quota.engine.plans import Asked
from django_quota.services.addresses import Prefixes, canonical_part, client_ip, is_from, own_prefixes
from django_quota.services.request_state import Decided, state_of

logger = logging.getLogger("django_quota")

Resolver: TypeAlias = Callable[[HttpRequest], "str | Flow[Any] | None"]
"""Returns a part of a subject; None if the request does not have it."""

GLOBAL = "global"


def call_flow(function: Callable[..., Any], request: HttpRequest) -> Flow[Any]:
    """Call a function of the request, sync or async; return what it returns."""
    try:
        value = function(request)
    except SynchronousOnlyOperation as error:  # it needs the database, which an event loop must ask in a thread
        return (yield IOCall(partial(_raise, error), partial(sync_to_async(function), request)))
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
            hint = "Use the async form of the function that you called, or write a sync function."
            raise ConfigurationError(f"{name} is async and cannot be awaited here.", hint) from error

    return (yield IOCall(run, wait))


def _raise(error: Exception) -> Any:
    raise error


# --- keys -------------------------------------------------------------------------------------------------------------


def subject_flow(key: object, request: HttpRequest, *, exact: bool = False) -> Flow[Any]:
    """Return the subject of a request for the key of a rule.

    A part that the request does not have falls back to its IP. So a client gains nothing by leaving out a header.
    `exact`: whether form fields count exactly as sent; see `_from_field`. Raises `ConfigurationError` if there is no
    address either, and `RuleError` if the key is wrong.
    """
    parts = []
    for resolver in compile_key(key, exact=exact):
        part = resolver(request)
        if part is not None and not isinstance(part, str):
            part = yield from part
        parts.append(ip_subject(request) if part is None else part)
    return parts[0] if len(parts) == 1 else "+".join(parts)


def compile_key(key: object, *, exact: bool = False) -> tuple[Resolver, ...]:
    """Return the resolvers of the parts of a key. Raises `RuleError` if it is wrong."""
    try:
        return _compile(key, exact)
    except TypeError:  # an unhashable function
        return _compile.__wrapped__(key, exact)


def check_keys(rule: Rule) -> None:
    """Raise `RuleError` if the `key` or the `distinct` of a rule is wrong."""
    compile_key(rule.key)
    if rule.distinct is not None and rule.distinct is not True:
        try:
            compile_key(rule.distinct)
        except SubjectKeyError as error:
            raise SubjectKeyError(f"distinct={rule.distinct!r} is not a key.", error.hint) from None


@lru_cache(maxsize=256)
def _compile(key: object, exact: bool) -> tuple[Resolver, ...]:
    if isinstance(key, str):
        return _compile_text(key, exact=exact)
    if isinstance(key, tuple):
        if not key:
            raise SubjectKeyError("key=() is empty.", "Use, for example, 'ip'.")
        return tuple(resolver for part in key for resolver in compile_key(part, exact=exact))
    if callable(key):
        if is_lambda(key):
            raise SubjectKeyError(
                f"key={dotted_path(key)} is a lambda, which has no name. Its subjects would change whenever its "
                "line moves, and blocks and bans would be lost.",
                "Write it as a function: def by_tenant(request): ...",
            )
        return (partial(_from_callable, key),)
    raise SubjectKeyError(f"key={key!r} is not a key.", "Use 'ip', 'user', 'header:X-Api-Key' or a function.")


def _compile_text(key: str, *, exact: bool) -> tuple[Resolver, ...]:
    if key in _PLAIN:
        return (_PLAIN[key],)
    kind, colon, name = key.partition(":")
    if kind == "json" and "" in name.strip().split("."):
        raise SubjectKeyError(f"key={key!r} is not a path.", "Use, for example, 'json:phone' or 'json:user.email'.")
    if kind in _FIELDS and name.strip():
        return (partial(_FIELDS[kind], name.strip(), exact),)
    if kind in _NAMED and name.strip():
        return (partial(_NAMED[kind], name.strip()),)
    if kind in _EXAMPLES:
        raise SubjectKeyError(
            f"key={key!r} does not say which.", f"Use, for example, {kind + ':' + _EXAMPLES[kind]!r}."
        )
    if not colon and "." in key:
        return (partial(_from_callable, import_function("key", key, SubjectKeyError)),)
    known = [*_PLAIN, *(f"{kind}:{name}" for kind, name in _EXAMPLES.items())]
    raise SubjectKeyError(f"key={key!r} is not a key.", did_you_mean(key, known).strip())


def user_flow(request: HttpRequest) -> Flow[Any]:
    """Return the user of a request, loaded; None if no middleware has set one."""
    user: Any = getattr(request, "user", None)
    if not isinstance(user, LazyObject):
        return user

    # A lazy user is loaded from the database when it is first used, which async code must await. `request.auser` only
    # knows the user of Django's own middleware.
    def load() -> Any:
        bool(getattr(user, "is_authenticated", False))
        return user

    later: Any = sync_to_async(load)
    if getattr(user.__dict__.get("_setupfunc"), "__module__", "") == _DJANGOS_OWN:
        later = request.auser
    return (yield IOCall(load, later))


_DJANGOS_OWN = "django.contrib.auth.middleware"


def _user(request: HttpRequest) -> Flow[Any] | str | None:
    user = getattr(request, "user", None)
    return _lazy_user(request) if isinstance(user, LazyObject) else _known_user(user)


def _lazy_user(request: HttpRequest) -> Flow[Any]:
    return _known_user((yield from user_flow(request)))


def _known_user(user: Any) -> str | None:
    if not getattr(user, "is_authenticated", False):
        return None
    if getattr(user, "pk", None) is None:
        raise RuleError(
            f"The request's user is a {type(user).__name__} without a primary key, which a limit needs.",
            "Give the class a `pk`, or use a function of the request as the key.",
        )
    return user_subject(user)


def _from_header(name: str, request: HttpRequest) -> str | None:
    return _secret("header", name.lower(), request.headers.get(name))


def _from_cookie(name: str, request: HttpRequest) -> str | None:
    return _secret("cookie", name, request.COOKIES.get(name))


def _from_get(name: str, exact: bool, request: HttpRequest) -> str | None:
    return _from_field("get", name, request.GET.get(name), exact=exact)


def _from_post(name: str, exact: bool, request: HttpRequest) -> Flow[Any]:
    if state_of(request).parse_body is not None:
        return (yield from _from_body("post", name, (name,), exact, request))
    if has_unread_body(request, "post"):
        # Parsing takes long, so async code does it in a thread.
        fields = yield IOCall(partial(_form_of, request), partial(sync_to_async(_form_of), request))
    else:
        fields = request.POST
    return _from_field("post", name, fields.get(name), exact=exact)


def has_unread_body(request: HttpRequest, kind: str) -> bool:
    """Return whether a key of this kind (`"post"` or `"json"`) has to read the body: a long one takes long."""
    state = state_of(request)
    if kind == "post" and state.parse_body is None:
        return request.method == "POST" and request.content_type in _FORMS and not hasattr(request, "_post")
    if state.json_body is not None:
        return False
    return state.parse_body is not None or (not hasattr(request, "_body") and _may_have_body(request))


_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
"""The types of body that `request.POST` parses."""


def _form_of(request: HttpRequest) -> QueryDict:
    return request.POST


def _from_json(path: str, exact: bool, request: HttpRequest) -> Flow[Any]:
    return (yield from _from_body("json", path, path.split("."), exact, request))


def _from_body(kind: str, path: str, names: Sequence[str], exact: bool, request: HttpRequest) -> Flow[Any]:
    value: Any = state_of(request).json_body
    if value is None:
        value = yield IOCall(partial(_json_of, request), partial(sync_to_async(_json_of), request))
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, (bool, list, dict)):
        raise BadRequest(f"The field {path!r} of the body is not a text or a number.")
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 42, 42.0, 4.2e1 and "42" are one value for most views
    return _from_field(kind, path, None if value is None else str(value), exact=exact)


MAX_JSON = 2_621_440
"""Bytes: the longest body that is parsed as JSON, if `DATA_UPLOAD_MAX_MEMORY_SIZE` sets no other limit."""


def _json_of(request: HttpRequest) -> dict[str, Any]:
    """Return the object in the JSON body of a request, or what the framework has parsed.

    A view may parse the body whatever its Content-Type says, so that is tried here too. Raises `BadRequest` for a body
    that says that it is JSON and is not, and `RequestDataTooBig`.
    """
    state = state_of(request)
    found: Any = {}
    if state.parse_body is not None:
        found = state.parse_body()
        state.json_body = found if isinstance(found, dict) else {}
        return state.json_body
    content_type = request.content_type or ""
    says_json = content_type == "application/json" or content_type.endswith("+json")
    try:
        body = _body_of(request)
        found = json.loads(body) if body else {}
    except (ValueError, RecursionError) as error:
        if says_json:
            raise BadRequest("The body is not JSON.") from error
    except RequestDataTooBig:
        if says_json:
            raise
    except RawPostDataException as error:
        if says_json:
            raise ConfigurationError(
                "A key of the kind 'json:' cannot read the body: other code has read it as a stream before.",
                "Let that code use request.body, or run after the limit.",
            ) from error
    state.json_body = found if isinstance(found, dict) else {}
    return state.json_body


def _body_of(request: HttpRequest) -> bytes:
    """Return the body of a request. Raises `RequestDataTooBig`, before it is read if its length is known."""
    allowed: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    most = MAX_JSON if allowed is None else allowed
    if not _may_have_body(request):
        return b""
    if int(request.META.get("CONTENT_LENGTH") or 0) <= most and len(request.body) <= most:
        return request.body
    raise RequestDataTooBig("The body is longer than DATA_UPLOAD_MAX_MEMORY_SIZE.")


def _may_have_body(request: HttpRequest) -> bool:
    """Return whether a request may have a body. With ASGI, one of unknown length has no Content-Length."""
    meta = request.META
    if meta.get("CONTENT_LENGTH") not in (None, "", "0") or hasattr(request, "_body"):
        return True
    return hasattr(request, "scope") and (request.method not in _BODILESS or "HTTP_TRANSFER_ENCODING" in meta)


_BODILESS = ("GET", "HEAD", "OPTIONS")


def _from_field(kind: str, name: str, value: str | None, *, exact: bool) -> str | None:
    """Return the part for a field of a form, a query or a JSON body.

    Values that Django's forms treat as equal are one subject: surrounding blanks, Unicode forms (NFKC) and case do not
    count. `exact`: the value counts as it was sent; `distinct=` needs that.
    """
    return _secret(kind, name, normalized(value) if value and not exact else value)


def normalized(value: str) -> str:
    """Return a typed text without surrounding blanks, in one Unicode form (NFKC) and in one case."""
    value = value.strip()
    return unicodedata.normalize("NFKC", value).casefold().strip() if len(value) <= MAX_FOLDED else value


MAX_FOLDED = 1_000
"""Characters: a longer field is not normalised, because that takes long. No name is that long."""


def _from_kwarg(name: str, request: HttpRequest) -> str | None:
    match = request.resolver_match
    value = None if match is None else match.kwargs.get(name)
    if value is None or value == "":
        return None
    if _is_shown_by_address(value):
        raise RuleError(
            f"The URL argument {name!r} is a {type(value).__name__}, which has no text of its own.",
            "Give the class a __str__, or use a function of the request as the key.",
        )
    return f"kwarg.{_escape(name)}:{_escape(str(value))}"


def _session(request: HttpRequest) -> Flow[Any]:
    """Return the part for the session: a digest of its key, which is a secret.

    The key comes from the cookie, so it counts only if there is such a session: loading it finds out. Looking for any
    name in it loads it, and changes nothing. Sessions in signed cookies have no key that lasts.
    """
    session: Any = getattr(request, "session", None)
    if getattr(session, "session_key", None) is None or isinstance(session, SignedCookieSession):
        return None
    yield IOCall(session.has_key, session.ahas_key, "")
    return session_subject(session.session_key) if session.session_key else None


def session_subject(session_key: str) -> str:
    """Return the subject of a session."""
    return f"session:{digest(session_key)}"


def _from_callable(function: Callable[[HttpRequest], Any], request: HttpRequest) -> Flow[Any]:
    value = yield from call_flow(function, request)
    if value is None or value == "":
        return None
    if value is getattr(request, "user", None) and isinstance(value, LazyObject):
        return (yield from _lazy_user(request))
    if is_user(value):
        return _known_user(value)
    if isinstance(value, (dict, list, set, tuple)) or _is_shown_by_address(value):
        raise RuleError(
            f"{dotted_path(function)} returned {type(value).__name__}, which identifies nobody.",
            "Return a text, a number or a user, for example str(value.pk).",
        )
    return f"key.{_escape(dotted_path(function))}:{_escape(str(value))}"


def _is_shown_by_address(value: object) -> bool:
    """Return whether the text of a value is its address in memory, which changes with each request."""
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
    "session": _session,
    "path": lambda request: path_subject(request.path_info),
    GLOBAL: lambda request: GLOBAL,  # noqa: ARG005
}
_NAMED: dict[str, Callable[[str, HttpRequest], str | None]] = {
    "header": _from_header,
    "cookie": _from_cookie,
    "kwarg": _from_kwarg,
}
_FIELDS: dict[str, Callable[[str, bool, HttpRequest], str | Flow[Any] | None]] = {
    "get": _from_get,
    "post": _from_post,
    "json": _from_json,
}
_EXAMPLES = {
    "header": "X-Api-Key",
    "cookie": "device",
    "kwarg": "pk",
    "get": "token",
    "post": "phone",
    "json": "phone",
}


# --- what a rule asks of a request ------------------------------------------------------------------------------------


def asked_flow(rules: Iterable[Rule], request: HttpRequest, decided: Decided = ()) -> Flow[list[Asked]]:
    """Return what the rules that apply to a request ask for, each with its subject and cost."""
    found: list[Asked] = []
    key: object = None
    subject: str | None = None
    for rule in rules:
        is_plain = rule.is_plain  # most rules have no other options than a match
        if not is_plain and (yield from _is_skipped(rule, request)):
            continue
        if subject is None or rule.key != key:  # stacked rules mostly share their key
            key = rule.key
            if key == "ip":
                subject = ip_subject(request)
            else:
                reading = subject_flow(key, request)
                subject = yield from (_of_body(rule, reading) if rule.reads_body else reading)
        if subject is None or (decided and _is_decided(rule, subject, decided)):
            continue
        if is_plain:
            found.append((rule, subject, cast("int", rule.cost), ""))
            continue
        cost = yield from _cost_flow(rule, request)
        value = "" if rule.distinct is None else (yield from _of_body(rule, _value_flow(rule, request)))
        if value is not None:
            found.append(((yield from _rates_flow(rule, request)) if rule.dynamic else rule, subject, cost, value))
    return found


def asked_by_flow(rule: Rule, request: HttpRequest, cost: int | None, value: object) -> Flow[Asked]:
    """Return what one rule asks for, whatever its `methods`, `skip` and `exempt` say.

    `cost` and `value` are used instead of the rule's own unless they are None.
    """
    subject = yield from subject_flow(rule.key, request)
    if rule.dynamic:
        rule = yield from _rates_flow(rule, request)
    units = (yield from _cost_flow(rule, request)) if cost is None else validate_cost(cost, rule.name)
    if rule.distinct is not None and value is None:
        return rule, subject, units, (yield from _value_flow(rule, request))
    return rule, subject, units, value_digest(rule, value)


def _of_body(rule: Rule, reading: Flow[str]) -> Flow[str | None]:
    """Return what a flow reads; None if the body cannot be read and the rule is a shadow, which refuses nothing."""
    try:
        return (yield from reading)
    except QuotaError:
        raise
    except Exception:  # of Django, or of the framework that parses the body
        if not rule.shadow:
            raise
        return None


def _is_decided(rule: Rule, subject: str, decided: Decided) -> bool:
    """Return whether a rule of the settings, which a decorator names too, has been decided already."""
    return any(
        (outcome.rule, outcome.subject) == (rule.name, subject)
        for rules, decision in decided
        if rule in rules
        for outcome in decision.outcomes
    )


def _cost_flow(rule: Rule, request: HttpRequest) -> Flow[int]:
    """Return the cost of a request under a rule."""
    if callable(rule.cost):
        return validate_cost((yield from call_flow(rule.cost, request)), rule.name)
    return rule.cost


def _is_skipped(rule: Rule, request: HttpRequest) -> Flow[bool]:
    """Return whether a rule does not apply to a request because of `methods`, `skip` or `exempt`."""
    if rule.methods is not None and request.method not in rule.methods:
        return True
    if rule.skip is not None and (yield from call_flow(rule.skip, request)):
        return True
    return rule.exempt is not None and (yield from _is_exempt(rule.exempt, request))


def _is_exempt(exemption: Exemption, request: HttpRequest) -> Flow[bool]:
    """Return whether a request is exempt."""
    if exemption.networks and is_from(request, exemption.networks):
        return True
    if exemption.staff:
        user = yield from user_flow(request)
        if getattr(user, "is_active", False) and getattr(user, "is_staff", False):
            return True
    for function in exemption.functions:
        if (yield from call_flow(function, request)):
            return True
    return False


def _tier_flow(rule: Rule, request: HttpRequest) -> Flow[Rule]:
    """Return the rule of the tier of a request."""
    tier = None if rule.tier is None else (yield from call_flow(rule.tier, request))
    if isinstance(tier, str) and tier in rule.tiers:
        return rule.tiers[tier]
    user = yield from user_flow(request)
    default = AUTHENTICATED if getattr(user, "is_authenticated", False) else ANONYMOUS
    found = rule.tiers.get(default)
    if found is None:
        raise RuleError(_no_tier(rule.name, reprlib.repr(default if tier is None else tier), tuple(rule.tiers)))
    if tier is not None:
        _log_unknown_tier(rule.name, reprlib.repr(tier), default, tuple(rule.tiers))
    return found


def _no_tier(rule: str, tier: str, known: tuple[str, ...]) -> str:
    near = did_you_mean(tier.strip("'"), known)
    return f"Rule {rule!r} has no rate for the tier {tier}.{near}"


@lru_cache(maxsize=256)
def _log_unknown_tier(rule: str, tier: str, default: str, known: tuple[str, ...]) -> None:
    """Log once that a tier is unknown. The request goes on with the tier that it has by default."""
    logger.error("%s It is treated as %r.", _no_tier(rule, tier, known), default)


def _rates_flow(rule: Rule, request: HttpRequest) -> Flow[Rule]:
    """Return the rule with the rates for this request."""
    if rule.tiers:
        return (yield from _tier_flow(rule, request))
    rates: list[object] = []
    for rate in rule.rates:
        given = (yield from call_flow(rate, request)) if callable(rate) else rate
        rates += given if isinstance(given, (list, tuple)) else (given,)
    try:
        return rule.with_rates(*rates)
    except RateError as error:
        functions = ", ".join(dotted_path(rate) for rate in rule.rates if callable(rate))
        hint = f"{error.hint} It came from {functions}, for rule {rule.name!r}."
        raise RateError(error.text, error.position, error.problem, hint) from error


def _value_flow(rule: Rule, request: HttpRequest) -> Flow[str]:
    """Return the digest of the value that a rule with `distinct=` counts for a request."""
    if rule.distinct is True:
        raise RuleError(
            f"Rule {rule.name!r} counts different values, but does not say which.",
            "Use, for example, distinct='header:X-Device', or check(..., value=).",
        )
    return digest((yield from subject_flow(rule.distinct, request, exact=True)))


def value_digest(rule: Rule, value: object) -> str:
    """Return the digest of a `value=`; empty if there is none. Raises `RuleError` if the rule counts no values."""
    if value is None:
        return ""
    if rule.distinct is None:
        raise RuleError(f"value= is given, but rule {rule.name!r} counts hits, not values.", "Use distinct=True.")
    if not isinstance(value, (str, bytes, int)):
        raise RuleError(f"value= is {type(value).__name__}. Use a text, bytes or a whole number.")
    return digest(value if isinstance(value, bytes) else str(value))


# --- parts ------------------------------------------------------------------------------------------------------------


def _escape(value: str) -> str:
    """Escape the plus sign, which joins parts, and characters that are not visible."""
    return _UNSAFE.sub(_percent, value)


_INVISIBLE = (
    r"\x00-\x1f\x7f-\x9f\u2028\u2029"  # they end a line or control a terminal
    r"\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible
    r"\ud800-\udfff"  # surrogates from JSON, which no page and no database accepts
)  # with them, two subjects could look the same, or break whatever shows them
_UNSAFE = re.compile(f"[%+{_INVISIBLE}]")
_UNPRINTABLE = re.compile(f"[{_INVISIBLE}]")


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogatepass"))


def _secret(kind: str, name: str, value: str | None) -> str | None:
    """Return the part for a value from a client: a keyed digest, so that no secret reaches Redis, logs or the admin."""
    return f"{kind}.{_escape(name)}:{digest(value)}" if value else None


def digest(value: str | bytes) -> str:
    """Return the keyed digest of a value: 32 hexadecimal digits."""
    data = value.encode(errors="surrogatepass") if isinstance(value, str) else value
    return hashlib.blake2b(data, key=_digest_key(current().digest_key), digest_size=16).hexdigest()


@lru_cache(maxsize=4)
def _digest_key(secret: str | bytes) -> bytes:
    return hashlib.sha256(b"django_quota.subjects" + force_bytes(secret)).digest()


def is_user(value: object) -> bool:
    """Return whether a value is a user, anonymous or not."""
    return hasattr(value, "is_authenticated") and hasattr(value, "pk")


def login_subject(name: str) -> str:
    """Return the subject of a user name that somebody typed to log in: `login.username:<digest>`.

    Names that Django's forms treat as equal are one subject. Raises `RuleError` for an empty name.
    """
    name = normalized(name)
    if not name:
        raise RuleError("An empty text is not a user name.")
    return f"{LOGIN}{digest(name)}"


LOGIN = "login.username:"
"""How the subjects of user names begin that were typed to log in."""


def user_subject(user: Any) -> str:
    """Return the subject of a user: `user:42`. Raises `RuleError` if the user has no primary key."""
    if user.pk is None:
        raise RuleError(
            f"{user!r} has no primary key. Pass the request, so that an anonymous visitor is limited by IP, "
            "or a subject such as 'ip:203.0.113.9'."
        )
    return f"user:{_escape(str(user.pk))}"


def named_subject(subject: str) -> str:
    """Return a subject from a text, with addresses as `ip_subject` writes them."""
    prefixes = own_prefixes()
    return _named(subject, prefixes) if len(subject) <= MAX_REMEMBERED else _named.__wrapped__(subject, prefixes)


MAX_REMEMBERED = 200
"""Characters: longer subjects must not fill the cache."""


@lru_cache(maxsize=8192)
def _named(subject: str, prefixes: Prefixes) -> str:
    if not subject:
        raise RuleError("An empty text is not a subject. Use, for example, 'ip:203.0.113.9', 'user:42' or 'global'.")
    if subject.startswith("ip:") or "+ip:" in subject:
        subject = "+".join(canonical_part(part, prefixes) for part in subject.split("+"))
    return _UNPRINTABLE.sub(_percent, subject)


def subject_of(given: object, whose: str) -> str:
    """Return the subject of a text or a user. `whose` names its owner in the error.

    Raises `RuleError` if it is neither.
    """
    if isinstance(given, str):
        return named_subject(given)
    if is_user(given):
        return user_subject(given)
    raise RuleError(f"{given!r} is not a subject of {whose}. Use a text such as 'user:42', or a user.")
