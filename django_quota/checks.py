"""System checks: what is wrong with the settings is said at start, with a hint, not on the first request.

Each finding has an id of its own. The checks call the same properties and parsers as the running app.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.urls import get_resolver

from django_quota.conf import KNOWN_SETTINGS, conf
from django_quota.exceptions import (
    AlgorithmError,
    ConfigurationError,
    RateError,
    RuleError,
    SubjectKeyError,
    did_you_mean,
)
from django_quota.rules import Rule
from django_quota.stores.connections import alias_problem
from django_quota.subjects import check_keys
from django_quota.views import limited_views


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
    return [
        *_check_names(given),
        *_check_values(),
        *_check_rules(),
        *_check_store(),
        *_check_template(),
        *_check_decorators(),
    ]


def _check_names(given: Mapping[str, object]) -> Iterator[CheckMessage]:
    for name in given:
        if name not in KNOWN_SETTINGS:
            hint = f"Remove it.{did_you_mean(str(name), KNOWN_SETTINGS)}"
            yield CheckWarning(f"QUOTA[{name!r}] is not a setting of django_quota.", hint=hint, id="django_quota.W001")


def _check_values() -> Iterator[CheckMessage]:
    for name in KNOWN_SETTINGS:
        try:
            getattr(conf, name.lower())
        except ConfigurationError as error:
            yield Error(error.problem, hint=error.hint or None, id="django_quota.E002")


def _check_rules() -> Iterator[CheckMessage]:
    try:
        rules = conf.rules
    except ConfigurationError:
        return  # said by _check_values
    for name, value in rules.items():
        place = f'QUOTA["RULES"][{name!r}]'
        try:
            check_keys(Rule.from_setting(name, value))
        except RuleError as error:
            cause = error.__cause__ if isinstance(error.__cause__, RuleError) else error
            text = str(cause).removesuffix(cause.hint).strip()
            yield Error(f"{place}: {text}", hint=cause.hint or _RULE_HINT, id=_id_of(cause))


_RULE_HINT = "See the docstring of django_quota.Rule."


def _id_of(error: RuleError) -> str:
    codes = {RateError: "E007", AlgorithmError: "E008", SubjectKeyError: "E009"}
    return f"django_quota.{codes.get(type(error), 'E006')}"


def _check_decorators() -> Iterator[CheckMessage]:
    """Find `@quota(rule="...")` that names no rule, on the views that the URLs lead to."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return
    try:
        rules = conf.rules
    except ConfigurationError:
        return  # said by _check_values
    for path, _, view in limited_views(get_resolver().url_patterns):
        for name in view.names:
            if name not in rules:
                hint = f'Add it to QUOTA["RULES"].{did_you_mean(name, map(str, rules))}'
                yield Error(f"@quota(rule={name!r}) on {path} names no rule.", hint=hint, id="django_quota.E010")


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
    except (TemplateDoesNotExist, OSError, ValueError):  # the last two where the name is no file's
        yield CheckWarning(
            f"The template {name!r} of the page for refused visitors is not found: they get plain text.",
            hint='Add the template, or "django_quota" to INSTALLED_APPS with APP_DIRS on, which brings a 429.html.',
            id="django_quota.W002",
        )
