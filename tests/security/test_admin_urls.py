"""Every address of our admin, by the URL resolver: changes take a POST, its token and its permission; a look none."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client

from django_quota import check, slot
from django_quota.models import QuotaOverride
from tests.admin.operators import operator, superuser
from tests.security.pages import ROOT, SUBJECT, addresses, patterns, seen, state
from tests.support.counts import count_what_waits
from tests.support.selection import thorough

pytestmark = pytest.mark.django_db(transaction=True)

QUESTIONS = [
    {},
    {"subject": SUBJECT},
    {"subject": SUBJECT, "on": '["login"]', "confirmed": "yes", "rate": "9/m", "for": "1d", "reason": "x"},
    {"action": "delete_selected", "_selected_action": "1", "post": "yes"},
    {"_save": "1", "subject": SUBJECT, "rule": "*", "mode": "exempt", "confirmed": "yes"},
]
"""What would change something, were it posted; and what is asked for."""


@pytest.fixture(autouse=True)
def played(one_redis: Any) -> None:
    """A subject that is limited, banned, overridden, and holds a slot: so that there is something to change."""
    for _ in range(3):
        check("1/m", SUBJECT, name="login", ban={"after": "1/m", "for": ["1h"]})
    check("5/m", SUBJECT, name="search")
    slot("export", 2, subject=SUBJECT).acquire()
    QuotaOverride.objects.create(subject=SUBJECT, rule="login", rate="5/m", reason="marked-reason")
    count_what_waits()  # the overview sends what this process has counted


def test_the_walk_finds_what_there_is() -> None:
    found = patterns()
    assert len(found) >= 26
    acts = [each for each in addresses() if "/action/" in each]
    assert len(acts) >= 6
    for part in ("overview/content/", "dailycounter/usage/csv/", "quotaoverride/preview/<int:key>/"):
        assert f"django_quota/{part}" in found


@pytest.mark.parametrize(
    "method", ["get", "delete", *(thorough("variants", name) for name in ("head", "options", "put", "patch", "trace"))]
)
def test_only_a_post_changes_anything(method: str, one_redis: Any) -> None:
    root = superuser()
    root.raise_request_exception = True
    pages = addresses()
    call_command("quota_rollup", stdout=StringIO())  # the usage page moves counts too, and shows the same
    before = state(one_redis)
    assert len(before) > 6
    for address in pages:
        for question in QUESTIONS:
            if method in ("get", "head"):
                reply = getattr(root, method)(address, question)
            else:
                reply = getattr(root, method)(address, query_params=question)
            assert reply.status_code < 500, address
            assert not getattr(reply, "xframe_options_exempt", False), address
            reply.close()
        assert state(one_redis) == before, f"{method} {address}"


def test_no_page_has_inline_style_or_script() -> None:
    root = superuser()
    pages = 0
    for address in addresses():
        for question in ({}, {"sizes": "1"}, {"subject": SUBJECT}):
            reply = root.get(address, question)
            if not reply.streaming and "html" in reply.headers["Content-Type"]:
                assert seen(reply).inline == [], address
                pages += 1
            reply.close()
    assert pages > 40


def test_no_post_without_its_token_is_heard(one_redis: Any) -> None:
    root = superuser(enforce_csrf_checks=True)
    pages = addresses()
    before = state(one_redis)
    for address in pages:
        for question in QUESTIONS:
            assert root.post(address, question).status_code == 403, address
    assert state(one_redis) == before


def test_the_acts_do_change_what_is_posted_with_a_token(one_redis: Any) -> None:
    root = superuser(enforce_csrf_checks=True)
    for name in ("reset", "block", "clear"):
        address, before = f"{ROOT}django_quota/subject/action/{name}/", state(one_redis)
        asked = root.get(address, {"subject": SUBJECT, "on": '["login"]'})
        token = asked.context["csrf_token"]
        given = {**QUESTIONS[2], "csrfmiddlewaretoken": str(token)}
        assert root.post(address, given).status_code in (200, 302)
        assert state(one_redis) != before, name


WHO = [*(thorough("variants", who) for who in ("nobody", "member", "staff")), "staff of other apps"]


@pytest.mark.parametrize("who", WHO)
def test_who_has_no_permission_of_ours_sees_and_changes_nothing(who: str, one_redis: Any) -> None:
    pages = addresses()
    client = Client()
    if who == "member":
        client.force_login(User.objects.create_user("member"))
    elif who.startswith("staff"):
        client = operator()
        if who != "staff":
            others = Permission.objects.exclude(content_type__app_label="django_quota")
            User.objects.get(username="operator").user_permissions.set(others)
    before = state(one_redis)
    for address in pages:
        for question in QUESTIONS:
            replies: list[Any] = [client.get(address, question), client.post(address, question)]
            for reply in replies:
                assert reply.status_code in (302, 403, 404, 405), address
                leads_to = reply.url.partition("?")[0] if reply.status_code == 302 else "/admin/login/"
                assert leads_to in ("/admin/login/", f"{address}change/"), address  # Django's own, to another of these
                assert reply.status_code == 302 or SUBJECT.encode() not in reply.content, address
                assert b"marked-reason" not in reply.content, address
    assert state(one_redis) == before
    if who not in ("nobody", "member"):
        assert b"Quotas" not in client.get(ROOT).content
