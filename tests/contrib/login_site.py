"""A site with django-allauth in a process of its own; it prints what came, as JSON.

`python -m tests.contrib.login_site with`, or `... without` the middleware; or `... limits`, with the rules that
docs/logins.md shows.
"""

import json
import re
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import django
from django.conf import settings

from tests.support import settings as base
from tests.support.pages import marked

OURS = "django_quota.contrib.auth.LoginQuotaBackend"
MODEL = "django.contrib.auth.backends.ModelBackend"
PASSWORD = "right horse"


class Accounts:
    """The URLs of django-allauth."""

    urlpatterns: ClassVar[list[Any]] = []


def begin(folder: str, *, with_middleware: bool, rules: Any = (), **more: Any) -> None:
    """Set up a site that has the pages of allauth, these rules and a database in a folder, and make Ann."""
    of_tests = {name: getattr(base, name) for name in dir(base) if name.isupper()}
    middleware = [path for path in base.MIDDLEWARE if with_middleware or "django_quota" not in path]
    own = {
        "DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(folder) / "site.sqlite3")}},
        "CACHES": {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},  # of allauth's own limits
        "QUOTA": {"STORE": "memory", "RULES": dict(rules)},
        "PASSWORD_HASHERS": ["tests.contrib.hashers.CountingHasher"],
        "INSTALLED_APPS": [*base.INSTALLED_APPS, "allauth", "allauth.account"],
        "AUTHENTICATION_BACKENDS": [OURS, MODEL, "allauth.account.auth_backends.AuthenticationBackend"],
        "MIDDLEWARE": [*middleware, "allauth.account.middleware.AccountMiddleware"],
        "ROOT_URLCONF": Accounts,
        "ACCOUNT_ADAPTER": "django_quota.contrib.allauth.LoginQuotaAdapter",
        "ACCOUNT_LOGIN_METHODS": {"username", "email"},
        "ACCOUNT_EMAIL_VERIFICATION": "none",
        "EMAIL_BACKEND": "django.core.mail.backends.locmem.EmailBackend",
    }
    settings.configure(**{**of_tests, **own, **more})
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.urls import include, path

    call_command("migrate", verbosity=0)
    User.objects.create_user("ann", "ann@example.org", PASSWORD)
    Accounts.urlpatterns = [path("accounts/", include("allauth.urls"))]


def allauth(folder: str, middleware: str) -> dict[str, Any]:
    """Guess Ann's password on allauth's page, log in by name and by e-mail address, and set a new one by mail."""
    begin(folder, with_middleware=middleware == "with")
    from django.core import mail
    from django.test import Client

    from django_quota.testing import freeze

    def log_in(name: str, password: str, address: str) -> Any:
        client = Client(REMOTE_ADDR=address, HTTP_ACCEPT="text/html")
        reply = client.post("/accounts/login/", {"login": name, "password": password})
        return reply.status_code, client.session.get("_auth_user_backend"), reply

    def tries(password: str, address: str, times: int = 6, name: str = "ann") -> list[int]:
        return [log_in(name, password, address)[0] for _ in range(times)]

    home, away, new = "203.0.113.9", "198.51.100.7", "new right horse"
    places = [(name, address) for name in ("ann", "ann@example.org") for address in (home, away)]
    with freeze(1_800_000_000_000_000):
        guesses, refused = tries("guess", home), log_in("ann", PASSWORD, home)[2]
        found = {
            "guesses": guesses,
            "page": "Please try again in 10 minutes." in refused.content.decode(),
            "retry_after": refused.headers["Retry-After"],
            "by_name": log_in("ann", PASSWORD, away)[:2],
            "by_email": log_in("Ann@example.org", PASSWORD, home)[:2],
            "many": tries(PASSWORD, away, 12),
            "locked": [tries("guess", address, name=name)[-1] for name, address in places],
        }
        client = Client(REMOTE_ADDR=home)
        client.post("/accounts/password/reset/", {"email": "ann@example.org"})
        page = client.get(re.findall(r"http://testserver(/\S+)", str(mail.outbox[0].body))[0]).headers["Location"]
        found["reset"] = client.post(page, {"password1": new, "password2": new}).status_code
        return {**found, "after": [log_in(name, new, address)[0] for name, address in places]}


def limits(folder: str) -> dict[str, Any]:
    """Sign up 60 times at once, and reset passwords, by the rules that the page shows."""
    shown = marked("docs/logins.md", "allauth")
    more = {"ACCOUNT_RATE_LIMITS": shown["ACCOUNT_RATE_LIMITS"], "rules": shown["QUOTA"]["RULES"]}
    begin(folder, with_middleware=True, **more)
    from django.core import mail
    from django.test import Client

    from django_quota.testing import freeze

    def post(page: str, address: str = "203.0.113.9", **fields: str) -> int:
        return Client(REMOTE_ADDR=address).post(f"/accounts/{page}/", fields).status_code

    with freeze(1_800_000_000_000_000):
        with ThreadPoolExecutor(60) as pool:
            sign_ups = Counter(pool.map(lambda _: post("signup"), range(60)))
        return {
            "sign_ups": sorted(sign_ups.items()),
            "looks": Client(REMOTE_ADDR="203.0.113.9").get("/accounts/signup/").status_code,
            "resets": [post("password/reset", f"198.51.100.{n}", email="ann@example.org") for n in range(7)],
            "mails": len(mail.outbox),
            "keys": sorted(Counter(post("password/reset/key/1-guess") for _ in range(25)).items()),
            "confirmations": sorted(Counter(post("confirm-email/guess") for _ in range(12)).items()),
        }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(limits(scratch) if sys.argv[1] == "limits" else allauth(scratch, sys.argv[1])))
