"""The page of a subject: it is found, it says how the subject stands, and what is done there holds at once."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import IntegrityError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_quota import check
from django_quota.models import OverrideOutbox, QuotaOverride
from django_quota.subjects import digest
from tests.admin.operators import operator, superuser

PAGE = "/admin/django_quota/subject/"
SUBJECT = "user:42"
ACTS = ("raise", "exempt", "block", "reset", "lift", "clear")
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


def act(client: Client, name: str, rule: str = "*", subject: str = SUBJECT, **given: str) -> Any:
    words = {"subject": subject, "on": json.dumps([rule]), "confirmed": "yes", **given}
    return client.post(f"{PAGE}act/{name}/", words)


def found(client: Client, text: str) -> str:
    """Return the subject that a text leads to."""
    answer = client.post(PAGE, {"find": text})
    assert answer.status_code == 302, answer.content.decode()
    (subject,) = parse_qs(urlsplit(answer.url).query)["subject"]  # type: ignore[attr-defined]
    return subject


@pytest.mark.usefixtures("database", "memory_store")
class TestFinding:
    def test_a_user_is_found_by_name_by_mail_and_by_key(self) -> None:
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
    def test_a_plain_value_leads_to_its_digest_and_goes_nowhere_else(self, text: str, name: str) -> None:
        client = superuser()
        answer = client.post(PAGE, {"find": text})
        assert found(client, text) == f"{name}:{digest('+1555')}"
        assert "1555" not in answer.url  # type: ignore[attr-defined]
        assert not LogEntry.objects.filter(change_message__contains="1555").exists()

    def test_a_subject_of_several_parts_is_found_by_what_a_human_knows_of_it(self) -> None:
        client = superuser()
        text, subject = "203.0.113.9+post:username=ann", f"ip:203.0.113.9+post.username:{digest('ann')}"
        assert found(client, text) == subject
        assert "ann" not in client.post(PAGE, {"find": text}).url  # type: ignore[attr-defined]

    @pytest.mark.parametrize("text", ["ann", "ann@example.org", "1", "nobody"])
    def test_without_the_permission_to_view_users_a_name_finds_nobody(self, text: str) -> None:
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

    def test_of_several_users_one_is_chosen(self) -> None:
        users = [User.objects.create_user(name, "same@example.org") for name in ("bob", "cid")]
        client = superuser()
        shown = client.post(PAGE, {"find": "same@example.org"}).content.decode()
        assert all(f'value="user:{user.pk}"' in shown and str(user) in shown for user in users)
        assert client.post(PAGE, {"subject": f"user:{users[0].pk}"}).status_code == 302

    @pytest.mark.parametrize("text", ["", "ip:nowhere", "post:phone="])
    def test_what_is_nobody_is_said(self, text: str) -> None:
        answer = superuser().post(PAGE, {"find": text})
        assert answer.status_code == 200
        assert "errornote" in answer.content.decode()
        assert superuser("other").get(PAGE, {"subject": "ip:nowhere"}).status_code == 200

    def test_an_entry_of_the_log_leads_to_the_page(self) -> None:
        client = superuser()
        act(client, "block", subject="ip:203.0.113.9")
        entry = LogEntry.objects.get(object_id="ip:203.0.113.9")
        answer = client.get(entry.get_admin_url() or "")
        assert answer.url == f"{PAGE}?subject=ip%3A203.0.113.9"  # type: ignore[attr-defined]


@pytest.mark.usefixtures("database", "redis_cache")
class TestPage:
    def test_it_says_how_a_subject_stands_and_why(self) -> None:
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
            "of which nothing is used",
        ):
            assert words in shown, words

    def test_rules_that_count_a_subject_together_with_more_are_named(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"login": {"rate": "5/m", "key": ("ip", "post:username")}}}
        client = superuser()
        shown = page(client, "ip:203.0.113.9")
        assert "login: <code>ip:203.0.113.9+post:username=&lt;value&gt;</code>" in shown
        assert "together with more" not in page(client, f"ip:203.0.113.9+post.username:{digest('ann')}")

    def test_a_refusal_by_a_rule_that_only_a_call_knows_is_shown(self) -> None:
        client = superuser()
        assert "Refused lately" not in page(client)
        for _ in range(3):
            check("2/h", SUBJECT, name="transfer")
        shown = page(client)
        section = shown[shown.index("Refused lately") :]
        assert '<td data-label="Rule">transfer</td>' in section
        assert '<td data-label="Limit">2</td>' in section
        assert "Refused lately" not in page(client, "user:43")

    def test_an_override_for_all_rules_is_said_once(self) -> None:
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
    def test_what_is_nobody_is_said_above_the_page(self, subject: str, hint: str) -> None:
        client = superuser()
        assert hint in page(client, subject)
        check("search", subject)
        assert hint not in page(client, subject)

    def test_a_moment_that_ends_with_a_full_stop_gets_no_second(self) -> None:
        answer = act(superuser(), "block", span="1d")
        assert answer.status_code == 302
        (entry,) = LogEntry.objects.filter(object_id=SUBJECT)
        assert ".." not in entry.change_message
        assert entry.change_message.endswith(".")

    def test_no_keys_are_walked_over_and_trips_and_queries_are_few(self, raw: redis.Redis) -> None:
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

    def test_on_a_redis_that_takes_no_changes_it_says_what_happens_to_a_hit(
        self, raw: redis.Redis, settings: Any
    ) -> None:
        settings.QUOTA["RULES"] |= {
            "open": {"rate": "3/m", "on_unavailable": "allow"}, "shut": {"rate": "3/m", "on_unavailable": "deny"},
        }  # fmt: skip
        client = superuser()
        assert "no changes" not in page(client)
        raw.replicaof("127.0.0.1", 1)
        try:
            shown = page(client)
        finally:
            raw.replicaof("NO", "ONE")
        assert "no hit is admitted while Redis takes no changes" in shown
        assert "the next hit is admitted, and not counted" in shown
        assert list(raw.scan_iter("*probe*")) == []

    def test_it_has_no_inline_style_or_script(self) -> None:
        client = superuser()
        check("search", SUBJECT, 4)
        QuotaOverride.objects.create(subject=SUBJECT, mode="blocked")
        pages = [
            page(client),
            *(client.get(f"{PAGE}act/{name}/", {"subject": SUBJECT}).content.decode() for name in ACTS),
        ]
        for shown in pages:
            assert "style=" not in shown
            assert "<style" not in shown
            assert " onclick" not in shown
            assert all("src=" in tag.partition(">")[0] for tag in shown.split("<script")[1:])


@pytest.mark.usefixtures("database", "either_store")
@pytest.mark.parametrize("subject", STRANGE)
def test_any_subject_has_a_page_acts_and_a_log(subject: str) -> None:
    client = superuser()
    check("search", subject, 4)
    answer = client.post(PAGE, {"subject": subject})
    assert answer.status_code == (200 if len(subject) > 500 else 302)  # no server takes a URL that long
    shown = page(client, subject) if answer.status_code == 302 else answer.content.decode()
    assert "4 of 10 used, 6 left" in shown
    assert "<script>alert" not in shown
    assert client.post(f"{PAGE}act/reset/", {"subject": subject, "on": '["search"]'}).status_code == 200
    answer = act(client, "reset", "search", subject)
    shown = page(client, subject) if answer.status_code == 302 else answer.content.decode()
    assert "4 of 10 used" not in shown
    assert "What was counted under rule “search” was forgotten." in shown.split("What was done")[1]
    entry = LogEntry.objects.get()
    assert client.get(entry.get_admin_url() or "").status_code == 302
    assert client.get("/admin/").status_code == 200


@pytest.mark.usefixtures("database")
def test_without_the_store_the_page_says_so_and_shows_the_overrides(caplog: Any) -> None:
    client = superuser()
    act(client, "block", "search", reason="abuse")
    assert OverrideOutbox.objects.exists()
    shown = page(client)
    assert "How it stands cannot be said now." in shown
    assert "abuse" in shown
    assert "Redis has not been told" in shown
    answer = act(client, "reset")
    assert answer.status_code == 200
    assert "unavailable" in answer.content.decode()
    assert LogEntry.objects.count() == 1  # of the block alone


@pytest.mark.usefixtures("database", "either_store")
class TestActs:
    def test_a_raise_holds_with_the_next_request_and_ends(self) -> None:
        client = superuser()
        check("search", SUBJECT, 10)
        assert not check("search", SUBJECT)
        shown = client.post(f"{PAGE}act/raise/", {"subject": SUBJECT, "on": '["search", "20/m; 1000/h"]'})
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
    def test_a_rate_that_is_none_is_said_on_its_field(self, rate: str) -> None:
        answer = act(superuser(), "raise", "search", rate=rate)
        assert answer.status_code == 200
        assert answer.context["form"].errors["rate"]
        assert not QuotaOverride.objects.exists()
        assert not LogEntry.objects.exists()

    def test_a_block_refuses_at_once_and_clearing_it_admits(self) -> None:
        client = superuser()
        act(client, "block", "search", span="")
        assert check("search", SUBJECT).outcomes[0].why == "blocked"
        assert check("login", SUBJECT)
        act(client, "clear", "search")
        assert check("search", SUBJECT)
        act(client, "block")
        assert not check("login", SUBJECT)

    def test_an_exemption_takes_the_place_of_what_there_was(self) -> None:
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

    def test_a_lifted_ban_leaves_what_was_counted(self) -> None:
        client = superuser()
        for _ in range(3):
            check("login", SUBJECT)
        assert "&quot;login&quot;" in page(client).split("Bans</h2>")[1].split("</section>")[0]
        act(client, "lift", "login")
        decision = check("login", SUBJECT, cost=0)
        assert (decision.allowed, decision.remaining) == (True, 0)

    def test_each_is_logged_about_the_subject_and_shown(self) -> None:
        client = superuser()
        for _ in range(3):
            check("login", SUBJECT)
        for name in ("lift", *(name for name in ACTS if name != "lift")):
            act(client, name, "login", rate="20/m", reason="why not")
        assert LogEntry.objects.filter(object_id=SUBJECT).count() == len(ACTS)
        shown = page(client).split("What was done")[1]
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
            answer = client.post(f"{PAGE}act/reset/", {"subject": SUBJECT, "on": on})
            assert answer.status_code == 302

    def test_who_comes_second_is_told_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def lost_race(*_: Any, **__: Any) -> None:
            raise IntegrityError

        client = superuser()
        monkeypatch.setattr(QuotaOverride, "save", lost_race)
        answer = act(client, "block")
        assert answer.status_code == 200
        assert "Somebody else has just made one" in answer.content.decode()
        assert not LogEntry.objects.exists()

    def test_a_subject_too_long_for_a_row_is_said(self) -> None:
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
    @pytest.mark.parametrize("name", ACTS)
    def test_an_act_needs_its_permissions_and_no_others(self, name: str) -> None:
        QuotaOverride.objects.create(subject=SUBJECT, mode="blocked")
        granted = operator("view_subject", *NEEDED[name])
        assert act(granted, name, rate="5/m").status_code == 302
        QuotaOverride.objects.update_or_create(subject=SUBJECT, rule="*", defaults={"mode": "blocked", "rate": ""})
        for number, missing in enumerate(NEEDED[name]):
            client = operator(*(set(ALL) - {missing}), name=f"without{number}")
            assert client.get(f"{PAGE}act/{name}/", {"subject": SUBJECT}).status_code == 403
            assert act(client, name, rate="5/m").status_code == 403
            assert f'value="[&quot;*&quot;]" formaction="{PAGE}act/{name}/"' not in page(client)
        assert QuotaOverride.objects.get().mode == "blocked"

    def test_where_there_is_no_row_adding_is_enough(self) -> None:
        client = operator("view_subject", "add_quotaoverride")
        assert act(client, "block").status_code == 302
        assert act(client, "exempt").status_code == 403
        assert act(client, "exempt", "search").status_code == 302

    def test_without_view_there_is_nothing(self) -> None:
        client = operator(*(set(ALL) - {"view_subject"}))
        assert client.get(PAGE, {"subject": SUBJECT}).status_code == 403
        assert client.post(PAGE, {"find": "user:1"}).status_code == 403
        assert client.get(f"{PAGE}user_3A42/change/").status_code == 403
        assert [act(client, name).status_code for name in ACTS] == [403] * len(ACTS)
        assert not LogEntry.objects.exists()

    def test_it_cannot_be_added_or_deleted(self) -> None:
        client = superuser()
        assert client.get(f"{PAGE}add/").status_code == 403
        assert client.get(f"{PAGE}1/delete/").status_code in (302, 403)
        assert client.get(f"{PAGE}act/nothing/", {"subject": SUBJECT}).status_code == 404

    def test_nothing_is_done_by_get_or_without_the_token(self) -> None:
        client = superuser(enforce_csrf_checks=True)
        for name in ACTS:
            assert act(client, name, rate="5/m").status_code == 403
            words = {"subject": SUBJECT, "confirmed": "yes", "rate": "5/m"}
            assert client.get(f"{PAGE}act/{name}/", words).status_code == 200
        assert client.post(PAGE, {"find": "user:1"}).status_code == 403
        assert not QuotaOverride.objects.exists()
        assert not LogEntry.objects.exists()

    def test_visitors_are_asked_to_log_in(self) -> None:
        assert Client().get(PAGE).status_code == 302
        assert Client().post(f"{PAGE}act/block/", {"subject": SUBJECT}).status_code == 302


@pytest.mark.usefixtures("database", "memory_store")
class TestWhatOnlySomeMaySee:
    def test_an_act_is_refused_before_what_it_is_about_is_read(self) -> None:
        client = operator("view_subject")
        for name in ACTS:
            answer = client.post(f"{PAGE}act/{name}/", {"subject": "", "on": "no rule", "confirmed": "yes"})
            assert answer.status_code == 403

    def test_the_name_of_a_user_stands_in_the_heading_for_those_who_may_see_users(self) -> None:
        User.objects.create_user("ann<b>", pk=42)
        assert "· ann&lt;b&gt;" in page(superuser())
        assert "· ann&lt;b&gt;" in page(operator("view_subject", "auth.change_user", name="changes"))
        assert "ann&lt;" not in page(operator("view_subject"))

    def test_a_tier_that_a_subject_cannot_be_in_is_not_shown(self, settings: Any) -> None:
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

    def test_a_row_made_meanwhile_is_not_changed_by_who_may_only_add(self, monkeypatch: pytest.MonkeyPatch) -> None:
        client = operator("view_subject", "add_quotaoverride")
        QuotaOverride.objects.create(subject=SUBJECT, rule="search", rate="5/m")
        monkeypatch.setattr("django_quota.admin.subject_acts._Overriding.is_allowed", lambda *_: True)
        answer = act(client, "block", "search")
        assert answer.status_code == 200
        assert "Somebody else has just made one" in answer.content.decode()
        assert QuotaOverride.objects.get().rate == "5/m"
