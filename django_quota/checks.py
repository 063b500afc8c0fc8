"""System checks: what is wrong with the settings is said at start, with a hint, not on the first request.

Each finding has an id of its own. The checks call the same properties and parsers as the running app.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning
from django.template import TemplateDoesNotExist
from django.template.loader import get_template

from django_quota.conf import KNOWN_SETTINGS, conf
from django_quota.exceptions import ConfigurationError, RateError, RuleError, did_you_mean
from django_quota.rules import Rule
from django_quota.stores.connections import alias_problem
from django_quota.subjects import compile_key

_PROPERTIES: dict[str, Callable[[], object]] = {
    "CACHE": lambda: conf.cache,
    "DIGEST_KEY": lambda: conf.digest_key,
    "ENABLED": lambda: conf.enabled,
    "HEADERS": lambda: conf.headers,
    "IPV6_PREFIX": lambda: conf.ipv6_prefix,
    "LEGACY_HEADERS": lambda: conf.legacy_headers,
    "ON_UNAVAILABLE": lambda: conf.on_unavailable,
    "PREFIX": lambda: conf.prefix,
    "RULES": lambda: conf.rules,
    "STORE": lambda: conf.store,
    "TEMPLATE": lambda: conf.template,
    "TRUSTED_PROXIES": lambda: conf.trusted_proxies,
}


@register("django_quota")
def check_settings(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Check `settings.QUOTA`, its rules, and the cache alias behind it."""
    given = getattr(settings, "QUOTA", None)
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        return [
            Error(f"QUOTA is {type(given).__name__}, not a dict.", hint="{'CACHE': 'default'}", id="django_quota.E001")
        ]
    return [*_check_names(given), *_check_values(), *_check_rules(), *_check_store(), *_check_template()]


def _check_names(given: Mapping[str, object]) -> Iterator[CheckMessage]:
    for name in given:
        if name not in KNOWN_SETTINGS:
            hint = f"Remove it.{did_you_mean(str(name), KNOWN_SETTINGS)}"
            yield CheckWarning(f"QUOTA[{name!r}] is not a setting of django_quota.", hint=hint, id="django_quota.W001")


def _check_values() -> Iterator[CheckMessage]:
    for read in _PROPERTIES.values():
        try:
            read()
        except ConfigurationError as error:
            yield Error(error.problem, hint=error.hint or None, id="django_quota.E002")


def _check_rules() -> Iterator[CheckMessage]:
    try:
        rules = conf.rules
    except ConfigurationError:
        return  # said by _check_values
    for name, value in rules.items():
        try:
            compile_key(Rule.from_setting(name, value).key)
        except RuleError as error:
            place = f'QUOTA["RULES"][{name!r}]'
            text = str(error) if str(error).startswith(place) else f"{place}: {error}"
            cause = error.__cause__
            if isinstance(cause, RateError):
                yield Error(text, hint=cause.hint, id="django_quota.E007")
            else:
                yield Error(text, hint="See the docstring of django_quota.Rule.", id="django_quota.E006")


def _check_store() -> Iterator[CheckMessage]:
    try:
        if conf.store == "memory":
            return
        problem = alias_problem(conf.cache)
    except ConfigurationError:
        return  # said by _check_values
    if problem is not None:
        yield Error(problem.message, hint=problem.hint, id=f"django_quota.{problem.code}")


def _check_template() -> Iterator[CheckMessage]:
    if not settings.TEMPLATES:
        return  # a site without templates answers in JSON and text
    try:
        name = conf.template
        get_template(name)
    except ConfigurationError:
        return  # said by _check_values
    except (TemplateDoesNotExist, OSError):
        yield CheckWarning(
            f"The template {name!r} of the page for refused visitors is not found: they get plain text.",
            hint='Add the template, or "django_quota" to INSTALLED_APPS with APP_DIRS on, which brings a 429.html.',
            id="django_quota.W002",
        )
