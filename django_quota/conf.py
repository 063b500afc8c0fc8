"""The settings: `current()` reads `settings.QUOTA` as typed values.

A value is read when it is first needed, and kept until Django sends `setting_changed`. So `override_settings` works,
and a dict that you change in place does not. A wrong value raises `ConfigurationError`; the system checks read every
value at start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar, cast, get_args

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.signals import setting_changed
from django.utils.functional import cached_property
from django.utils.module_loading import import_string

from django_quota.core.algorithms.calendar import is_zone
from django_quota.core.caching import cached
from django_quota.core.errors import ConfigurationError, RateError, RuleError, did_you_mean
from django_quota.core.rule_options import (
    Ban,
    Network,
    OnUnavailable,
    read_network,
    read_refusal_span,
)
from django_quota.core.rules import OPTIONS, Rule, dotted_path, is_lambda

T = TypeVar("T")

UNIX = "unix"
"""The name in `TRUSTED_PROXIES` of a peer on a unix socket."""

MAX_PROXIES = 32
"""The highest `TRUSTED_PROXY_COUNT`."""

_HEADER = re.compile(r"([A-Za-z0-9]+(-[A-Za-z0-9]+)*)?")

MAX_EVENTS = 10_000_000
MIN_KEYS, MAX_KEYS = 1_000, 100_000_000
MIN_TOKEN = 16
"""Characters of the token for the metrics."""


class QuotaSettings:
    """The values of one `settings.QUOTA`, with their defaults. Each is read once, when it is first needed."""

    def __init__(self, raw: object) -> None:
        self._raw = raw
        self._made: dict[str, Rule] = {}

    @cached_property
    def _given(self) -> Mapping[str, Any]:
        if self._raw is None:
            return {}
        if not isinstance(self._raw, Mapping):
            raise ConfigurationError(
                f"QUOTA is {type(self._raw).__name__}, not a dict.", "Use, for example, {'CACHE': 'default'}."
            )
        return self._raw

    def _get(
        self,
        name: str,
        kind: type | tuple[type, ...],
        default: T,
        hint: str,
        fits: Callable[[Any], object] = lambda _: True,
    ) -> T:
        """Return a value of this kind that `fits`. Raises `ConfigurationError` with the hint for another."""
        value: Any = self._given.get(name, default)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)) or not fits(value):
            raise ConfigurationError(f'QUOTA["{name}"] is {value!r}.', hint)
        return cast("T", value)

    def _get_number(self, name: str, default: int, least: int, most: int, example: int) -> int:
        hint = f"Use a number from {least} to {most}, for example {example}."
        return self._get(name, int, default, hint, lambda number: least <= number <= most)

    @cached_property
    def enabled(self) -> bool:
        """`ENABLED`: whether limits apply. If not, everything is allowed, and no store is asked."""
        return self._get("ENABLED", bool, True, "Use True or False.")

    @cached_property
    def store(self) -> Literal["redis", "database", "memory"]:
        """`STORE`: "redis"; "database" for a site without Redis; "memory" for tests and single processes."""
        hint = "Use 'redis', 'database' or 'memory'."
        return self._get("STORE", str, "redis", hint, ("redis", "database", "memory").__contains__)

    @cached_property
    def database(self) -> str:
        """`DATABASE`: the alias in `DATABASES` that keeps the states if `STORE` is "database"."""
        return self._get("DATABASE", str, "default", "Use, for example, 'default'.")

    @cached_property
    def cache(self) -> str:
        """`CACHE`: the alias in `CACHES` of the Redis to use."""
        return self._get("CACHE", str, "default", "Use, for example, 'default'.")

    @cached_property
    def redis(self) -> object:
        """`REDIS`: a URL, a dict of redis-py's options, or a function that returns either; None: that of `CACHE`."""
        if self._given.get("REDIS") is None:
            return None
        if "CACHE" in self._given:
            raise ConfigurationError('QUOTA has both "CACHE" and "REDIS".', "Keep one of them.")
        given = self._given["REDIS"]
        function = import_function('QUOTA["REDIS"]', given) if is_path(given) else given
        if isinstance(function, (str, Mapping)) or (callable(function) and not is_async_callable(function)):
            return function
        kind = "an async function" if callable(function) else type(given).__name__  # the value may be a secret
        del given, function  # error pages show local names
        hint = "Use a URL such as 'redis://127.0.0.1:6379/0', a dict of redis-py's options, or a sync function."
        raise ConfigurationError(f'QUOTA["REDIS"] is {kind}.', hint)

    @cached_property
    def prefix(self) -> str:
        """`PREFIX`: the beginning of every key in Redis."""
        hint = "Use a text without braces, for example 'quota'."
        return self._get("PREFIX", str, "quota", hint, re.compile("[^{}]+").fullmatch)

    @cached_property
    def trusted_proxies(self) -> tuple[Network | Literal["unix"], ...]:
        """`TRUSTED_PROXIES`: the networks that may set X-Forwarded-For, and "unix" for a peer on a unix socket."""
        hint = "Use a list of networks, for example ['10.0.0.0/8', 'unix']."
        given: Iterable[object] = self._get("TRUSTED_PROXIES", (list, tuple, set, frozenset), (), hint)
        return tuple("unix" if value == UNIX else _network(value) for value in given)

    @cached_property
    def trusted_proxy_count(self) -> int:
        """`TRUSTED_PROXY_COUNT`: how many proxies add an address to X-Forwarded-For; 0: see `trusted_proxies`."""
        count = self._get_number("TRUSTED_PROXY_COUNT", 0, 0, MAX_PROXIES, 1)
        if count and self._given.get("TRUSTED_PROXIES"):
            raise ConfigurationError(
                f'QUOTA["TRUSTED_PROXY_COUNT"] is {count!r} beside TRUSTED_PROXIES.',
                "Use one of them: TRUSTED_PROXIES if you know the addresses of your proxies.",
            )
        return count

    @cached_property
    def client_ip_header(self) -> str:
        """`CLIENT_IP_HEADER`: the header with the client's address, as `request.META` names it; empty: X-Forwarded-For.

        Only `TRUSTED_PROXIES` may send it.
        """
        hint = "Use the name of a header, for example 'CF-Connecting-IP'."
        name = self._get("CLIENT_IP_HEADER", str, "", hint, _HEADER.fullmatch)
        problem = f'QUOTA["CLIENT_IP_HEADER"] is {name!r}'
        if name.lower() in ("x-forwarded-for", "forwarded"):
            raise ConfigurationError(
                f"{problem}, which lists several addresses.",
                "Leave it out: X-Forwarded-For is read with TRUSTED_PROXIES or TRUSTED_PROXY_COUNT alone.",
            )
        if name and not self._given.get("TRUSTED_PROXIES"):
            raise ConfigurationError(
                f"{problem}, but TRUSTED_PROXIES is empty, so nobody may send it.",
                'Name the proxies that set it, for example "TRUSTED_PROXIES": ["10.1.2.0/24"].',
            )
        return f"HTTP_{name.upper().replace('-', '_')}" if name else ""

    @cached_property
    def ipv4_prefix(self) -> int:
        """`IPV4_PREFIX`: how many bits of an IPv4 address identify a client, 1 to 32."""
        return self._get_number("IPV4_PREFIX", 32, 1, 32, 24)

    @cached_property
    def ipv6_prefix(self) -> int:
        """`IPV6_PREFIX`: how many bits of an IPv6 address identify a client, 1 to 128."""
        return self._get_number("IPV6_PREFIX", 64, 1, 128, 64)

    @cached_property
    def on_unavailable(self) -> OnUnavailable:
        """`ON_UNAVAILABLE`: the default of a rule's `on_unavailable`."""
        hint = "Use 'allow', 'deny' or 'local'."
        return self._get("ON_UNAVAILABLE", str, "allow", hint, get_args(OnUnavailable).__contains__)

    def without_store(self, *, is_full: bool) -> OnUnavailable:
        """Return the default of `on_unavailable` while the store cannot decide.

        `is_full`: whether the memory of Redis is full. Then "allow" becomes "local", so that nobody switches the
        limits off by filling Redis.
        """
        return "local" if is_full and self.on_unavailable == "allow" else self.on_unavailable

    @cached_property
    def time_zone(self) -> str:
        """`TIME_ZONE`: the IANA time zone in which a day of a counter begins; by default Django's."""
        hint, default = "Use, for example, 'UTC' or 'Europe/Berlin'.", settings.TIME_ZONE
        return self._get("TIME_ZONE", str, "", hint, lambda name: is_zone(name or default)) or default

    @cached_property
    def headers(self) -> bool:
        """`HEADERS`: whether responses have RateLimit-Policy and RateLimit."""
        return self._get("HEADERS", bool, True, "Use True or False.")

    @cached_property
    def legacy_headers(self) -> bool:
        """`LEGACY_HEADERS`: whether responses also have X-RateLimit-Limit, -Remaining and -Reset."""
        return self._get("LEGACY_HEADERS", bool, False, "Use True or False.")

    @cached_property
    def template(self) -> str:
        """`TEMPLATE`: the template of the 429 page."""
        hint = "Use, for example, '429.html'."
        return self._get("TEMPLATE", str, "429.html", hint, lambda name: name.strip() and name.isprintable())

    @cached_property
    def response(self) -> Callable[[Any, Any], Any] | None:
        """`RESPONSE`: a function `(request, decision) -> HttpResponse` that answers a refused request, or its path.

        If it is None, or returns None, the default response is sent.
        """
        given = self._given.get("RESPONSE")
        function = import_function('QUOTA["RESPONSE"]', str(given)) if is_path(given) else given
        is_async = is_async_callable(function)
        if function is None or (callable(function) and not is_async and not isinstance(function, type)):
            return cast("Callable[[Any, Any], Any] | None", function)
        raise ConfigurationError(
            f'QUOTA["RESPONSE"] is {given!r}{", which is async" if is_async else ""}.',
            "Use a sync function (request, decision) -> HttpResponse, or its dotted path.",
        )

    @cached_property
    def events(self) -> int:
        """`EVENTS`: about how many refusals, bans and warnings the stream in Redis keeps; `0` turns events off."""
        return self._get_number("EVENTS", 10_000, 0, MAX_EVENTS, 10_000)

    @cached_property
    def memory_keys(self) -> int:
        """`MEMORY_KEYS`: the most keys that a process keeps in its own memory; a subject has one or two."""
        return self._get_number("MEMORY_KEYS", 100_000, MIN_KEYS, MAX_KEYS, 100_000)

    @cached_property
    def metrics_token(self) -> str:
        """`METRICS_TOKEN`: what Prometheus sends to read the metrics; empty: users with the permission read them."""
        hint = f"Use at least {MIN_TOKEN} random letters and digits."
        token = self._get("METRICS_TOKEN", str, "", hint)
        if token and (len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token):
            problem = f'QUOTA["METRICS_TOKEN"] has {len(token)} characters, or some that a header cannot carry.'
            raise ConfigurationError(problem, hint)  # without the value, which is a secret
        return token

    @cached_property
    def cache_refusals(self) -> float:
        """`CACHE_REFUSALS`: the default of a rule's `cache_refusals`; `0` turns it off."""
        return read_refusal_span(self._given.get("CACHE_REFUSALS", 0), 'QUOTA["CACHE_REFUSALS"]')

    @cached_property
    def digest_key(self) -> str | bytes:
        """`DIGEST_KEY`: the key of the digests that replace secret values; by default SECRET_KEY."""
        given = self._given.get("DIGEST_KEY", "")
        if not isinstance(given, str):  # the message does not show the value: it is a secret
            raise ConfigurationError(
                f'QUOTA["DIGEST_KEY"] is {type(given).__name__}, not a text.', "Use a long random text."
            )
        return given or settings.SECRET_KEY

    @cached_property
    def rules(self) -> Mapping[str, object]:
        """`RULES`: the named rules, as they are written; `slots` are not among them."""
        return {name: given for name, given in self._rules.items() if not _is_slot(given)}

    def slots(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the entries of `RULES` with `at_once`, as they are written."""
        return {str(name): given for name, given in self._rules.items() if _is_slot(given)}

    @cached_property
    def _rules(self) -> Mapping[str, Any]:
        return self._get("RULES", Mapping, {}, "Use a dict, for example {'search': '10/m'}.")

    @cached_property
    def login(self) -> tuple[Rule, ...]:
        """`LOGIN`: the limits on failed logins, one rule for each combination of "username" and "ip"."""
        return login_rules(self._given.get("LOGIN", DEFAULT_LOGIN))

    def rule(self, name: str) -> Rule:
        """Return a rule of `RULES`. Raises `RuleError` if there is no such rule, or if it is wrong."""
        rule = self._made.get(name)
        if rule is None:
            rules = self.rules
            if name in self.slots():
                raise RuleError(
                    f'QUOTA["RULES"][{name!r}] has no rate: it limits how many run at once, where its match fits.',
                    "Name a rule with a rate.",
                )
            if name not in rules:
                near = did_you_mean(str(name), map(str, rules)).strip()
                raise RuleError(f'There is no rule {name!r} in QUOTA["RULES"].', near)
            rule = self._made[name] = Rule.from_setting(name, rules[name], import_option)
        return rule


def _is_slot(given: object) -> bool:
    return isinstance(given, Mapping) and "at_once" in given


def _network(value: object) -> Network:
    try:
        return read_network(value)
    except ValueError as error:
        raise ConfigurationError(
            f'QUOTA["TRUSTED_PROXIES"] holds {value!r}: {error}.',
            "Use a network such as '10.0.0.0/8', an address or 'unix'.",
        ) from None


_properties = [name for name, value in vars(QuotaSettings).items() if isinstance(value, cached_property)]

KNOWN_SETTINGS: tuple[str, ...] = tuple(sorted(name.upper() for name in _properties if not name.startswith("_")))
"""The names in `settings.QUOTA`. Each is read by the property of `QuotaSettings` of the same name in lower case."""


_forced_enabled: bool | None = None


@cache
def current() -> QuotaSettings:
    """Return the settings: `current().prefix`."""
    made = QuotaSettings(getattr(settings, "QUOTA", None))
    if _forced_enabled is not None:
        made.enabled = _forced_enabled
    return made


def force_enabled(enabled: bool | None) -> bool | None:
    """Have `ENABLED` this value, however a test changes the settings; None: as they say. Return the one until now."""
    global _forced_enabled
    before, _forced_enabled = _forced_enabled, enabled
    current.cache_clear()
    return before


def time_zone() -> str:
    """Return the setting `TIME_ZONE`. Raises `ConfigurationError` if there is no such zone."""
    return current().time_zone


def _forget(*, setting: str, **_: object) -> None:
    if setting in ("QUOTA", "SECRET_KEY", "TIME_ZONE"):
        current.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_quota.conf")


# --- dotted paths -----------------------------------------------------------------------------------------------------

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def is_path(value: object) -> bool:
    """Return whether a value looks like a dotted path."""
    return isinstance(value, str) and _PATH.fullmatch(value) is not None


def is_async_callable(value: object) -> bool:
    """Return whether a call of a value must be awaited."""
    return callable(value) and (iscoroutinefunction(value) or iscoroutinefunction(getattr(value, "__call__", None)))  # noqa: B004


def import_function(option: str, path: str, error: type[RuleError] = RuleError) -> Callable[..., Any]:
    """Return the function at a dotted path. Raises `error`, which names the option, if there is none."""
    try:
        function = import_string(path)
    except (ImportError, ValueError, TypeError) as problem:
        hint = "Use the path of a function, for example 'shop.limits.tier'."
        raise error(f"{option}={path!r} cannot be imported: {problem}.", hint) from problem
    if not callable(function):
        raise error(f"{option}={path!r} is {type(function).__name__}.", "Use a function of the request.")
    return function  # type: ignore[no-any-return]


def import_option(option: str, value: object) -> object:
    """Return the value of a rule's option, with functions in place of their dotted paths. Raises `RuleError`."""
    if option in OPTIONS and OPTIONS[option].called_with and isinstance(value, str):
        return import_function(option, value)
    if option in ("rate", "exempt"):
        if isinstance(value, (list, tuple)) or (option == "exempt" and isinstance(value, (set, frozenset))):
            return [import_option(option, each) for each in value]
        if is_path(value):
            return import_function(option, str(value))
    return value


# --- rules ------------------------------------------------------------------------------------------------------------

_RATE_LIKE = re.compile(r"[\d/]")
"""What every rate contains, and a misspelt name of a rule hardly ever does."""


def rule_of(rule_or_rate: object, options: Mapping[str, object]) -> Rule:
    """Return a rule from what a caller gave: a `Rule`, the name of a configured rule, or a rate with options.

    Raises `RuleError` if it is none of these.
    """
    if isinstance(rule_or_rate, Rule):
        return _with_options(rule_or_rate, options)
    settings = current()
    if isinstance(rule_or_rate, str) and rule_or_rate in settings.rules:
        return _with_options(settings.rule(rule_or_rate), options)
    if options and isinstance(options.get("ban"), Mapping):  # a dict cannot be a key of the cache
        options = {**options, "ban": Ban.read(options["ban"])}
    try:
        return _rule_of_rate(rule_or_rate, tuple(sorted(options.items())) if options else ())
    except RateError as error:
        if error.text != rule_or_rate:
            raise
        if isinstance(rule_or_rate, str) and rule_or_rate in settings.slots():
            settings.rule(rule_or_rate)  # says what it is
        known = did_you_mean(str(rule_or_rate), map(str, settings.rules))
        if isinstance(rule_or_rate, str) and rule_or_rate.strip() and not _RATE_LIKE.search(rule_or_rate):
            raise RateError(
                rule_or_rate, None, 'it is not the name of a rule in QUOTA["RULES"] either', known.strip()
            ) from None
        if error.position and "mean" not in known:  # its count could be read, and no rule has such a name
            raise
        raise RateError(error.text, error.position, error.problem, f"{error.hint} Nor is it a rule.{known}") from None


def _with_options(rule: Rule, options: Mapping[str, object]) -> Rule:
    if options:
        raise RuleError(
            f"Rule {rule.name!r} has its own options; {', '.join(options)} can only be given together with a rate."
        )
    return rule


@cached(maxsize=1024)
def _rule_of_rate(rate: object, options: tuple[tuple[str, object], ...]) -> Rule:
    given = dict(options)
    for option in [option for option in given if option in OPTIONS and OPTIONS[option].only_in == "views"]:
        needs, use = ("a request", "cost=") if option == "costs" else ("a response", "reserve()")
        raise RuleError(f"{option}= needs {needs}, so it is only for @quota and the settings. Use {use} here.")
    name = given.pop("name", None)
    rule = Rule.make("unnamed" if name is None else cast("str", name), rate, **given)
    if name is not None:
        return rule
    # The same rate, however it is spelt, is the same rule: "10/m" and "10 per minute" share their state.
    if any(map(is_lambda, rule.rates)):  # the name of a lambda is its line, which changes
        raise RateError(dotted_path(rate), None, "a lambda has no name to count under", "Add name='...'.")
    spelt = [dotted_path(rate) if callable(rate) else str(rate) for rate in rule.rates]
    return rule.renamed("; ".join(spelt) or "unlimited")


# --- limits on failed logins ------------------------------------------------------------------------------------------

LOGIN_BACKEND = "django_quota.contrib.auth.LoginQuotaBackend"

USERNAME = "login:username"
"""The key of a rule by user name. Only the backend knows the name; `LOGIN` calls this key "username"."""

DEFAULT_LOGIN: Mapping[str, object] = {"5/10m": ["username", "ip"], "100/h": "username", "30/h": "ip"}
"""The default of `LOGIN`. The limit by name alone is high, since anybody can use it up for another user."""

_LOGIN_KEYS = {"username": USERNAME, "ip": "ip"}

_LOGIN_OPTIONS = ("on_unavailable", "shadow", "exempt", "ban")
"""The options of a rule that `LOGIN` takes beside rates, for all its rules; `ban` for those by address."""

_LOGIN_EXAMPLE = f"Use, for example, {DEFAULT_LOGIN}."


def limits_logins() -> bool:
    """Return whether `LOGIN` is set, or AUTHENTICATION_BACKENDS has our backend."""
    given = getattr(settings, "QUOTA", None)
    return (isinstance(given, Mapping) and "LOGIN" in given) or LOGIN_BACKEND in settings.AUTHENTICATION_BACKENDS


def login_rules(given: object) -> tuple[Rule, ...]:
    """Return the rules of the setting `LOGIN`. Raises `ConfigurationError` if it is wrong."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(f'QUOTA["LOGIN"] is {given!r}, not a dict of limits.', _LOGIN_EXAMPLE)
    options = {str(name): given[name] for name in _LOGIN_OPTIONS if name in given}
    rates: dict[tuple[str, ...], list[object]] = {}
    for rate, key in given.items():
        if rate in options:
            continue
        if not isinstance(rate, str) or not _RATE_LIKE.search(rate):
            near = did_you_mean(str(rate), _LOGIN_OPTIONS)
            hint = near.strip() if "mean" in near else _LOGIN_EXAMPLE
            raise ConfigurationError(f'QUOTA["LOGIN"] has {rate!r}, which is not a rate.', hint)
        rates.setdefault(_login_key(rate, key), []).append(rate)
    if not rates:
        raise ConfigurationError('QUOTA["LOGIN"] has no limit.', _LOGIN_EXAMPLE)
    if "ban" in options and set(rates) == {("username",)}:
        problem = 'QUOTA["LOGIN"] has "ban", but no limit by "ip": a user name alone is never banned.'
        raise ConfigurationError(problem, _LOGIN_EXAMPLE)
    return tuple(_login_rule(key, of_key, options) for key, of_key in rates.items())


def _login_key(rate: str, given: object) -> tuple[str, ...]:
    """Return the parts of a key, the user name first, so that their order in the settings does not matter."""
    parts = given if isinstance(given, (list, tuple)) else (given,)
    if not parts or any(part not in tuple(_LOGIN_KEYS) or parts.count(part) > 1 for part in parts):
        raise ConfigurationError(
            f'QUOTA["LOGIN"][{rate!r}] is {given!r}.', "Use 'username', 'ip' or ['username', 'ip']."
        )
    return tuple(name for name in _LOGIN_KEYS if name in parts)


def _login_rule(parts: tuple[str, ...], rates: list[object], options: Mapping[str, object]) -> Rule:
    key = tuple(_LOGIN_KEYS[part] for part in parts)
    if "ip" not in parts:  # anybody who knows a name could have its owner banned
        options = {name: value for name, value in options.items() if name != "ban"}
    try:
        rule = Rule.make("-".join(("login", *parts)), *rates, key=key if len(key) > 1 else key[0], **options)
    except RuleError as error:
        raise ConfigurationError(f'QUOTA["LOGIN"]: {error}') from error
    if rule.exempt is not None and (rule.exempt.staff or rule.exempt.functions):
        problem = f'QUOTA["LOGIN"] has exempt={options["exempt"]!r}, but nobody is logged in yet.'
        raise ConfigurationError(problem, "Name networks, for example ['198.51.100.0/24'].")
    return rule
