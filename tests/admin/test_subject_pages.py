"""The admin page of a subject: search, figures, and actions that hold at once."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import IntegrityError, connection
from django.http import HttpRequest
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_quota import check
from django_quota.adapters import digest
from django_quota.models import OverrideOutbox, QuotaOverride
from tests.admin.operators import operator, superuser

PAGE = "/admin/django_quota/subject/"
SUBJECT = "user:42"
ACTIONS = ("raise", "exempt", "block", "reset", "lift", "clear")
STRANGE = [
    "a\x00b\n\x1b[31m",
    "quote\"'<script>alert(1)</script>",
    "{braces}:{}",
    "key.a:b%2Bc+path:/x y",
    "ключ:日本語:🎈",
    "~tilde",
    "k:" + "x" * 10_000,
    "k:" + "é" * 600,
]


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.QUOTA = {
        **settings.QUOTA,
        "RULES": {
            "search": {"rate": "10/m; 500/h", "key": "user"},
            "login": {"rate": "2/h", "ban": {"after": "1/m", "for": ["10m", "1h"]}},
            "tiered": {"rate": {"anonymous": "5/m", "authenticated": "50/m"}},
            "odd": {"rate": lambda request: "1/m"},
        },
    }


def page(client: Client, subject: str = SUBJECT) -> str:
    answer = client.get(PAGE, {"subject": subject})
    assert answer.status_code == 200
    return answer.content.decode()


def tier(request: HttpRequest) -> str:
    return "free"


def verdict(shown: str) -> str:
    """Return the text of the section that says what refuses now."""
    section = shown[shown.index("<h2>Right now</h2>") :]
    return re.sub(r"<[^>]*>", "", section[: section.index("</section>")])


def act(client: Client, name: str, rule: str = "*", subject: str = SUBJECT, **given: str) -> Any:
    words = {"subject": subject, "on": json.dumps([rule]), "confirmed": "yes", **given}
    return client.post(f"{PAGE}action/{name}/", words)


def found(client: Client, text: str) -> str:
    """Return the subject that a text leads to."""
    answer = client.post(PAGE, {"find": text})
    assert answer.status_code == 302, answer.content.decode()
    (subject,) = parse_qs(urlsplit(answer.url).query)["subject"]  # type: ignore[attr-defined]
    return subject


@pytest.mark.usefixtures("database", "memory_store")
class TestSearch:
    def test_a_user_is_found_by_name_e_mail_or_key(self) -> None:
        client = superuser()
        ann = User.objects.create_user("ann", "Ann@example.org")
        assert [found(client, text) for text in ("ann", " ann@EXAMPLE.org ", str(ann.pk))] == [f"user:{ann.pk}"] * 3

    @pytest.mark.parametrize(
        ("text", "subject"),
        [
            ("203.0.113.9", "ip:203.0.113.9"),
            ("::ffff:203.0.113.9", "ip:203.0.113.9"),
            ("2001:DB8:0:0::7", "ip:2001:db8::/64"),
            ("2001:db8::/64", "ip:2001:db8::/64"),
            ("ip:2001:db8::9", "ip:2001:db8::/64"),
            ("global", "global"),
            ("user:7", "user:7"),
            ("post.phone:abc", "post.phone:abc"),
            ("of-a-call", "of-a-call"),
        ],
    )
    def test_an_address_and_a_subject_are_found_in_any_spelling(self, text: str, subject: str) -> None:
        assert found(superuser(), text) == subject

    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("post:phone=+1555", "post.phone"),
            ("header:X-Api-Key=+1555", "header.x-api-key"),
            ("cookie:d=+1555", "cookie.d"),
        ],
    )
    def test_a_plain_value_leads_to_its_digest_and_appears_nowhere(self, text: str, name: str) -> None:
        client = superuser()
        answer = client.post(PAGE, {"find": text})
        assert found(client, text) == f"{name}:{digest('+1555')}"
        assert "1555" not in answer.url  # type: ignore[attr-defined]
        assert not LogEntry.objects.filter(change_message__contains="1555").exists()

    def test_a_subject_of_several_parts_is_found_by_its_plain_values(self) -> None:
        client = superuser()
        text, subject = "203.0.113.9+post:username=ann", f"ip:203.0.113.9+post.username:{digest('ann')}"
        assert found(client, text) == subject
        assert "ann" not in client.post(PAGE, {"find": text}).url  # type: ignore[attr-defined]

    @pytest.mark.parametrize("text", ["ann", "ann@example.org", "1", "nobody"])
    def test_without_the_permission_to_view_users_a_name_finds_no_user(self, text: str) -> None:
        user = User.objects.create_user("ann", "ann@example.org")
        client = operator("view_subject")
        text = str(user.pk) if text == "1" else text
        with CaptureQueriesContext(connection) as queries:
            assert found(client, text) == text
        user_table = User._meta.db_table
        asked = [query["sql"] for query in queries if f'FROM "{user_table}"' in query["sql"]]
        assert len(asked) == 1  # the one who asks
        shown = page(client, text)
        assert f"user:{user.pk}" not in shown
        assert "user:&lt;key&gt;" in shown  # the hint says how to write a user instead

    def test_several_matching_users_are_offered_to_choose_from(self) -> None:
        users = [User.objects.create_user(name, "same@example.org") for name in ("bob", "cid")]
        client = superuser()
        shown = client.post(PAGE, {"find": "same@example.org"}).content.decode()
        assert all(f'value="user:{user.pk}"' in shown and str(user) in shown for user in users)
        assert client.post(PAGE, {"subject": f"user:{users[0].pk}"}).status_code == 302

    @pytest.mark.parametrize("text", ["", "ip:nowhere", "post:phone="])
    def test_a_text_that_cannot_be_a_subject_is_an_error(self, text: str) -> None:
        answer = superuser().post(PAGE, {"find": text})
        assert answer.status_code == 200
        assert "errornote" in answer.content.decode()
        assert superuser("other").get(PAGE, {"subject": "ip:nowhere"}).status_code == 200

    def test_a_log_entry_leads_to_the_page(self) -> None:
        client = superuser()
        act(client, "block", subject="ip:203.0.113.9")
        entry = LogEntry.objects.get(object_id="ip:203.0.113.9")
        answer = client.get(entry.get_admin_url() or "")
        assert answer.url == f"{PAGE}?subject=ip%3A203.0.113.9"  # type: ignore[attr-defined]


@pytest.mark.usefixtures("database", "redis_cache")
class TestPage:
    def test_it_shows_limits_overrides_bans_and_their_reasons(self) -> None:
        client = superuser()
        ann = User.objects.create_user("ann", pk=42)
        QuotaOverride.objects.create(
            subject=SUBJECT, rule="search", rate="20/m", reason="an import", created_by=ann,
            expires=timezone.now() + timedelta(days=1),
        )  # fmt: skip
        check("search", SUBJECT, 20)
        for _ in range(4):
            check("login", SUBJECT)
        shown = page(client)
        for words in (
            "20 of 20 used, 0 left",
            "the next hit is admitted in",
            "by an override",
            "an import",
            "by ann",
            "the first",
            "authenticated:",
            "its rates are functions of the request",
            "unused rule",
        ):
            assert words in shown, words

    def test_it_begins_with_the_limits_that_refuse_now(self, settings: Any) -> None:
        rules = {"quiet": {"rate": "1/h", "shadow": True}, "closed": {"rate": "0/h"}}
        settings.QUOTA = {**settings.QUOTA, "RULES": {**settings.QUOTA["RULES"], **rules}}
        client = superuser()
        check("quiet", SUBJECT)
        check("quiet", SUBJECT)
        first = verdict(page(client))
        assert "closed, 0/h: 0 of 0 used, 0 left; no hit is admitted" in first
        assert "quiet" not in first
        assert "(a shadow rule: it only reports)" in page(client)
        check("search", SUBJECT, 10)
        assert "search, 10/m: 10 of 10 used, 0 left; the next hit is admitted in 60 seconds," in verdict(page(client))
        QuotaOverride.objects.create(subject=SUBJECT, mode="blocked")
        assert "search, 10/m: blocked by an override; no hit is admitted" in verdict(page(client))
        QuotaOverride.objects.all().delete()
        settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "99/m"}}
        assert "No limit on this page refuses the next hit." in verdict(page(client))

    def test_a_tier_refuses_only_those_who_are_in_it(self, settings: Any) -> None:
        tiers = {"free": "1/h", "pro": "9/h"}
        rule = {"rate": tiers, "tier": "tests.admin.test_subject_pages.tier", "key": "user"}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"api": rule}}
        client = superuser()
        request = RequestFactory().get("/")
        request.user = User(pk=42)
        check("api", request)
        first = verdict(page(client))
        assert "api (if its tier is free), 1/h: 1 of 1 used" in first
        assert "Refused." not in first
        QuotaOverride.objects.create(subject=SUBJECT, mode="blocked")
        first = verdict(page(client))
        assert "Refused." in first
        assert "api (if its tier is pro), 9/h: blocked by an override" in first

    def test_it_says_that_limits_are_switched_off(self, settings: Any) -> None:
        client = superuser()
        assert "switched off" not in page(client)
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        assert "Limits are switched off (ENABLED is false)" in page(client)

    def test_rules_that_count_a_longer_subject_are_named(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"login": {"rate": "5/m", "key": ("ip", "post:username")}}}
        client = superuser()
        shown = page(client, "ip:203.0.113.9")
        assert "login: <code>ip:203.0.113.9+post:username=&lt;value&gt;</code>" in shown
        assert "together with more" not in page(client, f"ip:203.0.113.9+post.username:{digest('ann')}")

    def test_a_refusal_by_a_rule_of_a_call_is_shown(self) -> None:
        client = superuser()
        assert "Recent refusals" not in page(client)
        for _ in range(3):
            check("2/h", SUBJECT, name="transfer")
        shown = page(client)
        section = shown[shown.index("Recent refusals") :]
        assert '<td data-label="Rule">transfer</td>' in section
        assert '<td data-label="Limit">2</td>' in section
        assert "Recent refusals" not in page(client, "user:43")

    def test_an_override_of_all_rules_is_shown_once(self) -> None:
        client = superuser()
        QuotaOverride.objects.create(subject=SUBJECT, mode="blocked", reason="spam")
        QuotaOverride.objects.create(subject=SUBJECT, rule="search", rate="20/m", reason="an import")
        shown = page(client)
        reasons = [part.partition("</p>")[0] for part in shown.split('<p class="quota-reason">')[1:]]
        assert len(reasons) == 2
        assert reasons[0].startswith("All rules: <strong>blocked")
        assert reasons[1].startswith("Override: <strong>20/m")

    @pytest.mark.parametrize(
        ("subject", "hint"), [("nobody", "No user is called “nobody”"), ("user:joe", "no user with")]
    )
    def test_a_hint_shows_that_no_request_has_the_subject(self, subject: str, hint: str) -> None:
        client = superuser()
        assert hint in page(client, subject)
        check("search", subject)
        assert hint not in page(client, subject)

    def test_a_sentence_does_not_end_with_two_full_stops(self) -> None:
        answer = act(superuser(), "block", span="1d")
        assert answer.status_code == 302
        (entry,) = LogEntry.objects.filter(object_id=SUBJECT)
        assert ".." not in entry.change_message
        assert entry.change_message.endswith(".")

    def test_the_page_scans_no_keys_and_takes_few_trips_and_queries(self, raw: redis.Redis) -> None:
        client = superuser()
        check("search", SUBJECT, 4)
        page(client)
        raw.config_resetstat()
        with CaptureQueriesContext(connection) as queries:
            page(client)
        stats = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in raw.info("commandstats").items()}
        assert not {"scan", "keys", "hscan"} & stats.keys()
        assert stats["evalsha"] <= 5
        assert len(queries) <= 7

    def test_a_read_only_redis_shows_what_happens_to_a_hit(self, raw: redis.Redis, settings: Any) -> None:
        rules = {"open": {"rate": "3/m", "on_unavailable": "allow"}, "shut": {"rate": "3/m", "on_unavailable": "deny"}}
        settings.QUOTA = {**settings.QUOTA, "RULES": {**settings.QUOTA["RULES"], **rules}}
        client = superuser()
        assert "no changes" not in page(client)
        raw.replicaof("127.0.0.1", 1)
        try:
            shown = page(client)
        finally:
            raw.replicaof("NO", "ONE")
        assert "shut, 3/m: 0 of 3 used, 3 left; no hit is admitted while Redis takes no changes" in verdict(shown)
        assert "open" not in verdict(shown)
        assert "the next hit is admitted, and not counted" in shown
        assert list(raw.scan_iter("*probe*")) == []


@pytest.mark.usefixtures("database", "either_store")
@pytest.mark.parametrize("subject", STRANGE)
def test_any_subject_has_a_page_actions_and_a_log(subject: str) -> None:
    client = superuser()
    check("search", subject, 4)
    answer = client.post(PAGE, {"subject": subject})
    assert answer.status_code == (200 if len(subject) > 500 else 302)  # no server takes a URL that long
    shown = page(client, subject) if answer.status_code == 302 else answer.content.decode()
    assert "4 of 10 used, 6 left" in shown
    assert "<script>alert" not in shown
    assert client.post(f"{PAGE}action/reset/", {"subject": subject, "on": '["search"]'}).status_code == 200
    answer = act(client, "reset", "search", subject)
    shown = page(client, subject) if answer.status_code == 302 else answer.content.decode()
    assert "4 of 10 used" not in shown
    assert "What was counted under rule “search” was forgotten." in shown.split("History")[1]
    entry = LogEntry.objects.get()
    assert "History" in client.get(entry.get_admin_url() or "", follow=True).content.decode()
    assert client.get("/admin/").status_code == 200


@pytest.mark.usefixtures("database")
def test_without_the_store_the_page_still_shows_overrides(caplog: Any) -> None:
    client = superuser()
    act(client, "block", "search", reason="abuse")
    assert OverrideOutbox.objects.exists()
    shown = page(client)
    assert "The limits cannot be read now." in shown
    assert "abuse" in shown
    assert "not yet published to Redis" in shown
    answer = act(client, "reset")
    assert answer.status_code == 200
    assert "unavailable" in answer.content.decode()
    assert LogEntry.objects.count() == 1  # of the block alone


@pytest.mark.usefixtures("database", "either_store")
class TestActions:
    def test_a_raise_holds_from_the_next_request_and_expires(self) -> None:
        client = superuser()
        check("search", SUBJECT, 10)
        assert not check("search", SUBJECT)
        shown = client.post(f"{PAGE}action/raise/", {"subject": SUBJECT, "on": '["search", "20/m; 1000/h"]'})
        assert 'value="20/m; 1000/h"' in shown.content.decode()
        assert not QuotaOverride.objects.exists()
        assert act(client, "raise", "search", rate="20/m", span="1d", reason="an import").status_code == 302
        assert check("search", SUBJECT).limit == 20
        row = QuotaOverride.objects.get()
        assert row.expires is not None
        assert timedelta(hours=23) < row.expires - timezone.now() <= timedelta(days=1)
        assert (row.reason, str(row.created_by)) == ("an import", "root")

    def test_the_page_offers_twice_the_rate(self) -> None:
        check("search", SUBJECT)
        assert "[&quot;search&quot;, &quot;20/m; 1000/h&quot;]" in page(superuser())

    @pytest.mark.parametrize("rate", ["", "10/month", "many"])
    def test_an_invalid_rate_is_an_error_of_its_field(self, rate: str) -> None:
        answer = act(superuser(), "raise", "search", rate=rate)
        assert answer.status_code == 200
        assert answer.context["form"].errors["rate"]
        assert not QuotaOverride.objects.exists()
        assert not LogEntry.objects.exists()

    def test_a_block_refuses_at_once_until_it_is_cleared(self) -> None:
        client = superuser()
        act(client, "block", "search", span="")
        assert check("search", SUBJECT).outcomes[0].why == "blocked"
        assert check("login", SUBJECT)
        act(client, "clear", "search")
        assert check("search", SUBJECT)
        act(client, "block")
        assert not check("login", SUBJECT)

    def test_an_exemption_replaces_the_existing_override(self) -> None:
        client = superuser()
        act(client, "block")
        act(client, "exempt", span="1h")
        assert check("search", SUBJECT, 1_000)
        assert QuotaOverride.objects.get().mode == "exempt"

    def test_a_reset_forgets_one_rule_or_all(self) -> None:
        client = superuser()
        for rule in ("search", "login"):
            check(rule, SUBJECT, 2)
        act(client, "reset", "search")
        assert check("search", SUBJECT, cost=0).remaining == 10
        assert check("login", SUBJECT, cost=0).remaining == 0
        act(client, "reset")
        assert check("login", SUBJECT, cost=0).remaining == 2

    def test_lifting_a_ban_keeps_what_was_counted(self) -> None:
        client = superuser()
        for _ in range(3):
            check("login", SUBJECT)
        assert "&quot;login&quot;" in page(client).split("Bans</h2>")[1].split("</section>")[0]
        act(client, "lift", "login")
        decision = check("login", SUBJECT, cost=0)
        assert (decision.allowed, decision.remaining) == (True, 0)

    def test_each_action_is_logged_and_shown(self) -> None:
        client = superuser()
        for _ in range(3):
            check("login", SUBJECT)
        for name in ("lift", *(name for name in ACTIONS if name != "lift")):
            act(client, name, "login", rate="20/m", reason="why not")
        assert LogEntry.objects.filter(object_id=SUBJECT).count() == len(ACTIONS)
        shown = page(client).split("History")[1]
        for words in (
            "Raise for a day: 20/m holds under rule “login”",
            "Block",
            "1 ban was lifted",
            "Cleared",
            "why not",
        ):
            assert words in shown

    def test_a_button_that_names_no_rule_is_refused(self) -> None:
        client = superuser()
        for on in ("[", "7", "[7]", "[]", '{"a": 1}', '["a", 1]'):
            answer = client.post(f"{PAGE}action/reset/", {"subject": SUBJECT, "on": on})
            assert answer.status_code == 302

    def test_a_lost_race_is_an_error_on_the_form(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def lost_race(*_: Any, **__: Any) -> None:
            raise IntegrityError

        client = superuser()
        monkeypatch.setattr(QuotaOverride, "save", lost_race)
        answer = act(client, "block")
        assert answer.status_code == 200
        assert "Somebody else has just created an override" in answer.content.decode()
        assert not LogEntry.objects.exists()

    def test_a_subject_too_long_for_a_row_is_an_error(self) -> None:
        answer = act(superuser(), "block", subject="k:" + "x" * 600)
        assert answer.status_code == 200
        assert "500" in answer.content.decode()


ALL = ("view_subject", "reset_subject", "lift_ban", "add_quotaoverride", "change_quotaoverride", "delete_quotaoverride")
NEEDED = {
    "raise": {"add_quotaoverride", "change_quotaoverride"},
    "exempt": {"add_quotaoverride", "change_quotaoverride"},
    "block": {"add_quotaoverride", "change_quotaoverride"},
    "reset": {"reset_subject"},
    "lift": {"lift_ban"},
    "clear": {"delete_quotaoverride"},
}


@pytest.mark.usefixtures("database", "memory_store")
class TestPermissions:
    @pytest.mark.parametrize("name", ACTIONS)
    def test_an_action_needs_its_permissions_and_no_others(self, name: str) -> None:
        QuotaOverride.objects.create(subject=SUBJECT, mode="blocked")
        granted = operator("view_subject", *NEEDED[name])
        assert act(granted, name, rate="5/m").status_code == 302
        QuotaOverride.objects.update_or_create(subject=SUBJECT, rule="*", defaults={"mode": "blocked", "rate": ""})
        for number, missing in enumerate(NEEDED[name]):
            client = operator(*(set(ALL) - {missing}), name=f"without{number}")
            assert client.get(f"{PAGE}action/{name}/", {"subject": SUBJECT}).status_code == 403
            assert act(client, name, rate="5/m").status_code == 403
            assert f'value="[&quot;*&quot;]" formaction="{PAGE}action/{name}/"' not in page(client)
        assert QuotaOverride.objects.get().mode == "blocked"

    def test_without_an_override_the_permission_to_add_is_enough(self) -> None:
        client = operator("view_subject", "add_quotaoverride")
        assert act(client, "block").status_code == 302
        assert act(client, "exempt").status_code == 403
        assert act(client, "exempt", "search").status_code == 302


@pytest.mark.usefixtures("database", "memory_store")
class TestWhatOnlySomeMaySee:
    def test_permissions_are_checked_before_the_target_is_parsed(self) -> None:
        client = operator("view_subject")
        for name in ACTIONS:
            answer = client.post(f"{PAGE}action/{name}/", {"subject": "", "on": "no rule", "confirmed": "yes"})
            assert answer.status_code == 403

    def test_the_heading_shows_the_user_name_to_those_who_may_see_users(self) -> None:
        User.objects.create_user("ann<b>", pk=42)
        assert "· ann&lt;b&gt;" in page(superuser())
        assert "· ann&lt;b&gt;" in page(operator("view_subject", "auth.change_user", name="changes"))
        assert "ann&lt;" not in page(operator("view_subject"))

    def test_an_impossible_tier_is_not_shown(self, settings: Any) -> None:
        rule = {"rate": {"anonymous": "5/m", "authenticated": "50/m"}}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"tiered": {**rule, "key": "user"}}}
        of_user, of_address = page(superuser()), page(superuser("other"), "ip:192.0.2.1")
        assert "authenticated:" in of_user
        assert "anonymous:" not in of_user
        assert "anonymous:" in of_address
        assert "authenticated:" not in of_address
        settings.QUOTA = {**settings.QUOTA, "RULES": {"tiered": {**rule, "key": "ip"}}}
        by_address = page(superuser("third"), "ip:192.0.2.1")
        assert "anonymous:" in by_address
        assert "authenticated:" in by_address

    def test_adding_does_not_change_a_row_created_meanwhile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        client = operator("view_subject", "add_quotaoverride")
        QuotaOverride.objects.create(subject=SUBJECT, rule="search", rate="5/m")
        monkeypatch.setattr("django_quota.admin.subject_actions.OverrideAction.is_allowed", lambda *_: True)
        answer = act(client, "block", "search")
        assert answer.status_code == 200
        assert "Somebody else has just created an override" in answer.content.decode()
        assert QuotaOverride.objects.get().rate == "5/m"
