"""The admin page of a subject: search, figures, and actions that hold at once."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpRequest
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.html import escape

from django_quota import check, peek
from django_quota.adapters import digest, subject_of
from django_quota.models import QuotaOverride
from django_quota.testing import freeze
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
    "x" * 10_000,
    "é" * 600,
    "k:" + "x" * 10_000,
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


@pytest.mark.usefixtures("database", "memory_store")
def test_the_link_to_the_usage_needs_its_permission() -> None:
    link = "dailycounter/usage/?subject="
    assert link not in page(operator("view_subject"))
    assert link in page(operator("view_subject", "view_dailycounter", name="reader"))


def tier(request: HttpRequest) -> str:
    return "free"


def verdict(shown: str) -> str:
    """Return the text of the section that says what refuses now."""
    section = shown[shown.index("<h2>Right now</h2>") :]
    return re.sub(r"<[^>]*>", "", section[: section.index("</section>")])


def act(client: Client, name: str, rule: str = "*", subject: str = SUBJECT, **given: str) -> Any:
    words = {"subject": subject, "on": json.dumps([rule]), "confirmed": "yes", **given}
    if name == "block":
        words.setdefault("reason", "spam")
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
            ("203.0.113.9+post:username=+1555", "ip:203.0.113.9+post.username"),
        ],
    )
    def test_a_plain_value_leads_to_its_digest_and_appears_nowhere(self, text: str, name: str) -> None:
        client = superuser()
        answer = client.post(PAGE, {"find": text})
        assert found(client, text) == f"{name}:{digest('+1555')}"
        assert "1555" not in answer.url  # type: ignore[attr-defined]
        assert not LogEntry.objects.filter(change_message__contains="1555").exists()

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

    def test_a_bar_is_red_only_if_nothing_is_left_and_numbers_and_moments_are_whole(self, settings: Any) -> None:
        rules = {"one": "1/h", "ten": "10/h", "many": "5000/h"}
        settings.QUOTA = {**settings.QUOTA, "RULES": {name: {"rate": rules[name], "key": "user"} for name in rules}}
        with freeze(datetime(2026, 11, 24, 12, tzinfo=UTC)):
            for name, cost in (("one", 1), ("ten", 9), ("many", 1234)):
                check(name, SUBJECT, cost)
            shown = page(superuser())
        found = re.findall(r'<meter min="0" max="(\d+)" value="(\d+)" low="([\d.]+)" high="(\d+)" optimum="0"', shown)
        is_red = {int(most): int(value) > max(float(low), int(high)) for most, value, low, high in found}
        assert (is_red[1], is_red[10], is_red[5000]) == (True, False, False)
        assert all(float(low) > 0 for _, _, low, _ in found)  # else a browser takes the middle for the best
        assert "1,234 of 5,000 used, 3,766 left" in shown
        assert "Nov. 24, 2026, 1 p.m. UTC</time>" in shown

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

    def test_it_answers_until_when_a_ban_lasts_and_lifts_it(self) -> None:
        client = superuser()
        with freeze(datetime(2030, 1, 31, 2, 15, 12, tzinfo=UTC)):
            for _ in range(4):
                check("login", SUBJECT)
            answer = page(client).split("<h2>Right now</h2>")[1].split("</div>")[0]
            assert "<strong>Refused by login until 02:25:12 UTC (ban 1).</strong>" in answer
            assert f'value="{escape(json.dumps(["login"]))}" formaction="{PAGE}action/lift/"' in answer
            QuotaOverride.objects.create(subject=SUBJECT, mode="exempt")
            assert "Refused by" not in verdict(page(client))

    def test_a_text_that_is_nobody_gets_no_buttons(self) -> None:
        client = superuser()
        assert "formaction" not in page(client, "nobody")
        assert "Right now" not in page(client, "nobody")
        check("search", "nobody")
        assert "formaction" in page(client, "nobody")

    def test_a_rule_that_can_never_concern_the_subject_is_not_listed(self, settings: Any) -> None:
        rules = {"signup": {"rate": "5/m", "key": "ip"}, "odd": {"rate": lambda request: "1/m", "key": "ip"}}
        settings.QUOTA = {**settings.QUOTA, "RULES": rules}
        client = superuser()
        QuotaOverride.objects.create(subject=SUBJECT, mode="blocked")
        assert not {"signup", "odd"} & set(re.findall(r"\w+", page(client)))
        assert {"signup", "odd"} <= set(re.findall(r"\w+", page(client, "ip:192.0.2.1")))

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
        assert "Refused by" not in first
        QuotaOverride.objects.create(subject=SUBJECT, mode="blocked")
        first = verdict(page(client))
        assert "Refused by api, " in first
        assert " for good (blocked by an override)." in first
        assert "api (if its tier is pro), 9/h: blocked by an override" in first

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
        ("subject", "hint"), [("nobody", "No request has the subject &quot;nobody&quot;"), ("user:joe", "no user with")]
    )
    def test_a_hint_shows_that_no_request_has_the_subject(self, subject: str, hint: str) -> None:
        client = superuser()
        assert hint in page(client, subject)
        check("search", subject)
        assert hint not in page(client, subject)

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
    is_long = len(subject_of(subject)) > 500
    assert answer.status_code == (200 if is_long else 302)  # no server takes a URL that long
    shown = page(client, subject) if answer.status_code == 302 else answer.content.decode()
    assert "4 of 10 used, 6 left" in shown
    assert "<script>alert" not in shown
    assert client.post(f"{PAGE}action/reset/", {"subject": subject, "on": '["search"]'}).status_code == 200
    answer = act(client, "reset", "search", subject)
    shown = page(client, subject) if answer.status_code == 302 else answer.content.decode()
    assert "4 of 10 used" not in shown
    assert "What was counted under rule &quot;search&quot; was forgotten." in shown.split("History")[1]
    entry = LogEntry.objects.get()
    assert "History" in client.get(entry.get_admin_url() or "", follow=True).content.decode()
    assert client.get("/admin/").status_code == 200


@pytest.mark.usefixtures("database")
def test_without_the_store_the_page_still_shows_overrides(caplog: Any) -> None:
    client = superuser()
    act(client, "block", "search", reason="abuse")
    shown = page(client)
    assert "The limits cannot be read now." in shown
    assert "abuse" in shown
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
        shown = client.post(f"{PAGE}action/raise/", {"subject": SUBJECT, "on": '["search"]'}).content.decode()
        assert re.findall(r">(\d+x: [^<]*)<", shown) == ["2x: 20/m; 1000/h", "5x: 50/m; 2500/h", "10x: 100/m; 5000/h"]
        assert not QuotaOverride.objects.exists()
        assert act(client, "raise", "search", factor="2", span="1d", reason="an import").status_code == 302
        assert check("search", SUBJECT).limit == 20
        row = QuotaOverride.objects.get()
        assert row.expires is not None
        assert timedelta(hours=23) < row.expires - timezone.now() <= timedelta(days=1)
        assert (row.reason, str(row.created_by)) == ("an import", "root")

    @pytest.mark.parametrize("factor", ["", "3", "many"])
    def test_an_invalid_factor_is_an_error_of_its_field(self, factor: str) -> None:
        answer = act(superuser(), "raise", "search", factor=factor)
        assert answer.status_code == 200
        assert answer.context["form"].errors["factor"]
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

    def test_a_block_needs_a_reason(self) -> None:
        asked = act(superuser(), "block", reason="")
        assert asked.context["form"].errors == {"reason": ["This field is required."]}
        assert not QuotaOverride.objects.exists()

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
        assert peek("search", SUBJECT).remaining == 10
        assert peek("login", SUBJECT).remaining == 0
        act(client, "reset")
        assert peek("login", SUBJECT).remaining == 2

    def test_lifting_a_ban_keeps_what_was_counted(self) -> None:
        client = superuser()
        for _ in range(3):
            check("login", SUBJECT)
        assert "&quot;login&quot;" in page(client).split("Bans</h2>")[1].split("</section>")[0]
        act(client, "lift", "login")
        decision = peek("login", SUBJECT, cost=0)
        assert (decision.allowed, decision.remaining) == (True, 0)

    def test_each_action_is_logged_and_shown(self) -> None:
        client = superuser()
        for _ in range(3):
            check("login", SUBJECT)
        for name in ("lift", "raise", "clear", "exempt", "block", "reset"):
            act(client, name, "login", factor="2", span="1d", reason="why not")
        entries = LogEntry.objects.filter(object_id=SUBJECT)
        assert entries.count() == len(ACTIONS)
        assert not [entry for entry in entries if ".." in entry.change_message]
        shown = page(client).split("History")[1]
        for words in (
            "Raise for a day: Raised: login 4/h, until",
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

    def test_a_subject_too_long_for_a_row_is_an_error(self) -> None:
        answer = act(superuser(), "block", subject="x" * 600)
        assert answer.status_code == 200
        assert "500" in answer.content.decode()


ALL = ("view_subject", "reset_subject", "lift_ban", "add_quotaoverride", "change_quotaoverride", "delete_quotaoverride")
NEEDED = {
    "raise": {"add_quotaoverride"},
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
        if name != "raise":  # which a block rules out
            QuotaOverride.objects.create(subject=SUBJECT, mode="blocked")
        granted = operator("view_subject", *NEEDED[name])
        assert act(granted, name, factor="2").status_code == 302
        QuotaOverride.objects.all().delete()
        QuotaOverride.objects.create(subject=SUBJECT, mode="blocked")
        for number, missing in enumerate(NEEDED[name]):
            client = operator(*(set(ALL) - {missing}), name=f"without{number}")
            assert client.get(f"{PAGE}action/{name}/", {"subject": SUBJECT}).status_code == 403
            assert act(client, name, factor="2").status_code == 403
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


@pytest.mark.usefixtures("database", "memory_store")
class TestRaising:
    """Raising multiplies the rates of each rule, and never lowers one."""

    @pytest.fixture(autouse=True)
    def rules(self, settings: Any) -> None:
        rules = {
            "api": {"rate": "1000/m", "key": "user"},
            "search": {"rate": "10/m; 500/h", "key": "user"},
            "signup": {"rate": "5/m", "key": "ip"},
            "tiered": {"rate": {"anonymous": "5/m", "authenticated": "50/m"}, "key": "user"},
            "plans": {"rate": {"free": "5/m", "pro": "90/m"}, "key": "user", "tier": tier},
            "mixed": {"rate": {"free": "50/m; 100/h", "pro": "9/s; 400/h"}, "key": "user", "tier": tier},
            "odd": {"rate": lambda request: "1/m", "key": "user"},
            "closed": {"rate": "0/m", "key": "user"},
            "free": {"rate": None, "key": "user"},
        }
        settings.QUOTA = {**settings.QUOTA, "RULES": rules}

    def rates(self) -> dict[str, str]:
        return dict(QuotaOverride.objects.filter(subject=SUBJECT, mode="rate").values_list("rule", "rate"))

    def test_all_rules_are_raised_each_by_its_own_rates(self) -> None:
        client = superuser()
        assert act(client, "raise", factor="5", span="1d").status_code == 302
        raised = {"api": "5000/m", "search": "50/m; 2500/h", "tiered": "250/m", "plans": "450/m"}
        assert {rule: rate for rule, rate in self.rates().items() if "whoami" not in rule} == raised
        shown = page(client)
        assert "odd (its rates are functions of the request)" in shown
        assert "mixed (its rates depend on the tier)" in shown
        assert "signup" not in LogEntry.objects.get().change_message  # which never limits a user

    def test_the_operator_says_of_which_plan(self) -> None:
        client = superuser()
        shown = client.get(f"{PAGE}action/raise/", {"subject": SUBJECT, "on": '["plans"]'}).content.decode()
        assert re.findall(r'<option value="(.*?)".*?>(.*?)</option>', shown)[:9] == [
            *(("2 free", "2x free: 10/m"), ("5 free", "5x free: 25/m"), ("10 free", "10x free: 50/m")),
            *(("2 pro", "2x pro: 180/m"), ("5 pro", "5x pro: 450/m"), ("10 pro", "10x pro: 900/m")),
            *(("2", "2x: 180/m"), ("5", "5x: 450/m"), ("10", "10x: 900/m")),
        ]
        assert act(client, "raise", "plans", factor="2 free", span="1d").status_code == 302
        assert self.rates() == {"plans": "10/m"}
        assert act(client, "raise", "plans", factor="2 other", span="1d").status_code == 200

    @pytest.mark.parametrize(
        ("values", "why"),
        [
            ({"rate": "40/m"}, "an override is in force: 40/m"),
            ({"rate": "20/m; 900/h"}, ""),
            ({"mode": "exempt"}, "an override is in force: exempt"),
            ({"mode": "blocked"}, "an override is in force: blocked"),
            ({"mode": "shadow"}, "an override is in force: reports only"),
            ({"subject": "user:*", "rate": "40/m"}, "an override is in force: 40/m"),
            ({"subject": "*", "rule": "*", "mode": "exempt"}, "an override is in force: exempt"),
            ({"rate": "15/m; 600/h"}, "its own override would be lost: 15/m; 600/h"),
        ],
    )
    def test_nothing_is_lowered_or_lost_in_silence(self, values: dict[str, str], why: str) -> None:
        ends = None if "lost" in why else timezone.now() + timedelta(hours=1)
        made = QuotaOverride.objects.create(**{"subject": SUBJECT, "rule": "search", "expires": ends, **values})
        client = superuser()
        answer = act(client, "raise", "search", factor="2", span="1d")
        if why:
            assert f"Not raised: search ({why})." in answer.content.decode()
            made.refresh_from_db()
            assert made.rate == values.get("rate", "")
            shown = client.post(f"{PAGE}action/raise/", {"subject": SUBJECT, "on": '["search"]'}).content.decode()
            assert f"Not raised: search ({why})." in shown
        else:
            assert self.rates() == {"search": "20/m; 1000/h"}

    def test_a_rule_that_admits_nothing_stays_closed(self) -> None:
        answer = act(superuser(), "raise", "closed", factor="10", span="1d")
        assert "Not raised: closed (it admits nothing)." in answer.content.decode()

    def test_without_the_permission_to_change_other_rules_are_raised(self) -> None:
        QuotaOverride.objects.create(subject=SUBJECT, rule="search", rate="11/m", expires=timezone.now())
        client = operator("view_subject", "add_quotaoverride")
        assert act(client, "raise", "search", factor="2").status_code == 403
        assert act(client, "raise", factor="2", span="1d").status_code == 302
        assert self.rates()["search"] == "11/m"
        assert self.rates()["api"] == "2000/m"
        assert "search (you may not change its override)" in page(client)


@pytest.mark.usefixtures("database", "either_store")
class TestOverridesThatConcernASubject:
    def rows(self, subject: str) -> list[list[str]]:
        section = page(superuser(f"for-{subject}"), subject).split("<h2>Overrides</h2>")[1].split("</section>")[0]
        found = [re.sub(r"<[^>]*>", "|", each) for each in section.split("<tr>")[2:]]
        return [[cell.strip() for cell in each.split("|") if cell.strip()][:4] for each in found]

    def test_the_most_specific_comes_first_and_says_for_which_rules_it_holds(self) -> None:
        create = QuotaOverride.objects.create
        create(subject="*", rule="search", mode="exempt")
        create(subject="ip:*", rate="30/m")
        create(subject="ip:198.51.0.0/16", rule="login", rate="5/h")
        create(subject="ip:198.51.100.0/24", rule="login", rate="9/h")
        create(subject="ip:198.51.100.7", rule="search", rate="20/m")
        create(subject="ip:198.51.100.8", mode="blocked")
        assert self.rows("ip:198.51.100.7") == [
            ["search", "ip:198.51.100.7", "20/m", "search"],
            ["login", "ip:198.51.100.0/24", "9/h", "login"],
            ["login", "ip:198.51.0.0/16", "5/h", "no rule: another override takes precedence"],
            ["all rules", "ip:*", "30/m", "all rules but login, search"],
            ["search", "everybody", "off for everybody", "no rule: another override takes precedence"],
        ]
        assert self.rows("user:7") == [["search", "everybody", "off for everybody", "search"]]

    def test_the_override_of_a_group_is_named_at_its_rule_and_cannot_be_cleared_here(self) -> None:
        QuotaOverride.objects.create(subject="user:*", rule="search", rate="20/m", reason="a sale")
        client = superuser()
        shown = page(client)
        assert "Override (user:*): <strong>20/m</strong>" in shown
        assert "a sale" in shown
        assert "action/clear/" not in shown
        act(client, "block", "search")
        assert "action/clear/" in page(client)
