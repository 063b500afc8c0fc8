"""What the system checks find in a configuration."""

import re
from typing import Any

from django.core.checks import CheckMessage, run_checks
from django.test import override_settings

from tests.support.pages import read

TIMEOUTS = {"SOCKET_TIMEOUT": 0.25, "SOCKET_CONNECT_TIMEOUT": 0.25}

REDIS: dict[str, Any] = {
    "BACKEND": "django_redis.cache.RedisCache",
    "LOCATION": "redis://127.0.0.1:1/0",
    "OPTIONS": TIMEOUTS,
}

OURS, THEIRS = "django_quota.middleware.QuotaMiddleware", "django.contrib.auth.middleware.AuthenticationMiddleware"

BY_IP = {"rate": "600/m", "key": "ip", "match": "/"}

SETTINGS = re.findall(r"^\| `([A-Z0-9_]+)`", read("docs/settings.md"), re.MULTILINE)  # the names of all settings


def findings(quota: object = None, caches: dict[str, Any] | None = None) -> list[CheckMessage]:
    with override_settings(QUOTA={} if quota is None else quota, CACHES=caches or {"default": REDIS}):
        return run_checks(tags=["django_quota"])


def ids(quota: object = None, caches: dict[str, Any] | None = None) -> list[str | None]:
    return [str(found.id).removeprefix("django_quota.") for found in findings(quota, caches)]
