"""`quota_status` shows what is known of a subject, `quota_reset` forgets it, `quota_bans` has its bans."""

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.core.management import CommandError
from django.db import DatabaseError
from django.http import HttpResponse
from django.test import RequestFactory
from django.urls import path

from django_quota import check, peek, quota, reserve, reset_subject, slot
from django_quota.adapters import digest
from django_quota.core.overrides import ALL_RULES
from django_quota.limiting.override_rows import DatabaseRows
from django_quota.limiting.overrides import overrides
from django_quota.testing import freeze
from tests.support.commands import said
from tests.support.overridden import override
from tests.support.steps import SECOND, START

SUBJECT = "ip:203.0.113.9"


@quota("7/m", key="ip", name="viewed")
def viewed(request: Any) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("viewed/", viewed)]

pytestmark = pytest.mark.usefixtures("redis_cache")


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    banning = {"rate": "1/h", "ban": {"after": "1/m", "for": "1h"}}
    settings.QUOTA = {"RULES": {"search": "10/m; 100/h", "banning": banning, "free": None}}


def run(*words: str) -> Any:
    with freeze(START):
        return said(*words)


def test_it_shows_limits_their_source_and_overrides() -> None:
    with freeze(START):
        override("b 0 0 ", "viewed")
        check("search", SUBJECT, 10)
    assert run("quota_status", SUBJECT, "--rule", "search", "--rule", "viewed").splitlines() == [
        SUBJECT,
        "  search: 10/m by sliding_window",
        "    ████████████████████ 10 of 10 used, 0 left; the next hit is admitted in 1 minute",
        f"    from quota:1:{{{SUBJECT}}}:r:search:sw.60s",
        "  search: 100/h by sliding_window",
        "    ██░░░░░░░░░░░░░░░░░░ 10 of 100 used, 90 left; the next hit is admitted",
        f"    from quota:1:{{{SUBJECT}}}:r:search:sw.3600s",
        "  viewed: 7/m by sliding_window",
        "    ░░░░░░░░░░░░░░░░░░░░ 0 of 7 used, 7 left; no hit is admitted (blocked)",
        f"    from quota:1:{{{SUBJECT}}}:r:viewed:sw.60s",
        "  override  viewed: blocked",
    ]


def test_it_shows_bans_slots_days_and_what_refused() -> None:
    user = "user:42"
    with freeze(START):
        for lease in (30, 50):
            check("banning", user)
            slot("seats", 3, lease, subject=user).acquire()
            check("1/h", user, name="transfer")
            check("1/h", SUBJECT, name="transfer")
    printed = run("quota_status", user)
    for line in (
        "  ban       from banning, for another 1 hour",
        "  in use    seats: 2 slots; the first is free in 30 seconds, from quota:1:",
        "banning 1 allowed 1 refused, transfer 1 allowed 1 refused",
        "  transfer: something is counted, but neither the settings nor the views have this name",
        ", by transfer (limit 1)",
    ):
        assert line in printed
    assert "by transfer" not in run("quota_status", user, "--rule", "search")
    shown = run("quota_status", user, "--json")
    assert (shown["subject"], shown["overrides"], shown["bans"]) == (user, [], {"banning": 3_600.0})
    assert {limit["rule"] for limit in shown["limits"]} == {"search", "banning", "viewed"}
    assert {(event["rule"], event["subject"]) for event in shown["refused"]} == {("banning", user), ("transfer", user)}
    assert next(iter(shown["days"].values()))["banning"] == {"allowed": 1, "refused": 1, "units": 1}
    with freeze(START + 3_600 * SECOND):
        assert said("quota_status", user, "--json")["bans"] == {}


@pytest.mark.parametrize("command", [("quota_status", SUBJECT), ("quota_rules",)], ids=["quota_status", "quota_rules"])
def test_a_note_says_that_an_override_exempts_everybody(command: tuple[str, ...]) -> None:
    note = "An override exempts everybody from all rules, so nothing is limited."
    override("x 0 0 ", "search", subject="*")
    assert note not in run(*command)
    override("x 0 0 ", "*", subject="*")
    assert note in run(*command)


def test_all_also_shows_unused_limits_and_tiers(settings: Any) -> None:
    tiered = {"rate": {"anonymous": "5/m", "authenticated": "50/m"}}
    settings.QUOTA = {"RULES": {"tiered": tiered, "quiet": {"rate": "1/m", "shadow": True}}}
    assert "  Nothing is used.\n  --all also shows unused limits" in run("quota_status", SUBJECT)
    shown = run("quota_status", SUBJECT, "--all")
    for line in ("viewed: 7/m", "  tiered (anonymous): 5/m by", "  tiered (authenticated): 50/m by"):
        assert line in shown
    assert "Nothing is used" not in shown
    with freeze(START):
        check("quiet", SUBJECT)
    assert "the next hit is admitted in 1 minute (a shadow rule: it only reports)" in run("quota_status", SUBJECT)


def test_overrides_that_concern_the_subject_are_printed_the_most_specific_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for whose in ("*", "ip:*", "ip:203.0.0.0/16", "ip:203.0.113.0/24", SUBJECT, "ip:192.0.2.0/24", "user:*"):
        override("s 0 0 ", "search", whose)
    override("b 0 0 ", ALL_RULES, "ip:203.0.113.0/24")
    assert [line for line in run("quota_status", SUBJECT).splitlines() if line.startswith("  override")] == [
        "  override  search: shadow",
        "  override  search for ip:203.0.113.0/24: shadow",
        "  override  * for ip:203.0.113.0/24: blocked",
        "  override  search for ip:203.0.0.0/16: shadow",
        "  override  search for ip:*: shadow",
        "  override  search for *: shadow",
    ]

    class Away(DatabaseRows):
        def read_here(self, work: Callable[[], None]) -> None:
            raise DatabaseError("the connection is closed")

    monkeypatch.setattr(overrides, "rows", Away())
    assert "Note: The overrides could not be read: the connection is closed.\n" in run("quota_status", SUBJECT)


def test_a_redis_that_takes_no_changes_shows_what_happens_to_a_hit(raw: redis.Redis, settings: Any) -> None:
    """Refusals are known, since it can be read; `on_unavailable` decides about hits that it would count."""
    said_of = {
        "deny": "no hit is admitted while Redis takes no changes",
        "allow": "the next hit is admitted, and not counted",
        "local": "each process decides by itself while Redis takes no changes",
        "used": "the next hit is admitted in 1 minute",
        "free": "the next hit is admitted (exempt)",
    }
    rules = {how: {"rate": "10/m", "on_unavailable": how} for how in ("deny", "allow", "local")}
    settings.QUOTA = {"RULES": {**rules, "used": "1/m", "free": "10/m"}}
    with freeze(START):
        assert check("used", SUBJECT)
        override("x 0 0 ", "free")
    raw.config_set("maxmemory", 1)
    try:
        shown = run("quota_status", SUBJECT, *(word for name in said_of for word in ("--rule", name)))
        with freeze(START):
            assert [name for name in said_of if check(name, SUBJECT)] == ["allow", "local", "free"]
    finally:
        raw.config_set("maxmemory", 0)
    printed = [line.partition("; ")[2] for line in shown.splitlines() if " left; " in line]
    assert printed == [*said_of.values()]
    assert "Note: Redis takes no changes, so nothing is counted. It says: " in shown


@pytest.mark.django_db(transaction=True)
def test_plain_values_find_a_subject_of_several_parts_and_one_part_what_is_refused_together(settings: Any) -> None:
    settings.QUOTA = {"RULES": {"login": {"rate": "2/h", "key": ("ip", "post:username")}}}
    typed, hidden = f"{SUBJECT}+post:username=ann", f"{SUBJECT}+post.username:{digest('ann')}"
    with freeze(START):
        for _ in range(3):
            check("login", RequestFactory().post("/", {"username": "ann"}, REMOTE_ADDR="203.0.113.9"))
        check("0/m", "ip:198.51.100.7+user:7", name="other")
    shown = run("quota_status", typed)
    assert shown.startswith(f"{hidden}\n")
    assert "2 of 2 used" in shown
    assert "=ann" not in shown
    of_one_part = run("quota_status", SUBJECT)
    assert f"  together  {hidden} is refused by login\n" in of_one_part
    assert "user:7" not in of_one_part
    run("quota_override", "set", typed, "blocked")
    assert "no hit is admitted (blocked)" in run("quota_status", typed, "--rule", "login")
    assert "=ann" not in run("quota_override", "list", "--subject", typed)
    assert "blocked" in run("quota_override", "clear", typed)
    assert run("quota_reset", typed) == f"Reset login for {hidden}\n"


def test_wrong_input_is_a_clear_error(settings: Any) -> None:
    for words, says in (
        (["quota_status", "ip:nowhere"], "is not an IP address"),
        (["quota_status", "ip:2001:db8::/32"], "is a network. Use one address"),
        (["quota_status", "user:1", "--rule", "serach"], "Did you mean 'search'"),
        (["quota_bans", "set", SUBJECT, "search", "10m"], "has no ban="),
        (["quota_bans", "set", SUBJECT, "bannign", "10m"], r"Did you mean 'banning'\?"),
        (["quota_bans", "set", SUBJECT, "banning", "soon"], "soon"),
        (["quota_bans", "lift"], "required: subject"),
    ):
        with pytest.raises(CommandError, match=says):
            run(*words)
    settings.QUOTA = {"STORE": "memory"}
    for words in (["quota_reset", SUBJECT], ["quota_status", SUBJECT], ["quota_bans", "list"]):
        with pytest.raises(CommandError, match=r'other processes cannot see|is "memory"'):
            run(*words)


@pytest.mark.usefixtures("database")
def test_bans_are_set_listed_and_lifted() -> None:
    assert "There are no such bans." in run("quota_bans", "list")
    assert f"Banned {SUBJECT} from banning for 10 minutes.\n" in run("quota_bans", "set", SUBJECT, "banning", "10m")
    ban = {"subject": "user:7", "rule": "banning", "ends_in": 1200}
    assert run("quota_bans", "set", "user:7", "banning", "20m", "--json") == ban
    assert [row["subject"] for row in run("quota_bans", "list", "--json")] == [SUBJECT, "user:7"]
    assert run("quota_bans", "list", "--subject", "user:7").startswith("user:7 from banning until ")
    assert run("quota_bans", "list", "--rule", "search", "--json") == []
    assert run("quota_bans", "lift", SUBJECT, "--dry-run") == f"Would lift the ban of {SUBJECT} from banning\n"
    assert "No such ban" in run("quota_bans", "lift", SUBJECT, "--rule", "search")
    with freeze(START):
        assert not peek("banning", SUBJECT)
        assert run("quota_bans", "lift", SUBJECT) == f"Lifted the ban of {SUBJECT} from banning\n"
        assert peek("banning", SUBJECT)
    assert run("quota_bans", "lift", SUBJECT, "--json") == {"bans": [], "dry_run": False}


def test_a_reset_forgets_all_that_was_counted_and_lifts_bans(raw: redis.Redis) -> None:
    rules = ["5/30m", "9/d", "banning", "search"]
    with freeze(START):
        check("search", SUBJECT, 10)
        check("5/30m", SUBJECT)
        check("banning", SUBJECT)
        check("banning", SUBJECT)
        reserve("9/d", SUBJECT, 3)
        override("r 0 0 50/m", "search")
    before = {key: raw.dump(key) for key in raw.scan_iter()}
    assert run("quota_reset", SUBJECT, "--dry-run") == "".join(f"Would reset {name} for {SUBJECT}\n" for name in rules)
    assert {key: raw.dump(key) for key in raw.scan_iter()} == before
    assert run("quota_reset", SUBJECT) == "".join(f"Reset {name} for {SUBJECT}\n" for name in rules)
    assert raw.zcard("quota:1:{!}:bans") == 0
    with freeze(START):
        assert check("banning", SUBJECT)
        assert check("search", SUBJECT).limit == 50  # an override stays


def test_a_reset_may_name_rules(raw: redis.Redis) -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        check("10/m", SUBJECT)
        check("search", f"{SUBJECT}9")
    done = {"subject": SUBJECT, "rules": ["search"], "dropped": 2, "dry_run": False}
    assert 'Did you mean "search"?' in run("quota_reset", SUBJECT, "--rule", "serch")
    assert run("quota_reset", SUBJECT, "--rule", "search", "--json") == done
    assert run("quota_reset", SUBJECT, "--rule", "10 per minute") == f"Reset 10/m for {SUBJECT}\n"
    assert run("quota_reset", SUBJECT) == f"Nothing was counted for {SUBJECT}.\n"
    assert run("quota_reset", SUBJECT, "--verbosity", "0") == ""
    assert reset_subject(f"{SUBJECT}9", scan=True, dry_run=True).rules == ["search"]


@pytest.mark.parametrize("command", ["quota_status", "quota_reset"])
@pytest.mark.django_db
def test_a_note_says_whom_a_text_means(command: str) -> None:
    ann = User.objects.create_user("ann")
    override("s 0 0 ", "search", "*")  # makes no subject known
    assert "Note: '203.0.113.9' is taken for 'ip:203.0.113.9'.\n" in run(command, "203.0.113.9")
    assert f'"user:{ann.pk}"' in run(command, "ann")
    with freeze(START):
        check("search", "ann")
    for known in (SUBJECT, f"user:{ann.pk}", "ann"):
        assert "Note" not in run(command, known)
