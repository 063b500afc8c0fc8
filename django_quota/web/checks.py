"""System checks of the settings: the values of QUOTA, the cache alias behind it, and what a live site needs.

A wrong setting is found when the site starts, not on a request. Each finding has an id and a hint. The checks call the
same parsers as the running app, and never ask Redis. With `--database`, one check asks the database. `rule_checks` has
the checks of rules and views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, register
from django.core.checks import Warning as CheckWarning
from django.db import connections
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.module_loading import import_string

from django_quota.conf import KNOWN_SETTINGS, LOGIN_BACKEND, current
from django_quota.core.errors import ConfigurationError, RuleError, did_you_mean
from django_quota.limiting.known_rules import rules_of_requests
from django_quota.limiting.override_rows import count_overrides, has_database, missing_tables, write_database
from django_quota.limiting.overrides import MAX_OVERRIDES
from django_quota.limiting.registry import which_redis
from django_quota.stores.database.sql import BANS, EVENTS, STATES
from django_quota.stores.database.store import is_testing, vendor_of
from django_quota.web.rule_checks import check_rules

if TYPE_CHECKING:
    from django_quota.stores.redis.settings import WhichRedis


@register("django_quota")
def check_settings(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Check `settings.QUOTA`, its rules, the cache alias behind it, and the views that it limits."""
    given = getattr(settings, "QUOTA", None)
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        return [
            Error(
                f"QUOTA is {type(given).__name__}, not a dict.",
                hint="Use, for example, {'CACHE': 'default'}.",
                id="django_quota.E001",
            )
        ]
    return [
        *_check_names(given),
        *_check_values(),
        *_check_proxies(),
        *_check_store(),
        *_check_template(),
        *_check_logins(given),
        *check_rules(),
    ]


@register("django_quota", deploy=True)
def check_live_site(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Find settings that suit only a developer's machine, for `check --deploy`."""
    found: list[CheckMessage] = []
    if _value("enabled") is False:
        found.append(
            CheckWarning(
                'QUOTA["ENABLED"] is False: nothing is limited, and bans and overrides have no effect.',
                hint="Remove it, or set it to True.",
                id="django_quota.W010",
            )
        )
    if _value("store") == "memory":
        found.append(
            CheckWarning(
                'QUOTA["STORE"] is "memory": each process counts for itself, so several processes admit several times '
                "the limit, and a restart forgets all counts.",
                hint='Use "redis" and name it in QUOTA["REDIS"], or "database", or run exactly one process.',
                id="django_quota.W011",
            )
        )
    return [*found, *_check_unused()]


def _check_unused() -> Iterator[CheckMessage]:
    """Name the configured rules that neither the middleware nor a view applies."""
    try:
        used = {rule.name for rule in rules_of_requests()}
        unused = [name for name in current().rules if name not in used and current().rule(name).match is None]
    except (ConfigurationError, RuleError):
        return  # `_check_values` and `check_rules` have reported it
    if unused:
        yield Info(  # only the project knows whether its code asks for them
            f'QUOTA["RULES"] has {", ".join(map(repr, unused))} without "match", and no view uses them: they limit '
            "only calls in your code.",
            hint=f"Add a 'match', name them on a view with @quota(rule={unused[0]!r}), or remove them.",
            id="django_quota.W039",
        )


@register("django_quota", Tags.database)
def check_overrides(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check the tables of overrides, for `check --database`."""
    using = write_database()
    if using not in (databases or ()) or not has_database() or not connections[using].introspection.table_names():
        return []  # without any table, `migrate` comes first
    if missing := missing_tables(using):
        return [
            CheckWarning(
                f"The database {using!r} lacks the tables {', '.join(sorted(missing))}: no override holds.",
                hint="Run `manage.py migrate`. If this is `migrate`, it makes them now.",
                id="django_quota.W031",
            )
        ]
    number = count_overrides()
    if number <= MAX_OVERRIDES:
        return []
    return [
        CheckWarning(
            f"{number:,} overrides have not ended. Each process holds all of them, and reads them before its first "
            "decision.",
            hint=f"More than {MAX_OVERRIDES:,} cost much memory and time. Tiers are made for large groups of users; "
            "networks and kinds, such as user:*, take one override.",
            id="django_quota.W032",
        )
    ]


@register("django_quota", Tags.database)
def check_states(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check the tables of the database store, for `check --database`."""
    using = _value("database")
    if _value("store") != "database" or using not in (databases or ()) or _vendor(using) != "postgresql":
        return []  # a file of SQLite makes its tables itself
    found = set(connections[using].introspection.table_names())
    missing = {STATES, EVENTS, BANS} - found
    if not found or not missing:  # without any table, `migrate` comes first
        return []
    return [
        CheckWarning(
            f"The database {using!r} lacks the tables {', '.join(sorted(missing))}: nothing can be counted.",
            hint=f"Run `manage.py migrate --database {using}`. If this is `migrate`, it makes them now.",
            id="django_quota.W035",
        )
    ]


def _vendor(alias: str) -> str:
    """Return the kind of a database; empty if it cannot serve, which `_check_database` reports."""
    try:
        return vendor_of(alias)
    except ConfigurationError:
        return ""


def _check_names(given: Mapping[str, object]) -> Iterator[CheckMessage]:
    for name in given:
        if name not in KNOWN_SETTINGS:
            hint = f"{did_you_mean(str(name), KNOWN_SETTINGS).strip()} Otherwise remove it."
            yield Error(f"QUOTA[{name!r}] is not a setting of django_quota.", hint=hint, id="django_quota.E015")


def _check_values() -> Iterator[CheckMessage]:
    """Read every setting."""
    for name in KNOWN_SETTINGS:
        try:
            getattr(current(), name.lower())
        except ConfigurationError as error:
            yield Error(error.problem, hint=error.hint or None, id="django_quota.E002")


def _value(name: str) -> Any:
    """Return a setting; None if it is wrong, which `_check_values` reports."""
    try:
        return getattr(current(), name)
    except ConfigurationError:
        return None


def _check_proxies() -> Iterator[CheckMessage]:
    for network in _value("trusted_proxies") or ():
        if network != "unix" and not network.prefixlen:
            yield CheckWarning(
                f'QUOTA["TRUSTED_PROXIES"] holds {str(network)!r}, which is every address: any client can choose the '
                "address that is limited.",
                hint='Name the networks of your proxies. Use, for example, "10.1.2.0/24".',
                id="django_quota.W008",
            )


def _check_template() -> Iterator[CheckMessage]:
    name = _value("template")
    if not settings.TEMPLATES or name is None:
        return  # a site without templates answers in JSON and text
    try:
        get_template(name)
    except (TemplateDoesNotExist, OSError, ValueError):  # the last two: the name cannot be a file name
        yield CheckWarning(
            f"The template {name!r} for refused visitors is not found: they get plain text.",
            hint='Add the template, or add "django_quota" to INSTALLED_APPS with APP_DIRS on, which brings a 429.html.',
            id="django_quota.W002",
        )


def _check_logins(given: Mapping[str, object]) -> Iterator[CheckMessage]:
    """Run the checks of the backends that limit logins, and find `LOGIN` without such a backend."""
    if not apps.is_installed("django.contrib.auth"):
        return
    backends = []
    for path in settings.AUTHENTICATION_BACKENDS:
        with suppress(ImportError, RuntimeError):  # the backend or its app is missing: no login works, as Django says
            backends.append(import_string(path))
    check = next(filter(None, (getattr(backend, "check_quota", None) for backend in backends)), None)
    if check is not None:
        yield from check()
    elif "LOGIN" in given:
        yield CheckWarning(
            'QUOTA["LOGIN"] is set, but no backend asks it: logins are not limited.',
            hint=f"Put {LOGIN_BACKEND!r} first in AUTHENTICATION_BACKENDS.",
            id="django_quota.W022",
        )


def _check_store() -> Iterator[CheckMessage]:
    """Check where the limits are counted."""
    store = _value("store")
    if store == "redis":
        yield from _check_redis()
    elif store == "database":
        yield from _check_database()
    given = getattr(settings, "QUOTA", None) or {}
    unused = [
        name
        for name, needed in (("CACHE", "redis"), ("REDIS", "redis"), ("DATABASE", "database"))
        if name in given and store != needed
    ]
    for name in unused if store is not None else ():
        yield CheckWarning(
            f'QUOTA["{name}"] is set, but QUOTA["STORE"] is {store!r}: it has no effect.',
            hint=f'Remove it, or set "STORE": "{"database" if name == "DATABASE" else "redis"}".',
            id="django_quota.W034",
        )


def _check_database() -> Iterator[CheckMessage]:
    alias = _value("database")
    if alias is None:
        return
    try:
        vendor_of(alias)
    except ConfigurationError as error:
        code = "E028" if alias not in settings.DATABASES else "E029"
        yield Error(error.problem, hint=error.hint or None, id=f"django_quota.{code}")


def _check_redis() -> Iterator[CheckMessage]:
    """Check the Redis of the settings and its options."""
    if _value("cache") is None:
        return
    try:
        which = which_redis()
    except ConfigurationError:
        return  # `_check_values` has reported it
    problem = which.problem()
    if problem is None:
        yield from _check_timeouts(which)
    else:
        # Settings for development and tests often have another cache. Both must start; a limit then says what it needs.
        is_tolerated = problem.is_another_cache and (settings.DEBUG or is_testing())
        kind = CheckWarning if is_tolerated or problem.code.startswith("W") else Error
        yield kind(problem.message, hint=problem.hint, id=f"django_quota.{problem.code}")


def _check_timeouts(which: WhichRedis) -> Iterator[CheckMessage]:
    # A site without Redis needs none of its packages.
    from django_quota.stores.redis.settings import (  # noqa: PLC0415
        ANSWER_TIMEOUT,
        PLAIN_TIMEOUT,
        long_timeouts,
        timeouts_not_set,
    )

    missing = timeouts_not_set(which)
    if missing:
        options = ", ".join(f"{name!r}: {ANSWER_TIMEOUT:g}" for name in missing)
        yield CheckWarning(
            f"{which.name} sets no {' and no '.join(missing)}. Limits still wait {ANSWER_TIMEOUT:g} s at most, "
            f"the admin and commands {PLAIN_TIMEOUT:g} s, but the cache's own calls wait for as long as Redis hangs.",
            hint=f'Use, for example, "OPTIONS": {{{options}}}.',
            id="django_quota.W007",
        )
    for place, seconds in long_timeouts(which):
        yield CheckWarning(
            f"{place} is {seconds:g}. When Redis hangs, every thread that asks it "
            f"waits {seconds:g} s, and later one thread at a time until Redis answers.",
            hint=f"Use, for example, {ANSWER_TIMEOUT:g}. For a cache that needs longer, name the Redis of the limits "
            'apart from it, in QUOTA["REDIS"] or another QUOTA["CACHE"].',
            id="django_quota.W012",
        )
