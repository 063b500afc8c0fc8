"""Every address of our admin, by the URL resolver: changes take a POST, its token and its permission; a look none."""

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

ASKED = {"subject": SUBJECT, "on": '["login"]', "sizes": "1"}
CHANGES = {
    **ASKED, "confirmed": "yes", "rate": "9/m", "for": "1d", "reason": "x", "action": "delete_selected",
    "_selected_action": "1", "post": "yes", "_save": "1", "rule": "*", "mode": "exempt",
}  # fmt: skip
"""What would change something, were it posted with a token."""


@pytest.fixture(autouse=True)
def played(one_redis: Any) -> None:
    """A subject that is limited, banned, overridden, and holds a slot: so that there is something to change."""
    for _ in range(3):
        check("1/h", SUBJECT, name="login", ban={"after": "1/h", "for": ["1h"]})
    check("5/h", SUBJECT, name="search")
    slot("export", 2, subject=SUBJECT, lease=3_600).acquire()
    QuotaOverride.objects.create(subject=SUBJECT, rule="login", rate="5/m", reason="marked-reason")
    count_what_waits()  # the overview sends what this process has counted


@pytest.mark.parametrize(
    "method", ["get", *(thorough("variants", name) for name in ("head", "options", "put", "patch", "delete", "trace"))]
)
def test_only_a_post_changes_anything_and_no_page_has_inline_style_or_script(method: str, one_redis: Any) -> None:
    root, pages = superuser(), addresses()
    root.raise_request_exception = True
    assert len([each for each in pages if "/action/" in each]) >= 6, "the walk finds what there is"
    assert len(patterns()) >= 26
    for part in ("overview/content/", "dailycounter/usage/csv/", "quotaoverride/preview/<int:key>/"):
        assert f"django_quota/{part}" in patterns()
    call_command("quota_rollup", stdout=StringIO())  # the usage page moves counts too, and shows the same
    before, read = state(one_redis), 0
    assert len(before) > 6
    for address in pages:
        for question in ({}, ASKED, CHANGES):
            asked = {"data": question} if method in ("get", "head") else {"query_params": question}
            reply = getattr(root, method)(address, **asked)
            assert reply.status_code < 500, address
            assert not getattr(reply, "xframe_options_exempt", False), address
            if method == "get" and not reply.streaming and "html" in reply.headers["Content-Type"]:
                assert seen(reply).inline == [], address
                read += 1
            reply.close()
        assert state(one_redis) == before, f"{method} {address}"
    assert read > 40 or method != "get"


def test_a_post_is_heard_with_its_token_only(one_redis: Any) -> None:
    root = superuser(enforce_csrf_checks=True)
    pages = addresses()
    before = state(one_redis)
    for address in pages:
        assert root.post(address, CHANGES).status_code == 403, address
    assert state(one_redis) == before
    for name in ("reset", "block", "clear"):
        address, before = f"{ROOT}django_quota/subject/action/{name}/", state(one_redis)
        token = str(root.get(address, ASKED).context["csrf_token"])
        assert root.post(address, {**CHANGES, "csrfmiddlewaretoken": token}).status_code in (200, 302)
        assert state(one_redis) != before, name


WHO = [*(thorough("variants", who) for who in ("nobody", "member", "staff")), "staff of other apps"]


@pytest.mark.parametrize("who", WHO)
def test_who_has_no_permission_of_ours_sees_and_changes_nothing(who: str, one_redis: Any) -> None:
    pages, client = addresses(), operator() if who.startswith("staff") else Client()
    if who == "member":
        client.force_login(User.objects.create_user("member"))
    elif who == "staff of other apps":
        others = Permission.objects.exclude(content_type__app_label="django_quota")
        User.objects.get(username="operator").user_permissions.set(others)
    before = state(one_redis)
    for address in pages:
        replies: list[Any] = [client.get(address), client.get(address, CHANGES), client.post(address, CHANGES)]
        for reply in replies:
            assert reply.status_code in (302, 403, 404, 405), address
            leads_to = reply.url.partition("?")[0] if reply.status_code == 302 else "/admin/login/"
            assert leads_to in ("/admin/login/", f"{address}change/"), address  # Django's own, to another of these
            assert reply.status_code == 302 or SUBJECT.encode() not in reply.content, address
            assert b"marked-reason" not in reply.content, address
    assert state(one_redis) == before
    assert not who.startswith("staff") or b"Quotas" not in client.get(ROOT).content
