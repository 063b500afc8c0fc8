"""Each finding of the system checks in full: its level, what is wrong, and what to write instead."""

from typing import Any

import pytest
from django.core.checks import ERROR, INFO, WARNING, run_checks
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views import View

from django_quota import concurrency, quota
from tests.support.findings import BY_IP, OURS, REDIS, THEIRS, findings

SIGNED = "django.contrib.sessions.backends.signed_cookies"
OTHER_URLS = "Only the URLs of ROOT_URLCONF are looked at: if a middleware sets request.urlconf, silence"


def page(request: HttpRequest, **given: Any) -> HttpResponse:
    return HttpResponse()


def made() -> Any:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    return view


class Answers(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Token: ...


class ByToken(Answers):
    authentication_classes = (Token,)


bare: Any = quota  # type checkers find it too
HOME, SHOP = path("", page), path("shop/", page, name="shop")


def site(**options: Any) -> dict[str, Any]:
    return {"RULES": {"site": {"rate": "9/m", "match": "/", **options}}}


def beside(**options: Any) -> dict[str, Any]:
    """A rule, and one by address that guards it."""
    return {"RULES": {**site(**options)["RULES"], "ip": BY_IP}}


SESSION_HINT = (
    "Add 'django.contrib.sessions.middleware.SessionMiddleware' to MIDDLEWARE, and use a SESSION_ENGINE other than "
    "signed cookies."
)
TOKEN_HINT = (
    "Add 'django_quota.contrib.rest_framework.QuotaThrottle' to DEFAULT_THROTTLE_CLASSES. A view with throttle_classes "
    "of its own needs it there, and the framework's own methods to ask it; or exclude the view from the limit."
)
IP_HINT = (
    'Add a rule by IP: @quota("600/m", key="ip") on the view, or in QUOTA["RULES"] '
    "{'rate': '600/m', 'key': 'ip', 'match': '/'}."
)
OPEN_HINT = 'Remove on_unavailable: then each process counts by itself ("local"). Or use "deny".'
HERE = __name__

FINDINGS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "a name that is no setting": (
        {"QUOTA": {"PREFXI": "p"}},
        "E015",
        "QUOTA['PREFXI'] is not a setting of django_quota.",
        "Did you mean 'PREFIX'? Otherwise remove it.",
    ),
    "every address as a proxy": (
        {"QUOTA": {"TRUSTED_PROXIES": ["0.0.0.0/0"]}},
        "W008",
        (
            "QUOTA[\"TRUSTED_PROXIES\"] holds '0.0.0.0/0', which is every address: any client can choose the address "
            "that is limited."
        ),
        'Name the networks of your proxies. Use, for example, "10.1.2.0/24".',
    ),
    "no template": (
        {"QUOTA": {"TEMPLATE": "shop/429.html"}},
        "W002",
        "The template 'shop/429.html' for refused visitors is not found: they get plain text.",
        'Add the template, or add "django_quota" to INSTALLED_APPS with APP_DIRS on, which brings a 429.html.',
    ),
    "no backend for LOGIN": (
        {"QUOTA": {"LOGIN": {"5/m": "username"}}},
        "W022",
        'QUOTA["LOGIN"] is set, but no backend uses it: logins are not limited.',
        "Put 'django_quota.contrib.auth.LoginQuotaBackend' first in AUTHENTICATION_BACKENDS.",
    ),
    "a long timeout": (
        {"CACHES": {"default": {**REDIS, "OPTIONS": {"SOCKET_TIMEOUT": 2.5, "SOCKET_CONNECT_TIMEOUT": 0.25}}}},
        "W012",
        (
            'socket_timeout of CACHES["default"] is 2.5. When Redis hangs, every thread that asks it waits 2.5 s, and '
            "later one thread at a time until Redis answers."
        ),
        (
            "Use, for example, 0.25. For a cache that needs longer, name the Redis of the limits apart from it, in "
            'QUOTA["REDIS"] or another QUOTA["CACHE"].'
        ),
    ),
    "a rule without a rate": (
        {"QUOTA": {"RULES": {"a": {"key": "ip"}}}},
        "E006",
        "QUOTA[\"RULES\"]['a']: it has no 'rate'.",
        "Use, for example, {'rate': '10/m', 'key': 'ip'}.",
    ),
    "a rate": (
        {"QUOTA": {"RULES": {"a": "5/mx"}}},
        "E007",
        "QUOTA[\"RULES\"]['a']: '5/mx' is not a rate: 'mx' is not a unit (at position 2).",
        "Units, in lower case: s, m, h, d, w (or in full), month, year.",
    ),
    "an unknown rule": (
        {"QUOTA": {"RULES": {"search": "1/m"}}, "ROOT_URLCONF": (path("", quota(rule="serach")(page)),)},
        "E010",
        f"@quota(rule='serach') on {HERE}.page names an unknown rule.",
        "Add it to QUOTA[\"RULES\"]. Did you mean 'search'?",
    ),
    "no rate": (
        {"ROOT_URLCONF": (path("", bare(page)),)},
        "E012",
        f"The view {HERE}.page has @quota without a rate.",
        "Write it with a rate: @quota('10/m').",
    ),
    "two views of one name": (
        {"ROOT_URLCONF": tuple(path(f"{each}/", quota("1/m")(made())) for each in "ab")},
        "W013",
        f"Several views are called '{HERE}.made.<locals>.view', and @quota on them has no name: they share one count.",
        "Name each: @quota(..., name='...'). Give them one name if they should share a count.",
    ),
    "two slots of one name": (
        {"ROOT_URLCONF": tuple(path(f"{each}/", concurrency(1)(made())) for each in "ab")},
        "W013",
        (
            f"Several views are called '{HERE}.made.<locals>.view', and @concurrency on them has no name: they share "
            "one count."
        ),
        "Name each: @concurrency(..., name='...'). Give them one name if they should share a count.",
    ),
    "no middleware of ours": (
        {"QUOTA": site(), "MIDDLEWARE": [THEIRS]},
        "W003",
        "QUOTA[\"RULES\"]['site'] has a match, but nothing applies it.",
        "Add 'django_quota.middleware.QuotaMiddleware' to MIDDLEWARE, below AuthenticationMiddleware.",
    ),
    "no middleware for users": (
        {"QUOTA": site(key="user"), "MIDDLEWARE": [OURS]},
        "W005",
        "Rule 'site' needs the user, but no middleware sets it: everybody is limited by IP.",
        "Add 'django.contrib.auth.middleware.AuthenticationMiddleware' to MIDDLEWARE.",
    ),
    "no middleware for sessions": (
        {"QUOTA": beside(key="session")},
        "W015",
        "Rule 'site' needs the session, but no middleware sets it: everybody is limited by IP.",
        SESSION_HINT,
    ),
    "sessions in signed cookies": (
        {
            "QUOTA": beside(key="session"),
            "MIDDLEWARE": [THEIRS, "shop.SessionMiddleware", OURS],
            "SESSION_ENGINE": SIGNED,
        },
        "W015",
        (
            "Rule 'site' needs the session, but a session in a signed cookie has no lasting key: everybody is limited "
            "by IP."
        ),
        SESSION_HINT,
    ),
    "no such argument of a URL": (
        {"QUOTA": beside(key="kwarg:pk")},
        "W016",
        "Rule 'site' is limited by 'kwarg:pk', but no URL has this argument: everybody is limited by IP.",
        f"Use the name in a path(), for example 'pk' of <int:pk>. {OTHER_URLS} W016.",
    ),
    "a rule before tokens are read": (
        {"QUOTA": site(key="user"), "ROOT_URLCONF": (path("", ByToken.as_view()),)},
        "W017",
        (
            f"Rule 'site' needs the user, and is decided before {HERE}.ByToken asks Token for it: users of tokens are "
            "limited by IP."
        ),
        TOKEN_HINT,
    ),
    "a slot of the settings before tokens are read": (
        {
            "QUOTA": {"RULES": {"one": {"at_once": 1, "key": "user", "match": "/"}}},
            "ROOT_URLCONF": (path("", ByToken.as_view()),),
        },
        "W017",
        (
            f"Slot 'one' needs the user, and is decided before {HERE}.ByToken asks Token for it: users of tokens are "
            "limited by IP."
        ),
        TOKEN_HINT,
    ),
    "a slot of a view before tokens are read": (
        {"ROOT_URLCONF": (path("", concurrency(1, "user", name="one")(ByToken.as_view())),)},
        "W017",
        (
            f"Slot 'one' needs the user, and is decided before {HERE}.ByToken asks Token for it: users of tokens are "
            "limited by IP."
        ),
        TOKEN_HINT,
    ),
    "a view with the name of a rule that applies": (
        {"QUOTA": site(), "ROOT_URLCONF": (path("", quota("5/m", name="site")(page)),)},
        "E011",
        (
            f"The view {HERE}.page has a limit named 'site', which differs from the rule of that name in the "
            "settings: they share one count."
        ),
        "Use @quota(rule='site') to take the limit from the settings, or another name= to count separately.",
    ),
    "a view with the name of a rule": (
        {"QUOTA": {"RULES": {"site": "9/m"}}, "ROOT_URLCONF": (path("", quota("5/m", name="site")(page)),)},
        "W009",
        (
            f"The view {HERE}.page has a limit named 'site', which differs from the rule of that name in the "
            "settings: they share one count."
        ),
        "Use @quota(rule='site') to take the limit from the settings, or another name= to count separately.",
    ),
    "no such view in match": (
        {"QUOTA": site(match="shops"), "ROOT_URLCONF": (SHOP,)},
        "W006",
        "QUOTA[\"RULES\"]['site'][\"match\"]: the URLs have no 'shops', so it never fits.",
        f"Did you mean 'shop'? {OTHER_URLS} W006.",
    ),
    "no such view in exclude": (
        {"QUOTA": site(exclude="zzz"), "ROOT_URLCONF": (SHOP,)},
        "W006",
        "QUOTA[\"RULES\"]['site'][\"exclude\"]: the URLs have no 'zzz', so it never fits.",
        f"Use the name= of a path(), for example 'api:search'. {OTHER_URLS} W006.",
    ),
    "no such view in costs": (
        {"QUOTA": site(costs={"shops": 2}), "ROOT_URLCONF": (SHOP,)},
        "W006",
        "QUOTA[\"RULES\"]['site'][\"costs\"]: the URLs have no 'shops'.",
        f"Did you mean 'shop'? {OTHER_URLS} W006.",
    ),
    "no such path": (
        {"QUOTA": site(match="/shops/"), "ROOT_URLCONF": (SHOP,)},
        "W041",
        (
            "QUOTA[\"RULES\"]['site'][\"match\"]: no URL begins with '/shops/', so it limits only requests that get a "
            "404."
        ),
        (
            "Correct the path. If you mean requests for pages that do not exist, silence W041. "
            f"{OTHER_URLS} W041."
        ),
    ),
    "no path that a glob fits": (
        {"QUOTA": site(match="/shop/*"), "ROOT_URLCONF": (path("shop/cart/", page),)},
        "W041",
        (
            "QUOTA[\"RULES\"]['site'][\"match\"]: no URL fits '/shop/*', so it limits only requests that get a 404. A "
            "single star matches no slash."
        ),
        f"Write '/shop/' for all paths below it, or ** where slashes may follow. {OTHER_URLS} W041.",
    ),
    "everybody is exempt": (
        {"QUOTA": {"EXEMPT": ["0.0.0.0/0"]}},
        "W040",
        'No client with an IPv4 address is limited: all of them are in QUOTA["EXEMPT"].',
        "Name the networks that you mean, such as '10.0.0.0/8'.",
    ),
    "everybody is exempt of a rule": (
        {"QUOTA": site(exempt=["::/0"])},
        "W040",
        "Rule 'site' limits no client with an IPv6 address: all of them are in its exempt.",
        "Name the networks that you mean, such as '10.0.0.0/8', or remove the rule.",
    ),
    "methods that no view answers": (
        {"QUOTA": site(methods=["PUT", "PATCH"]), "ROOT_URLCONF": (path("", Answers.as_view()),)},
        "W042",
        (
            "Rule 'site' limits nothing: it is for PATCH, PUT, and no view that it applies to answers that; they "
            "answer GET, HEAD, OPTIONS."
        ),
        f"Correct its methods. {OTHER_URLS} W042.",
    ),
    "one of two URLs": (
        {"QUOTA": site(match="/x/"), "ROOT_URLCONF": tuple(path(f"{each}/", page, name="a") for each in "xy")},
        "W030",
        "QUOTA[\"RULES\"]['site'][\"match\"] fits '/x/' and misses '/y/', another URL of the view 'a'.",
        "Match the view by its name, 'a', which covers all its URLs.",
    ),
    "a key that clients choose": (
        {"QUOTA": site(key="header:X-Api-Key")},
        "W014",
        (
            "QUOTA[\"RULES\"]['site'] is limited by 'header:X-Api-Key', which the client chooses: each new value "
            "starts a new count and takes more memory, until the store is full."
        ),
        IP_HINT,
    ),
    "a key of a view that clients choose": (
        {"ROOT_URLCONF": (path("", quota("5/m", key="get:q")(page)),)},
        "W014",
        (
            f"The view {HERE}.page is limited by 'get:q', which the client chooses: each new value starts a new count "
            "and takes more memory, until the store is full."
        ),
        IP_HINT,
    ),
    "a form behind a limit that fails open": (
        {"QUOTA": {"RULES": {"code": {"rate": "5/m", "key": "post:code", "on_unavailable": "allow"}}}},
        "W044",
        (
            "Rule 'code' limits by a field of the body, and has on_unavailable=\"allow\": it fails open. While the "
            "store does not answer, nobody is limited."
        ),
        OPEN_HINT,
    ),
    "usage that a limit does not charge while it fails open": (
        {"QUOTA": {"RULES": {"code": {"rate": "5/m", "settle": "builtins.max", "on_unavailable": "allow"}}}},
        "W044",
        (
            "Rule 'code' charges what a response used, and has on_unavailable=\"allow\": it fails open. While the "
            "store does not answer, nobody is limited."
        ),
        OPEN_HINT,
    ),
    "prefetch beside a rule without": (
        {"QUOTA": {"RULES": {"hot": {"rate": "9000/m", "match": "/", "prefetch": True}, "day": BY_IP}}},
        "W047",
        (
            "Rule 'hot' has prefetch=, but rule 'day', which limits '/' too, has not: the store is asked each time "
            "there, and nothing is taken ahead."
        ),
        "Add prefetch= to rule 'day', or remove it from 'hot'.",
    ),
    "no tier for all others": (
        {"QUOTA": site(rate={"free": "1/m", "pro": "9/m"}, tier="builtins.str")},
        "W049",
        (
            "Rule 'site' has no tier 'anonymous' and 'authenticated': a request is refused, or has the smallest share, "
            "if builtins.str returns None or a name that is none of 'free', 'pro'."
        ),
        'Add a tier "default" for all others.',
    ),
    "a cost above the limit": (
        {"QUOTA": site(rate="1000/m", cost=1_001)},
        "W051",
        "Rule 'site' has cost=1,001, and a limit of 1,000: each such request is refused.",
        "Raise the rate, or the burst of a bucket, to the cost at least, or lower the cost.",
    ),
    "limiting that is off": (
        {"QUOTA": {"ENABLED": False}},
        "W010",
        'QUOTA["ENABLED"] is False: nothing is limited, and bans and overrides have no effect.',
        "Remove it, or set it to True.",
    ),
    "the memory of each process": (
        {"QUOTA": {"STORE": "memory"}},
        "W011",
        (
            'QUOTA["STORE"] is "memory": each process counts for itself, so several processes admit several times the '
            "limit, and a restart forgets all counts."
        ),
        'Use "redis" and name it in QUOTA["REDIS"], or "database", or run exactly one process.',
    ),
    "months in a cache": (
        {"QUOTA": site(rate="1000/month", algorithm="calendar")},
        "W050",
        (
            "'site' count weeks, months or years in a cache. It forgets them if it is flushed or replaced, or if its "
            "memory is full and it drops keys."
        ),
        (
            'Add "store": "database" to rules that count what customers pay for; the same holds for counters of '
            "credits, which this check cannot see. If all may be forgotten, silence this."
        ),
    ),
    "a rule that nothing uses": (
        {"QUOTA": {"RULES": {"a": "5/m", "b": "5/m"}}},
        "W039",
        "QUOTA[\"RULES\"] has 'a', 'b' without \"match\", and no view is seen to use them.",
        (
            "Add a 'match', name them on a view with @quota(rule='a'), or ask them in your code. This check cannot see "
            "a @quota below a decorator without functools.wraps, and of several that method_decorator applies to one "
            "method it sees one."
        ),
    ),
}  # fmt: skip
"""By what is wrong: the settings of the site, the id, the message and the hint."""


@pytest.mark.parametrize(("given", "code", "message", "hint"), FINDINGS.values(), ids=FINDINGS)
def test_a_finding_says_what_is_wrong_and_what_to_write(
    given: dict[str, Any], code: str, message: str, hint: str, settings: Any
) -> None:
    usual = {"MIDDLEWARE": [THEIRS, OURS], "QUOTA": {}, "CACHES": {"default": REDIS}, "ROOT_URLCONF": (HOME,)}
    for name, value in {**usual, **given}.items():
        setattr(settings, name, value)
    deploys = code in ("W010", "W011", "W039", "W050")

    found = run_checks(tags=["django_quota"], include_deployment_checks=deploys)

    level = INFO if code == "W039" else ERROR if code.startswith("E") else WARNING
    assert [(each.id, each.level, each.msg, each.hint) for each in found] == [
        (f"django_quota.{code}", level, message, hint)
    ]


@pytest.fixture
def tenants(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.DATABASES, "shops", {"ENGINE": "django_tenants.postgresql_backend"})


@pytest.mark.usefixtures("tenants")
def test_a_site_of_tenants_is_told_what_they_share() -> None:
    (found,) = findings()

    assert (found.msg, found.hint) == (
        (
            "The site has tenants, by django_tenants, and all tenants share their limits: user 42 of one uses up the "
            "limits of user 42 of another, and both are one subject in bans, overrides and usage."
        ),
        'Count by a function that names the tenant: see "Tenants" in the page "Before you go live". Then silence this.',
    )


@pytest.mark.usefixtures("tenants")
def test_a_site_of_tenants_is_told_where_our_app_belongs(settings: Any) -> None:
    settings.TENANT_APPS = ["shop", "django_quota"]

    _, found = findings()

    assert (found.msg, found.hint) == (
        (
            "TENANT_APPS has 'django_quota', so each tenant has its own overrides. They have no effect: a process "
            "reads those of one schema for all tenants. quota_rollup writes usage into one schema, too."
        ),
        "Name 'django_quota' in SHARED_APPS alone, and run `manage.py migrate_schemas --shared`.",
    )
