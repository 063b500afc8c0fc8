"""`quota_bans` lists, sets and lifts bans."""

from functools import partial
from typing import Any

import pytest
from django.core.management import CommandError

from django_quota import peek
from django_quota.testing import freeze
from tests.support import commands
from tests.support.steps import START

SUBJECT = "ip:203.0.113.9"
RULES = {"login": {"rate": "5/m", "ban": {"after": "9/m", "for": "1h"}}, "search": "10/m"}


said = partial(commands.said, "quota_bans")


@pytest.mark.usefixtures("database", "redis_cache")
def test_it_sets_lists_and_lifts(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}
    with freeze(START):
        assert "There are no such bans." in said("list")
        assert f"Banned {SUBJECT} from login for 10 minutes.\n" in said("set", "203.0.113.9", "login", "10m")
        ban = {"subject": "user:7", "rule": "login", "ends_in": 1200}
        assert said("set", "user:7", "login", "20m", "--json") == ban
        listed = [(row["subject"], row["rule"]) for row in said("list", "--json")]
        assert listed == [(SUBJECT, "login"), ("user:7", "login")]
        assert said("list", "--subject", "user:7").startswith("user:7 from login until ")
        assert said("list", "--rule", "search", "--json") == []
        assert said("lift", SUBJECT, "--dry-run") == f"Would lift the ban of {SUBJECT} from login\n"
        assert "No such ban" in said("lift", SUBJECT, "--rule", "search")
        assert not peek("login", SUBJECT)
        assert said("lift", SUBJECT) == f"Lifted the ban of {SUBJECT} from login\n"
        assert peek("login", SUBJECT)
        assert said("lift", SUBJECT, "--json") == {"bans": [], "dry_run": False}
        assert [row["subject"] for row in said("list", "--json")] == ["user:7"]


@pytest.mark.usefixtures("database", "redis_cache")
def test_bad_input_is_an_error(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}
    for words, why in (
        (("set", SUBJECT, "search", "10m"), "has no ban="),
        (("set", SUBJECT, "logni", "10m"), r"Did you mean 'login'\?"),
        (("set", SUBJECT, "login", "soon"), "soon"),
        (("lift", "ip:nowhere"), "nowhere"),
        (("lift",), "required: subject"),
    ):
        with pytest.raises(CommandError, match=why):
            said(*words)


@pytest.mark.usefixtures("memory_store")
def test_the_memory_of_a_process_has_no_list() -> None:
    with pytest.raises(CommandError, match="other processes cannot see"):
        said("list")
