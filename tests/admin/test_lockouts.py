"""Whoever blocks themselves in the admin is told so first, ticks a box, and knows the command that lifts the block."""

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from django_quota.admin.base import LOCKOUT
from django_quota.models import QuotaOverride
from tests.admin.operators import superuser

ADD = "/admin/django_quota/quotaoverride/add/"
LIST = "/admin/django_quota/quotaoverride/"
ACTION = "/admin/django_quota/subject/action/block/"
MINE = "192.0.2.50"
TICK = f'name="{LOCKOUT}"'

pytestmark = pytest.mark.usefixtures("memory_store")


@pytest.fixture
def client(database: dict[str, Any]) -> Client:
    return superuser(REMOTE_ADDR=MINE)


@pytest.fixture
def me(client: Client) -> str:
    return f"user:{User.objects.get(username='root').pk}"


def added(client: Client, subject: str, rule: str = "*", mode: str = "blocked", **more: str) -> str:
    """Send the form of an override; return the page, empty once it is saved."""
    fields = {"subject": subject, "rule": rule, "mode": mode, "_anyway": "1", **more}
    return unescape(client.post(ADD, fields).content.decode())


OWN = [
    pytest.param(lambda me: f"ip:{MINE}", id="address"),
    pytest.param(lambda me: "ip:192.0.2.0/24", id="network"),
    pytest.param(lambda me: "ip:*", id="all addresses"),
    pytest.param(lambda me: me, id="user"),
    pytest.param(lambda me: "root", id="user name"),
    pytest.param(lambda me: "user:*", id="all users"),
    pytest.param(lambda me: "*", id="everybody"),
]


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("rule", ["*", "search"])
def test_a_block_of_yourself_needs_a_tick(client: Client, me: str, own: Callable[[str], str], rule: str) -> None:
    page = added(client, own(me), rule)

    assert TICK in page
    assert not QuotaOverride.objects.exists()


@pytest.mark.parametrize("own", OWN)
def test_a_tick_blocks_yourself(client: Client, me: str, own: Callable[[str], str]) -> None:
    added(client, own(me), **{LOCKOUT: "1"})

    assert QuotaOverride.objects.get().mode == "blocked"


@pytest.mark.parametrize(
    ("subject", "mode"),
    [
        pytest.param("ip:192.0.2.51", "blocked", id="another address"),
        pytest.param("ip:198.51.100.0/24", "blocked", id="another network"),
        pytest.param("user:4711", "blocked", id="another user"),
        pytest.param("*", "exempt", id="exempt"),
        pytest.param("*", "shadow", id="shadow"),
    ],
)
def test_what_does_not_block_yourself_needs_no_tick(client: Client, subject: str, mode: str) -> None:
    added(client, subject, mode=mode)

    assert QuotaOverride.objects.get().subject == subject


@pytest.mark.parametrize(
    ("own", "rule", "words"),
    [
        pytest.param(f"ip:{MINE}", "*", f"This blocks you: your own requests count for ip:{MINE}.", id="address"),
        pytest.param("ip:192.0.2.0/24", "*", f"your own requests count for ip:{MINE}.", id="network"),
        pytest.param("*", "*", "This blocks everybody, and so you.", id="everybody"),
        pytest.param("*", "*", "this command lifts it: manage.py quota_override clear '*'", id="its command"),
        pytest.param("user:*", "a b", "quota_override clear 'user:*' --rule 'a b'", id="the command of a rule"),
    ],
)
def test_the_page_says_why_with_the_command_that_lifts_it(client: Client, own: str, rule: str, words: str) -> None:
    assert words in added(client, own, rule)


def test_the_preview_says_that_it_blocks_you(client: Client) -> None:
    fields = {"subject": "*", "rule": "*", "mode": "blocked"}

    page = client.post("/admin/django_quota/quotaoverride/preview/", fields).content.decode()

    assert "This blocks everybody, and so you." in page


@pytest.mark.parametrize("own", [f"ip:{MINE}", "*"])
@pytest.mark.parametrize("rule", ["*", "search"])
def test_the_command_lifts_the_block(client: Client, own: str, rule: str) -> None:
    page = added(client, own, rule)
    added(client, own, rule, **{LOCKOUT: "1"})
    (command,) = re.findall(r"manage\.py (quota_override clear [^<]*)", page)

    call_command(*command.replace("'", "").split())

    assert not QuotaOverride.objects.exists()


@pytest.mark.parametrize(
    ("ticks", "is_saved"),
    [
        pytest.param([], False, id="neither"),
        pytest.param([LOCKOUT], False, id="that of a block of yourself"),
        pytest.param(["_anyway"], False, id="that of no effect"),
        pytest.param([LOCKOUT, "_anyway"], True, id="both"),
    ],
)
def test_a_block_of_yourself_by_a_rule_that_there_is_not_needs_two_ticks(
    client: Client, ticks: list[str], is_saved: bool
) -> None:
    fields = {"subject": f"ip:{MINE}", "rule": "serch", "mode": "blocked", **dict.fromkeys(ticks, "1")}

    client.post(ADD, fields)

    assert QuotaOverride.objects.exists() is is_saved


def test_a_block_that_is_saved_again_as_it_is_needs_no_tick(client: Client) -> None:
    row = QuotaOverride.objects.create(subject="*", mode="blocked")

    answer = client.post(f"{LIST}{row.pk}/change/", {"subject": "*", "rule": "*", "mode": "blocked"})

    assert answer.status_code == 302


def test_an_exemption_that_becomes_a_block_needs_a_tick(client: Client) -> None:
    row = QuotaOverride.objects.create(subject="*", mode="exempt")

    page = client.post(f"{LIST}{row.pk}/change/", {"subject": "*", "rule": "*", "mode": "blocked"}).content.decode()

    assert TICK in page


class TestButtonOfSubject:
    """The action "Block" on the page of a subject."""

    def asked(self, client: Client, subject: str, **more: str) -> str:
        fields = {"subject": subject, "on": "*", "confirmed": "yes", "span": "1d", "reason": "spam", **more}
        return client.post(ACTION, fields).content.decode()

    def test_it_needs_a_tick(self, client: Client, me: str) -> None:
        assert TICK in self.asked(client, me)
        assert not QuotaOverride.objects.exists()

    def test_the_question_says_that_it_blocks_you(self, client: Client) -> None:
        page = client.get(ACTION, {"subject": f"ip:{MINE}", "on": "*"}).content.decode()

        assert f"your own requests count for ip:{MINE}" in page

    def test_a_tick_blocks(self, client: Client, me: str) -> None:
        self.asked(client, me, **{LOCKOUT: "1"})

        assert QuotaOverride.objects.get().subject == me

    @pytest.mark.parametrize("name", ["exempt", "reset"])
    def test_what_blocks_nobody_needs_none(self, client: Client, me: str, name: str) -> None:
        fields = {"subject": me, "on": "*", "confirmed": "yes", "span": "1d", "reason": ""}

        assert client.post(ACTION.replace("block", name), fields).status_code == 302

    def test_others_are_blocked_without_a_tick(self, client: Client) -> None:
        self.asked(client, "user:4711")

        assert QuotaOverride.objects.get().subject == "user:4711"


class TestManyAtOnce:
    """The action on the list of overrides."""

    def chosen(self, client: Client, **more: str) -> str:
        rows = [QuotaOverride.objects.create(subject=subject, mode="exempt") for subject in ("user:4711", "ip:*")]
        fields: dict[str, Any] = {"action": "block_selected", "_selected_action": [row.pk for row in rows], **more}
        return unescape(client.post(LIST, fields).content.decode())

    def modes(self) -> set[str]:
        return set(QuotaOverride.objects.values_list("mode", flat=True))

    def test_it_says_that_it_blocks_you(self, client: Client) -> None:
        page = self.chosen(client)

        assert TICK in page
        assert "quota_override clear 'ip:*'" in page

    def test_it_changes_nothing_without_a_tick(self, client: Client) -> None:
        assert TICK in self.chosen(client, confirmed="yes")
        assert self.modes() == {"exempt"}

    def test_a_tick_blocks(self, client: Client) -> None:
        self.chosen(client, confirmed="yes", **{LOCKOUT: "1"})

        assert self.modes() == {"blocked"}

    def test_the_end_of_overrides_needs_no_tick(self, client: Client) -> None:
        page = self.chosen(client, action="expire_selected")

        assert TICK not in page
