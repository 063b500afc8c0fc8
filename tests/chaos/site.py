"""The site that the workers run: its settings, and a rule for each `on_unavailable`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SUBJECTS = {"global": "global", "ip": "ip:127.0.0.1", "path": "path:/"}
"""The subject of each key: there is one client, and one path. On a Cluster of three each is on another server."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule of `limit` hits in a window (seconds). `without`: what it does without Redis; empty: it does not say."""

    name: str
    limit: int
    window: int
    without: str
    key: str = "global"
    blocked: str = ""
    """The subject that it is asked for, if that is a blocked one."""

    @property
    def subject(self) -> str:
        return self.blocked or SUBJECTS[self.key]

    @property
    def rule(self) -> dict[str, str]:
        said = {"on_unavailable": self.without} if self.without else {}
        return {"rate": f"{self.limit}/{self.window}s", "key": self.key, **said}


ALLOW = Policy("allow", 50, 10, "allow")
DENY = Policy("deny", 40, 1, "deny")
LOCAL = Policy("local", 20, 1, "local")
PAIR = Policy("pair", 20, 1, "deny", key="ip")
"""Its requests ask for `BESIDE`, too, in one plan over two subjects."""
DEFAULT = Policy("default", 20, 1, "")
"""It allows, but while Redis is full each process counts it."""
POLICIES = (ALLOW, DENY, LOCAL, PAIR, DEFAULT)

BESIDE = Policy("beside", 1_000_000, 3600, "allow", key="path")
"""It never refuses, and nothing expires while a scene lasts: so it shows what a plan has left behind in one place."""

BLOCKED, LATER = (
    Policy(name, 1_000_000, 3600, "allow", key="ip", blocked=subject)
    for name, subject in (("blocked", "ip:192.0.2.66"), ("later", "ip:192.0.2.67"))
)
"""They are asked where the site has a database. One subject is blocked at first, the other one after the fault."""


def one_alias(location: str | list[str], **options: Any) -> dict[str, Any]:
    """Return CACHES with a default alias on a server, or on several of a Cluster."""
    return {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}}


def configure(caches: Mapping[str, Any], database: Mapping[str, Any] | None = None) -> None:
    """Set Django up for this process. Without caches, the database counts."""
    import django
    from django.conf import settings

    settings.configure(
        SECRET_KEY="chaos",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.chaos.views",
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_quota"],
        MIDDLEWARE=[],
        CACHES=dict(caches),
        DATABASES={"default": dict(database)} if database else {},
        QUOTA={
            "STORE": "redis" if caches else "database",
            "RULES": {policy.name: policy.rule for policy in (*POLICIES, BESIDE, BLOCKED, LATER)},
        },
        LOGGING_CONFIG=None,
        USE_TZ=True,
    )
    django.setup()
