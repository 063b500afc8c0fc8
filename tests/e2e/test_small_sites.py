"""Sites without an app or a database: limits and the 429 page work, and commands name what is missing."""

import json
import subprocess
import sys
from typing import Any

import pytest
import redis

from django_quota.testing import RedisServer
from tests.support.selection import thorough
from tests.support.stores import caches

SITE = """
import json, sys
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.template import engines
from django.test import RequestFactory
from django.urls import path

given = json.loads(sys.argv[1])
settings.configure(
    SECRET_KEY="x", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, INSTALLED_APPS=given["apps"],
    MIDDLEWARE=["django_quota.middleware.QuotaMiddleware"],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
    QUOTA={"STORE": given["store"], "EVENTS": 0}, CACHES=given["caches"], DATABASES=given["databases"],
)
import django
django.setup()
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django_quota import quota

def front_page(request):
    return HttpResponse(engines["django"].from_string("welcome").render({}, request))

urlpatterns = [path("", quota("1/m", key="ip")(front_page))]
found = {"findings": [finding.id for finding in run_checks() if "timeout" not in finding.msg.lower()], "replies": []}
for _ in range(2):
    environ = RequestFactory(headers={"Accept": "text/html"})._base_environ()
    start = lambda status, headers: found["replies"].append([status[:3], dict(headers)["Content-Type"]])
    body = b"".join(WSGIHandler()(environ, start)).decode()
found["body"] = body
found["commands"] = {}
for words in given["commands"]:
    try:
        call_command(*words.split())
        found["commands"][words] = ""
    except CommandError as error:
        found["commands"][words] = str(error)
print("\\n" + json.dumps(found))
"""

WITHOUT_ADMIN = ["auth", "contenttypes", "messages", "sessions"]
LOCAL_CACHE = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
HTML = "text/html; charset=utf-8"


def run_site(apps: list[str], **given: Any) -> dict[str, Any]:
    """Run a site with these apps of Django, and return its output."""
    apps = [*(f"django.contrib.{app}" for app in apps), "django_quota"]
    given = {"apps": apps, "store": "memory", "caches": LOCAL_CACHE, "databases": {}, "commands": [], **given}
    arguments = [sys.executable, "-W", "error", "-c", SITE, json.dumps(given)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def without_apps() -> dict[str, Any]:
    return run_site([])


class TestSiteWithoutOtherApps:
    @pytest.mark.thorough("slow")
    def test_the_checks_find_nothing(self, without_apps: dict[str, Any]) -> None:
        assert without_apps["findings"] == []

    def test_its_second_request_is_refused(self, without_apps: dict[str, Any]) -> None:
        assert without_apps["replies"] == [["200", HTML], ["429", HTML]]

    def test_it_has_the_429_page(self, without_apps: dict[str, Any]) -> None:
        assert "Too many requests" in without_apps["body"]


COMMANDS = (
    "quota_status user:1", "quota_reset user:1", "quota_rollup", "quota_sweep", "quota_override list",
    "quota_bans lift user:1", "quota_rules /",
)  # fmt: skip
SQLITE = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}


@pytest.fixture(scope="module", params=[SQLITE, thorough("processes", {})], ids=["never migrated", "no database"])
def databases(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture(scope="module")
def without_tables(databases: dict[str, Any], redis_server: RedisServer) -> dict[str, Any]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return run_site(WITHOUT_ADMIN, store="redis", caches=caches(redis_server), databases=databases, commands=COMMANDS)


class TestSiteWithoutTables:
    @pytest.mark.thorough("slow")
    def test_the_limits_work(self, without_tables: dict[str, Any]) -> None:
        assert without_tables["findings"] == []
        assert without_tables["replies"] == [["200", HTML], ["429", HTML]]

    def test_a_command_that_needs_tables_names_what_is_missing(
        self, without_tables: dict[str, Any], databases: dict[str, Any]
    ) -> None:
        ((command, error),) = [item for item in without_tables["commands"].items() if item[1]]

        assert command == "quota_override list"
        creates, configures = "`manage.py migrate` creates the tables", "settings.DATABASES is improperly configured"
        assert (creates if databases else configures) in error


@pytest.mark.thorough("slow")
def test_a_site_without_users_hears_what_an_override_of_a_user_needs() -> None:
    found = run_site([], databases=SQLITE, commands=["quota_override set user:1 blocked"])

    (error,) = found["commands"].values()
    assert "`manage.py migrate` creates the tables" in error
