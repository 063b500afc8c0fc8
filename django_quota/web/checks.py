"""System checks of the settings: the values of QUOTA, the cache alias behind it, and what a live site needs.

A wrong setting is found when the site starts, not on a request. Each finding has an id and a hint. The checks call the
same parsers as the running app, and never ask Redis. `rule_checks` has the checks of rules and views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.module_loading import import_string

from django_quota.conf import KNOWN_SETTINGS, LOGIN_BACKEND, current
from django_quota.core.errors import ConfigurationError, did_you_mean
from django_quota.stores.redis.config import ANSWER_TIMEOUT, PLAIN_TIMEOUT
from django_quota.stores.redis.config_checks import alias_problem, long_timeouts, option_problem, timeouts_not_set
from django_quota.web.rule_checks import check_rules


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
                hint='Use "redis" with a cache alias of django-redis, or run exactly one process.',
                id="django_quota.W011",
            )
        )
    return found


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
    except (TemplateDoesNotExist, OSError, ValueError):  # the last two if the name cannot be a file's
        yield CheckWarning(
            f"The template {name!r} for refused visitors is not found: they get plain text.",
            hint='Add the template, or add "django_quota" to INSTALLED_APPS with APP_DIRS on, which brings a 429.html.',
            id="django_quota.W002",
        )


def _check_logins(given: Mapping[str, object]) -> Iterator[CheckMessage]:
    """Let a backend check itself that limits logins, and find `LOGIN` without one."""
    if not apps.is_installed("django.contrib.auth"):
        return
    backends = []
    for path in settings.AUTHENTICATION_BACKENDS:
        with suppress(ImportError, RuntimeError):  # it or its app is not there: no login works, which Django says
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
    """Check the cache alias and its options."""
    alias = _value("cache")
    if _value("store") != "redis" or alias is None:
        return
    problem = alias_problem(alias) or option_problem(alias)
    if problem is None:
        yield from _check_timeouts(alias)
    else:
        yield Error(problem.message, hint=problem.hint, id=f"django_quota.{problem.code}")


def _check_timeouts(alias: str) -> Iterator[CheckMessage]:
    missing = timeouts_not_set(alias)
    if missing:
        options = ", ".join(f"{name!r}: {ANSWER_TIMEOUT:g}" for name in missing)
        yield CheckWarning(
            f'CACHES["{alias}"] sets no {" and no ".join(missing)}. Limits still wait {ANSWER_TIMEOUT:g} s at most, '
            f"the admin and commands {PLAIN_TIMEOUT:g} s, but the cache's own calls wait for as long as Redis hangs.",
            hint=f'Use, for example, "OPTIONS": {{{options}}}.',
            id="django_quota.W007",
        )
    for place, seconds in long_timeouts(alias):
        yield CheckWarning(
            f'{place} of CACHES["{alias}"] is {seconds:g}. When Redis hangs, every thread that asks it '
            f"waits {seconds:g} s, and later one thread at a time until Redis answers.",
            hint=f"Use, for example, {ANSWER_TIMEOUT:g}. For a cache that needs longer, use another alias than "
            'QUOTA["CACHE"].',
            id="django_quota.W012",
        )
