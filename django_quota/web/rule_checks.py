"""System checks of rules: the configured rules, the decorators on your views, and how they go together.

The middleware applies rules that have a `match`. Views are those that the URLs lead to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.utils.module_loading import import_string

from django_quota.conf import current
from django_quota.core.errors import (
    AlgorithmError,
    ConfigurationError,
    RateError,
    RuleError,
    SubjectKeyError,
    did_you_mean,
)
from django_quota.core.matching import Match, Pattern
from django_quota.core.rules import Rule, dotted_path, key_parts
from django_quota.engine.plans import Plan
from django_quota.limiting.known_rules import url_patterns
from django_quota.requests.request_keys import check_keys
from django_quota.requests.site_rules import applies_to
from django_quota.requests.subjects import GLOBAL
from django_quota.web.decorators import BARE_HINT
from django_quota.web.middleware import QuotaMiddleware
from django_quota.web.request_rules import is_decided_later
from django_quota.web.site_slots import SiteSlot
from django_quota.web.view_kinds import class_of, given_to
from django_quota.web.view_lookup import (
    Endpoint,
    endpoints,
    is_by_user,
    limited_views,
    path_of,
    shared_names,
    slots_of_users,
    view_checks,
    views_under_a_bare_quota,
)

_RULE_HINT = "The options of a rule are listed in docs/rules.md."

_RULE_IDS = {RateError: "E007", AlgorithmError: "E008", SubjectKeyError: "E009"}
"""The ids for wrong rules, by the kind of error; `check_rules` has the id for other errors."""

_CLIENT_CHOSEN_KINDS = ("header:", "cookie:", "kwarg:", "get:", "post:", "json:")


def check_rules() -> Iterator[CheckMessage]:
    """Check the configured rules and, if there are URLs, the limits of the views."""
    named: list[Rule] = []
    slots: list[SiteSlot] = []
    try:
        names, of_slots = list(current().rules), current().slots()
    except ConfigurationError:
        return  # reported with the values of the settings
    for name in [*names, *of_slots]:
        try:
            if name in of_slots:
                slots.append(SiteSlot.read(name, of_slots[name]))
                continue
            rule = current().rule(name)
            check_keys(rule)
        except RuleError as error:
            cause = error.__cause__ if isinstance(error.__cause__, RuleError) else error
            text = str(cause).removesuffix(cause.hint).strip()
            code = _RULE_IDS.get(type(cause), "E006")
            yield Error(f'QUOTA["RULES"][{name!r}]: {text}', hint=cause.hint or _RULE_HINT, id=f"django_quota.{code}")
        else:
            named.append(rule)
    site = _Site(named, slots)
    for check in _CHECKS:
        yield from check(site)
    for view_check in view_checks:
        yield from view_check(site.patterns)


class _Site:
    """What the checks look at: the configured rules, and the views behind the URLs."""

    def __init__(self, named: Sequence[Rule], slots: Sequence[SiteSlot]) -> None:
        self.named = named
        """The configured rules that can be read."""
        self.applied = [rule for rule in named if rule.match is not None]
        """Those that the middleware applies."""
        self.slots = slots
        self.placed: list[Rule | SiteSlot] = [*self.applied, *slots]
        """All that the middleware applies."""
        self.patterns: Sequence[Any] = url_patterns()
        self.endpoints = list(endpoints(self.patterns))
        self.views = [(view, list(view.rules())) for view in limited_views(self.patterns)]
        """The views under a `@quota`, each with its rules that can be read."""

    @property
    def rules(self) -> Iterator[Rule]:
        """The rules that the middleware applies, and those of the views."""
        yield from self.applied
        for _, rules in self.views:
            yield from rules


def _check_decorators(site: _Site) -> Iterator[CheckMessage]:
    """Find a `@quota` without a rate, a `@quota(rule="...")` without its rule, and views that share a name."""
    for path in views_under_a_bare_quota(site.patterns):
        yield Error(f"The view {path} has @quota without a rate.", hint=BARE_HINT, id="django_quota.E012")
    rules = current().rules
    for view, _ in site.views:
        for name in view.spec.names:
            if name not in rules:
                hint = f'Add it to QUOTA["RULES"].{did_you_mean(name, map(str, rules))}'
                yield Error(f"@quota(rule={name!r}) on {view.path} names no rule.", hint=hint, id="django_quota.E010")
    for decorator, name in shared_names(site.patterns):
        yield CheckWarning(
            f"Several views are called {name!r}, and {decorator} on them has no name: they share one count.",
            hint=f"Name each: {decorator}(..., name='...'). Give them one name if they should share a count.",
            id="django_quota.W013",
        )


def _check_middleware(site: _Site) -> Iterator[CheckMessage]:
    """Find rules with a `match` that no middleware applies, and rules about users above authentication."""
    ours = position_of(QuotaMiddleware)
    if site.placed and ours is None:
        yield CheckWarning(
            f'QUOTA["RULES"][{site.placed[0].name!r}] has a match, but nothing applies it.',
            hint="Add 'django_quota.middleware.QuotaMiddleware' to MIDDLEWARE, below AuthenticationMiddleware.",
            id="django_quota.W003",
        )
    about_users = next(filter(_needs_user, site.placed), None)
    theirs = _position_of_authentication()
    if about_users is not None and ours is not None and theirs is not None and ours < theirs:
        yield CheckWarning(
            f"QuotaMiddleware is above AuthenticationMiddleware. If a middleware between them answers a request, rule "
            f"{about_users.name!r} does not know the user, and limits the request by its address.",
            hint="Put 'django_quota.middleware.QuotaMiddleware' below AuthenticationMiddleware.",
            id="django_quota.W004",
        )


def _check_users(site: _Site) -> Iterator[CheckMessage]:
    """Find a rule about users on a site without a middleware that sets the user.

    A framework may set the user of its views by itself, as Django REST framework does.
    """
    if any("auth" in str(path).lower() for path in settings.MIDDLEWARE):
        return  # a middleware of the project may set the user too
    of_views = [rules for view, rules in site.views if not hasattr(view.called_by, "authentication_classes")]
    about_users = next(filter(_needs_user, chain(site.placed, *of_views)), None)
    if about_users is not None:
        yield CheckWarning(
            f"Rule {about_users.name!r} needs the user, but no middleware sets it: everybody is limited by IP.",
            hint="Add 'django.contrib.auth.middleware.AuthenticationMiddleware' to MIDDLEWARE.",
            id="django_quota.W005",
        )


def _check_sessions(site: _Site) -> Iterator[CheckMessage]:
    """Find a rule by the session on a site whose sessions have no key, or no middleware."""
    rule = next((rule for rule in site.rules if "session" in _texts_of_key(rule)), None)
    if rule is None:
        return
    if not any("session" in str(path).lower() for path in settings.MIDDLEWARE):
        problem = "no middleware sets it"
        hint = "Add 'django.contrib.sessions.middleware.SessionMiddleware' to MIDDLEWARE."
    elif settings.SESSION_ENGINE.endswith(".signed_cookies"):
        problem = "a session in a signed cookie has no lasting key"
        hint = "Use another SESSION_ENGINE, or another key."
    else:
        return
    yield CheckWarning(
        f"Rule {rule.name!r} needs the session, but {problem}: everybody is limited by IP.",
        hint=hint,
        id="django_quota.W015",
    )


def _check_options(site: _Site) -> Iterator[CheckMessage]:
    """Find rules by a URL argument that no URL captures, and rules that give back what a leaky bucket keeps."""
    captured = set(_captured_arguments(site.patterns))
    for rule in site.rules:
        for key in _texts_of_key(rule):
            kind, _, name = key.partition(":")
            if kind == "kwarg" and name.strip() not in captured:
                near = did_you_mean(name.strip(), captured)
                yield CheckWarning(
                    f"Rule {rule.name!r} is limited by {key!r}, but no URL has this argument: everybody is limited by "
                    "IP.",
                    hint=near.strip() if "mean" in near else "Use the name in a path(), for example 'pk' of <int:pk>.",
                    id="django_quota.W016",
                )
        if rule.settles and rule.algorithm == "leaky_bucket":
            yield CheckWarning(
                f"Rule {rule.name!r} has settle= or count_when= and algorithm='leaky_bucket', which gives back the "
                "newest reservation only: a request that does not count mostly counts.",
                hint="Use another algorithm, for example 'token_bucket'.",
                id="django_quota.W021",
            )


def _captured_arguments(patterns: Iterable[Any]) -> Iterator[str]:
    for pattern in patterns:
        yield from pattern.pattern.regex.groupindex
        yield from getattr(pattern, "default_args", None) or getattr(pattern, "default_kwargs", None) or ()
        yield from _captured_arguments(getattr(pattern, "url_patterns", ()))


def _check_tokens(site: _Site) -> Iterator[CheckMessage]:
    """Find rules about users on views of Django REST framework that read tokens later, and have no throttle of ours."""
    told = set[str]()
    for endpoint in site.endpoints:
        reader = _token_reader(endpoint.callback)
        if reader is None or is_decided_later(endpoint.callback):
            continue
        late = [f"Rule {rule.name!r}" for rule in filter(_needs_user, endpoint.rules_that_wait)]
        late += [f"Slot {name!r}" for name in slots_of_users([endpoint.pattern])]
        late += [f"Slot {each.name!r}" for each in filter(_needs_user, site.slots) if applies_to(each, endpoint)]
        for limit in late:
            if limit in told:
                continue
            told.add(limit)
            yield CheckWarning(
                f"{limit} needs the user, and is decided before {dotted_path(class_of(endpoint.callback))} "
                f"asks {reader.__name__} for it: users of tokens are limited by IP.",
                hint="Add 'django_quota.contrib.rest_framework.QuotaThrottle' to DEFAULT_THROTTLE_CLASSES. A view with "
                "throttle_classes of its own needs it there, and the framework's own methods to ask it; or exclude the "
                "view from the limit.",
                id="django_quota.W017",
            )


def _token_reader(view: Any) -> type | None:
    """Return the class that authenticates a view of Django REST framework by something else than the session."""
    classes = given_to(view).get("authentication_classes", getattr(class_of(view), "authentication_classes", ()))
    for each in classes:
        if isinstance(each, type) and all(base.__name__ != _BY_SESSION for base in each.__mro__):
            return each
    return None


_BY_SESSION = "SessionAuthentication"
"""The class of Django REST framework that takes the user from Django's middleware."""


def _check_name_conflicts(site: _Site) -> Iterator[CheckMessage]:
    """Find views whose own limit has the name of a configured rule, but differs: both share one count.

    If the middleware applies that rule, one call would hold both, which is an error. A view with the same limits shares
    the count on purpose.
    """
    of_settings = {rule.name: rule for rule in site.named}
    for view, rules in site.views:
        for rule in rules:
            other = of_settings.get(rule.name)
            if other is None or other.key != rule.key:
                continue
            check = _warn_of_shared_count if other.match is None else _check_one_call
            yield from check(view.path, rule, other)


def _check_one_call(path: str, rule: Rule, other: Rule) -> Iterator[CheckMessage]:
    plan = Plan("quota")
    try:
        for each in (other, rule):
            plan.add(each, GLOBAL, 1 if callable(each.cost) else each.cost)
        len(plan.hits)  # compares them
    except RuleError as error:
        yield Error(f"The view {path}: {error}", hint="Give the view's limit another name=.", id="django_quota.E011")


def _warn_of_shared_count(path: str, rule: Rule, other: Rule) -> Iterator[CheckMessage]:
    by_state = {limit.state_id: limit for limit in other.limits}
    for limit in rule.limits:
        theirs = by_state.get(limit.state_id, limit)
        if theirs != limit:
            how = " with other options" if theirs.rate == limit.rate else ""
            yield CheckWarning(
                f"The view {path} limits {rule.name!r} to {limit.rate}, and the rule of that name in the settings to "
                f"{theirs.rate}{how}. They share one count, and each refuses at its own limit.",
                hint=f"Use @quota(rule={rule.name!r}) to take the limit from the settings, or another name= to count "
                "separately.",
                id="django_quota.W009",
            )


def _check_view_names(site: _Site) -> Iterator[CheckMessage]:
    """Find view names and namespaces in `match` and `exclude` that the URLs do not have, so that they never fit."""
    if not site.patterns:
        return
    views = {endpoint.view for endpoint in site.endpoints}
    namespaces = {f"{view[:end]}:*" for view in views for end, sign in enumerate(view) if sign == ":"}
    for rule in site.placed:
        for option, pattern in _views_in(rule):
            known = namespaces if pattern.text.endswith(":*") else views
            if pattern.text not in known:
                near = did_you_mean(pattern.text, known)
                yield CheckWarning(
                    f'QUOTA["RULES"][{rule.name!r}]["{option}"]: the URLs have no {pattern.text!r}, so it never fits.',
                    hint=near.strip() if "mean" in near else "Use the name= of a path(), for example 'api:search'.",
                    id="django_quota.W006",
                )


def _check_costs(site: _Site) -> Iterator[CheckMessage]:
    """Find views in `costs` that the URLs do not have: the real ones would cost what all others do."""
    views = {endpoint.view for endpoint in site.endpoints}
    for rule in site.named if site.patterns else ():
        for name, _ in rule.costs or ():
            if name not in views:
                near = did_you_mean(name, views)
                yield Error(
                    f'QUOTA["RULES"][{rule.name!r}]["costs"]: the URLs have no {name!r}.',
                    hint=near.strip() if "mean" in near else "Use the name= of a path(), for example 'api:search'.",
                    id="django_quota.E033",
                )


def _check_other_urls(site: _Site) -> Iterator[CheckMessage]:
    """Find views with a URL that a path in a `match` fits, and one that it misses, such as one with a format suffix."""
    pages: dict[tuple[object, ...], list[Endpoint]] = {}
    for endpoint in site.endpoints:
        pages.setdefault(_page(endpoint), []).append(endpoint)
    several = [urls for urls in pages.values() if len(urls) > 1]
    for rule in site.placed:
        match = cast("Match", rule.match)
        if any(pattern.text.startswith("re:") for pattern in match.patterns):
            continue  # it may not fit an "x", which stands for all arguments
        for urls in several:
            fits = next((url for url in urls if applies_to(rule, url)), None)
            misses = next((url for url in urls if not match.matches(url)), None)
            if fits is not None and misses is not None:
                yield CheckWarning(
                    f'QUOTA["RULES"][{rule.name!r}]["match"] fits {fits.path!r} and misses {misses.path!r}, another '
                    f"URL of the view {fits.view!r}.",
                    hint=f"Match the view by its name, {fits.view!r}, which covers all its URLs.",
                    id="django_quota.W030",
                )
                break


def _page(endpoint: Endpoint) -> tuple[object, ...]:
    """Return what the URLs of one page share. Two versions, languages or lists are two pages, even with one view.

    URLs of one page have the same name and arguments, in one list of URLs. Without a name they have the same path,
    apart from the format and the last slash.
    """
    pattern, path = endpoint.pattern, endpoint.path
    if pattern.name is None:
        return id(endpoint.callback), path.removesuffix(".x").rstrip("/")
    arguments = frozenset(pattern.pattern.regex.groupindex) - {"format"}
    return id(endpoint.callback), endpoint.view, path.removesuffix(path_of(pattern)), arguments


def _views_in(rule: Rule | SiteSlot) -> Iterator[tuple[str, Pattern]]:
    for option, match in (("match", rule.match), ("exclude", rule.exclude)):
        for pattern in match.patterns if match is not None else ():
            if pattern.kind == "view":
                yield option, pattern


def _check_client_chosen_keys(site: _Site) -> Iterator[CheckMessage]:
    """Find rules whose key the client chooses, without a rule by IP for the same requests: a client can fill Redis."""
    by_ip = list(filter(_is_by_ip, site.applied))
    for rule in site.applied:
        if not any(_covers(other, rule) for other in by_ip):
            yield from _warn_of_chosen_key(f'QUOTA["RULES"][{rule.name!r}]', rule)
    for view, rules in site.views:
        own = list(filter(_is_by_ip, rules))
        for rule in rules:
            beside = any(_covers_methods(other, rule) for other in own)
            if not beside and not any(_covers(other, rule) for other in by_ip):
                yield from _warn_of_chosen_key(f"The view {view.path}", rule)


def _warn_of_chosen_key(place: str, rule: Rule) -> Iterator[CheckMessage]:
    keys = [part for option, part in key_parts(rule) if option == "key" and isinstance(part, str) and rule.rates]
    key = next((key for key in keys if key in ("path", "session") or key.startswith(_CLIENT_CHOSEN_KINDS)), None)
    if key is not None:
        yield CheckWarning(
            f"{place} is limited by {key!r}, which the client chooses: each new value starts a new count and takes "
            "more memory of Redis, until it is full.",
            hint='Add a rule by IP: @quota("600/m", key="ip") on the view, or in QUOTA["RULES"] '
            "{'rate': '600/m', 'key': 'ip', 'match': '/'}.",
            id="django_quota.W014",
        )


def _is_by_ip(rule: Rule) -> bool:
    """Say whether a rule limits each address, and refuses."""
    by_address = rule.key in ("ip", "user", "user_or_ip", GLOBAL)  # guests have no user, so their address counts
    return by_address and bool(rule.rates) and rule.block and not rule.shadow


def _covers(by_ip: Rule, rule: Rule) -> bool:
    """Say whether a rule by IP of the settings covers every request of another rule."""
    if not _covers_methods(by_ip, rule):
        return False
    if rule.match is not None and by_ip.match == rule.match:
        return by_ip.exclude in (None, rule.exclude)
    prefixes = tuple(_prefixes(by_ip.match))
    if rule.match is None:  # the rule of a view, which may have any URL
        return "/" in prefixes
    places = [_with_slash(pattern.text) if pattern.kind == "path" else "" for pattern in rule.match.patterns]
    if not all("/" in prefixes or place.startswith(prefixes) for place in places):
        return False
    excluded = tuple(_prefixes(by_ip.exclude))
    return not any(place.startswith(excluded) or each.startswith(place) for place in places for each in excluded)


def _covers_methods(by_ip: Rule, rule: Rule) -> bool:
    return by_ip.methods is None or (rule.methods is not None and rule.methods <= by_ip.methods)


def _prefixes(match: Match | None) -> Iterator[str]:
    """Return the paths that fit with everything below them, for any view and host."""
    for place in match.places if match is not None else ():
        if len(place.patterns) == 1:
            for pattern in place.patterns[0]:
                if pattern.kind == "path" and pattern.text.startswith("/") and "*" not in pattern.text:
                    yield _with_slash(pattern.text)


def _with_slash(path: str) -> str:
    """Return a path with a slash at its end, so that `"/api"` does not fit `"/apis"`."""
    return path if path.endswith("/") else f"{path}/"


def _position_of_authentication() -> int | None:
    """Return the position of Django's AuthenticationMiddleware; None without the apps that it needs."""
    if not (apps.is_installed("django.contrib.auth") and apps.is_installed("django.contrib.contenttypes")):
        return None
    from django.contrib.auth.middleware import AuthenticationMiddleware  # noqa: PLC0415

    return position_of(AuthenticationMiddleware)


def position_of(middleware: type) -> int | None:
    """Return the position of a middleware, or of a subclass, in MIDDLEWARE."""
    for position, path in enumerate(settings.MIDDLEWARE):
        try:
            found = import_string(path)
        except (ImportError, TypeError, ValueError):  # Django reports it at start
            continue
        if isinstance(found, type) and issubclass(found, middleware):
            return position
    return None


def _needs_user(rule: Rule | SiteSlot) -> bool:
    if isinstance(rule, SiteSlot):
        return is_by_user(rule.slot.key)
    by_tier = bool(rule.tiers) and rule.tier is None
    by_user = any(part in ("user", "user_or_ip") for _, part in key_parts(rule))
    return by_tier or by_user or getattr(rule.exempt, "staff", False)


def _texts_of_key(rule: Rule) -> list[str]:
    """Return the parts of a rule's key, and of the values that it counts, that are texts."""
    return [part for _, part in key_parts(rule) if isinstance(part, str)]


_CHECKS: tuple[Callable[[_Site], Iterator[CheckMessage]], ...] = (
    _check_decorators,
    _check_middleware,
    _check_users,
    _check_tokens,
    _check_sessions,
    _check_options,
    _check_view_names,
    _check_costs,
    _check_other_urls,
    _check_name_conflicts,
    _check_client_chosen_keys,
)
