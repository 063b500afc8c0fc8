"""The site that the workers run: its settings, three rules that differ in what they do without Redis, and its views.

It must not know what is done to Redis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings

SUBJECT = "global"


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule of the site: so many hits a window (seconds) for everybody together."""

    name: str
    limit: int
    window: int

    @property
    def rule(self) -> dict[str, str]:
        """What stands in RULES."""
        return {"rate": f"{self.limit}/{self.window}s", "key": SUBJECT, "on_unavailable": self.name}


ALLOW = Policy("allow", 50, 10)
DENY = Policy("deny", 40, 1)
LOCAL = Policy("local", 20, 1)
POLICIES = (ALLOW, DENY, LOCAL)


def one_alias(url: str, **options: Any) -> dict[str, Any]:
    """Return CACHES with a default alias on a server."""
    return {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": options}}


def configure(caches: Mapping[str, Any]) -> None:
    """Set Django up for this process."""
    import django

    settings.configure(
        SECRET_KEY="chaos",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.chaos.views",
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_quota"],
        MIDDLEWARE=[],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        CACHES=dict(caches),
        QUOTA={"RULES": {policy.name: policy.rule for policy in POLICIES}},
        LOGGING_CONFIG=None,
        USE_TZ=True,
    )
    django.setup()
    from django_quota import overrides

    overrides.on_lost = lambda: None  # it is looked for, as on any site; there is nothing to publish
