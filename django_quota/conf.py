"""The settings: typed, live properties over `settings.QUOTA`. It must not know requests or stores.

Nothing is bound at import: `override_settings(QUOTA=...)` holds from the next line on, and so does a setting or a rule
that is changed in place (a list of proxies is not looked into again). A property reads one setting and raises
`ConfigurationError` where its value is of no use; the system checks read the same properties at start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from inspect import iscoroutinefunction
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Any, Literal, TypeVar, cast, get_args

from django.conf import settings

from django_quota.algorithms.calendar import is_zone
from django_quota.bans import Ban
from django_quota.dotted import function_at, imported, is_path
from django_quota.exceptions import ConfigurationError, RateError, RuleError, did_you_mean
from django_quota.rules import OnUnavailable, Rule, is_lambda, path_of

T = TypeVar("T")

Network = IPv4Network | IPv6Network

UNIX = "unix"
"""The name in `TRUSTED_PROXIES` for a peer on a unix socket."""


MOST_EVENTS = 10_000_000
FEWEST_KEYS, MOST_KEYS = 1_000, 100_000_000


class QuotaSettings:
    """Every setting of one `settings.QUOTA`, with its default; each is read once, when it is first needed."""

    def __init__(self, given: object) -> None:
        self._raw = given
        self._made: dict[str, tuple[object, Rule]] = {}

    @cached_property
    def _given(self) -> Mapping[str, Any]:
        if self._raw is None:
            return {}
        if not isinstance(self._raw, Mapping):
            raise ConfigurationError(
                f"QUOTA is {type(self._raw).__name__}, not a dict.", "{'CACHE': 'default'} would do."
            )
        return self._raw

    def _get(self, name: str, kind: type[T], default: T, example: str) -> T:
        value = self._given.get(name, default)
        if kind is bool and not isinstance(value, bool):
            raise ConfigurationError(f'QUOTA["{name}"] is {value!r}.', "It must be True or False.")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigurationError(f'QUOTA["{name}"] is {value!r}.', f"{example} would do.")
        return value

    @cached_property
    def enabled(self) -> bool:
        """`ENABLED`: where false, everything is allowed and Redis is not asked."""
        return self._get("ENABLED", bool, True, "")

    @cached_property
    def store(self) -> Literal["redis", "memory"]:
        """`STORE`: "redis", or "memory" for tests and single processes."""
        store = self._get("STORE", str, "redis", "'redis'")
        if store not in ("redis", "memory"):
            raise ConfigurationError(f'QUOTA["STORE"] is {store!r}.', "'redis' or 'memory' would do.")
        return cast("Literal['redis', 'memory']", store)

    @cached_property
    def cache(self) -> str:
        """`CACHE`: the alias in `CACHES` whose Redis is used."""
        return self._get("CACHE", str, "default", "'default'")

    @cached_property
    def prefix(self) -> str:
        """`PREFIX`: what every key in Redis begins with."""
        prefix = self._get("PREFIX", str, "quota", "'quota'")
        if not prefix or "{" in prefix or "}" in prefix:
            raise ConfigurationError(f'QUOTA["PREFIX"] is {prefix!r}.', "a text without braces, as 'quota', would do.")
        return prefix

    @cached_property
    def trusted_proxies(self) -> tuple[Network | Literal["unix"], ...]:
        """`TRUSTED_PROXIES`: networks whose X-Forwarded-For is believed, and "unix" for a peer on a unix socket."""
        given = self._given.get("TRUSTED_PROXIES", ())
        if isinstance(given, str) or not isinstance(given, (list, tuple, set, frozenset)):
            raise ConfigurationError(
                f'QUOTA["TRUSTED_PROXIES"] is {given!r}, not a list of networks.',
                "['10.0.0.0/8', 'unix'] would do.",
            )
        return _networks(given)

    @cached_property
    def ipv6_prefix(self) -> int:
        """`IPV6_PREFIX`: how many bits of an IPv6 address tell clients apart, 1 to 128."""
        prefix = self._get("IPV6_PREFIX", int, 64, "64")
        if not 1 <= prefix <= 128:  # noqa: PLR2004 — the bits of an address
            raise ConfigurationError(f'QUOTA["IPV6_PREFIX"] is {prefix!r}.', "1 to 128 would do, such as 64.")
        return prefix

    @cached_property
    def on_unavailable(self) -> OnUnavailable:
        """`ON_UNAVAILABLE`: what a rule does while the store does not answer, where it does not say itself."""
        value = self._get("ON_UNAVAILABLE", str, "allow", "'allow'")
        if value not in get_args(OnUnavailable):
            raise ConfigurationError(f'QUOTA["ON_UNAVAILABLE"] is {value!r}.', "'allow', 'deny' or 'local' would do.")
        return cast("OnUnavailable", value)

    def without_store(self, *, is_full: bool) -> OnUnavailable:
        """Return what a rule that does not say `on_unavailable` does while the store does not decide.

        `is_full`: whether that is because the memory of Redis is full. Then "allow" becomes "local": whoever fills
        Redis must not switch the limits off.
        """
        return "local" if is_full and self.on_unavailable == "allow" else self.on_unavailable

    @property
    def time_zone(self) -> str:
        """`TIME_ZONE`: the IANA time zone whose midnights part the days of counters; Django's where not set."""
        name = self._get("TIME_ZONE", str, "", "'Europe/Berlin'") or settings.TIME_ZONE
        if not is_zone(name):
            raise ConfigurationError(f'QUOTA["TIME_ZONE"] is {name!r}.', "A zone as 'UTC' or 'Europe/Berlin' would do.")
        return name

    @cached_property
    def headers(self) -> bool:
        """`HEADERS`: whether replies carry RateLimit-Policy and RateLimit."""
        return self._get("HEADERS", bool, True, "")

    @cached_property
    def legacy_headers(self) -> bool:
        """`LEGACY_HEADERS`: whether replies carry X-RateLimit-Limit, -Remaining and -Reset too."""
        return self._get("LEGACY_HEADERS", bool, False, "")

    @cached_property
    def template(self) -> str:
        """`TEMPLATE`: the template of the page for people who are refused."""
        template = self._get("TEMPLATE", str, "429.html", "'429.html'")
        if not template.strip() or not template.isprintable():
            raise ConfigurationError(f'QUOTA["TEMPLATE"] is {template!r}.', "'429.html' would do.")
        return template

    @cached_property
    def response(self) -> Callable[[Any, Any], Any] | None:
        """`RESPONSE`: a function `(request, decision) -> HttpResponse`, or its dotted path; None: ours.

        What answers who is refused; where it returns None, that is ours.
        """
        given = self._given.get("RESPONSE")
        function = function_at('QUOTA["RESPONSE"]', str(given)) if is_path(given) else given
        if function is None or (callable(function) and not _is_async(function) and not isinstance(function, type)):
            return cast("Callable[[Any, Any], Any] | None", function)
        raise ConfigurationError(
            f'QUOTA["RESPONSE"] is {given!r}{", which is async" if _is_async(function) else ""}.',
            "A plain function (request, decision) -> HttpResponse, or its dotted path, would do.",
        )

    @cached_property
    def events(self) -> int:
        """`EVENTS`: how many refusals, bans and warnings the stream in Redis keeps, about; 0: nothing is told."""
        events = self._get("EVENTS", int, 10_000, "10000")
        if not 0 <= events <= MOST_EVENTS:
            raise ConfigurationError(f'QUOTA["EVENTS"] is {events!r}.', f"0 to {MOST_EVENTS} would do, such as 10000.")
        return events

    @cached_property
    def memory_keys(self) -> int:
        """`MEMORY_KEYS`: how many keys, one or two a subject, a process counts with in its own memory at most."""
        most = self._get("MEMORY_KEYS", int, 100_000, "100000")
        if not FEWEST_KEYS <= most <= MOST_KEYS:
            problem = f'QUOTA["MEMORY_KEYS"] is {most!r}.'
            raise ConfigurationError(problem, f"{FEWEST_KEYS} to {MOST_KEYS} would do, such as 100000.")
        return most

    @property
    def digest_key(self) -> str | bytes:
        """`DIGEST_KEY`: the key of the digests that stand for secrets; SECRET_KEY, as it stands, where not set."""
        given = self._given.get("DIGEST_KEY", "")
        if not isinstance(given, str):  # which no message shows
            raise ConfigurationError(
                f'QUOTA["DIGEST_KEY"] is {type(given).__name__}, not a text.', "a long random text would do."
            )
        return given or settings.SECRET_KEY

    @cached_property
    def rules(self) -> Mapping[str, object]:
        """`RULES`: the named rules as they are written."""
        given = self._given.get("RULES", {})
        if not isinstance(given, Mapping):
            raise ConfigurationError(f'QUOTA["RULES"] is {given!r}.', "{'search': '10/m'} would do.")
        return given

    def rule(self, name: str) -> Rule:
        """Return a rule of `RULES`. Raises `RuleError` where there is none of this name, or where it is wrong."""
        rules = self.rules
        if name not in rules:
            raise RuleError(f'There is no rule {name!r} in QUOTA["RULES"].{did_you_mean(name, map(str, rules))}')
        made = self._made.get(name)
        if made is None or made[0] != rules[name]:
            made = self._made[name] = (_copied(rules[name]), Rule.from_setting(name, rules[name], imported))
        return made[1]


KNOWN_SETTINGS = (
    "CACHE", "DIGEST_KEY", "ENABLED", "EVENTS", "HEADERS", "IPV6_PREFIX", "LEGACY_HEADERS", "MEMORY_KEYS",
    "ON_UNAVAILABLE", "PREFIX", "RESPONSE", "RULES", "STORE", "TEMPLATE", "TIME_ZONE", "TRUSTED_PROXIES",
)  # fmt: skip
"""The names that `settings.QUOTA` may have; in lower case, the properties that read them."""


class _Current:
    """The settings as they stand, read anew whenever `settings.QUOTA` differs from what was read.

    What is put into the dict in place is seen too; what is changed inside a value only where it is a rule.
    """

    def __init__(self) -> None:
        self._seen: tuple[object, object, QuotaSettings] = (None, None, QuotaSettings(None))

    def read(self) -> QuotaSettings:
        """Return the settings as they stand."""
        # Where Django keeps what was asked for, until it is set or overridden: asking it costs more than all else here.
        given = object.__getattribute__(settings, "__dict__").get("QUOTA")
        if given is None:
            given = getattr(settings, "QUOTA", None)
        seen, copied, known = self._seen
        if given is seen and given == copied:
            return known
        known = QuotaSettings(given)
        self._seen = (given, dict(given) if isinstance(given, Mapping) else given, known)
        return known


current = _Current().read
"""Return the settings as they stand: `current().prefix`."""


class _Live:
    """Makes `conf.prefix` of `current().prefix`."""

    def __getattr__(self, name: str) -> object:
        return getattr(current(), name)


conf = cast("QuotaSettings", _Live())
"""The live settings: each attribute is read when it is asked for."""


def _is_async(function: object) -> bool:
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _copied(value: object) -> object:
    """Return a rule's setting with its dict and lists copied, so that a change in place is seen to differ."""
    if isinstance(value, Mapping):
        return {name: _copied(given) for name, given in value.items()}
    return list(value) if isinstance(value, list) else value


def _networks(given: Iterable[object]) -> tuple[Network | Literal["unix"], ...]:
    networks: list[Network | Literal["unix"]] = []
    for value in given:
        if value == UNIX:
            networks.append("unix")
            continue
        try:
            if not isinstance(value, (str, IPv4Network, IPv6Network, IPv4Address, IPv6Address)):
                raise ValueError(f"it is {type(value).__name__}, not a text")  # noqa: TRY301, TRY004
            networks.append(ip_network(value))
        except ValueError as error:
            raise ConfigurationError(
                f'QUOTA["TRUSTED_PROXIES"] holds {value!r}: {error}.',
                "A network as '10.0.0.0/8', an address or 'unix' would do.",
            ) from None
    return tuple(networks)


_RATE_LIKE = re.compile(r"[\d/]")
"""What a rate has, and a misspelt name of a rule hardly ever."""


def rule_of(rule_or_rate: object, options: Mapping[str, object]) -> Rule:
    """Return the rule that a caller means: a `Rule`, the name of a rule of the settings, or a rate with options.

    Raises `RuleError` where it is none of them.
    """
    if isinstance(rule_or_rate, Rule):
        return _with_options(rule_or_rate, options)
    settings = current()
    if isinstance(rule_or_rate, str) and rule_or_rate in settings.rules:
        return _with_options(settings.rule(rule_or_rate), options)
    if isinstance(options.get("ban"), Mapping):  # which cannot be a key of the cache
        options = {**options, "ban": Ban.read(options["ban"])}
    try:
        return _rule_of_rate(rule_or_rate, tuple(sorted(options.items())) if options else ())
    except RateError as error:
        if error.text != rule_or_rate:
            raise
        known = did_you_mean(str(rule_or_rate), map(str, settings.rules))
        if isinstance(rule_or_rate, str) and rule_or_rate.strip() and not _RATE_LIKE.search(rule_or_rate):
            raise RateError(rule_or_rate, None, 'nor is it a rule in QUOTA["RULES"]', known.strip()) from None
        raise RateError(error.text, error.position, error.problem, f"{error.hint} Nor is it a rule.{known}") from None
    except TypeError:  # an option or a list of rates that cannot be a key of the cache
        return _make_rule(rule_or_rate, options)


def _with_options(rule: Rule, options: Mapping[str, object]) -> Rule:
    if options:
        raise RuleError(
            f"Rule {rule.name!r} has its own options; {', '.join(options)} can only be given together with a rate."
        )
    return rule


@lru_cache(maxsize=1024)
def _rule_of_rate(rate: object, options: tuple[tuple[str, object], ...]) -> Rule:
    return _make_rule(rate, dict(options))


def _make_rule(rate: object, options: Mapping[str, object]) -> Rule:
    given = dict(options)
    name = given.pop("name", None)
    rule = Rule.make("unnamed" if name is None else cast("str", name), rate, **given)
    if name is not None:
        return rule
    # The same rate, however it is spelt, is the same rule: "10/m" and "10 per minute" share their state.
    if any(map(is_lambda, rule.rates)):  # which would be known by its line
        raise RateError(path_of(rate), None, "a lambda has no name to count under", "Add name='...'.")
    spelt = [path_of(rate) if callable(rate) else str(rate) for rate in rule.rates]
    return rule.named("; ".join(spelt) or "unlimited")
