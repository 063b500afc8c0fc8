"""`ban`, `unban` and `reset`: what your code sets is like what the limiter sets, and is lifted like that."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import path

from django_quota import Decision, Rule, aban, areset, aunban, ban, check, peek, quota, reset, unban
from django_quota.conf import current
from django_quota.engine.events import AppendEvents
from django_quota.exceptions import RuleError, StoreUnavailable
from django_quota.features import bans
from django_quota.features.bans import BanFilter, fates, find_bans, read_bans, recent_bans
from django_quota.features.events import Event, newest_events
from django_quota.features.subject_contents import read_contents
from django_quota.limiting.registry import get_limiter
from django_quota.signals import banned
from django_quota.testing import freeze
from tests.support.calls import always
from tests.support.commands import json_of
from tests.support.counts import bans_of
from tests.support.events import event_fields
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.steps import MINUTE, SECOND, START
from tests.support.stores import spy

SUBJECT = "ip:203.0.113.9"
BAN = {"after": "1000/m", "for": "10m"}  # never reached
RULES: dict[str, Any] = {
    "search": {"rate": "3/m", "ban": BAN},
    "without": "3/m",
    "login": {"rate": "1/m", "ban": {"after": "2/m", "for": ["10m", "1h"]}},
    "by-header": {"rate": "3/m", "key": "header:X-Key", "ban": BAN},
    "tiers": {"rate": {"anonymous": "3/m", "pro": "9/m"}, "tier": always("pro"), "ban": BAN},
    "dynamic": {"rate": always("3/m"), "cost": always(2), "ban": BAN},
    "values": {"rate": "3/m", "distinct": "header:X-Device", "ban": BAN},
    "shadow": {"rate": "3/m", "shadow": True},
    "unlimited": {"rate": None, "ban": BAN},
}

in_memory = pytest.mark.usefixtures("memory_store", "rules")
on_redis = pytest.mark.usefixtures("redis_cache", "rules")


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("", quota("5/h", name="of-the-view", ban=BAN)(view))]


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Call a verb or its async twin: `do(ban, aban, "search", SUBJECT, 600)`."""
    if request.param == "sync":
        return lambda verb, averb, *given: verb(*given)
    return lambda verb, averb, *given: asyncio.run(averb(*given))


def get(**meta: Any) -> HttpRequest:
    made = RequestFactory().get("/", REMOTE_ADDR="203.0.113.9", **meta)
    made.user = AnonymousUser()
    return made


@pytest.fixture
def rules(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}


@pytest.fixture
def signalled() -> Iterator[Mock]:
    found = Mock()
    banned.connect(found)
    yield found
    banned.disconnect(found)


Do = Callable[..., Any]


@pytest.mark.usefixtures("either_store", "rules")
class TestInEachStore:
    def test_a_ban_refuses_at_once(self, do: Do) -> None:
        with freeze(START):
            decision: Decision = do(ban, aban, "search", SUBJECT, 600)

            assert (decision.allowed, decision.enforced, decision.retry_after) == (False, True, 600.0)
            assert bans_of(SUBJECT) == [("search", 600.0, 1)]

    def test_a_ban_refuses_until_its_end(self, do: Do) -> None:
        with freeze(START):
            do(ban, aban, "search", SUBJECT, 600)

        with freeze(START + 10 * MINUTE - 1):
            assert not check("search", SUBJECT)
        with freeze(START + 10 * MINUTE):
            assert check("search", SUBJECT)

    def test_what_a_ban_refuses_takes_nothing(self, do: Do) -> None:
        with freeze(START):
            do(ban, aban, "search", SUBJECT, 600)

            assert check("search", SUBJECT).remaining == 3

    def test_a_ban_from_one_rule_leaves_the_others(self, do: Do) -> None:
        with freeze(START):
            do(ban, aban, "search", SUBJECT, 600)

            assert check("login", SUBJECT)

    def test_a_shorter_ban_changes_nothing(self, do: Do) -> None:
        with freeze(START):
            do(ban, aban, "search", SUBJECT, 600)

            do(ban, aban, "search", SUBJECT, 60)

            assert bans_of(SUBJECT) == [("search", 600.0, 1)]

    def test_a_ban_that_begins_at_the_end_of_another_is_the_second_one(self, do: Do) -> None:
        for moment in (START, START + 10 * MINUTE):
            with freeze(moment):
                do(ban, aban, "search", SUBJECT, 600)

        with freeze(START + 10 * MINUTE):
            assert bans_of(SUBJECT) == [("search", 600.0, 2)]

    def test_a_ban_is_signalled_once(self, do: Do, signalled: Mock) -> None:
        with freeze(START):
            for seconds in (600, 600, 60):
                do(ban, aban, "search", SUBJECT, seconds)

        signalled.assert_called_once()
        given = signalled.call_args.kwargs
        assert (given["rule"].name, given["subject"], given["decision"].retry_after) == ("search", SUBJECT, 600.0)

    @pytest.mark.parametrize(
        ("named", "number"), [("*", 2), ("search", 1), ("without", 0)], ids=["all", "of a rule", "of another rule"]
    )
    def test_unban_counts_the_bans_that_it_lifts(self, named: str, number: int, do: Do) -> None:
        with freeze(START):
            for rule in ("search", Rule.make("5/d", "5/d", ban=BAN)):
                ban(rule, SUBJECT, 600)

            assert do(unban, aunban, named, SUBJECT) == number
            assert len(bans_of(SUBJECT)) == 2 - number

    @pytest.mark.parametrize("name", ["shop:export", "two words", "für alle"])
    def test_unban_lifts_the_ban_of_a_rule_of_any_name(self, name: str, do: Do) -> None:
        rule = Rule.make(name, "5/d", ban=BAN)
        with freeze(START):
            ban(rule, SUBJECT, 600)

            assert do(unban, aunban, rule, SUBJECT) == 1
            assert bans_of(SUBJECT) == []

    def test_unban_has_nothing_to_lift_the_second_time(self, do: Do) -> None:
        with freeze(START):
            ban("search", SUBJECT, 600)

            assert [do(unban, aunban, "*", SUBJECT) for _ in range(2)] == [1, 0]

    def test_unban_leaves_what_was_counted(self, do: Do) -> None:
        with freeze(START):
            check("search", SUBJECT)
            ban("search", SUBJECT, 600)

            do(unban, aunban, "search", SUBJECT)

            assert check("search", SUBJECT).remaining == 1

    def test_a_longer_ban_replaces_a_shorter_one(self, do: Do) -> None:
        with freeze(START):
            ban("search", SUBJECT, 600)

            assert do(ban, aban, "search", SUBJECT, 900).retry_after == 900.0
            assert not check("search", SUBJECT)

    def test_a_reset_of_the_rule_lifts_the_ban(self) -> None:
        with freeze(START):
            ban("search", SUBJECT, 600)

            assert reset("search", SUBJECT)
            assert check("search", SUBJECT)


@pytest.mark.usefixtures("either_store", "rules")
class TestResetOfASubject:
    """A user with a ban and with counts of two rules."""

    @pytest.fixture(autouse=True)
    def user(self, either_store: None, rules: None) -> Iterator[User]:
        user = User(pk=7)
        with freeze(START):
            check("search", user)
            check("5/h", user, name="of-the-view")
            ban("login", user, 600)
            yield user

    def test_it_says_how_much_it_forgot(self, user: User) -> None:
        assert reset("*", user) == 3

    @pytest.mark.parametrize(
        ("rate", "name", "limit"),
        [("3/m", "search", 3), ("5/h", "of-the-view", 5)],
        ids=["a rule of the settings", "a rule of a call"],
    )
    def test_it_forgets_the_count_of(self, rate: str, name: str, limit: int, user: User) -> None:
        reset("*", user)

        assert peek(rate, user, name=name).remaining == limit

    def test_it_lifts_bans(self, user: User) -> None:
        reset("*", user)

        assert check("login", user)

    def test_it_leaves_other_subjects(self, user: User) -> None:
        check("search", "user:8")

        reset("*", user)

        assert peek("search", "user:8").remaining == 2


@in_memory
class TestBan:
    def test_it_explains_itself(self) -> None:
        decision = ban("search", SUBJECT, 600)

        assert decision.explain() == f"Rule 'search' refuses {SUBJECT}, which is banned; try again in 10 minutes."

    def test_the_next_ban_of_the_limiter_is_the_second_one(self) -> None:
        """Which lasts longer."""
        with freeze(START):
            ban("login", SUBJECT, 60)

        with freeze(START + 2 * MINUTE):
            for _ in range(3):
                check("login", SUBJECT)
            assert bans_of(SUBJECT) == [("login", 3_600.0, 2)]

    def test_a_user_can_be_banned(self) -> None:
        ban("search", User(pk=42), 600)

        assert not check("search", "user:42")

    def test_the_client_of_a_request_can_be_banned(self) -> None:
        asked = get(HTTP_X_KEY="secret")

        assert ban("by-header", asked, 600).subject == check("by-header", asked).subject
        assert not check("by-header", asked)
        assert check("by-header", get(HTTP_X_KEY="other"))

    def test_the_ban_of_the_client_of_a_request_is_lifted_by_the_request(self) -> None:
        asked = get(HTTP_X_KEY="secret")
        ban("by-header", asked, 600)

        assert unban("by-header", asked) == 1
        assert check("by-header", asked)

    def test_the_request_of_a_framework_is_one_too(self) -> None:
        assert ban("search", SimpleNamespace(_request=get()), 600).subject == SUBJECT

    @pytest.mark.parametrize(
        "rule",
        [
            pytest.param("of-the-view", id="a rule of a view"),
            pytest.param(Rule.make("own", "2/m", ban=BAN), id="an object"),
            pytest.param("tiers", id="a rule with tiers"),
            pytest.param("dynamic", id="a rule whose rate is a function"),
            pytest.param("values", id="a rule that counts different values"),
        ],
    )
    def test_it_refuses_under(self, rule: Any) -> None:
        assert not ban(rule, SUBJECT, 600)
        assert [name for name, _, _ in bans_of(SUBJECT)] == [rule if isinstance(rule, str) else rule.name]

    @pytest.mark.parametrize("rule", ["tiers", "dynamic", "values"])
    def test_it_refuses_where_only_a_request_knows_the_rate(self, rule: str) -> None:
        ban(rule, SUBJECT, 600)

        assert check(rule, get(HTTP_X_DEVICE="d")).outcomes[0].why == "banned"

    def test_an_exemption_takes_precedence_over_it(self) -> None:
        ban("search", SUBJECT, 600)

        override("x 0 0 ", "search")

        assert check("search", SUBJECT)

    def test_a_block_takes_precedence_over_it(self) -> None:
        ban("search", SUBJECT, 600)

        override("b 0 0 ", "search")

        assert check("search", SUBJECT).outcomes[0].why == "blocked"

    @pytest.mark.parametrize(
        ("rule", "problem"),
        [
            pytest.param(
                "shadow",
                "Rule 'shadow' is a shadow, which never refuses: a ban would have no effect.",
                id="under a shadow rule",
            ),
            pytest.param(
                "10/mm",
                "'10/mm' is not a rate: 'mm' is not a unit (at position 3). Units, in lower case: s, m, h, d, w (or in "
                'full), month, year. Nor is it a rule in QUOTA["RULES"]. Known: by-header, dynamic, login, search, '
                "shadow, tiers, unlimited, values, without.",
                id="under a wrong rate",
            ),
            pytest.param(
                "unlimited",
                "Rule 'unlimited' has no rate, so it never asks the store: a ban would have no effect.",
                id="under a rule without a rate",
            ),
            pytest.param(
                "without",
                "Rule 'without' has no ban=, so its checks do not look for bans. Give it ban=, or block the subject by "
                "an override: `manage.py quota_override set <subject> blocked`.",
                id="under a rule without ban=",
            ),
            pytest.param(
                "serach",
                "'serach' is not a rate, nor a rule of the settings or the views. Did you mean 'search'? For a rule "
                "that only a call names, pass it: Rule.make('serach', rate).",
                id="under a misspelled rule",
            ),
        ],
    )
    def test_a_ban_without_effect_is_an_error(self, rule: str, problem: str) -> None:
        with pytest.raises(RuleError) as caught:
            ban(rule, SUBJECT, 600)

        assert str(caught.value) == problem


@on_redis  # which keeps a ban when the settings change
class TestWhileLimitingIsOff:
    @pytest.fixture
    def decision(self, redis_cache: Any, rules: None, signalled: Mock, settings: Any) -> Decision:
        """The answer to a ban of that time; limiting is on again."""
        before = settings.QUOTA
        settings.QUOTA = {**before, "ENABLED": False}
        decision = ban("search", SUBJECT, 600)
        settings.QUOTA = before
        return decision

    def test_a_ban_is_answered_as_allowed(self, decision: Decision) -> None:
        assert decision.allowed

    @pytest.mark.usefixtures("decision")
    def test_a_ban_is_not_set(self) -> None:
        assert bans_of(SUBJECT) == []

    @pytest.mark.usefixtures("decision")
    def test_a_ban_is_not_signalled(self, signalled: Mock) -> None:
        assert not signalled.called


@on_redis
class TestEvents:
    def test_a_ban_is_an_event(self) -> None:
        with freeze(START):
            ban("search", SUBJECT, 600)

        (event,) = json_of("quota_events", last=9)
        shown = [event[name] for name in ("kind", "rule", "subject", "until", "level", "capacity", "remaining")]
        assert shown == ["banned", "search", SUBJECT, "2025-11-21T04:50:00+00:00", 1, 3, 3]

    @pytest.fixture
    def no_events(self, rules: None, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}

    @pytest.mark.usefixtures("no_events")
    def test_without_events_it_refuses(self) -> None:
        assert not ban("search", SUBJECT, 600)
        assert not check("search", SUBJECT)

    @pytest.mark.usefixtures("no_events")
    def test_without_events_it_writes_none(self, raw: Any) -> None:
        ban("search", SUBJECT, 600)

        assert not [key for key in raw.scan_iter() if b"events" in key or key.endswith(b":bans")]

    @pytest.mark.usefixtures("no_events")
    def test_without_events_it_is_not_signalled(self, signalled: Mock) -> None:
        ban("search", SUBJECT, 600)

        assert not signalled.called


@in_memory
@pytest.mark.parametrize(
    ("verb", "given"),
    [(ban, ("search", 600)), (unban, ("*",)), (unban, ("search",)), (reset, ("*",)), (reset, ("search",))],
    ids=["ban", "unban of all rules", "unban", "reset of all rules", "reset"],
)
@pytest.mark.parametrize(
    "subject",
    ["", "ip:nothing", 5, None, User()],
    ids=["nothing", "no address", "a number", "None", "a user that is not saved"],
)
def test_a_wrong_subject_is_an_error(verb: Callable[..., Any], given: tuple[Any, ...], subject: Any) -> None:
    with pytest.raises(RuleError):
        verb(given[0], subject, *given[1:])


@in_memory
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda do: do(ban, aban, "search", SUBJECT, 9), id="ban"),
        pytest.param(lambda do: do(unban, aunban, "*", SUBJECT), id="unban"),
        pytest.param(lambda do: do(reset, areset, "*", SUBJECT), id="reset"),
    ],
)
def test_without_the_store_it_is_an_error(call: Callable[[Do], object], do: Do) -> None:
    with no_answer(), pytest.raises(StoreUnavailable):
        call(do)


@in_memory
class TestStoreThatFailsAfterTheBan:
    """The ban is in the store, and the next call is not answered."""

    def ban_and_lose(self, lost: Callable[[Any], bool]) -> None:
        def lose(operation: Any) -> None:
            if lost(operation):
                raise StoreUnavailable("it is gone")

        with pytest.MonkeyPatch.context() as patched:
            spy(patched, before=lose)
            ban("search", SUBJECT, 600)

    def test_a_ban_that_could_not_be_looked_at_is_an_error(self) -> None:
        with pytest.raises(StoreUnavailable, match="it has not answered since the ban was set"):
            self.ban_and_lose(lambda operation: getattr(operation, "mode", None) == "peek")

    def test_an_event_that_could_not_be_written_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        self.ban_and_lose(lambda operation: isinstance(operation, AppendEvents))

        assert "The event of a ban could not be written: The quota store is unavailable: it is gone" in caplog.text

    def test_a_ban_without_its_event_holds(self) -> None:
        self.ban_and_lose(lambda operation: isinstance(operation, AppendEvents))

        assert not check("search", SUBJECT)


@on_redis
@pytest.mark.parametrize(
    ("rate", "options", "times"),
    [("1/m", {"ban": {"after": "1/m", "for": "1m"}}, 2), ("1/m", {}, 2), ("5/m", {"warn_at": 0.8}, 4), ("5/m", {}, 0)],
    ids=["a short ban after refusals", "a refusal", "a limit that is nearly used up", "a short ban in code"],
)
def test_no_later_event_forgets_a_longer_ban(raw: Any, rate: str, options: dict[str, Any], times: int) -> None:
    with freeze(START):
        ban("search", SUBJECT, 2 * 86_400)

        for _ in range(times):
            check(rate, SUBJECT, name="other", **options)
        ban("login", SUBJECT, 60)

    lifetimes = {key: raw.ttl(key) for key in (f"quota:1:{{{SUBJECT}}}:s", "quota:1:{!}:bans")}
    assert {key: seconds for key, seconds in lifetimes.items() if seconds <= 86_400} == {}


@in_memory
class TestWhoAndWhy:
    def test_the_event_says_who_set_a_ban(self) -> None:
        ban("search", SUBJECT, 600, by="the watchdog")

        (event,) = newest_events(get_limiter().store, current().prefix, 9)
        assert event.user == "the watchdog"

    @pytest.mark.usefixtures("database")
    def test_the_event_has_the_subject_of_the_user_who_set_a_ban(self) -> None:
        ann = User.objects.create_user("ann")

        ban("search", SUBJECT, 600, by=ann)

        (event,) = newest_events(get_limiter().store, current().prefix, 9)
        assert event.set_by == f"user:{ann.pk}"

    def test_the_event_says_why_a_ban_was_set(self) -> None:
        ban("search", SUBJECT, 600, reason="spam", by="the watchdog")

        (event,) = newest_events(get_limiter().store, current().prefix, 9)
        assert event.reason == "spam"

    def test_the_event_has_the_longest_reason_of_the_longest_name(self) -> None:
        ban("search", SUBJECT, 600, reason="x" * 500, by="y" * 200)

        (event,) = newest_events(get_limiter().store, current().prefix, 9)
        assert (event.reason, event.user) == ("x" * 500, "y" * 200)

    def test_the_event_has_the_reason_on_one_line(self) -> None:
        ban("search", SUBJECT, 600, reason=" spam,\n see\tthe ticket ", by="the watchdog")

        (event,) = newest_events(get_limiter().store, current().prefix, 9)
        assert event.reason == "spam, see the ticket"

    @pytest.mark.usefixtures("database")
    @pytest.mark.parametrize("verb", [ban, async_to_sync(aban)], ids=["sync", "async"])
    def test_the_log_of_the_admin_says_which_user_set_a_ban(self, verb: Callable[..., object]) -> None:
        ann = User.objects.create_user("ann")

        with freeze(START):
            verb("search", SUBJECT, 600, reason="spam", by=ann)

        entry = LogEntry.objects.get()
        assert (entry.object_id, entry.object_repr, entry.user) == (SUBJECT, SUBJECT, ann)
        assert entry.change_message == "Ban: search, until 2025-11-21T04:50:00Z (spam)"

    @pytest.mark.usefixtures("database")
    def test_the_log_of_the_admin_keeps_the_beginning_of_a_long_subject(self) -> None:
        subject = "+".join(f"org:{letter * 20}" for letter in "abcdefghij")

        ban("search", subject, 600, by=User.objects.create_user("ann"))

        entry = LogEntry.objects.get()
        assert (entry.object_id, entry.object_repr) == (subject, subject[:200])

    @pytest.mark.usefixtures("database")
    def test_in_the_log_of_the_admin_a_ban_is_a_change_of_a_subject(self) -> None:
        ban("search", SUBJECT, 600, by=User.objects.create_user("ann"))

        entry = LogEntry.objects.get()
        assert entry.is_change()
        assert entry.content_type is not None
        assert entry.content_type.model == "subject"

    @pytest.mark.usefixtures("database")
    def test_a_ban_that_changes_nothing_is_not_in_the_log_of_the_admin(self) -> None:
        ann = User.objects.create_user("ann")

        for seconds in (600, 60):
            ban("search", SUBJECT, seconds, by=ann)

        assert LogEntry.objects.count() == 1

    @pytest.mark.usefixtures("database")
    def test_a_ban_is_not_logged_on_a_site_without_the_admin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(apps, "is_installed", lambda name: name != "django.contrib.admin")

        assert not ban("search", SUBJECT, 600, by=User.objects.create_user("ann"))

        assert not LogEntry.objects.exists()

    @pytest.mark.parametrize(
        "given",
        [
            pytest.param({"reason": "x" * 501}, id="a long reason"),
            pytest.param({"reason": None}, id="no string"),
            pytest.param({"by": 7}, id="a number"),
            pytest.param({"by": AnonymousUser()}, id="nobody"),
            pytest.param({"by": User(username="ann")}, id="a user who is not saved"),
            pytest.param({"by": "a\nb"}, id="a line break"),
            pytest.param({"by": "x" * 201}, id="a long name"),
        ],
    )
    def test_a_wrong_argument_is_an_error_that_names_it(self, given: dict[str, Any]) -> None:
        with pytest.raises(RuleError, match=f"^{next(iter(given))}="):
            ban("search", SUBJECT, 600, **given)


@pytest.mark.usefixtures("either_store", "rules")
class TestRecentBans:
    def test_they_are_found_among_all_events_since_the_oldest(self) -> None:
        with freeze(START):
            check("0/m", SUBJECT)
        with freeze(START + SECOND):
            ban("search", SUBJECT, 600)
            ban("login", SUBJECT, 600)

            found = recent_bans(BanFilter(rule="search"))
            oldest = newest_events(get_limiter().store, current().prefix, 9)[-1]

        assert [(each.kind, each.rule) for each in found.events] == [("banned", "search")]
        assert found.since == oldest.at

    def test_they_are_among_the_newest_five_thousand_events(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = Mock()
        log.newest_bans.return_value = ([], 0)
        monkeypatch.setattr(bans, "event_log", lambda *_: log)

        recent_bans(BanFilter())

        log.newest_bans.assert_called_once_with(5_000)

    def test_without_an_event_there_is_no_oldest(self) -> None:
        assert recent_bans(BanFilter()) == ([], 0)


@on_redis
def test_the_rules_of_a_list_of_bans_are_those_whose_names_are_kept() -> None:
    for rule in ("search", Rule.make("é" * 200, "2/m", ban=BAN), "login"):
        ban(rule, SUBJECT, 600)

    found = find_bans(BanFilter())

    assert (found.rules, found.total, len(found.bans)) == (["login", "search"], 3, 3)


@on_redis
def test_a_list_has_the_whole_name_of_a_rule_that_is_known(settings: Any) -> None:
    name = "a rule: " + "é" * 200
    settings.QUOTA = {**settings.QUOTA, "RULES": {name: {"rate": "3/m", "ban": BAN}}}
    ban(name, SUBJECT, 600)

    assert [each.rule for each in find_bans(BanFilter()).bans] == [name]


@on_redis
def test_a_list_may_have_fewer_bans_than_are_in_force() -> None:
    for seconds in (900, 600, 700):
        ban("search", f"user:{seconds}", seconds)

    number, found = bans.bans_in_force(2)

    assert (number, [each.subject for each in found or ()]) == (3, ["user:600", "user:700"])


@in_memory
def test_a_list_has_ten_thousand_bans_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bans, "bans_in_force", listed := Mock(return_value=(0, [])))

    find_bans(BanFilter())

    listed.assert_called_once_with(10_000)


@pytest.mark.usefixtures("either_store", "rules")
def test_the_bans_of_some_subjects_are_listed_in_the_order_of_their_ends() -> None:
    with freeze(START):
        for rule, subject, seconds in (("login", "user:1", 900), ("search", "user:2", 600), ("search", "user:1", 700)):
            ban(rule, subject, seconds)

        found = find_bans(BanFilter(["user:1", "user:2"])).bans

    assert [(each.rule, each.subject, each.until - START) for each in found] == [
        ("search", "user:2", 600 * SECOND), ("search", "user:1", 700 * SECOND), ("login", "user:1", 900 * SECOND)
    ]  # fmt: skip


@on_redis
def test_a_ban_that_ends_at_this_moment_is_in_no_list() -> None:
    with freeze(START):
        ban("search", SUBJECT, 600)
        ban("login", SUBJECT, 601)

    with freeze(START + 600 * SECOND):
        found = find_bans(BanFilter())

    assert ([each.rule for each in found.bans], found.total) == (["login"], 1)


@pytest.mark.parametrize(
    ("wanted", "subject", "fits"),
    [
        pytest.param(BanFilter(["user:1"]), "user:1", True, id="the subject"),
        pytest.param(BanFilter(["user:1"]), "user:12", False, id="a subject that begins with it"),
        pytest.param(BanFilter(["user:1"]), f"{SUBJECT}+user:1", True, id="a part of a subject"),
        pytest.param(BanFilter(["user:1"]), f"{SUBJECT}+user:12", False, id="a part that begins with it"),
        pytest.param(BanFilter([f"{SUBJECT}+user:1"]), f"{SUBJECT}+user:1", True, id="a combined subject"),
        pytest.param(BanFilter(["ann"]), "org:annika", True, id="a word in it"),
        pytest.param(BanFilter(["ann"]), "org:7", False, id="another word"),
        pytest.param(BanFilter(["org:7", "user:1"]), "user:1", True, id="one of two subjects"),
        pytest.param(BanFilter(["user:1"], "search"), "user:1", False, id="another rule"),
        pytest.param(BanFilter(["user:1"]), None, False, id="a name too long to keep"),
        pytest.param(BanFilter(), None, True, id="a name too long to keep without a filter"),
    ],
)
def test_a_filter_finds_the_bans_of_its_subjects(wanted: BanFilter, subject: str | None, fits: bool) -> None:
    assert wanted.fits("login", subject) is fits


@on_redis
def test_bans_are_read_at_the_time_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    ban("search", SUBJECT, 600)
    monkeypatch.setattr("django_quota.core.clock.machine_now", lambda: START)

    now, _ = read_bans([SUBJECT])

    assert now > START


@in_memory
def test_without_a_subject_that_is_kept_bans_are_read_now() -> None:
    with freeze(START):
        assert read_bans([None]) == (START, {})


@pytest.mark.usefixtures("either_store", "rules")
class TestTheNextBan:
    """The rule remembers a ban for an hour after its end."""

    @pytest.mark.parametrize(
        ("later", "level"), [(660 + 3_599, 2), (660 + 3_601, 1)], ids=["while it is remembered", "afterwards"]
    )
    def test_is_the_second_one(self, later: int, level: int) -> None:
        with freeze(START):
            ban("login", SUBJECT, 660)
        with freeze(START + later * SECOND):
            ban("login", SUBJECT, 60)

            assert [found for _, _, found in bans_of(SUBJECT)] == [level]


@pytest.mark.usefixtures("either_store", "rules")
def test_a_ban_that_ends_at_this_moment_is_not_lifted() -> None:
    with freeze(START):
        ban("login", SUBJECT, 60)
    with freeze(START + 60 * SECOND):
        assert unban("login", SUBJECT) == 0


@in_memory
def test_the_signal_of_a_ban_names_the_subject_of_a_user(signalled: Mock) -> None:
    ban("search", User(pk=7), 600)

    assert signalled.call_args.kwargs["subject"] == "user:7"


@pytest.mark.usefixtures("either_store", "rules")
class TestTheBansThatWereReadWithASubject:
    def test_are_in_the_order_of_their_rules(self) -> None:
        with freeze(START):
            for rule in ("search", "login", "values"):
                ban(rule, SUBJECT, 600)

            assert [rule for rule, _, _ in bans_of(SUBJECT)] == ["login", "search", "values"]

    def test_have_the_name_of_a_rule_that_nobody_knows_any_more(self) -> None:
        ban(Rule.make("old: [rule]", "2/m", ban=BAN), SUBJECT, 600)

        assert [found.rule for found in read_contents(SUBJECT).bans()] == ["old: [rule]"]

    def test_have_the_digest_of_a_name_that_is_neither_kept_nor_known(self) -> None:
        ban(Rule.make("é" * 200, "2/m", ban=BAN), SUBJECT, 600)

        (found,) = read_contents(SUBJECT).bans()

        assert (found.rule, found.rule[0], len(found.rule)) == (found.field, "~", 65)


class TestTheBansOfASubject:
    LONG = "a rule: " + "é" * 200

    @pytest.fixture(autouse=True)
    def banned_twice(self, either_store: Any, settings: Any) -> None:
        settings.QUOTA = {
            **settings.QUOTA,
            "RULES": {name: {"rate": "3/m", "ban": BAN} for name in ("search", self.LONG)},
        }
        for name in ("search", self.LONG):
            ban(name, "user:1", "10m")

    def test_are_found_once_by_rule(self) -> None:
        assert [each.rule for each in find_bans(BanFilter(["user:1"], "search")).bans] == ["search"]

    def test_have_the_names_of_their_rules_however_long(self) -> None:
        _, found = read_bans(["user:1"])

        assert found.keys() == {("user:1", "search"), ("user:1", self.LONG)}


def ban_event(subject: str = "user:1", rule: str = "api", at: int = 0, until: int = 600) -> Event:
    """Return the event of a ban, by the seconds of its beginning and end."""
    fields = event_fields("banned", rule, subject, until=START + until * SECOND)
    return Event.read(f"{START // 1_000 + at * 1_000}-0", fields)


@pytest.mark.parametrize(
    ("events", "found"),
    [
        pytest.param([ban_event(until=100)], ["ended"], id="it ends now"),
        pytest.param([ban_event(until=101)], ["in force"], id="it ends later"),
        pytest.param([ban_event(rule="web", until=101)], ["lifted"], id="no longer in force before its end"),
        pytest.param([ban_event(at=50), ban_event()], ["in force", "replaced"], id="a newer one began before its end"),
        pytest.param([ban_event(at=50), ban_event(until=50)], ["in force", "ended"], id="a newer one began at its end"),
        pytest.param(
            [ban_event(at=90), ban_event(at=50, until=70), ban_event(until=60)],
            ["in force", "ended", "replaced"],
            id="three in a row",
        ),
        pytest.param([ban_event(rule="web", at=50), ban_event()], ["lifted", "in force"], id="of another rule"),
        pytest.param([ban_event("user:2", at=50), ban_event()], ["lifted", "in force"], id="of another subject"),
        pytest.param([ban_event(f"~{'0' * 64}")] * 2, ["in force"] * 2, id="of a name too long to keep"),
        pytest.param([ban_event(f"~{'0' * 64}", until=100)], ["ended"], id="of a name too long to keep, at its end"),
    ],
)
def test_the_history_says_what_became_of_each_ban(events: list[Event], found: list[str]) -> None:
    """It is read 100 seconds after START, when only user:1 is banned, by the rule api."""
    assert list(fates(events, START + 100 * SECOND, {("user:1", "api")})) == found
