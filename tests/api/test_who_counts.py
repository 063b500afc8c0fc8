"""Which subjects a rule counts: what is said of it by its key, and by the subjects that it has counted."""

from typing import Any
from unittest.mock import patch

import pytest
from django.http import HttpRequest

from django_quota import check
from django_quota.features.events import Event
from django_quota.limiting.overrides import overrides
from django_quota.models import DailyCounter, QuotaOverride
from django_quota.operating import who_counts as counting
from django_quota.operating.who_counts import who_counts
from tests.support.events import event_fields
from tests.support.outages import no_answer
from tests.support.overridden import override


def organization(request: HttpRequest) -> Any:
    return "7"


PATH = f"{__name__}.organization"
COUNTS = f"units counts by {PATH}."


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    units = {"rate": "5/m", "key": organization}
    login = {"rate": "5/m", "key": ("ip", "post:username")}
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory", "RULES": {"units": units, "login": login}}


def test_two_subjects_of_a_rule_are_shown_and_addresses_come_last() -> None:
    known = [("units", each) for each in ("ip:203.0.113.9", "org:7", "org:7", "org:8", "org:9")]

    assert who_counts(known).in_words("units") == f"{COUNTS} Subjects look like org:7, org:8."


def test_an_address_is_shown_where_no_other_subject_is_known() -> None:
    known = [("units", "ip:203.0.113.9"), ("units", "org:7")]

    assert who_counts(known).look_of("units") == "Subjects look like org:7, ip:203.0.113.9."


def test_nothing_is_said_of_subjects_where_none_is_known() -> None:
    assert (who_counts().look_of("units"), who_counts().in_words("units")) == ("", COUNTS)


def test_a_key_of_several_parts_is_joined_by_plus_signs() -> None:
    assert who_counts().key_of("login") == "ip+post:username"


@pytest.mark.parametrize(
    ("subject", "can"),
    [
        pytest.param("org:8", True, id="of the kind that it has counted"),
        pytest.param("user:42", False, id="of another kind"),
        pytest.param("*", True, id="everybody"),
    ],
)
def test_a_function_counts_the_kinds_that_it_has_counted(subject: str, can: bool) -> None:
    assert who_counts([("units", "org:7")]).can_count("units", subject) is can


def test_the_subjects_that_a_rule_has_counted_come_from_the_last_events() -> None:
    check("units", "org:7", 6)

    assert who_counts().subjects == {"units": ["org:7"]}


def test_an_event_with_the_digest_of_a_name_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = f"~{'0' * 64}"
    names = [("units", digest), (digest, "org:7"), ("units", "org:8")]
    events = [Event.read("1-0", event_fields(rule=rule, subject=subject)) for rule, subject in names]
    monkeypatch.setattr(counting, "newest_events", lambda *_: events)

    assert who_counts().subjects == {"units": ["org:8"]}


@pytest.mark.usefixtures("redis_cache")
def test_while_the_store_does_not_answer_what_is_known_is_used(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "STORE": "redis"}

    with no_answer():
        assert who_counts([("units", "org:7")]).subjects == {"units": ["org:7"]}


class TestOverrides:
    """The overrides of a rule show whom it counts where nothing else does."""

    def test_they_show_subjects(self) -> None:
        override("x 0 0 ", "units", "org:9")

        assert who_counts().subjects == {"units": ["org:9"]}

    @pytest.mark.django_db
    def test_one_that_another_process_saved_shows_a_subject(self) -> None:
        overrides.refresh()

        with patch.object(overrides, "change"):  # this process is not told
            QuotaOverride.objects.create(mode="exempt", subject="org:9", rule="units")

        assert who_counts().subjects == {"units": ["org:9"]}

    def test_those_of_groups_and_of_other_rules_do_not(self) -> None:
        override("x 0 0 ", "units", "org:*")
        override("x 0 0 ", "gone", "org:9")

        assert who_counts().subjects == {}

    def test_they_come_after_what_was_counted(self) -> None:
        override("x 0 0 ", "units", "user:42")

        assert who_counts([("units", "org:7")]).subjects == {"units": ["org:7"]}


class TestUsage:
    """The rows of usage show whom a function counts where no event does."""

    @pytest.fixture(autouse=True)
    def rows(self, database: Any) -> None:
        for rule, subject in (("units", "org:9"), ("login", "ip:203.0.113.9+post.username:ann")):
            DailyCounter.objects.create(subject=subject, rule=rule, day="2026-11-01", allowed=1)

    def test_they_show_subjects_of_a_function(self) -> None:
        assert who_counts().subjects == {"units": ["org:9"]}

    def test_they_come_after_what_was_counted(self) -> None:
        assert who_counts([("units", "org:7")]).subjects == {"units": ["org:7"]}

    def test_a_new_override_of_another_rule_is_read(self) -> None:
        pair = "ip:203.0.113.7+post.username:bob"
        QuotaOverride.objects.create(subject=pair, rule="login", mode="exempt")

        assert who_counts().subjects == {"units": ["org:9"], "login": [pair]}

    def test_they_come_before_overrides(self) -> None:
        QuotaOverride.objects.create(subject="org:8", rule="units", mode="exempt")

        assert who_counts().subjects == {"units": ["org:9"]}

    def test_the_newest_come_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(counting, "READ", 2)
        for number in (2, 5, 3):
            DailyCounter.objects.create(subject=f"org:{number}", rule="units", day=f"2026-11-0{number}", allowed=1)

        assert who_counts().subjects == {"units": ["org:5", "org:3"]}
