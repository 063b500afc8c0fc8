"""The settings: `current()` reads `settings.QUOTA` as typed values.

A value is read when it is first needed, and kept until Django sends `setting_changed`. So `override_settings` works;
changing the dict in place does not. A wrong value raises `ConfigurationError`, and the system checks read every value
at start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar, cast, get_args

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.utils.module_loading import import_string

from django_quota.core.algorithms.calendar import is_zone
from django_quota.core.caching import cached
from django_quota.core.errors import (
    ConfigurationError,
    RateError,
    RuleError,
    StoreBusy,
    StoreOutOfMemory,
    StoreUnavailable,
    did_you_mean,
)
from django_quota.core.keys import escape
from django_quota.core.rule_options import BanOption, Network, OnUnavailable, RuleStore, read_network, read_refusal_span
from django_quota.core.rules import OPTIONS, Rule, dotted_path, is_lambda
from django_quota.runtime import runtime

T = TypeVar("T")

UNIX = "unix"
"""The name in `TRUSTED_PROXIES` of a peer on a unix socket."""

DEFAULT_LOGIN: Mapping[str, object] = {"5/10m": ["username", "ip"], "100/h": "username", "30/h": "ip"}
"""The default of `LOGIN`. The limit by name alone is high, because anybody can use it up for another user."""

DRAFT = "draft-11"
"""The draft of draft-ietf-httpapi-ratelimit-headers that responses follow. It stays the same in minor versions."""


class Setting(Generic[T]):
    """Declares a setting: its default, which values are right, and what to write instead of a wrong one.

    `fits` says whether what is written is right, and `read` makes the value from it. Errors do not show a value that
    `is_secret`.
    """

    def __init__(
        self,
        default: Any,
        hint: str = "",
        fits: Callable[[Any], object] = lambda _: True,
        read: Callable[[QuotaSettings, Any], Any] = lambda _, value: value,
        *,
        is_secret: bool = False,
    ) -> None:
        self._declared = default, hint, fits, read, is_secret

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, ours: QuotaSettings, owner: type) -> T:
        """Return the value in the settings of a site, and keep it. Raises `ConfigurationError` if it is wrong."""
        default, hint, fits, read, is_secret = self._declared
        name = self._name.upper()
        value = ours.given.get(name, default)
        problem = "" if fits(value) else "has a wrong value, which is not shown" if is_secret else f"is {value!r}"
        del value  # error pages show local names
        if problem:
            raise ConfigurationError(f'QUOTA["{name}"] {problem}.', hint)
        found = read(ours, ours.given.get(name, default))
        ours.__dict__[self._name] = found  # Python looks there first from now on
        return cast("T", found)


def _flag(default: bool) -> Setting[bool]:
    return Setting(default, "Use True or False.", lambda value: isinstance(value, bool))


def _number(default: int, least: int, most: int, example: int, **more: Any) -> Setting[int]:
    hint = f"Use a number from {least} to {most}, for example {example}."
    return Setting(default, hint, lambda value: type(value) is int and least <= value <= most, **more)


def _text(default: str, hint: str, fits: Callable[[str], object] = lambda _: True, **more: Any) -> Setting[str]:
    return Setting(default, hint, lambda value: isinstance(value, str) and fits(value), **more)


def _one_of(known: tuple[T, ...], default: T) -> Setting[T]:
    hint = f"Use {', '.join(map(repr, known[:-1]))} or {known[-1]!r}."
    return Setting(default, hint, lambda value: isinstance(value, str) and value in known)


# --- how values are read ----------------------------------------------------------------------------------------------


def _read_redis(ours: QuotaSettings, given: object) -> object:
    if given is None:
        return None
    if "CACHE" in ours.given:
        raise ConfigurationError('QUOTA has both "CACHE" and "REDIS".', "Keep one of them.")
    function = import_function('QUOTA["REDIS"]', str(given)) if is_path(given) else given
    if isinstance(function, (str, Mapping)) or (callable(function) and not is_async_callable(function)):
        return function
    kind = "an async function" if callable(function) else type(given).__name__  # the value may be a secret
    del given, function  # error pages show local names
    hint = "Use a URL such as 'redis://127.0.0.1:6379/0', a dict of redis-py's options, or a sync function."
    raise ConfigurationError(f'QUOTA["REDIS"] is {kind}.', hint)


def _read_prefix(ours: QuotaSettings, prefix: str) -> str:
    """Return the beginning of all keys. In the Redis of a cache alias, the KEY_PREFIX of the alias comes first.

    So two sites that share a Redis, as their caches may, do not share their limits.
    """
    if ours.given.get("STORE", "redis") != "redis" or ours.given.get("REDIS") is not None:
        return prefix
    name = ours.given.get("CACHE", "default")
    of_alias = settings.CACHES.get(name, {}).get("KEY_PREFIX") if isinstance(name, str) else None
    return f"{escape(str(of_alias))}:{prefix}" if of_alias else prefix  # braces would choose a slot of a Cluster


def _read_proxies(_: QuotaSettings, given: Any) -> tuple[Network | Literal["unix"], ...]:
    return tuple(
        "unix" if value == UNIX else _network("TRUSTED_PROXIES", value, ", an address or 'unix'") for value in given
    )


def _read_exempt(_: QuotaSettings, given: Any) -> tuple[Network, ...]:
    return tuple(_network("EXEMPT", value, " or an address") for value in given)


def _network(setting: str, value: object, more: str) -> Network:
    try:
        return read_network(value)
    except ValueError as error:
        raise ConfigurationError(
            f'QUOTA["{setting}"] holds {value!r}: {error}.', f"Use a network such as '10.0.0.0/8'{more}."
        ) from None


def _read_proxy_count(ours: QuotaSettings, count: int) -> int:
    if count and ours.given.get("TRUSTED_PROXIES"):
        raise ConfigurationError(
            f'QUOTA["TRUSTED_PROXY_COUNT"] is {count!r}, and TRUSTED_PROXIES is set, too.',
            "Use one of them: TRUSTED_PROXIES if you know the addresses of your proxies.",
        )
    return count


def _read_client_ip_header(ours: QuotaSettings, name: str) -> str:
    """Return the name of the header in `request.META`; empty for X-Forwarded-For."""
    if name and not ours.given.get("TRUSTED_PROXIES"):
        raise ConfigurationError(
            f'QUOTA["CLIENT_IP_HEADER"] is {name!r}, but TRUSTED_PROXIES is empty, so the header would be ignored.',
            'Name the proxies that set it, for example "TRUSTED_PROXIES": ["10.1.2.0/24"].',
        )
    return f"HTTP_{name.upper().replace('-', '_')}" if name else ""


def _read_function(setting: str, given: object, takes: str) -> object:
    """Return the sync function that a setting names; None if it is None. `takes`: its arguments and result."""
    function = import_function(f'QUOTA["{setting}"]', str(given)) if is_path(given) else given
    is_function = callable(function) and not is_async_callable(function) and not isinstance(function, type)
    if function is None or is_function:
        return function
    hint = f"Use a sync function {takes}, or its dotted path."
    raise ConfigurationError(f'QUOTA["{setting}"] is {given!r}.', hint)


def _read_response(_: QuotaSettings, given: object) -> object:
    return _read_function("RESPONSE", given, "(request, decision) -> HttpResponse")


def _read_related(_: QuotaSettings, given: object) -> object:
    return _read_function("RELATED", given, "(user) -> subjects")


def _read_login(ours: QuotaSettings, given: object) -> tuple[Rule, ...]:
    return login_rules(given, ours.without_store(None, is_precious=True))


def _is_slot(given: object) -> bool:
    return isinstance(given, Mapping) and "at_once" in given


# --- the settings -----------------------------------------------------------------------------------------------------


class QuotaSettings:
    """The values of one `settings.QUOTA`, with their defaults. Each is read once, when it is first needed."""

    def __init__(self, raw: object) -> None:
        self._raw = raw
        self._made: dict[str, Rule] = {}

    @property
    def given(self) -> Mapping[str, Any]:
        """What is written. Raises `ConfigurationError` if it is not a dict."""
        if self._raw is None:
            return {}
        if not isinstance(self._raw, Mapping):
            raise ConfigurationError(
                f"QUOTA is {type(self._raw).__name__}, not a dict.", "Use, for example, {'CACHE': 'default'}."
            )
        return self._raw

    enabled = _flag(True)
    """Whether limits apply. If not, everything is allowed, and the store is not asked."""

    store: Setting[Literal["redis", "database", "memory"]] = _one_of(("redis", "database", "memory"), "redis")
    """Where limits count: "database" for a site without Redis, "memory" for tests and single processes."""

    database = _text("default", "Use, for example, 'default'.")
    """The alias in `DATABASES` that keeps the states if `STORE` is "database"."""

    cache = _text("default", "Use, for example, 'default'.")
    """The alias in `CACHES` of the Redis to use."""

    redis: Setting[object] = Setting(None, read=_read_redis)
    """A URL, a dict of redis-py's options, or a function that returns either; None: the Redis of `CACHE`."""

    prefix = _text(
        "quota",
        "Use a string without braces, for example 'quota'.",
        re.compile("[^{}]+").fullmatch,
        read=_read_prefix,
    )
    """How every key in the store begins, after the KEY_PREFIX of the cache alias."""

    trusted_proxies: Setting[tuple[Network | Literal["unix"], ...]] = Setting(
        (),
        "Use a list of networks, for example ['10.0.0.0/8', 'unix'].",
        lambda value: isinstance(value, (list, tuple, set, frozenset)),
        _read_proxies,
    )
    """The networks that may set X-Forwarded-For, and "unix" for a peer on a unix socket."""

    trusted_proxy_count = _number(0, 0, 32, 1, read=_read_proxy_count)
    """How many proxies add an address to X-Forwarded-For; 0: see `trusted_proxies`."""

    client_ip_header = _text(
        "",
        "Use the name of a header with one address, for example 'CF-Connecting-IP'. Leave it out for X-Forwarded-For.",
        re.compile(r"(?!(X-Forwarded-For|Forwarded)$)([A-Z0-9]+(-[A-Z0-9]+)*)?", re.IGNORECASE).fullmatch,
        read=_read_client_ip_header,
    )
    """The header with the client's address, as `request.META` names it; empty: X-Forwarded-For. Only `TRUSTED_PROXIES`
    may set it."""

    exempt: Setting[tuple[Network, ...]] = Setting(
        (),
        "Use a list of networks, for example ['10.0.0.0/8'].",
        lambda value: isinstance(value, (list, tuple, set, frozenset)),
        _read_exempt,
    )
    """The networks whose requests no rule limits."""

    ipv4_prefix = _number(32, 1, 32, 24)
    """How many bits of an IPv4 address identify a client."""

    ipv6_prefix = _number(64, 1, 128, 64)
    """How many bits of an IPv6 address identify a client."""

    on_unavailable: Setting[OnUnavailable] = _one_of(get_args(OnUnavailable), "allow")
    """The default of a rule's `on_unavailable`."""

    def without_store(
        self,
        said: OnUnavailable | None,
        failure: type[StoreUnavailable] = StoreUnavailable,
        *,
        is_precious: bool = False,
    ) -> OnUnavailable:
        """Return what a rule or a slot does after a failure of the store.

        `said`: its own `on_unavailable`; None: the default. `is_precious`: whether it guards a password, a code or
        money. "local" replaces "allow" while this process is too busy to ask the store. If the rule has none of its
        own, "local" also replaces "allow" if the rule is precious, or while the store is full. Otherwise a client could
        switch the limits off by filling the store or by keeping the process busy.
        """
        how = said or self.on_unavailable
        is_urged = issubclass(failure, StoreBusy)
        is_free = said is None and (is_precious or issubclass(failure, StoreOutOfMemory))
        return "local" if how == "allow" and (is_urged or is_free) else how

    time_zone = _text(
        "",
        "Use, for example, 'UTC' or 'Europe/Berlin'.",
        lambda name: is_zone(name or settings.TIME_ZONE),
        read=lambda _, name: name or settings.TIME_ZONE,
    )
    """The IANA time zone in which a day of a counter begins; by default Django's."""

    headers: Setting[str] = Setting(
        True,
        f"Use True, False or {DRAFT!r}.",
        lambda value: isinstance(value, bool) or value == DRAFT,
        lambda _, value: DRAFT if value else "",
    )
    """The draft whose RateLimit-Policy and RateLimit responses have; empty if they have none."""

    legacy_headers = _flag(False)
    """Whether responses also have X-RateLimit-Limit, -Remaining and -Reset."""

    credits_status: Setting[int] = Setting(
        429, "Use 429, or 402 (Payment required).", lambda value: type(value) is int and value in (402, 429)
    )
    """The status of a refusal because a counter holds too little: 429 or 402."""

    template = _text("429.html", "Use, for example, '429.html'.", lambda name: name.strip() and name.isprintable())
    """The template of the 429 page."""

    response: Setting[Callable[[Any, Any], Any] | None] = Setting(None, read=_read_response)
    """A function `(request, decision) -> HttpResponse` that answers a refused request, or its path.

    If it is None, or returns None, the default response is sent."""

    related: Setting[Callable[[Any], Iterable[str]] | None] = Setting(None, read=_read_related)
    """A function that returns the subjects that count for a user besides `user:42`, such as `org:7`, or its path."""

    events = _number(10_000, 0, 10_000_000, 10_000)
    """About how many refusals, bans and warnings the event log keeps; 0 turns events off."""

    event_days = _number(90, 1, 400, 30)
    """For how many days the event log keeps them."""

    event_requests = _flag(True)
    """Whether events say of their request the user, the method and the path."""

    memory_keys = _number(100_000, 1_000, 100_000_000, 100_000)
    """The most keys that a process keeps in its own memory; a subject has one or two."""

    metrics_token = _text(
        "",
        "Use at least 16 random letters and digits.",
        re.compile("([!-~]{16,})?").fullmatch,
        is_secret=True,
    )
    """What Prometheus sends to read the metrics; empty: users with the permission read them."""

    cache_refusals: Setting[float] = Setting(
        0, read=lambda _, value: read_refusal_span(value, 'QUOTA["CACHE_REFUSALS"]')
    )
    """The default of a rule's `cache_refusals`; 0 turns it off."""

    digest_key: Setting[str | bytes] = Setting(
        "",
        "Use a long random string.",
        lambda value: isinstance(value, str),
        lambda _, key: key or settings.SECRET_KEY,
        is_secret=True,
    )
    """The key of the digests that replace secret values; by default SECRET_KEY."""

    rules: Setting[Mapping[str, Any]] = Setting(
        {},
        "Use a dict, for example {'search': '10/m'}.",
        lambda value: isinstance(value, Mapping),
        lambda _, rules: {name: given for name, given in rules.items() if not _is_slot(given)},
    )
    """The named rules, as they are written, without the `slots`."""

    def prefix_in(self, store: RuleStore | None) -> str:
        """Return the beginning of the keys in a store. That in the database is the same for any Redis."""
        return self.prefix if store is None else str(self.given.get("PREFIX", "quota"))

    def slots(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the entries of `RULES` with `at_once`, as they are written."""
        rules = self.rules  # raises ConfigurationError if it is not a dict
        return {str(name): each for name, each in self.given.get("RULES", {}).items() if name not in rules}

    login: Setting[tuple[Rule, ...]] = Setting(DEFAULT_LOGIN, read=_read_login)
    """The limits on failed logins, one rule for each combination of "username" and "ip"."""

    def rule(self, name: str) -> Rule:
        """Return a rule of `RULES`. Raises `RuleError` if there is no such rule, or if it is wrong."""
        rule = self._made.get(name)
        if rule is None:
            rules = self.rules
            if name in self.slots():
                raise RuleError(
                    f'QUOTA["RULES"][{name!r}] is a concurrency limit (at_once), not a rate.',
                    "Name a rule with a rate.",
                )
            if name not in rules:
                near = did_you_mean(str(name), map(str, rules)).strip()
                raise RuleError(f'There is no rule {name!r} in QUOTA["RULES"].', near or "Add it.")
            rule = self._made[name] = Rule.from_setting(name, rules[name], import_option)
        return rule


KNOWN_SETTINGS = tuple(sorted(name.upper() for name, each in vars(QuotaSettings).items() if isinstance(each, Setting)))
"""The names in `settings.QUOTA`. Each is read by the attribute of `QuotaSettings` of the same name in lower case."""


def _given_settings() -> QuotaSettings:
    made, enabled = QuotaSettings(getattr(settings, "QUOTA", None)), runtime.wanted.enabled
    if enabled is not None:
        made.__dict__["enabled"] = enabled
    return made


_settings = runtime.part(
    _given_settings, depends=lambda _, setting: setting in ("QUOTA", "SECRET_KEY", "TIME_ZONE", "CACHES")
)


def current() -> QuotaSettings:
    """Return the settings: `current().prefix`."""
    return _settings.made or _settings.get()


def force_enabled(enabled: bool | None) -> bool | None:
    """Set `ENABLED`, whatever the settings say; None: follow the settings. Return the value that was set before."""
    before = runtime.wanted
    runtime.wanted = before._replace(enabled=enabled)
    _settings.forget()
    return before.enabled


def time_zone() -> str:
    """Return the setting `TIME_ZONE`. Raises `ConfigurationError` if there is no such zone."""
    return current().time_zone


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
    setting = option.removeprefix('QUOTA["').removesuffix('"]')
    arguments = OPTIONS[option].called_with if option in OPTIONS else ()
    of_what = f" of the {' and the '.join(arguments or ('request',))}" if setting == option else ""
    try:
        function = import_string(path)
    except (ImportError, ValueError, TypeError) as problem:
        hint = f"Use the path of a function{of_what}, for example 'shop.limits.{setting.lower()}'."
        if path.startswith(("user.", "request.user")):
            hint = "Write 'user', which counts by the primary key."
        raise error(f"{option}={path!r} cannot be imported: {problem}.", hint) from problem
    if not callable(function):
        raise error(f"{option}={path!r} is {type(function).__name__}.", f"Use a function{of_what}.")
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


def rule_of(rule_or_rate: object, options: Mapping[str, object]) -> Rule:
    """Return a rule from what a caller gave: a `Rule`, the name of a configured rule, or a rate with options.

    Raises `RuleError` if it is none of these.
    """
    if isinstance(rule_or_rate, Rule):
        return _with_options(rule_or_rate, options)
    settings = current()
    if isinstance(rule_or_rate, str) and rule_or_rate in settings.rules:
        return _with_options(settings.rule(rule_or_rate), options)
    if options and isinstance(options.get("ban"), Mapping):  # a dict has no hash, which the cache needs
        options = {**options, "ban": BanOption.read(options["ban"])}
    try:
        return _rule_of_rate(rule_or_rate, tuple(sorted(options.items())) if options else ())
    except RateError as error:
        if error.text != rule_or_rate or not isinstance(rule_or_rate, str):
            raise
        if rule_or_rate in settings.slots():
            settings.rule(rule_or_rate)  # raises an error that says what it is
        near = did_you_mean(rule_or_rate, map(str, settings.rules))
        hint = f'{error.hint} Nor is it a rule in QUOTA["RULES"].{near}'
        raise RateError(error.text, error.position, error.problem, hint) from None


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
    # The same rate, however it is written, is the same rule: "10/m" and "10 per minute" share their state.
    if any(map(is_lambda, rule.rates)):  # the name of a lambda is its line, which changes
        raise RateError(dotted_path(rate), None, "a lambda has no name to count under", "Add name='...'.")
    written = [dotted_path(rate) if callable(rate) else str(rate) for rate in rule.rates]
    return rule.renamed("; ".join(written) or "unlimited")


# --- limits on failed logins ------------------------------------------------------------------------------------------

LOGIN_BACKEND = "django_quota.contrib.auth.LoginQuotaBackend"

USERNAME = "login:username"
"""The key of a rule by user name. Only the backend knows the name; `LOGIN` calls this key "username"."""

_LOGIN_KEYS = {"username": USERNAME, "ip": "ip"}

_LOGIN_OPTIONS = ("on_unavailable", "shadow", "exempt", "ban")
"""The options that `LOGIN` may have besides rates. They are for all its rules, `ban` for those by address."""

_LOGIN_EXAMPLE = f"Use, for example, {DEFAULT_LOGIN}."


def limits_logins() -> bool:
    """Return whether `LOGIN` is set, or AUTHENTICATION_BACKENDS has our backend."""
    given = getattr(settings, "QUOTA", None)
    return (isinstance(given, Mapping) and "LOGIN" in given) or LOGIN_BACKEND in settings.AUTHENTICATION_BACKENDS


def login_rules(given: object, on_unavailable: OnUnavailable) -> tuple[Rule, ...]:
    """Return the rules of the setting `LOGIN`. Raises `ConfigurationError` if it is wrong.

    `on_unavailable`: the value if the setting has none.
    """
    if not isinstance(given, Mapping):
        raise ConfigurationError(f'QUOTA["LOGIN"] is {given!r}, not a dict of limits.', _LOGIN_EXAMPLE)
    options = {name: given[name] for name in _LOGIN_OPTIONS if name in given}
    rates: dict[tuple[str, ...], list[object]] = {}
    for rate, key in given.items():
        if rate not in options:
            rates.setdefault(_login_key(rate, key), []).append(rate)
    if not rates:
        raise ConfigurationError('QUOTA["LOGIN"] has no limit.', _LOGIN_EXAMPLE)
    if "ban" in options and set(rates) == {("username",)}:
        problem = 'QUOTA["LOGIN"] has "ban", but no limit by "ip": a user name alone is never banned.'
        raise ConfigurationError(problem, _LOGIN_EXAMPLE)
    options = {"on_unavailable": on_unavailable, **options}
    return tuple(_login_rule(parts, of_parts, options) for parts, of_parts in rates.items())


def _login_key(rate: object, given: object) -> tuple[str, ...]:
    """Return the parts of a key, the user name first, so that their order in the settings does not matter."""
    if not isinstance(rate, str) or not re.search(r"[\d/]", rate):
        near = did_you_mean(str(rate), _LOGIN_OPTIONS).strip()
        hint = near if "mean" in near else _LOGIN_EXAMPLE
        raise ConfigurationError(f'QUOTA["LOGIN"] has {rate!r}, which is not a rate.', hint)
    parts = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    known = tuple(name for name in _LOGIN_KEYS if name in parts)
    if not parts or len(known) != len(parts):
        hint = "Use 'username', 'ip' or ['username', 'ip']."
        raise ConfigurationError(f'QUOTA["LOGIN"][{rate!r}] is {given!r}.', hint)
    return known


def _login_rule(parts: tuple[str, ...], rates: list[object], options: Mapping[str, object]) -> Rule:
    key = tuple(_LOGIN_KEYS[part] for part in parts)
    if "ip" not in parts:  # anybody who knows a name could get its owner banned
        options = {name: value for name, value in options.items() if name != "ban"}
    try:
        rule = Rule.make("-".join(("login", *parts)), *rates, key=key if len(key) > 1 else key[0], **options)
    except RuleError as error:
        raise ConfigurationError(f'QUOTA["LOGIN"]: {error}') from error
    if rule.exempt is not None and (rule.exempt.staff or rule.exempt.functions):
        problem = f'QUOTA["LOGIN"] has exempt={options["exempt"]!r}, but nobody is logged in yet.'
        raise ConfigurationError(problem, "Name networks, for example ['198.51.100.0/24'].")
    return rule
