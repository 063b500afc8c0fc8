"""Sites with other packages than those of the tests, each in a process of its own; they print what came, as JSON.

`python -m tests.contrib.login_site race <redis url> <first backend>`, and `... allauth memory <middleware>`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import django
from django.conf import settings

OURS = "django_quota.contrib.auth.LoginQuotaBackend"
MODEL = "django.contrib.auth.backends.ModelBackend"
PASSWORD = "right horse"
ATTEMPTS = 60
PATIENCE = 60

BASE = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "django.contrib.messages"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
    }
]


def configure(folder: str, redis_url: str, **more: Any) -> None:
    """Set Django up with a database in a folder, and make Ann."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis_url, "OPTIONS": {"SOCKET_TIMEOUT": PATIENCE}}
    settings.configure(
        SECRET_KEY="only for tests, and long enough for HS256",
        USE_TZ=True,
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(folder) / "site.sqlite3")}},
        CACHES={
            "default": cache if redis_url != "memory" else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
        },
        QUOTA={"STORE": "redis" if redis_url != "memory" else "memory"},
        TEMPLATES=TEMPLATES,
        PASSWORD_HASHERS=["tests.contrib.hashers.CountingHasher"],
        **more,
    )
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    User.objects.create_user("ann", "ann@example.org", PASSWORD)


def race(folder: str, redis_url: str, first: str) -> dict[str, Any]:
    """Guess a password at the same time, behind a backend that limits five."""
    with_axes = first.startswith("axes.")
    more = {
        "AXES_HANDLER": "axes.handlers.cache.AxesCacheHandler",
        "AXES_FAILURE_LIMIT": 5,
        "AXES_LOCKOUT_PARAMETERS": [["username", "ip_address"]],
        "AXES_VERBOSE": False,
        "SILENCED_SYSTEM_CHECKS": ["axes.W001", "axes.W002"],
    }
    configure(
        folder,
        redis_url,
        INSTALLED_APPS=[*BASE, "django_quota", *(["axes"] if with_axes else [])],
        AUTHENTICATION_BACKENDS=[first, MODEL],
        MIDDLEWARE=[*MIDDLEWARE, "django_quota.middleware.QuotaMiddleware"],
        **(more if with_axes else {}),
    )
    from tests.contrib.hashers import hashed_in_a_race

    return {"hashed": hashed_in_a_race(ATTEMPTS)}


class Accounts:
    """The URLs of django-allauth."""

    urlpatterns: ClassVar[list[Any]] = []


def allauth(folder: str, redis_url: str, middleware: str) -> dict[str, Any]:
    """Guess Ann's password on allauth's page, then log in from elsewhere, by name and by e-mail address."""
    ours = ["django_quota.middleware.QuotaMiddleware"] if middleware == "with" else []
    configure(
        folder,
        redis_url,
        INSTALLED_APPS=[*BASE, "allauth", "allauth.account", "django_quota"],
        AUTHENTICATION_BACKENDS=[OURS, MODEL, "allauth.account.auth_backends.AuthenticationBackend"],
        MIDDLEWARE=[*MIDDLEWARE, "allauth.account.middleware.AccountMiddleware", *ours],
        ROOT_URLCONF=Accounts,
        ACCOUNT_ADAPTER="django_quota.contrib.allauth.LoginQuotaAdapter",
        ACCOUNT_LOGIN_METHODS={"username", "email"},
        ACCOUNT_EMAIL_VERIFICATION="none",
    )
    from django.test import Client
    from django.urls import include, path

    Accounts.urlpatterns = [path("accounts/", include("allauth.urls"))]
    from django_quota.testing import freeze

    def log_in(name: str, password: str, address: str) -> Any:
        client = Client(REMOTE_ADDR=address, HTTP_ACCEPT="text/html")
        reply = client.post("/accounts/login/", {"login": name, "password": password})
        return reply.status_code, client.session.get("_auth_user_backend"), reply

    with freeze(1_800_000_000_000_000):
        guesses = [log_in("ann", "guess", "203.0.113.9")[0] for _ in range(6)]
        refused = log_in("ann", PASSWORD, "203.0.113.9")[2]
        return {
            "guesses": guesses,
            "page": "Please try again in 10 minutes." in refused.content.decode(),
            "retry_after": refused.headers["Retry-After"],
            "by_name": log_in("ann", PASSWORD, "198.51.100.7")[:2],
            "by_email": log_in("Ann@example.org", PASSWORD, "203.0.113.9")[:2],
            "many": [log_in("ann", PASSWORD, "198.51.100.7")[0] for _ in range(12)],
            "unlocked": [unlocked("ann"), log_in("ann", PASSWORD, "203.0.113.9")[0]],
        }


def unlocked(name: str) -> int:
    from django_quota.services.logins import unlock

    return unlock(name)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps({"race": race, "allauth": allauth}[what](scratch, *arguments)))
