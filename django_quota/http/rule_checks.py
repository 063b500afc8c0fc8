"""System checks of rules: the configured rules, the decorators on your views, and how they fit together.

The middleware applies rules that have a `match`. Views are those that the URLs lead to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from ipaddress import collapse_addresses
from itertools import chain
from typing import Any, cast

from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.urls.resolvers import LocalePrefixPattern, RoutePattern
from django.utils.module_loading import import_string
from django.views import View

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
from django_quota.core.rules import DEFAULT, DEFAULT_TIERS, Rule, dotted_path, parts_of_key
from django_quota.documentation import page
from django_quota.http.decorators import BARE_HINT, WithoutRate
from django_quota.http.request_rules import applies_to, is_decided_later
from django_quota.http.request_slots import SlotRule, site_slot
from django_quota.http.view_lookup import (
    Endpoint,
    decorated_views,
    endpoints,
    limited_views,
    path_of,
    rules_on,
    shared_names,
    slots_of_views,
    view_checks,
)
from django_quota.limiting.known_rules import url_patterns
from django_quota.subjects.addresses import prefixes_of
from django_quota.subjects.keys import check_keys
from django_quota.subjects.subject import GLOBAL

OURS = "django_quota.middleware.QuotaMiddleware"


_RULE_IDS = {RateError: "E007", AlgorithmError: "E008", SubjectKeyError: "E009"}
"""The ids for wrong rules, by the kind of error; `check_rules` has the id for other errors."""

_CLIENT_CHOSEN_KINDS = ("header:", "cookie:", "kwarg:", "get:", "post:", "json:")


def finding(code: str, problem: str, hint: str = "", *, is_warning: bool = False) -> CheckMessage:
    """Return an error or, for an id that begins with "W", a warning."""
    kind = CheckWarning if is_warning or code.startswith("W") else Error
    return kind(problem, hint=hint or None, id=f"django_quota.{code}")


def check_rules() -> Iterator[CheckMessage]:
    """Check the configured rules and, if there are URLs, the limits of the views."""
    named: list[Rule] = []
    slots: list[SlotRule] = []
    try:
        names, of_slots = current().rules, current().slots()
    except ConfigurationError:
        return  # reported with the values of the settings
    for name in [*names, *of_slots]:
        try:
            if name in of_slots:
                slots.append(site_slot(name, of_slots[name]))
                continue
            rule = current().rule(name)
            check_keys(rule)
        except RuleError as error:
            cause = error.__cause__ if isinstance(error.__cause__, RuleError) else error
            problem = str(cause).removesuffix(cause.hint).strip()
            code = _RULE_IDS.get(type(cause), "E006")
            yield finding(
                code,
                f'QUOTA["RULES"][{name!r}]: {problem}',
                cause.hint or f"The options of a rule are listed in {page('rules')}.",
            )
        else:
            named.append(rule)
    site = _Site(named, slots)
    for check in _CHECKS:
        yield from check(site)
    found: dict[str, CheckMessage] = {}
    for view_check in view_checks:
        with suppress(ConfigurationError):  # reported with the values of the settings
            for message in view_check(site.patterns):
                found.setdefault(message.msg, message)
    yield from found.values()


class _Site:
    """What the checks look at: the configured rules, and the views behind the URLs."""

    def __init__(self, named: Sequence[Rule], slots: Sequence[SlotRule]) -> None:
        self.named = named
        """The configured rules that can be read."""
        self.applied = [rule for rule in named if rule.match is not None]
        """The rules that the middleware applies."""
        self.slots = slots
        self.placed: list[Rule | SlotRule] = [*self.applied, *slots]
        """All that the middleware applies."""
        self.patterns: Sequence[Any] = url_patterns()
        self.endpoints = list(endpoints(self.patterns))
        self.views = [(view, list(rules_on(view))) for view in limited_views(self.patterns)]
        """The views under a `@quota`, each with its rules that can be read."""
        self.rules = [*self.applied, *chain.from_iterable(rules for _, rules in self.views)]
        """The rules that the middleware applies, and those of the views."""
        self.rules_at = [(endpoint, _rules_at(endpoint, self.applied)) for endpoint in self.endpoints]
        """Each URL with the rules that limit it; see `_rules_at`."""


def _rules_at(endpoint: Endpoint, applied: Iterable[Rule]) -> list[tuple[str, Rule]]:
    """Return the rules that limit a URL, each with the path of the view that it is on; empty for a `match`."""
    rules: list[tuple[str, Rule]] = [("", rule) for rule in applied if applies_to(rule, endpoint)]
    for view in limited_views([endpoint.pattern] if endpoint.pattern else []):
        rules += [(view.path, rule) for rule in rules_on(view)]
    return rules


def _check_decorators(site: _Site) -> Iterator[CheckMessage]:
    """Find a `@quota` without a rate, a `@quota(rule="...")` without its rule, and views that share a name."""
    for found in decorated_views(site.patterns, WithoutRate):
        yield finding("E012", f"The view {found.path} has @quota without a rate.", BARE_HINT)
    rules = current().rules
    for view, _ in site.views:
        for name in view.mark.noted.names:
            if name not in rules:
                hint = f'Add it to QUOTA["RULES"].{did_you_mean(name, map(str, rules))}'
                yield finding("E010", f"@quota(rule={name!r}) on {view.path} names an unknown rule.", hint)
    for decorator, name in shared_names(site.patterns):
        yield finding(
            "W013",
            f"Several views are called {name!r}, and {decorator} on them has no name: they share one count.",
            f"Name each: {decorator}(..., name='...'). Give them one name if they should share a count.",
        )


def _check_middleware(site: _Site) -> Iterator[CheckMessage]:
    """Find rules with a `match` that no middleware applies."""
    if site.placed and not lists_middleware(OURS):
        yield finding(
            "W003",
            f'QUOTA["RULES"][{site.placed[0].name!r}] has a match, but nothing applies it.',
            "Add 'django_quota.middleware.QuotaMiddleware' to MIDDLEWARE, below AuthenticationMiddleware.",
        )


def _check_users(site: _Site) -> Iterator[CheckMessage]:
    """Find a rule about users on a site without a middleware that sets the user.

    A framework may set the user of its views by itself, as Django REST framework does.
    """
    if _has_middleware_for("auth"):
        return
    of_views = [rules for view, rules in site.views if not hasattr(view.called_by, "authentication_classes")]
    about_users = next(filter(_needs_user, chain(site.placed, *of_views)), None)
    if about_users is not None:
        yield finding(
            "W005",
            f"Rule {about_users.name!r} needs the user, but no middleware sets it: everybody is limited by IP.",
            "Add 'django.contrib.auth.middleware.AuthenticationMiddleware' to MIDDLEWARE.",
        )


def _has_middleware_for(word: str) -> bool:
    """Return whether a middleware may set the user or the session: Django's, or one of the project."""
    return any(word in str(path).lower() for path in settings.MIDDLEWARE)


def _check_sessions(site: _Site) -> Iterator[CheckMessage]:
    """Find a rule by the session on a site whose sessions have no key, or no middleware."""
    rule = next((rule for rule in site.rules if "session" in _strings_of_key(rule)), None)
    if rule is None:
        return
    problem = ""
    if not _has_middleware_for("session"):
        problem = "no middleware sets it"
    elif settings.SESSION_ENGINE.endswith(".signed_cookies"):
        problem = "a session in a signed cookie has no lasting key"
    if problem:
        yield finding(
            "W015",
            f"Rule {rule.name!r} needs the session, but {problem}: everybody is limited by IP.",
            "Add 'django.contrib.sessions.middleware.SessionMiddleware' to MIDDLEWARE, and use a SESSION_ENGINE other "
            "than signed cookies.",
        )


def _check_arguments(site: _Site) -> Iterator[CheckMessage]:
    """Find rules by a URL argument that no URL captures."""
    captured = set(_captured_arguments(site.patterns))
    for rule in site.rules:
        for key in _strings_of_key(rule):
            kind, _, name = key.partition(":")
            if kind == "kwarg" and name.strip() not in captured:
                yield _of_root_urls(
                    "W016",
                    f"Rule {rule.name!r} is limited by {key!r}, but no URL has this argument: everybody is limited by "
                    "IP.",
                    _nearest(name.strip(), captured, "Use the name in a path(), for example 'pk' of <int:pk>."),
                )


def _captured_arguments(patterns: Iterable[Any]) -> Iterator[str]:
    for pattern in patterns:
        yield from pattern.pattern.regex.groupindex
        yield from getattr(pattern, "default_args", None) or getattr(pattern, "default_kwargs", None) or ()
        yield from _captured_arguments(getattr(pattern, "url_patterns", ()))


def _nearest(name: str, known: Collection[str], otherwise: str) -> str:
    """Return the hint for a name that the URLs do not have."""
    near = did_you_mean(name, known).strip()
    return near if "mean" in near else otherwise


_VIEW_HINT = "Use the name= of a path(), for example 'api:search'."


def _of_root_urls(code: str, problem: str, hint: str) -> CheckMessage:
    """Return a warning that is wrong about URLs that a middleware sets as `request.urlconf`, such as one for each host.

    A check cannot know these, so it must not be an error.
    """
    other = f"Only the URLs of ROOT_URLCONF are looked at: if a middleware sets request.urlconf, silence {code}."
    return finding(code, problem, f"{hint} {other}")


def _check_tokens(site: _Site) -> Iterator[CheckMessage]:
    """Find rules about users on views of Django REST framework that read tokens later, and have no throttle of ours."""
    reported = set[str]()
    for endpoint in site.endpoints:
        reader = _token_reader(endpoint)
        if reader is None or is_decided_later(endpoint.callback):
            continue
        late = [f"Rule {rule.name!r}" for rule in filter(_needs_user, endpoint.rules_that_wait)]
        slots = slots_of_views([endpoint.pattern], before=True)
        late += [f"Slot {name!r}" for name, rule in slots if _is_by_user(rule.key)]
        late += [f"Slot {each.name!r}" for each in filter(_needs_user, site.slots) if applies_to(each, endpoint)]
        for limit in [each for each in dict.fromkeys(late) if each not in reported]:
            reported.add(limit)
            yield finding(
                "W017",
                f"{limit} needs the user, and is decided before {dotted_path(endpoint.view_class)} "
                f"asks {reader.__name__} for it: users of tokens are limited by IP.",
                "Add 'django_quota.contrib.rest_framework.QuotaThrottle' to DEFAULT_THROTTLE_CLASSES. A view with "
                "throttle_classes of its own needs it there, and the framework's own methods to ask it; or exclude the "
                "view from the limit.",
            )


def _token_reader(endpoint: Endpoint) -> type | None:
    """Return a class that authenticates a view of Django REST framework by a token or the like, not by the session."""
    of_class = getattr(endpoint.view_class, "authentication_classes", ())
    for each in endpoint.given.get("authentication_classes", of_class):
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
            costs = {each.cost for each in (rule, other) if not callable(each.cost)}
            is_one_call = other.match is not None
            if not rule.is_compatible_with(other) or (is_one_call and len(costs) > 1):
                yield finding(
                    "E011" if is_one_call else "W009",
                    f"The view {view.path} has a limit named {rule.name!r}, which differs from the rule of that name "
                    "in the settings: they share one count.",
                    f"Use @quota(rule={rule.name!r}) to take the limit from the settings, or another name= to count "
                    "separately.",
                )


def _check_view_names(site: _Site) -> Iterator[CheckMessage]:
    """Find view names and namespaces in `match`, `exclude` and `costs` that the URLs do not have: they never fit."""
    if not site.patterns:
        return
    views = {endpoint.view for endpoint in site.endpoints}
    namespaces = {f"{view[:end]}:*" for view in views for end, character in enumerate(view) if character == ":"}
    for rule in site.placed:
        for option, pattern in _views_in(rule):
            known = namespaces if pattern.text.endswith(":*") else views
            if pattern.text not in known:
                problem = (
                    f'QUOTA["RULES"][{rule.name!r}]["{option}"]: the URLs have no {pattern.text!r}, so it never fits.'
                )
                yield _of_root_urls("W006", problem, _nearest(pattern.text, known, _VIEW_HINT))
    for rule in site.named:
        for name, _ in rule.costs or ():
            if name not in views:
                problem = f'QUOTA["RULES"][{rule.name!r}]["costs"]: the URLs have no {name!r}.'
                yield _of_root_urls("W006", problem, _nearest(name, views, _VIEW_HINT))


def _views_in(rule: Rule | SlotRule) -> Iterator[tuple[str, Pattern]]:
    for option, match in (("match", rule.match), ("exclude", rule.exclude)):
        for pattern in match.patterns if match is not None else ():
            if pattern.kind == "view":
                yield option, pattern


def _check_paths(site: _Site) -> Iterator[CheckMessage]:
    """Find paths in `match` that no URL begins with, and globs that no URL fits: such a rule limits nothing."""
    if not site.patterns:
        return
    by_language = any(isinstance(each.pattern, LocalePrefixPattern) for each in site.patterns)
    for rule in site.placed:
        for pattern in cast("Match", rule.match).patterns:
            begins, star, _ = pattern.text.partition("*")
            if pattern.kind != "path" or not begins.startswith("/"):
                continue
            if not _may_begin_with(site.patterns, begins):
                yield _of_root_urls(
                    "W041",
                    f'QUOTA["RULES"][{rule.name!r}]["match"]: no URL begins with {begins!r}, so it limits only '
                    "requests that get a 404.",
                    "Correct the path. If you mean requests for pages that do not exist, silence W041.",
                )
            elif star and not by_language and not any(_may_fit(pattern.text, each.path) for each in site.endpoints):
                above = begins[: begins.rindex("/") + 1]
                yield _of_root_urls(
                    "W041",
                    f'QUOTA["RULES"][{rule.name!r}]["match"]: no URL fits {pattern.text!r}, so it limits only requests '
                    "that get a 404. A single star matches no slash.",
                    f"Write {above!r} for all paths below it, or ** where slashes may follow.",
                )


def _may_fit(glob: str, path: str) -> bool:
    """Return whether a glob may fit a path of a URL, whose arguments are in angle brackets."""
    if "**" in glob or _HAS_SLASHES.search(path):
        begins, literal = glob.partition("*")[0], path.partition("<")[0]
        return literal.startswith(begins) or (literal != path and begins.startswith(literal))
    parts = list(zip(glob.split("/"), path.split("/"), strict=False))
    return glob.count("/") == path.count("/") and all("<" in part or fnmatchcase(part, one) for one, part in parts)


_HAS_SLASHES = re.compile(r"<(?!(?:int|str|slug|uuid):)")
"""An argument that may contain slashes: of another converter, or of a regular expression."""


def _may_begin_with(patterns: Iterable[Any], path: str, before: str = "/") -> bool:
    """Return whether a URL of these patterns may begin with a path. After its first argument it may be anything."""
    for pattern in patterns:
        literal, is_open = _literal(pattern)
        begins = before + literal
        if begins.startswith(path) or (is_open and path.startswith(begins)):
            return True
        if path.startswith(begins) and _may_begin_with(getattr(pattern, "url_patterns", ()), path, begins):
            return True
    return False


def _literal(url: Any) -> tuple[str, bool]:
    """Return what all paths of a URL begin with, and whether more may follow than its `url_patterns` say."""
    text = str(url.pattern)
    if isinstance(url.pattern, RoutePattern):
        literal, argument, _ = text.partition("<")
        return literal, bool(argument)
    if isinstance(url.pattern, LocalePrefixPattern):
        return "", True  # the prefix of any language, or none
    text = text.removeprefix("^")
    literal = _NO_OPERATOR.match(text)[0]  # type: ignore[index]
    ends = ("",) if hasattr(url, "url_patterns") else ("$", r"\Z")
    return literal, text[len(literal) :] not in ends


_NO_OPERATOR = re.compile(r"(?:[^\\.^$*+?{}\[\]|()](?![*?{]))*")
"""The characters at the beginning of a regular expression that stand for themselves."""


def _check_exemptions(site: _Site) -> Iterator[CheckMessage]:
    """Find rules whose `exempt` contains all IPv4 or all IPv6 addresses, and an `EXEMPT` that does."""
    with suppress(ConfigurationError):  # reported with the values of the settings
        for version in _whole_versions(current().exempt):
            yield finding(
                "W040",
                f'No client with an IPv{version} address is limited: all of them are in QUOTA["EXEMPT"].',
                "Name the networks that you mean, such as '10.0.0.0/8'.",
            )
    for rule in _unique([*site.named, *site.rules]):
        for version in _whole_versions(() if rule.exempt is None else rule.exempt.networks):
            yield finding(
                "W040",
                f"Rule {rule.name!r} limits no client with an IPv{version} address: all of them are in its exempt.",
                "Name the networks that you mean, such as '10.0.0.0/8', or remove the rule.",
            )


def _whole_versions(networks: Sequence[Any]) -> Iterator[int]:
    """Yield 4 if the networks together contain all IPv4 addresses, and 6 for IPv6."""
    for version in (4, 6):
        of_version = [network for network in networks if network.version == version]
        if any(network.prefixlen == 0 for network in collapse_addresses(of_version)):
            yield version


def _check_methods(site: _Site) -> Iterator[CheckMessage]:
    """Find rules whose `methods` no view they apply to answers. Which methods a view function answers is unknown."""
    answered: dict[Rule, set[str] | None] = {}
    for endpoint, rules in site.rules_at:
        methods = _methods_of(endpoint)
        for _, rule in rules:
            known = answered.setdefault(rule, set())
            answered[rule] = None if known is None or methods is None else known | methods
    for rule, methods in answered.items():
        if rule.methods is not None and methods is not None and rule.methods.isdisjoint(methods):
            yield _of_root_urls(
                "W042",
                f"Rule {rule.name!r} limits nothing: it is for {', '.join(sorted(rule.methods))}, and no view that it "
                f"applies to answers that; they answer {', '.join(sorted(methods))}.",
                "Correct its methods.",
            )


def _methods_of(endpoint: Endpoint) -> set[str] | None:
    """Return the HTTP methods that a view answers; None for a function, which may answer any."""
    view_class = endpoint.view_class
    if view_class is None or not issubclass(view_class, View):
        return None
    actions = getattr(endpoint.callback, "actions", None) or ()  # of a ViewSet, which also answers OPTIONS
    named = [*actions, *(name for name in view_class.http_method_names if hasattr(view_class, name))]
    methods = {name.upper() for name in named}
    return methods | ({"HEAD"} if "GET" in methods else set())


def _unique(rules: Iterable[Rule]) -> Iterator[Rule]:
    """Return one rule of each name."""
    yield from {rule.name: rule for rule in rules}.values()


def _check_other_urls(site: _Site) -> Iterator[CheckMessage]:
    """Find views with a URL that a path in a `match` fits, and one that it misses, such as one with a format suffix."""
    pages: dict[tuple[object, ...], list[Endpoint]] = {}
    for endpoint in site.endpoints:
        pages.setdefault(_page(endpoint), []).append(endpoint)
    several = [urls for urls in pages.values() if len(urls) > 1]
    for rule in site.placed:
        match = cast("Match", rule.match)
        if any(pattern.text.startswith("re:") for pattern in match.patterns):
            continue  # it may not fit "<pk>", which stands for all values of the argument
        for urls in several:
            fits = next((url for url in urls if applies_to(rule, url)), None)
            misses = next((url for url in urls if not match.matches(url)), None)
            if fits is not None and misses is not None:
                yield finding(
                    "W030",
                    f'QUOTA["RULES"][{rule.name!r}]["match"] fits {fits.path!r} and misses {misses.path!r}, another '
                    f"URL of the view {fits.view!r}.",
                    f"Match the view by its name, {fits.view!r}, which covers all its URLs.",
                )
                break


def _page(endpoint: Endpoint) -> tuple[object, ...]:
    """Return what the URLs of one page share. Two versions, languages or lists are two pages, even with one view.

    URLs of one page have the same name and arguments, in one list of URLs. Without a name they have the same path,
    apart from the format and the last slash.
    """
    pattern, path = endpoint.pattern, endpoint.path
    if pattern.name is None:
        return id(endpoint.callback), path.removesuffix(".<format>").rstrip("/")
    arguments = frozenset(pattern.pattern.regex.groupindex) - {"format"}
    return id(endpoint.callback), endpoint.view, path.removesuffix(path_of(str(pattern.pattern)).lstrip("/")), arguments


def _check_client_chosen_keys(site: _Site) -> Iterator[CheckMessage]:
    """Find rules whose key the client chooses, and no rule by IP for the same requests: a client can fill the store."""
    reported = set[str]()
    places = [pattern.text for rule in site.applied for pattern in cast("Match", rule.match).patterns]
    unknown = [Endpoint(path, "", None) for path in places if path.startswith("/") and "*" not in path]  # such as a 404
    for endpoint, rules in [*site.rules_at, *((each, _rules_at(each, site.applied)) for each in unknown)]:
        for path, rule in rules:
            key = _chosen_key(rule)
            if key is None or rule.name in reported or any(_covers(*other, rule, endpoint) for other in rules):
                continue
            reported.add(rule.name)
            place = f"The view {path}" if path else f'QUOTA["RULES"][{rule.name!r}]'
            yield finding(
                "W014",
                f"{place} is limited by {key!r}, which the client chooses: each new value starts a new count and takes "
                "more memory, until the store is full.",
                'Add a rule by IP: @quota("600/m", key="ip") on the view, or in QUOTA["RULES"] '
                "{'rate': '600/m', 'key': 'ip', 'match': '/'}.",
            )


def _check_prefetch(site: _Site) -> Iterator[CheckMessage]:
    """Find rules with `prefetch` that limit the same requests as a rule without: nothing is taken ahead."""
    reported = set[str]()
    for endpoint, found in site.rules_at:
        rules = [rule for _, rule in found if rule.rates]
        asks = next((rule for rule in rules if rule.prefetch is None), None)
        if asks is None:
            continue
        for rule in rules:
            if rule.prefetch is not None and rule.name not in reported:
                reported.add(rule.name)
                yield finding(
                    "W047",
                    f"Rule {rule.name!r} has prefetch=, but rule {asks.name!r}, which limits {endpoint.path!r} too, "
                    "has not: the store is asked each time there, and nothing is taken ahead.",
                    f"Add prefetch= to rule {asks.name!r}, or remove it from {rule.name!r}.",
                )


def _check_tiers(site: _Site) -> Iterator[CheckMessage]:
    """Find rules and slots with a `tier` function that say nothing of a request without a known tier."""
    slots = [(f"Slot {each.slot.name!r}", each.limits, each.tier) for each in site.slots]
    rules = [(f"Rule {each.name!r}", each.tiers, each.tier) for each in _unique([*site.named, *site.rules])]
    for what, tiers, tier in [*rules, *slots]:
        if tier is None or DEFAULT in tiers or tiers.keys() >= set(DEFAULT_TIERS):
            continue
        missing = " and ".join(repr(each) for each in DEFAULT_TIERS if each not in tiers)
        yield finding(
            "W049",
            f"{what} has no tier {missing}: a request is refused, or has the smallest share, if "
            f"{dotted_path(tier)} returns None or a name that is none of {', '.join(map(repr, tiers))}.",
            f'Add a tier "{DEFAULT}" for all others.',
        )


def _check_costs(site: _Site) -> Iterator[CheckMessage]:
    """Find rules that take more units for a request than their limit: each such request is refused."""
    for rule in _unique([*site.named, *site.rules]):
        room = rule.most_units
        costs = [] if callable(rule.cost) else [("cost", rule.cost)]
        costs += [(f"costs[{name!r}]", cost) for name, cost in rule.costs or ()]
        for option, cost in costs:
            if room is not None and 0 < room < cost:
                yield finding(
                    "W051",
                    f"Rule {rule.name!r} has {option}={cost:,}, and a limit of {room:,}: each such request is refused.",
                    "Raise the rate, or the burst of a bucket, to the cost at least, or lower the cost.",
                )


def _check_open(site: _Site) -> Iterator[CheckMessage]:
    """Find rules that guard a form or charge usage, and allow everything while the store does not answer."""
    for rule in dict.fromkeys([*site.named, *site.rules]):
        if rule.on_unavailable == "allow" and (rule.reads_body or rule.settle is not None):
            what = "limits by a field of the body" if rule.reads_body else "charges what a response used"
            yield finding(
                "W044",
                f'Rule {rule.name!r} {what}, and has on_unavailable="allow": it fails open. While the store does not '
                "answer, nobody is limited.",
                'Remove on_unavailable: then each process counts by itself ("local"). Or use "deny".',
            )


def _chosen_key(rule: Rule) -> str | None:
    keys = [part for option, part in parts_of_key(rule) if option == "key" and isinstance(part, str) and rule.rates]
    return next((key for key in keys if key in ("path", "session") or key.startswith(_CLIENT_CHOSEN_KINDS)), None)


def _covers(view: str, other: Rule, rule: Rule, endpoint: Endpoint) -> bool:
    """Return whether another rule limits each address that a rule limits at a URL, on any host, and refuses.

    `view`: the path of the view that it is on; empty for a rule with a `match`.
    """
    by_address = other.key in ("ip", "user", "user_or_ip", GLOBAL)  # guests have no user, so their address counts
    by_address = by_address or prefixes_of(other.key) is not None
    refuses = bool(other.rates) and other.block and not other.shadow
    has_methods = other.methods is None or (rule.methods is not None and rule.methods <= other.methods)
    is_there = bool(view) or other.match == rule.match or cast("Match", other.match).matches(endpoint, unknown=False)
    return by_address and refuses and has_methods and is_there


def lists_middleware(middleware: str) -> bool:
    """Return whether MIDDLEWARE has the middleware of this path, or a subclass."""
    for path in settings.MIDDLEWARE:
        with suppress(ImportError, TypeError, ValueError):  # Django reports it at start
            classes = getattr(import_string(path), "__mro__", ())
            if middleware in map(dotted_path, classes):
                return True
    return False


def _needs_user(rule: Rule | SlotRule) -> bool:
    if isinstance(rule, SlotRule):
        return _is_by_user(rule.key)
    by_tier = bool(rule.tiers) and rule.tier is None
    by_user = any(part in ("user", "user_or_ip") for _, part in parts_of_key(rule))
    return by_tier or by_user or getattr(rule.exempt, "staff", False)


def _is_by_user(key: object) -> bool:
    return not {"user", "user_or_ip"}.isdisjoint(key if isinstance(key, tuple) else (key,))


def _strings_of_key(rule: Rule) -> list[str]:
    """Return the parts of a rule's key, and of the values that it counts, that are strings."""
    return [part for _, part in parts_of_key(rule) if isinstance(part, str)]


_CHECKS = (
    _check_decorators,
    _check_middleware,
    _check_users,
    _check_tokens,
    _check_sessions,
    _check_arguments,
    _check_view_names,
    _check_paths,
    _check_exemptions,
    _check_methods,
    _check_other_urls,
    _check_name_conflicts,
    _check_client_chosen_keys,
    _check_open,
    _check_prefetch,
    _check_tiers,
    _check_costs,
)
