"""The pages of a site without USE_TZ: moments have no time zone, and are those of TIME_ZONE."""

from datetime import datetime
from typing import Any

import pytest
from django.test import Client

from django_quota import peek
from django_quota.models import QuotaOverride
from tests.admin.operators import superuser
from tests.admin.texts import messages_of

ROOT = "/admin/django_quota/"
moment = datetime.fromisoformat
BEGIN, END = moment("2025-11-01T09:00"), moment("2099-01-02T18:00")

pytestmark = pytest.mark.usefixtures("memory_store")


@pytest.fixture
def client(database: Any, settings: Any) -> Client:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Tokyo"
    settings.QUOTA = {**settings.QUOTA, "RULES": {"api": {"rate": "10/m", "key": "user"}}}
    return superuser()


@pytest.mark.parametrize("begins", [False, True], ids=["at once", "at a moment"])
@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("ban/", "Jan. 2, 2099, 6 p.m. JST"),
        ("subject/?subject=user:7", "Jan. 2, 2099, 6 p.m. JST"),
        ("quotaoverride/", "until 01/02/2099 6 p.m. JST"),
        ("quotaoverride/rule/?name=api", "Jan. 2, 2099, 6 p.m. JST"),
    ],
)
def test_a_page_shows_the_end_of_an_override(client: Client, page: str, words: str, *, begins: bool) -> None:
    subject = "user:*" if "rule/" in page else "user:7"
    start = BEGIN if begins else None
    QuotaOverride.objects.create(subject=subject, rule="api", mode="blocked", starts=start, expires=END)

    assert words in client.get(ROOT + page).content.decode()


def test_the_history_of_bans_says_what_became_of_each_block(client: Client) -> None:
    later, past = moment("2098-01-01"), moment("2025-12-01")
    for rule, starts, expires in (("api", BEGIN, END), ("b", BEGIN, past), ("c", later, END)):
        QuotaOverride.objects.create(subject="user:7", rule=rule, mode="blocked", starts=starts, expires=expires)

    history = client.get(f"{ROOT}ban/").context["history"]

    assert [(block.rule, str(state)) for _, block, _, state in history] == [
        ("c", "not yet begun"),
        ("b", "ended"),
        ("api", "in force"),
    ]


@pytest.mark.parametrize(
    ("page", "more"),
    [
        pytest.param("ban/set/", {"rule": ""}, id="the list of bans"),
        pytest.param("subject/action/block/", {"on": "*", "confirmed": "yes"}, id="the page of a subject"),
    ],
)
class TestBlock:
    def block(self, client: Client, page: str, **given: str) -> Any:
        form = {"subject": "user:7", "span": "1d", "until": "", "reason": "spam", "note": ""}
        return client.post(ROOT + page, {**form, **given}, follow=True)

    def test_ends_at_the_moment_that_was_chosen(self, client: Client, page: str, more: dict[str, str]) -> None:
        answer = self.block(client, page, until="2099-01-02T18:00", **more)

        assert QuotaOverride.objects.get().expires == END
        assert "until Jan. 2, 2099, 6 p.m. JST" in messages_of(answer)[0][1]

    def test_holds_at_once_for_the_time_that_was_chosen(self, client: Client, page: str, more: dict[str, str]) -> None:
        self.block(client, page, **more)

        assert not peek("api", "user:7")

    def test_cannot_end_in_the_past(self, client: Client, page: str, more: dict[str, str]) -> None:
        answer = self.block(client, page, until="2025-11-01T09:00", **more)

        assert "It must be in the future." in answer.content.decode()
        assert not QuotaOverride.objects.exists()


def test_overrides_can_be_expired(client: Client) -> None:
    row = QuotaOverride.objects.create(subject="user:7", rule="api", mode="blocked", starts=BEGIN, expires=END)
    fields = {"action": "expire_selected", "_selected_action": row.pk, "confirmed": "yes"}

    client.post(f"{ROOT}quotaoverride/", fields)

    assert peek("api", "user:7")


@pytest.mark.parametrize(
    ("state", "rules"),
    [("active", ["now"]), ("pending", ["later"]), ("ended", ["past"]), ("permanent", ["later"])],
)
def test_overrides_can_be_filtered_by_their_state(client: Client, state: str, rules: list[str]) -> None:
    moments = {"past": (BEGIN, moment("2025-12-01")), "now": (BEGIN, END), "later": (moment("2098-01-01"), None)}
    for rule, (starts, expires) in moments.items():
        QuotaOverride.objects.create(subject="user:7", rule=rule, mode="blocked", starts=starts, expires=expires)

    found = client.get(f"{ROOT}quotaoverride/", {"state": state}).context["cl"].queryset

    assert [row.rule for row in found] == rules
