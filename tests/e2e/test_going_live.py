"""docs/going_live.md and docs/reliability.md work as shown: settings, logging, the page for monitoring, log lines."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import RequestFactory, override_settings

from django_quota import peek
from django_quota.testing import RedisServer
from tests.support.pages import read
from tests.support.stores import caches

BLOCKS = re.findall(
    r"(?:<!-- run: (\w+) -->\n)?```python\n(.*?)```",
    read("docs/going_live.md") + read("docs/reliability.md"),
    re.DOTALL,
)

SITE = """
import sys

import django
from django.conf import settings
from django.core import mail
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from django_quota import quota
from django_quota.exceptions import StoreUnavailable

names = {}
exec(sys.stdin.read(), names)
settings.configure(
    SECRET_KEY="secret",
    ALLOWED_HOSTS=["testserver"],
    ROOT_URLCONF="__main__",
    ADMINS=[("Ann", "ann@example.org")],
    EMAIL_BACKEND="django.core.mail.backends.locmem.EmailBackend",
    LOGGING=names["LOGGING"],
    MIDDLEWARE=["django_quota.middleware.QuotaMiddleware"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}},
)
django.setup()
mail.outbox = []


@quota("5/d", on_unavailable="deny")
def sms(request):
    return HttpResponse("sent")


def stock(request):
    raise StoreUnavailable("gone")


def broken(request):
    raise ValueError("a defect")


urlpatterns = [path("sms", sms), path("stock", stock), path("broken", broken)]
client = Client(raise_request_exception=False)
print([client.get(f"/{name}").status_code for name in ("sms", "sms", "stock", "sms", "stock", "broken")])
for message in mail.outbox:
    print(message.subject)
"""


def block(name: str) -> str:
    """Return the block of this name, or the one that defines this function."""
    (text,) = [text for run_as, text in BLOCKS if name == run_as or f"def {name}(" in text]
    return str(text)


def shown(name: str) -> dict[str, Any]:
    """Run a block; return what it defines."""
    names: dict[str, Any] = {}
    exec(block(name), names)
    return names


def test_the_settings_pass_the_checks() -> None:
    names = shown("settings")
    with override_settings(**{name: names[name] for name in ("QUOTA", "AUTHENTICATION_BACKENDS")}):
        assert run_checks(tags=["django_quota"]) == []


def test_an_outage_is_mailed_once_and_not_for_each_denied_request() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SITE], input=block("logging"), capture_output=True, text=True, check=True
    )
    answers, *mails = done.stdout.splitlines()
    assert answers == "[503, 503, 503, 503, 503, 500]"
    assert len(mails) == 2
    assert "The quota store is unavailable" in mails[0]
    assert mails[1].endswith("Internal Server Error: /broken")
    assert "Service Unavailable" not in done.stderr
    assert done.stderr.count("The quota store is unavailable") == 1


@pytest.mark.usefixtures("redis_cache")
def test_views_for_monitoring_and_with_a_counter_answer_503_without_redis(raw: Any, settings: Any) -> None:
    def answer(name: str) -> int:
        return int(shown(name)[name](RequestFactory().get("/")).status_code)

    assert answer("limits_hold") == 200
    raw.replicaof("127.0.0.1", 1)
    try:
        assert not peek("1000/m", "global", name="limits-hold").degraded
        assert answer("limits_hold") == 503
    finally:
        raw.replicaof("NO", "ONE")
    settings.CACHES = caches(RedisServer("redis://127.0.0.1:1/0", 0, Path()))
    assert (answer("limits_hold"), answer("buy")) == (503, 503)
