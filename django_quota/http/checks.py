"""System checks of the settings: the values of QUOTA, the store, and what a live site needs.

They find a wrong setting when the site starts, not on a request. Each finding has an id and a hint. The checks call the
same parsers as the running app, and never call the store. With `--database`, one check reads the database.
`rule_checks` has the checks of rules and views.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Info
from django.db import connections
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.module_loading import import_string

from django_quota.conf import KNOWN_SETTINGS, LOGIN_BACKEND, current
from django_quota.core.errors import ConfigurationError, did_you_mean
from django_quota.core.overrides import ALL_RULES, EVERYBODY
from django_quota.core.rules import Rule
from django_quota.http.rule_checks import check_rules, finding
from django_quota.limiting.known_rules import known_rules, long_rules, rules_of_requests
from django_quota.limiting.override_rows import count_overrides, has_database, write_database
from django_quota.limiting.overrides import MAX_OVERRIDES
from django_quota.limiting.registry import which_redis
from django_quota.models import OverrideChange, QuotaOverride
from django_quota.runtime import runtime
from django_quota.stores.database.sql import BAN_TABLE, EVENT_TABLE, STATE_TABLE
from django_quota.stores.database.store import vendor_of


def check_settings(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Check `settings.QUOTA`, its rules, the store, and the views that it limits."""
    try:
        given = current().given
    except ConfigurationError as error:
        return [finding("E001", error.problem, error.hint)]
    unknown = [name for name in given if name not in KNOWN_SETTINGS]
    return [
        *(_unknown(str(name)) for name in unknown),
        *_check_values(),
        *_check_proxies(),
        *_check_store(),
        *_check_template(),
        *_check_logins(),
        *_check_tenants(),
        *check_rules(),
    ]


def _unknown(name: str) -> CheckMessage:
    hint = f"{did_you_mean(name, KNOWN_SETTINGS).strip()} Otherwise remove it."
    return finding("E015", f"QUOTA[{name!r}] is not a setting of django_quota.", hint)


def _check_values() -> Iterable[CheckMessage]:
    """Read every setting. Some are made from others: a value that is wrong for several is reported once."""
    found: dict[str, CheckMessage] = {}
    for name in KNOWN_SETTINGS:
        try:
            getattr(current(), name.lower())
        except ConfigurationError as error:
            found.setdefault(error.problem, finding("E002", error.problem, error.hint))
    return found.values()


def _value(name: str) -> Any:
    """Return a setting; None if it is wrong, which `_check_values` reports."""
    with suppress(ConfigurationError):
        return getattr(current(), name)


def _check_proxies() -> Iterator[CheckMessage]:
    for network in _value("trusted_proxies") or ():
        if network != "unix" and not network.prefixlen:
            yield finding(
                "W008",
                f'QUOTA["TRUSTED_PROXIES"] holds {str(network)!r}, which is every address: any client can choose the '
                "address that is limited.",
                'Name the networks of your proxies. Use, for example, "10.1.2.0/24".',
            )


def _check_template() -> Iterator[CheckMessage]:
    name = _value("template")
    if not settings.TEMPLATES or name is None:
        return  # a site without templates answers in JSON and text
    try:
        get_template(name)
    except (TemplateDoesNotExist, OSError):  # the second: the name cannot be a file name
        yield finding(
            "W002",
            f"The template {name!r} for refused visitors is not found: they get plain text.",
            'Add the template, or add "django_quota" to INSTALLED_APPS with APP_DIRS on, which brings a 429.html.',
        )


def _check_logins() -> Iterator[CheckMessage]:
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
    elif "LOGIN" in current().given:
        yield finding(
            "W022",
            'QUOTA["LOGIN"] is set, but no backend uses it: logins are not limited.',
            f"Put {LOGIN_BACKEND!r} first in AUTHENTICATION_BACKENDS.",
        )


_TENANTS = ("django_tenants", "tenant_schemas")
"""Packages that give each tenant of a site a schema of the database."""


def _check_tenants() -> Iterator[CheckMessage]:
    """Report what tenants share: no key has the schema of a request, and a process has one copy of the overrides."""
    engines = {str(database.get("ENGINE", "")).partition(".")[0] for database in settings.DATABASES.values()}
    package = next((each for each in _TENANTS if apps.is_installed(each) or each in engines), None)
    if package is None:
        return
    yield finding(
        "W045",
        f"The site has tenants, by {package}, and all tenants share their limits: user 42 of one uses up the limits of "
        "user 42 of another, and both are one subject in bans, overrides and usage.",
        'Count by a function that names the tenant: see "Tenants" in the page "Before you go live". Then silence this.',
    )
    ours = [app for app in getattr(settings, "TENANT_APPS", ()) if str(app).partition(".")[0] == "django_quota"]
    if ours:
        yield finding(
            "W046",
            f"TENANT_APPS has {ours[0]!r}, so each tenant has its own overrides. They have no effect: a process "
            "reads those of one schema for all tenants. quota_rollup writes usage into one schema, too.",
            f"Name {ours[0]!r} in SHARED_APPS alone, and run `manage.py migrate_schemas --shared`.",
        )


# --- the store --------------------------------------------------------------------------------------------------------


def _check_store() -> Iterator[CheckMessage]:
    store, alias = _value("store"), _value("database")
    if store == "redis":
        yield from _check_redis()
    if _counts_in_database() and alias is not None:
        try:
            vendor_of(alias)
        except ConfigurationError as error:
            code = "E028" if alias not in settings.DATABASES else "E029"
            yield finding(code, error.problem, error.hint)


def _counts_in_database() -> bool:
    """Return whether anything that is known counts in the database."""
    if _value("store") == "database":
        return True
    with suppress(ConfigurationError):  # other checks report it
        known_rules()
    return Rule.any_in_database


def _check_redis() -> Iterator[CheckMessage]:
    """Check the Redis of the settings and its options."""
    # A site without Redis needs none of its packages.
    from django_quota.stores.redis.settings import ANSWER_TIMEOUT, long_timeouts  # noqa: PLC0415

    try:
        which = which_redis()
    except ConfigurationError:
        return  # `_check_values` has reported it
    problem = which.problem()
    if problem is not None:
        # Settings for development and tests often have another cache. Both must start; a limit then says what it needs.
        is_tolerated = problem.instead != "" and (settings.DEBUG or runtime.is_tested())
        yield finding(problem.code, problem.message, problem.whole_hint, is_warning=is_tolerated)
        return
    for place, seconds in long_timeouts(which):
        yield finding(
            "W012",
            f"{place} is {seconds:g}. When Redis hangs, every thread that asks it "
            f"waits {seconds:g} s, and later one thread at a time until Redis answers.",
            f"Use, for example, {ANSWER_TIMEOUT:g}. For a cache that needs longer, name the Redis of the limits "
            'apart from it, in QUOTA["REDIS"] or another QUOTA["CACHE"].',
        )


# --- `check --database` -----------------------------------------------------------------------------------------------


def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Find missing tables, and more overrides than a process should hold.

    It does not have our tag: since Django 6.1, `check --tag django_quota` runs checks of that tag on all databases, and
    there may be no database where an image is built.
    """
    needed: dict[str, set[str]] = {}
    if has_database():
        needed[write_database()] = {QuotaOverride._meta.db_table, OverrideChange._meta.db_table}  # noqa: SLF001
    if _counts_in_database() and _is_postgresql(_value("database")):  # a file of SQLite makes its tables itself
        needed.setdefault(_value("database"), set()).update((STATE_TABLE, EVENT_TABLE, BAN_TABLE))
    found = []
    for using in needed.keys() & (databases or ()):
        existing = set(connections[using].introspection.table_names())
        missing = sorted(needed[using] - existing) if existing else []  # a new database: `migrate` comes first
        if missing:
            problem = f"The database {using!r} does not have the tables {', '.join(missing)}."
            hint = f"Run `manage.py migrate --database {using}`. If this is `migrate`, it makes them now."
            found.append(finding("W031", problem, hint))
        elif existing and using == write_database():
            with suppress(ConfigurationError):  # `check_settings` reports it
                found += _check_overrides(using)
    return found


def _check_overrides(using: str) -> Iterator[CheckMessage]:
    """Find more overrides than a process should hold, and those that exempt everybody."""
    if (number := count_overrides()) > MAX_OVERRIDES:
        yield finding(
            "W032",
            f"{number:,} overrides have not ended. Each process holds all of them, and reads them before its "
            "first decision.",
            f"More than {MAX_OVERRIDES:,} cost much memory and time. Tiers are made for large groups of users; "
            "networks and kinds, such as user:*, take one override.",
        )
    active = QuotaOverride.objects.db_manager(using).active()
    rows = active.filter(subject__in=(EVERYBODY, *_EVERY_ADDRESS), mode=QuotaOverride.Mode.EXEMPT)
    # `migrate` may add columns after this.
    for subject, rule, expires in rows.order_by("subject", "rule").values_list("subject", "rule", "expires"):
        who = "everybody" if subject == EVERYBODY else f"all clients of {subject!r}"
        limited = "nothing is limited" if rule == ALL_RULES else f"rule {rule!r} limits nobody"
        if subject != EVERYBODY:
            limited = "no rule limits them" if rule == ALL_RULES else f"rule {rule!r} limits none of them"
        until = f"until {expires.isoformat(' ', 'minutes')}" if expires else "without an end"
        yield finding(
            "W043",
            f"An override exempts {who} {until}: {limited}.",
            f"`manage.py quota_override clear {shlex.quote(subject)} --rule {shlex.quote(rule)}` deletes it.",
        )


_EVERY_ADDRESS = ("ip:*", "ip:0.0.0.0/0", "ip:::/0")
"""Subjects of overrides that hold for all addresses, at least of IPv4 or of IPv6."""


def _is_postgresql(alias: str | None) -> bool:
    with suppress(ConfigurationError):  # `_check_store` reports it
        return alias is not None and vendor_of(alias) == "postgresql"
    return False


def _long_rules() -> list[str]:
    with suppress(ConfigurationError):  # other checks report it
        return long_rules()
    return []


# --- `check --deploy` -------------------------------------------------------------------------------------------------


def check_live_site(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Find settings that suit only a developer's machine, and rules that only calls in the project's code use."""
    found = []
    if _value("enabled") is False:
        problem = 'QUOTA["ENABLED"] is False: nothing is limited, and bans and overrides have no effect.'
        found.append(finding("W010", problem, "Remove it, or set it to True."))
    if _value("store") == "memory":
        problem = (
            'QUOTA["STORE"] is "memory": each process counts for itself, so several processes admit several times '
            "the limit, and a restart forgets all counts."
        )
        hint = 'Use "redis" and name it in QUOTA["REDIS"], or "database", or run exactly one process.'
        found.append(finding("W011", problem, hint))
    if _value("store") == "redis" and _value("redis") is None and (rules := _long_rules()):
        found.append(
            finding(
                "W050",
                f"{', '.join(map(repr, rules))} count weeks, months or years in a cache. It forgets them if it is "
                "flushed or replaced, or if its memory is full and it drops keys.",
                'Add "store": "database" to rules that count what customers pay for; the same holds for counters of '
                "credits, which this check cannot see. If all may be forgotten, silence this.",
            )
        )
    unused: list[str] = []
    with suppress(ConfigurationError):  # the other checks report it
        used = {rule.name for rule in rules_of_requests()}
        unused += [name for name in current().rules if name not in used and current().rule(name).match is None]
    if unused:
        problem = f'QUOTA["RULES"] has {", ".join(map(repr, unused))} without "match", and no view is seen to use them.'
        hint = (
            f"Add a 'match', name them on a view with @quota(rule={unused[0]!r}), or ask them in your code. This check "
            "cannot see a @quota below a decorator without functools.wraps, and of several that method_decorator "
            "applies to one method it sees one."
        )
        found.append(Info(problem, hint=hint, id="django_quota.W039"))
    return found
