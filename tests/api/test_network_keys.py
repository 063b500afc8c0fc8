"""`key="ip/24"`: limits of networks, in every place that takes a key or a subject."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management.base import CommandError
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path

from django_quota import Rule, ban, check, concurrency, peek, quota, reset
from django_quota.core.errors import RuleError
from django_quota.models import QuotaOverride
from django_quota.operating.lookup import override_problems, parse_subject_input
from tests.admin.operators import superuser
from tests.support.commands import said

ADDRESS, NEIGHBOUR = "203.0.113.9", "203.0.113.77"
NETWORK = "ip:203.0.113.0/24"


@quota("2/m", key="ip", name="each")
@quota("3/m", key="ip/24", name="crawlers", ban={"after": "9/m", "for": ["10m"]})
def limited(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


urlpatterns = [path("limited/", limited)]


@pytest.fixture
def site(memory_store: Any, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__


def statuses(client: Client, *addresses: str) -> list[int]:
    return [client.get("/limited/", REMOTE_ADDR=each).status_code for each in addresses]


def subject_of(key: Any, address: str = ADDRESS) -> str | None:
    return check("9/m", RequestFactory().get("/", REMOTE_ADDR=address), key=key).subject


@pytest.mark.usefixtures("memory_store")
class TestSubject:
    @pytest.mark.parametrize(
        ("key", "address", "subject"),
        [
            pytest.param("ip/24", ADDRESS, NETWORK, id="a network of IPv4"),
            pytest.param("ip/24", "::ffff:203.0.113.9", NETWORK, id="IPv4 as IPv6"),
            pytest.param("ip/24", "2001:db8:1:2::7", "ip:2001:db8:1:2::/64", id="IPv6 by the settings"),
            pytest.param("ip/24,48", "2001:db8:1:2::7", "ip:2001:db8:1::/48", id="IPv6 by the key"),
            pytest.param("ip/32", ADDRESS, f"ip:{ADDRESS}", id="a whole address"),
            pytest.param("ip/32,128", "2001:db8::7", "ip:2001:db8::7/128", id="a whole address of IPv6"),
            pytest.param(("ip/24", "path"), ADDRESS, f"{NETWORK}+path:/", id="several parts"),
        ],
    )
    def test_it_is_the_network_of_the_client(self, key: Any, address: str, subject: str) -> None:
        assert subject_of(key, address) == subject

    @pytest.mark.parametrize(
        ("key", "subject"),
        [("ip", "ip:203.0.0.0/16"), ("ip/24", NETWORK), ("ip/32", f"ip:{ADDRESS}/32")],
        ids=["of the settings", "larger", "a whole address"],
    )
    def test_the_key_has_precedence_over_the_settings(self, key: str, subject: str, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "IPV4_PREFIX": 16}

        assert subject_of(key) == subject

    @pytest.mark.parametrize("prefix", [16, 32])
    @pytest.mark.parametrize("key", ["ip", "ip/8", "ip/24,48", "ip/32,128"])
    @pytest.mark.parametrize("address", [ADDRESS, "2001:db8::7"])
    def test_a_call_with_the_subject_counts_the_same(self, address: str, key: str, prefix: int, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "IPV4_PREFIX": prefix}
        subject = subject_of(key, address)

        assert check("9/m", subject).subject == subject
        assert peek("9/m", subject).used == 2

    @pytest.mark.parametrize(
        "key", ["ip/0", "ip/33", "ip/24,129", "ip/24,0", "ip/", "ip/24,", "ip/x", "ip/2.4", "ip/24, 48"]
    )
    def test_a_prefix_out_of_range_is_an_error(self, key: str) -> None:
        with pytest.raises(RuleError, match=f"key='{key}' is not a key. Use 'ip/24' for 1 to 32 bits"):
            quota("1/m", key=key)


@pytest.mark.usefixtures("memory_store")
def test_a_slot_may_be_held_by_a_network() -> None:
    def view(request: HttpRequest) -> Any:
        inner: Any = concurrency(1, key="ip/24", name="report")(lambda _: HttpResponse("inner"))
        return inner(RequestFactory().get("/", REMOTE_ADDR=NEIGHBOUR))

    outer = concurrency(1, key="ip/24", name="report")(view)

    assert outer(RequestFactory().get("/", REMOTE_ADDR=ADDRESS)).status_code == 429


@pytest.mark.usefixtures("site")
class TestRequests:
    def test_addresses_of_a_network_share_the_limit_of_the_network(self, client: Client) -> None:
        assert statuses(client, ADDRESS, NEIGHBOUR, "203.0.113.1", "203.0.113.2", "203.0.114.1") == [
            *(200, 200, 200, 429, 200),
        ]

    def test_each_address_keeps_its_own_limit_beside_it(self, client: Client) -> None:
        assert statuses(client, ADDRESS, ADDRESS, ADDRESS, NEIGHBOUR) == [200, 200, 429, 200]

    def test_a_reset_of_the_network_gives_it_its_hits_back(self, client: Client) -> None:
        statuses(client, ADDRESS, NEIGHBOUR, "203.0.113.1")

        reset("crawlers", NETWORK)

        assert statuses(client, "203.0.113.2") == [200]

    def test_a_ban_of_the_network_is_about_the_rule_of_networks(self, client: Client) -> None:
        ban("crawlers", NETWORK, "10m")

        assert statuses(client, ADDRESS, "203.0.114.1") == [429, 200]


def overridden(subject: str, mode: str, rule: str = "*", rate: str = "") -> None:
    QuotaOverride.objects.create(subject=subject, rule=rule, mode=mode, rate=rate)


@pytest.mark.usefixtures("database", "site")
class TestOverrides:
    """An override of a network is about each subject in it: its addresses, its networks, and the network itself."""

    @pytest.mark.parametrize("rule", ["*", "each", "crawlers"])
    @pytest.mark.parametrize("network", [NETWORK, "ip:203.0.0.0/16"])
    def test_a_block_of_a_network_refuses_all_its_addresses(self, network: str, rule: str, client: Client) -> None:
        overridden(network, "blocked", rule)

        assert statuses(client, ADDRESS, NEIGHBOUR, "198.51.100.1") == [429, 429, 200]

    def test_a_rate_of_a_network_is_that_of_the_network_under_a_rule_of_networks(self, client: Client) -> None:
        overridden(NETWORK, "rate", "crawlers", "1/m")

        assert statuses(client, ADDRESS, NEIGHBOUR) == [200, 429]

    def test_a_rate_of_a_network_is_that_of_each_address_under_a_rule_of_addresses(self, client: Client) -> None:
        overridden(NETWORK, "rate", "each", "1/m")

        assert statuses(client, ADDRESS, NEIGHBOUR, ADDRESS) == [200, 200, 429]

    def test_an_exemption_of_one_address_leaves_the_limit_of_its_network(self, client: Client) -> None:
        overridden(f"ip:{ADDRESS}", "exempt")

        assert statuses(client, *[ADDRESS] * 4) == [200, 200, 200, 429]

    def test_an_override_of_the_network_of_an_ipv6_client_is_about_each_address_in_it(self, settings: Any) -> None:
        precise = {"rate": "9/m", "key": "ip/32,128", "match": "/limited/"}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"precise": precise}}

        assert override_problems("precise", "ip:2001:db8::/64") == []

    @pytest.mark.parametrize(
        ("subject", "rule", "is_fine"),
        [
            (NETWORK, "crawlers", True),
            ("ip:203.0.0.0/16", "crawlers", True),
            (NETWORK, "each", True),
            (f"ip:{ADDRESS}", "crawlers", False),
            ("ip:203.0.113.0/25", "crawlers", False),
        ],
        ids=["the network", "a larger one", "under a rule of addresses", "an address", "a smaller network"],
    )
    def test_an_override_of_something_smaller_has_no_effect(self, subject: str, rule: str, is_fine: bool) -> None:
        assert (override_problems(rule, subject) == []) is is_fine


@pytest.mark.usefixtures("site")
class TestOperators:
    @pytest.mark.parametrize("text", ["203.0.113.0/24", "203.0.113.9/24", NETWORK])
    def test_a_network_that_some_rule_counts_by_can_be_typed(self, text: str) -> None:
        assert parse_subject_input(text) == NETWORK

    def test_a_network_that_no_rule_counts_by_is_an_error(self) -> None:
        with pytest.raises(RuleError, match=r"it is a network\. Use one address"):
            parse_subject_input("203.0.0.0/16")


@pytest.mark.django_db
class TestPages:
    @pytest.fixture(autouse=True)
    def refused(self, database: Any, memory_store: Any, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"crawlers": {"rate": "1/h", "key": "ip/24"}}}
        check("crawlers", NETWORK, 1)

    @pytest.fixture
    def page(self) -> Any:
        client = superuser()
        return lambda subject: client.get("/admin/django_quota/subject/", {"subject": subject}).content.decode()

    def test_a_search_finds_the_network(self) -> None:
        answer: Any = superuser().post("/admin/django_quota/subject/", {"find": "203.0.113.0/24"})

        assert answer.url.endswith("?subject=ip%3A203.0.113.0%2F24")

    def test_an_override_of_the_network_links_to_its_page(self) -> None:
        overridden(NETWORK, "exempt")

        shown = superuser().get("/admin/django_quota/quotaoverride/").content.decode()

        assert "?subject=ip%3A203.0.113.0%2F24" in shown

    def test_the_page_of_the_network_has_its_figures(self, page: Any) -> None:
        assert "1 of 1 used" in page(NETWORK)

    def test_the_page_of_an_address_says_that_its_network_is_refused(self, page: Any) -> None:
        shown = page(f"ip:{ADDRESS}")

        assert "quota-answer-no" in shown
        assert "refused by crawlers until" in shown

    def test_the_page_of_an_address_says_what_the_rule_counts_by(self, page: Any) -> None:
        assert "crawlers counts by ip/24." in page(f"ip:{ADDRESS}")


@pytest.mark.usefixtures("database", "redis_cache")
class TestCommands:
    @pytest.fixture(autouse=True)
    def crawlers(self, redis_cache: Any, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"crawlers": {"rate": "1/h", "key": "ip/24"}}}
        check("crawlers", NETWORK)

    @pytest.mark.parametrize("typed", [NETWORK, "203.0.113.9/24", ADDRESS])
    def test_the_status_has_the_limit_of_the_network(self, typed: str) -> None:
        assert "1 of 1 used, 0 left" in said("quota_status", typed)

    def test_a_reset_takes_the_network(self) -> None:
        said("quota_reset", "203.0.113.0/24")

        assert peek("crawlers", NETWORK).used == 0

    def test_an_override_of_one_address_of_it_is_refused(self) -> None:
        with pytest.raises(CommandError, match='which limits "ip/24"'):
            said("quota_override", "set", ADDRESS, "blocked", "--rule", "crawlers")

    def test_an_override_of_the_network_is_saved(self) -> None:
        said("quota_override", "set", "203.0.113.9/24", "5/h", "--rule", "crawlers")

        assert peek("crawlers", NETWORK).limit == 5

    def test_a_list_with_networks_that_some_rule_counts_by_is_imported(self, tmp_path: Any, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"precise": {"rate": "1/h", "key": "ip/32,128"}}}
        (tmp_path / "list").write_text("2001:db8::7/128\n")

        said("quota_override", "import", str(tmp_path / "list"), "--label", "crawlers")

        assert QuotaOverride.objects.get().subject == "ip:2001:db8::7/128"


def test_a_user_of_a_key_with_a_network_keeps_both_parts(memory_store: Any) -> None:
    request = RequestFactory().get("/", REMOTE_ADDR=ADDRESS)
    request.user = User(pk=7)

    assert check(Rule.make("both", "9/m", key=("user", "ip/24")), request).subject == f"user:7+{NETWORK}"


@pytest.mark.parametrize(
    ("key", "address", "subject"),
    [
        ("ip/1", ADDRESS, "ip:128.0.0.0/1"),
        ("ip/32", ADDRESS, f"ip:{ADDRESS}"),
        ("ip/24,1", "2001:db8::7", "ip:::/1"),
        ("ip/24,128", "2001:db8::7", "ip:2001:db8::7/128"),
        ("ip/24,48", ADDRESS, NETWORK),
    ],
)
def test_a_key_takes_every_number_of_bits(key: str, address: str, subject: str, memory_store: None) -> None:
    request = RequestFactory().get("/", REMOTE_ADDR=address)

    assert check("9/m", request, key=key).subject == subject
