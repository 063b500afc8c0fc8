"""A site with django-allauth and the rules of docs/logins.md in a process of its own; it prints what came, as JSON.

`python -m tests.contrib.login_site with`, or `... without` the middleware.
"""

import json
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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


def begin(folder: str, *, with_middleware: bool) -> None:
    """Set up a site that has the pages of allauth, the shown rules and a database in a folder, and make Ann."""
    shown = marked("docs/logins.md", "allauth")
    of_tests = {name: getattr(base, name) for name in dir(base) if name.isupper()}
    middleware = [path for path in base.MIDDLEWARE if with_middleware or "django_quota" not in path]
    own = {
        "DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(folder) / "site.sqlite3")}},
        "CACHES": {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},  # of allauth's own limits
        "QUOTA": {"STORE": "memory", **shown["QUOTA"]},
        "PASSWORD_HASHERS": ["tests.contrib.hashers.CountingHasher"],
        "INSTALLED_APPS": [*base.INSTALLED_APPS, "allauth", "allauth.account"],
        "AUTHENTICATION_BACKENDS": [OURS, MODEL, "allauth.account.auth_backends.AuthenticationBackend"],
        "MIDDLEWARE": [*middleware, "allauth.account.middleware.AccountMiddleware"],
        "ROOT_URLCONF": Accounts,
        "ACCOUNT_ADAPTER": "django_quota.contrib.allauth.LoginQuotaAdapter",
        "ACCOUNT_LOGIN_METHODS": {"username", "email"},
        "ACCOUNT_EMAIL_VERIFICATION": "none",
        "ACCOUNT_RATE_LIMITS": shown["ACCOUNT_RATE_LIMITS"],
        "EMAIL_BACKEND": "django.core.mail.backends.locmem.EmailBackend",
    }
    settings.configure(**{**of_tests, **own})
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.urls import include, path

    call_command("migrate", verbosity=0)
    User.objects.create_user("ann", "ann@example.org", PASSWORD)
    Accounts.urlpatterns = [path("accounts/", include("allauth.urls"))]


def allauth(folder: str, middleware: str) -> dict[str, Any]:
    """Guess Ann's password, log in by name and by e-mail address, set a new password by mail, and ask too often."""
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
        found["after"] = [log_in(name, new, address)[0] for name, address in places]
        with ThreadPoolExecutor(60) as pool:
            sign_up = partial(Client(REMOTE_ADDR=home).post, "/accounts/signup/")
            found["sign_ups"] = sorted(reply.status_code for reply in pool.map(lambda _: sign_up(), range(60)))
        by_mail = [Client(REMOTE_ADDR=f"192.0.2.{number}") for number in range(5)]
        found["resets"] = [
            each.post("/accounts/password/reset/", {"email": "ann@example.org"}).status_code for each in by_mail
        ]
        return {**found, "looks": client.get("/accounts/signup/").status_code, "mails": len(mail.outbox)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(allauth(scratch, sys.argv[1])))
