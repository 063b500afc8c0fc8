"""No input makes an admin page fail with a server error."""

from typing import Any

import pytest
from django.test import Client
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from django_quota.models import QuotaOverride
from tests.admin.operators import superuser
from tests.support.inputs import inputs

ROOT = "/admin/django_quota/"
ODD = [
    "", "\0", "user:\0", "user:%2500", "ip:1.2.3.4", "ip:2001:db8::1", "10.0.0.0/8", "10.0.0.1/x", "fe80::1%eth0/64",
    "ip:", "global", "user:42", "user:", "~", "~" + "0" * 64, "*", "**", "search", "10/m", "0/m", "9" * 30 + "/m", "-1",
    "0", "1", "13", "32", "9999", "99999", "2026", "1e9", "NaN", "9" * 40, "-", "a-b", "$", "[]", "[1]", "[null]",
    '["a"]', '[["a", "5/m", "x"]]', '{"a": 1}', "[" * 5000, '["\\u0000", "\\ud800"]', "true", "null",
    "<script>alert(1)</script>", "'\"`", "ключ", "🎈", "\u202e", "%", "_", "\\", "x" * 3000, "post:phone=+1", "post:=1",
    "post:a=", "header:\r\nX=1", "key.a+b", "2026-11-21", "9999-12-31", "23:59:60", "refused", "rate", "exempt",
    "blocked", "active", "pending", "ended", "permanent", "90", "year", "-1.2.3", "99", "user:" + "9" * 30, "user:a+b",
    "+", "{",
]  # fmt: skip
"""What people, programs and attackers may send in the place of anything."""

ACTIONS = tuple(f"subject/action/{name}/" for name in ("raise", "exempt", "block", "reset", "lift", "clear", "other"))
PAGES = {
    "overview/": "kind rule subject page",
    "overview/content/": "kind",
    "overview/events/": "kind rule path since until subject part before csv",
    "ban/": "subject rule p",
    "ban/set/": "subject rule span until reason note",
    "knownrule/": "name",
    "dailycounter/": "q p o e all rule kind day__year day__month day__day day__gte day__exact day subject "
    "subject__startswith _facets _to_field _popup",
    "dailycounter/export/": "q p o rule kind day__year day__month day__day day__gte",
    **dict.fromkeys(("dailycounter/usage/", "dailycounter/usage/csv/"), "subject rule year days"),
    "dailycounter/1/change/": "",
    "quotaoverride/": "q p o all rule state mode__exact _facets _popup e",
    "quotaoverride/add/": "subject rule mode rate starts expires _popup _changelist_filters",
    "quotaoverride/preview/": "subject",
    "quotaoverride/rule/": "name",
    "quotaoverride/1/change/": "_changelist_filters _popup",
    "subject/": "subject q p",
    **dict.fromkeys(ACTIONS, "subject on"),
}
"""The pages, and what each reads of its URL."""

OVERRIDE = "subject rule mode rate starts_0 starts_1 expires_0 expires_1"
FORMS = {
    **dict.fromkeys(("dailycounter/usage/", "subject/"), "find"),
    "overview/events/": "find kind rule path since until",
    "ban/": "find rule",
    "ban/set/": "subject rule span until reason note _locks_me_out",
    "ban/lift/": "subject rule bans ban all confirmed",
    "quotaoverride/add/": f"{OVERRIDE} reason _preview",
    **dict.fromkeys(("quotaoverride/preview/", "quotaoverride/preview/1/"), OVERRIDE),
    **dict.fromkeys(("quotaoverride/", "dailycounter/"), "action select_across index confirmed"),
    **dict.fromkeys(ACTIONS, "subject on confirmed span reason factor"),
}
"""The forms, and their fields."""

VALUES = st.one_of(st.sampled_from(ODD), st.text(st.characters(codec="utf-8"), max_size=30))


def sent(pages: dict[str, str]) -> Any:
    return st.sampled_from(sorted(pages)).flatmap(
        lambda page: st.tuples(
            st.just(page), st.fixed_dictionaries({}, optional=dict.fromkeys(pages[page].split(), VALUES))
        )
    )


RULES = {
    "search": {"rate": "10/m; 500/h", "key": "user", "ban": {"after": "3/m", "for": ["1m"]}},
    "tiered": {"rate": {"anonymous": "5/m", "authenticated": "50/m"}},
    "plans": {"rate": {"free": "5/m", "pro": "50/m"}, "tier": lambda request: "free"},
    "monthly": {"rate": "5/month", "algorithm": "calendar"},
    "leaky": {"rate": "1/50w", "algorithm": "leaky_bucket"},
}


@pytest.fixture
def client(database: dict[str, Any], memory_store: None, settings: Any) -> Client:
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}
    QuotaOverride.objects.create(subject="user:42", rate="5/m")
    return superuser()


def named(page: str) -> str:
    return ROOT + page.replace("/1/", f"/{QuotaOverride.objects.values_list('pk', flat=True)[0]}/")


def answered(answer: Any) -> None:
    """Check that it is an answer, to its end; the test's client raises what a server would make a 500 of."""
    assert answer.status_code < 500, answer.content
    if answer.streaming:
        b"".join(answer.streaming_content)


ODD_INPUT = inputs(100, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ODD_INPUT
@given(sent(PAGES))
@example(("dailycounter/", {"day__year": "9999"}))
@example(("dailycounter/export/", {"day__year": "9" * 40}))
@example(("quotaoverride/", {"mode__exact": "\0"}))
@example(("quotaoverride/add/", {"expires": "soon"}))
@example(("subject/action/block/", {"subject": "user:42", "on": "[" * 5000}))
def test_every_url_is_answered(client: Client, asked: tuple[str, dict[str, str]]) -> None:
    page, parameters = asked
    answered(client.get(named(page), parameters))


@ODD_INPUT
@given(sent(FORMS))
@example(("subject/action/block/", {"subject": "user:42", "on": "\0", "confirmed": "yes", "reason": "a"}))
@example(("ban/lift/", {"bans": '[["user:1", "\\ud800"]]', "confirmed": "yes"}))
def test_every_form_is_answered(client: Client, asked: tuple[str, dict[str, str]]) -> None:
    page, fields = asked
    if QuotaOverride.objects.count() == 0:
        QuotaOverride.objects.create(subject="user:42", rate="5/m")
    answered(client.post(named(page), {"mode": "rate", **fields}))


NETWORKS = [
    pytest.param("10.0.0.0/8", id="a network"),
    pytest.param("10.0.0.1/x", id="no network"),
    pytest.param("10.0.0.0/8/8", id="two masks", marks=pytest.mark.thorough("variants")),
    pytest.param("2001:db8::/32", id="an IPv6 network", marks=pytest.mark.thorough("variants")),
    pytest.param("::ffff:10.0.0.0/104", id="an IPv4 network as IPv6", marks=pytest.mark.thorough("variants")),
    pytest.param("::1/" + "0" * 90, id="a long mask", marks=pytest.mark.thorough("variants")),
]


def pairs(pages: dict[str, str], *names: str) -> list[tuple[str, str]]:
    """Return each page with each of these that it reads."""
    return [(page, name) for page, read in pages.items() for name in names if name in read.split()]


@pytest.mark.parametrize("network", NETWORKS)
class TestNetworks:
    """A subject is one address, and an override may be about a network: nothing breaks, and no typing error is lost."""

    @pytest.mark.parametrize(("page", "name"), pairs(PAGES, "q", "subject"))
    def test_a_page_that_takes_a_subject_answers(self, client: Client, network: str, page: str, name: str) -> None:
        answered(client.get(named(page), {name: network}))

    @pytest.mark.parametrize(("page", "name"), pairs(FORMS, "find", "subject"))
    def test_a_form_that_takes_a_subject_answers(self, client: Client, network: str, page: str, name: str) -> None:
        answered(client.post(named(page), {name: network, "mode": "blocked", "rule": "*"}))

    def test_a_block_is_saved_or_its_error_is_shown(self, client: Client, network: str) -> None:
        QuotaOverride.objects.all().delete()

        fields = {"subject": network, "rule": "*", "mode": "blocked"}
        answer = client.post(f"{ROOT}quotaoverride/add/", fields, follow=True).content.decode()

        is_wrong = "is not a network" in answer or "is smaller than a /64" in answer
        assert [row.subject.startswith("ip:") for row in QuotaOverride.objects.all()] == [True] * (not is_wrong)

    def test_a_row_that_has_it_is_found(self, client: Client, network: str) -> None:
        self.make_the_only_row(network)

        assert "1 override" in client.get(f"{ROOT}quotaoverride/", {"q": network}).content.decode()

    @pytest.mark.parametrize("page", ["change", "delete", "history"])
    def test_a_row_that_has_it_has_a_page(self, client: Client, network: str, page: str) -> None:
        self.make_the_only_row(network)

        answered(client.get(named(f"quotaoverride/1/{page}/")))

    def test_a_row_that_has_it_can_be_deleted(self, client: Client, network: str) -> None:
        self.make_the_only_row(network)

        answered(client.post(named("quotaoverride/1/delete/"), {"post": "yes"}))

        assert not QuotaOverride.objects.exists()

    def make_the_only_row(self, subject: str) -> None:
        """Write it past the form, which would correct or refuse it."""
        QuotaOverride.objects.all().delete()
        QuotaOverride.objects.bulk_create([QuotaOverride(subject="x", rule="*", mode="blocked")])
        QuotaOverride.objects.update(subject=subject)


class TestRowOfAWrongSubject:
    """A row that the form would refuse."""

    @pytest.fixture(autouse=True)
    def the_only_row(self, client: Client) -> None:
        QuotaOverride.objects.all().delete()
        QuotaOverride.objects.bulk_create([QuotaOverride(subject="x10.0.0.0/8/8", rule="*", mode="blocked")])

    @pytest.mark.parametrize("page", ["change", "history"])
    def test_its_pages_can_be_opened(self, client: Client, page: str) -> None:
        answered(client.get(named(f"quotaoverride/1/{page}/")))

    def test_it_can_be_deleted(self, client: Client) -> None:
        answered(client.post(named("quotaoverride/1/delete/"), {"post": "yes"}))

        assert not QuotaOverride.objects.exists()
