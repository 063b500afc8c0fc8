"""System checks: what is wrong with the settings is said at start, with a hint, not on the first request.

Each finding has an id of its own. The checks call the same properties and parsers as the running app.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.urls import ResolverMatch, get_resolver
from django.utils.module_loading import import_string

from django_quota.conf import KNOWN_SETTINGS, conf, current
from django_quota.decorators import BARE_HINT
from django_quota.dotted import imported
from django_quota.exceptions import (
    AlgorithmError,
    ConfigurationError,
    RateError,
    RuleError,
    SubjectKeyError,
    did_you_mean,
)
from django_quota.matching import Match, Pattern
from django_quota.middleware import QuotaMiddleware
from django_quota.plans import Plan
from django_quota.rules import Rule
from django_quota.store_checks import check_store
from django_quota.subjects import GLOBAL, check_keys
from django_quota.views import limited_views, shared_names, views_under_a_bare_quota


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
        *_check_proxies(),
        *check_store(),
        *_check_template(),
        *_check_decorators(),
        *_check_middleware(),
        *_check_views_of_rules(),
        *_check_shared_names(),
        *_check_chosen_keys(),
    ]


def _check_names(given: Mapping[str, object]) -> Iterator[CheckMessage]:
    for name in given:
        if name not in KNOWN_SETTINGS:
            hint = f"Remove it.{did_you_mean(str(name), KNOWN_SETTINGS)}"
            yield Error(f"QUOTA[{name!r}] is not a setting of django_quota.", hint=hint, id="django_quota.E015")


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
            check_keys(Rule.from_setting(name, value, imported))
        except RuleError as error:
            cause = error.__cause__ if isinstance(error.__cause__, RuleError) else error
            text = str(cause).removesuffix(cause.hint).strip()
            yield Error(f"{place}: {text}", hint=cause.hint or _RULE_HINT, id=_id_of(cause))


_RULE_HINT = "See the docstring of django_quota.Rule."


def _id_of(error: RuleError) -> str:
    codes = {RateError: "E007", AlgorithmError: "E008", SubjectKeyError: "E009"}
    return f"django_quota.{codes.get(type(error), 'E006')}"


def _check_decorators() -> Iterator[CheckMessage]:
    """Find what is wrong with the decorators on the views that the URLs lead to.

    A `@quota` without a rate, a `@quota(rule="...")` that names no rule, and views that share a name and so a count.
    """
    if not getattr(settings, "ROOT_URLCONF", None):
        return
    try:
        rules = conf.rules
    except ConfigurationError:
        return  # said by _check_values
    patterns = get_resolver().url_patterns
    for path in views_under_a_bare_quota(patterns):
        yield Error(f"@quota stands bare on the view {path}.", hint=BARE_HINT, id="django_quota.E012")
    for view in limited_views(patterns):
        for name in view.spec.names:
            if name not in rules:
                hint = f'Add it to QUOTA["RULES"].{did_you_mean(name, map(str, rules))}'
                yield Error(f"@quota(rule={name!r}) on {view.path} names no rule.", hint=hint, id="django_quota.E010")
    for decorator, name in shared_names(patterns):
        yield CheckWarning(
            f"Several views are called {name!r}, and {decorator} on them has no name: they share one count.",
            hint=f"Give each a name of its own: {decorator}(..., name='...'). Those of one name share on purpose.",
            id="django_quota.W013",
        )


def _check_proxies() -> Iterator[CheckMessage]:
    """Find networks of proxies that hold everybody: then any client chooses its own address."""
    with suppress(ConfigurationError):  # said by _check_values
        for network in conf.trusted_proxies:
            if network == "unix" or network.prefixlen:
                continue
            yield CheckWarning(
                f'QUOTA["TRUSTED_PROXIES"] holds {str(network)!r}, which is everybody: a client may choose an address.',
                hint='The networks of your proxies would do, such as "10.1.2.0/24".',
                id="django_quota.W008",
            )


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


# --- the middleware, and the rules that it applies --------------------------------------------------------------------


def _check_middleware() -> Iterator[CheckMessage]:
    """Find rules that nobody applies, and rules about users where no user is known."""
    applied = list(_applied_rules())
    ours = _position_of(QuotaMiddleware)
    if applied and ours is None:
        yield CheckWarning(
            f'QUOTA["RULES"][{applied[0].name!r}] has a match, but nothing applies it.',
            hint="Add 'django_quota.middleware.QuotaMiddleware' to MIDDLEWARE, below AuthenticationMiddleware.",
            id="django_quota.W003",
        )
    about_users = next(filter(_asks_for_the_user, applied), None)
    theirs = _position_of_authentication()
    if about_users is not None and ours is not None and theirs is not None and ours < theirs:
        yield CheckWarning(
            f"QuotaMiddleware stands above AuthenticationMiddleware: rule {about_users.name!r} does not know the user "
            "of a request that another middleware answers in between, and limits it by its address.",
            hint="Put 'django_quota.middleware.QuotaMiddleware' below AuthenticationMiddleware.",
            id="django_quota.W004",
        )
    yield from _check_users(applied)


def _check_users(applied: list[Rule]) -> Iterator[CheckMessage]:
    if any("auth" in str(path).lower() for path in settings.MIDDLEWARE):
        return  # one of the project's own may find the user too
    has_urls = bool(getattr(settings, "ROOT_URLCONF", None))
    of_views = _rules_without_a_framework(get_resolver().url_patterns) if has_urls else ()
    about_users = next(filter(_asks_for_the_user, [*applied, *of_views]), None)
    if about_users is not None:
        yield CheckWarning(
            f"Rule {about_users.name!r} asks for the user, whom no middleware finds: everybody is limited by IP.",
            hint="Add 'django.contrib.auth.middleware.AuthenticationMiddleware' to MIDDLEWARE.",
            id="django_quota.W005",
        )


def _rules_without_a_framework(patterns: Iterable[Any]) -> Iterator[Rule]:
    """Return the rules of views, but for those that stand where a framework has found the user by itself."""
    for view in limited_views(patterns):
        if not hasattr(view.called_by, "authentication_classes"):  # Django REST framework's
            yield from view.rules()


def _check_shared_names() -> Iterator[CheckMessage]:
    """Find views whose own limits are called like a rule of the settings, and differ: they share its count.

    Where that rule holds by itself, the two cannot even be joined in one call. A view that takes its limits from the
    rule, or has the same ones, is meant to share.
    """
    of_settings = {rule.name: rule for rule in _rules_of_settings()}
    if not of_settings or not getattr(settings, "ROOT_URLCONF", None):
        return
    for view in limited_views(get_resolver().url_patterns):
        for rule in view.rules():
            other = of_settings.get(rule.name)
            if other is None or other.key != rule.key:
                continue
            check = _check_apart if other.match is None else _check_joined
            yield from check(view.path, rule, other)


def _check_joined(path: str, rule: Rule, other: Rule) -> Iterator[CheckMessage]:
    plan = Plan("quota")
    try:
        for each in (other, rule):
            plan.add(each, GLOBAL, 1 if callable(each.cost) else each.cost)
    except RuleError as error:
        yield Error(f"The view {path}: {error}", hint="Another name= would do.", id="django_quota.E011")


def _check_apart(path: str, rule: Rule, other: Rule) -> Iterator[CheckMessage]:
    by_state = {limit.state_id: limit for limit in other.limits}
    for limit in rule.limits:
        theirs = by_state.get(limit.state_id, limit)
        if theirs is not limit:
            how = " by other options" if theirs.rate == limit.rate else ""
            yield CheckWarning(
                f"The view {path} limits {rule.name!r} to {limit.rate}, and the rule of that name in the settings to "
                f"{theirs.rate}{how}: they share one count, and each refuses by its own limit.",
                hint=f"@quota(rule={rule.name!r}) takes the limit from the settings; another name= counts apart.",
                id="django_quota.W009",
            )


def _check_views_of_rules() -> Iterator[CheckMessage]:
    """Find views and namespaces in `match` and `exclude` that the URLs do not have: such a rule would never hold."""
    named = [(rule, option, pattern) for rule in _applied_rules() for option, pattern in _views_in(rule)]
    if not named or not getattr(settings, "ROOT_URLCONF", None):
        return
    views = set(_names_of_views(get_resolver().url_patterns, ""))
    namespaces = {f"{view[:end]}:*" for view in views for end, sign in enumerate(view) if sign == ":"}
    for rule, option, pattern in named:
        known = namespaces if pattern.text.endswith(":*") else views
        if pattern.text not in known:
            near = did_you_mean(pattern.text, known)
            yield CheckWarning(
                f'QUOTA["RULES"][{rule.name!r}]["{option}"]: the URLs have no {pattern.text!r}, so it never fits.',
                hint=near.strip()
                if "mean" in near
                else "The name of a path() with its namespaces, such as 'api:search'.",
                id="django_quota.W006",
            )


# --- keys that a client chooses ---------------------------------------------------------------------------------------


def _check_chosen_keys() -> Iterator[CheckMessage]:
    """Find rules whose key a client chooses freely, without a rule by IP beside it: such a client can fill Redis."""
    applied = list(_applied_rules())
    by_ip = [rule for rule in applied if _is_by_ip(rule)]
    for rule in applied:
        if (key := _chosen(rule)) and not any(_is_beside(other, rule) for other in by_ip):
            yield _chosen_key(f'QUOTA["RULES"][{rule.name!r}]', key)
    if not getattr(settings, "ROOT_URLCONF", None):
        return
    for view in limited_views(get_resolver().url_patterns):
        rules = list(view.rules())
        own = [rule for rule in rules if _is_by_ip(rule)]
        for rule in rules:
            beside = any(_has_its_methods(other, rule) for other in own)
            if (key := _chosen(rule)) and not beside and not any(_is_beside(other, rule) for other in by_ip):
                yield _chosen_key(f"The view {view.path}", key)


def _chosen_key(place: str, key: str) -> CheckMessage:
    return CheckWarning(
        f"{place} is limited by {key!r}, which a client chooses freely: with each new value it begins a new count, and "
        "takes more memory of Redis until that is full.",
        hint='Put a rule by IP beside it: @quota("600/m", key="ip") on the view, or in QUOTA["RULES"] '
        "{'rate': '600/m', 'key': 'ip', 'match': '/'}.",
        id="django_quota.W014",
    )


_CHOSEN_BY_CLIENTS = ("header:", "cookie:", "get:", "post:")


def _chosen(rule: Rule) -> str:
    """Return the part of a rule's key that a client chooses freely; empty where there is none, or nothing to count."""
    keys = rule.key if isinstance(rule.key, tuple) else (rule.key,)
    texts = [key for key in keys if isinstance(key, str)] if rule.rates else []
    return next((key for key in texts if key == "path" or key.startswith(_CHOSEN_BY_CLIENTS)), "")


def _is_by_ip(rule: Rule) -> bool:
    """Say whether a rule bounds what one address may do, and refuses."""
    bounds = rule.key in ("ip", "user", "user_or_ip", GLOBAL)  # by address, for whoever is not logged in
    return bounds and bool(rule.rates) and rule.block and not rule.shadow


def _is_beside(by_ip: Rule, rule: Rule) -> bool:
    """Say whether a rule of the settings holds wherever another rule does."""
    if not _has_its_methods(by_ip, rule):
        return False
    if rule.match is not None and by_ip.match == rule.match:
        return by_ip.exclude in (None, rule.exclude)
    begins = tuple(_prefixes(by_ip.match))
    if rule.match is None:  # it stands on a view, which may be anywhere
        return "/" in begins
    places = [_closed(pattern.text) if pattern.kind == "path" else "" for pattern in rule.match.patterns]
    if not all("/" in begins or place.startswith(begins) for place in places):
        return False
    left_out = tuple(_prefixes(by_ip.exclude))
    return not any(place.startswith(left_out) or each.startswith(place) for place in places for each in left_out)


def _has_its_methods(by_ip: Rule, rule: Rule) -> bool:
    return by_ip.methods is None or (rule.methods is not None and rule.methods <= by_ip.methods)


def _prefixes(match: Match | None) -> Iterator[str]:
    """Return the paths that hold with all below them, whatever view or host it is."""
    for place in match.places if match is not None else ():
        if len(place.patterns) == 1:
            for pattern in place.patterns[0]:
                if pattern.kind == "path" and pattern.text.startswith("/") and "*" not in pattern.text:
                    yield _closed(pattern.text)


def _closed(path: str) -> str:
    """Return a path with a slash at its end: `"/api"` holds for what is below it, and not for `"/apis"`."""
    return path if path.endswith("/") else f"{path}/"


def _applied_rules() -> Iterator[Rule]:
    """Return the rules that the middleware applies, as far as they can be read."""
    return (rule for rule in _rules_of_settings() if rule.match is not None)


def _rules_of_settings() -> Iterator[Rule]:
    """Return all rules of the settings, as far as they can be read."""
    try:
        names = list(conf.rules)
    except ConfigurationError:
        return  # said by _check_values
    for name in names:
        try:
            yield current().rule(name)
        except RuleError:  # said by _check_rules
            continue


def _views_in(rule: Rule) -> Iterator[tuple[str, Pattern]]:
    for option, match in (("match", rule.match), ("exclude", rule.exclude)):
        for pattern in match.patterns if match is not None else ():
            if pattern.kind == "view":
                yield option, pattern


def _names_of_views(patterns: Iterable[Any], namespace: str) -> Iterator[str]:
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            inner = getattr(pattern, "namespace", None)
            yield from _names_of_views(pattern.url_patterns, f"{namespace}{inner}:" if inner else namespace)
        else:
            yield f"{namespace}{ResolverMatch(pattern.callback, (), {}, pattern.name).view_name}"


def _position_of_authentication() -> int | None:
    """Return where Django's own middleware stands that finds the user; importing it takes apps that a site may lack."""
    if not (apps.is_installed("django.contrib.auth") and apps.is_installed("django.contrib.contenttypes")):
        return None
    from django.contrib.auth.middleware import AuthenticationMiddleware  # noqa: PLC0415

    return _position_of(AuthenticationMiddleware)


def _position_of(middleware: type) -> int | None:
    """Return where a middleware, or one derived from it, stands in MIDDLEWARE."""
    for position, path in enumerate(settings.MIDDLEWARE):
        try:
            found = import_string(path)
        except (ImportError, TypeError, ValueError):  # Django says so when it starts
            continue
        if isinstance(found, type) and issubclass(found, middleware):
            return position
    return None


def _asks_for_the_user(rule: Rule) -> bool:
    keys = rule.key if isinstance(rule.key, tuple) else (rule.key,)
    by_tier = bool(rule.tiers) and rule.tier is None
    return by_tier or getattr(rule.exempt, "staff", False) or any(key in ("user", "user_or_ip") for key in keys)
