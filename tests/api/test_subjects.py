"""Who is limited: keys, secrets, users, addresses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest
from django.test import AsyncClient, RequestFactory
from django.utils.asyncio import async_unsafe
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota import RateError, check, concurrency, quota, reset
from django_quota.adapters import digest
from django_quota.exceptions import ConfigurationError, RuleError, SubjectKeyError
from tests.support.calls import always, asubject_of, subject_of

IP = "ip:192.0.2.1"
SECRET = "s3cret-value"


def request(**meta: Any) -> HttpRequest:
    return RequestFactory().get("/a+b%/", **{"REMOTE_ADDR": "192.0.2.1", **meta})


def subject(key: object, of: HttpRequest | None = None) -> str:
    """Return the subject as both drivers find it."""
    asked = of or request()
    found = subject_of(key, asked)
    assert asyncio.run(asubject_of(key, asked)) == found
    return str(found)


def with_user(user: object, **meta: Any) -> HttpRequest:
    made = request(**meta)
    made.user = user  # type: ignore[assignment]
    return made


def test_a_path_is_one_subject_whatever_the_site_is_mounted_under() -> None:
    for mounted in ("", "/mounted", "/other"):
        given = RequestFactory().get("/a/", SCRIPT_NAME=mounted, REMOTE_ADDR="192.0.2.1")
        assert subject_of("path", given) == "path:/a/"


@pytest.mark.parametrize(("key", "found"), [("ip", IP), ("global", "global"), ("path", "path:/a%2Bb%25/")])
def test_a_plain_key_names_its_subject(key: str, found: str) -> None:
    assert subject(key) == found


@pytest.mark.parametrize("key", ["user", "user_or_ip"])
class TestUsers:
    def test_a_user_is_named_by_the_primary_key(self, key: str) -> None:
        assert subject(key, with_user(User(pk=42))) == "user:42"

    def test_an_anonymous_visitor_falls_back_to_the_ip(self, key: str) -> None:
        assert subject(key, with_user(AnonymousUser())) == IP

    def test_a_site_without_users_falls_back_to_the_ip(self, key: str) -> None:
        assert subject(key) == IP

    def test_a_primary_key_with_signs_in_it_stays_one_part(self, key: str) -> None:
        odd = SimpleNamespace(is_authenticated=True, pk="a+ip:1%")
        assert subject(key, with_user(odd)) == "user:a%2Bip:1%25"

    def test_an_authenticated_user_without_a_primary_key_is_a_clear_error(self, key: str) -> None:
        odd = SimpleNamespace(is_authenticated=True, username="ann")
        with pytest.raises(RuleError, match=r"user is a SimpleNamespace without a primary key.*Give the class a `pk`"):
            subject(key, with_user(odd))

    def test_a_user_that_another_middleware_set_counts_under_async_too(self, key: str) -> None:
        made = with_user(User(pk=7))  # token authentication: sets request.user, knows nothing of auser

        async def session_user() -> AnonymousUser:
            return AnonymousUser()

        made.auser = session_user
        assert asyncio.run(asubject_of(key, made)) == "user:7"


@pytest.mark.django_db
def test_the_user_of_a_real_session_is_found_under_async(memory_store: None) -> None:
    user = User.objects.create_user("peter")

    async def ask() -> str:
        client = AsyncClient()
        await client.aforce_login(user)
        return (await client.get("/whoami-async/")).content.decode()

    assert async_to_sync(ask)() == f"user:{user.pk}"


class TestSecrets:
    KEYS: tuple[tuple[str, Callable[[str], HttpRequest]], ...] = (
        ("header:X-Api-Key", lambda value: request(HTTP_X_API_KEY=value)),
        ("cookie:device", lambda value: request(HTTP_COOKIE=f"device={value}")),
        ("get:token", lambda value: RequestFactory().get("/", {"token": value}, REMOTE_ADDR="192.0.2.1")),
        ("post:phone", lambda value: RequestFactory().post("/", {"phone": value}, REMOTE_ADDR="192.0.2.1")),
    )

    @pytest.mark.parametrize(("key", "make"), KEYS)
    def test_what_a_client_sent_is_a_digest_of_its_own(self, key: str, make: Callable[[str], HttpRequest]) -> None:
        found = subject(key, make(SECRET))
        assert SECRET not in found
        assert found == subject(key, make(SECRET))
        assert found != subject(key, make(SECRET + "x"))

    @pytest.mark.parametrize(("key", "make"), KEYS)
    def test_what_is_missing_or_empty_falls_back_to_the_ip(self, key: str, make: Callable[[str], HttpRequest]) -> None:
        assert subject(key, request()) == IP
        assert subject(key, make("")) == IP

    def test_the_same_value_from_two_places_or_names_is_two_subjects(self) -> None:
        found = {subject(key, make(SECRET)) for key, make in self.KEYS}
        found.add(subject("get:other", RequestFactory().get("/", {"other": SECRET})))
        assert len(found) == 5

    def test_the_name_of_a_header_has_no_case(self) -> None:
        one = request(HTTP_X_API_KEY=SECRET)
        assert subject("header:x-api-KEY", one) == subject("header: X-Api-Key ", one)

    def test_another_digest_key_gives_other_digests(self, settings: Any) -> None:
        one = request(HTTP_X_API_KEY=SECRET)
        before = subject("header:X-Api-Key", one)
        settings.QUOTA = {"DIGEST_KEY": "another"}
        assert subject("header:X-Api-Key", one) != before

    def test_another_secret_key_gives_other_digests_at_once(self, settings: Any) -> None:
        one = request(HTTP_X_API_KEY=SECRET)
        before = subject("header:X-Api-Key", one)
        settings.SECRET_KEY = "another"
        assert subject("header:X-Api-Key", one) != before

    def test_a_secret_key_of_bytes_works_as_everywhere_in_django(self, settings: Any) -> None:
        settings.SECRET_KEY = b"bytes-are-allowed"
        assert subject("header:X-Api-Key", request(HTTP_X_API_KEY=SECRET)).startswith("header.x-api-key:")

    @pytest.mark.parametrize(("key", "make"), KEYS)
    def test_redis_holds_no_secret(
        self, key: str, make: Callable[[str], HttpRequest], redis_cache: object, raw: redis.Redis
    ) -> None:
        assert check("10/m", make(SECRET), key=key).subject != IP
        stored = str(raw.keys("*"))
        assert "quota:1:" in stored
        assert SECRET not in stored

    @given(st.text(st.characters(), min_size=1))
    def test_any_header_value_has_a_subject(self, value: str) -> None:
        found = subject_of("header:X-Api-Key", request(HTTP_X_API_KEY=value))
        assert len(found) == len("header.x-api-key:") + 32


class TestTuples:
    def test_the_parts_are_joined_and_each_falls_back_by_itself(self) -> None:
        assert subject(("ip", "path")) == f"{IP}+path:/a%2Bb%25/"
        assert subject(("user", "global")) == f"{IP}+global"
        assert subject(("ip", ("global",))) == f"{IP}+global"

    @given(*[st.text("ab:+%.", max_size=4)] * 4)
    def test_a_moved_boundary_between_parts_gives_another_subject(self, a: str, b: str, c: str, d: str) -> None:
        def of(one: str, other: str) -> str:
            return subject_of((always(one or None), always(other or None)), request())

        assert (of(a, b) == of(c, d)) == ((a, b) == (c, d))

    def test_an_empty_tuple_is_no_key(self) -> None:
        with pytest.raises(RuleError, match="is empty"):
            quota("1/m", key=())

    def test_a_subject_of_several_parts_can_be_named_as_its_decision_shows_it(self, memory_store: None) -> None:
        decision = check("1/m", request(), key=("ip", "path"))
        assert reset("1/m", decision.subject, key=("ip", "path"))


def tenant(of: HttpRequest) -> str:
    return "tenant-1"


NOT_CALLABLE = 5


class TestFunctions:
    @pytest.mark.parametrize("empty", [None, ""])
    def test_none_falls_back_to_the_ip(self, empty: str | None) -> None:
        assert subject(always(empty)) == IP

    @pytest.mark.parametrize("value", [0, False, "x", 3.5])
    def test_any_other_value_is_a_subject(self, value: object) -> None:
        assert subject(always(value)).endswith(f":{value}")

    def test_a_user_that_it_returns_is_that_user(self) -> None:
        assert subject(always(User(pk=42))) == "user:42"

    def test_an_anonymous_visitor_that_it_returns_falls_back_to_the_ip(self) -> None:
        assert subject(always(AnonymousUser())) == IP

    def test_a_dotted_path_is_the_function_it_names(self) -> None:
        assert subject("tests.api.test_subjects.tenant") == subject(tenant)

    def test_two_functions_that_give_the_same_value_do_not_share_a_limit(self, memory_store: None) -> None:
        def by_tenant(request: HttpRequest) -> int:
            return 5

        def by_order(request: HttpRequest) -> int:
            return 5

        assert check("1/m", request(), key=by_tenant)
        assert check("1/m", request(), key=by_order)

    @pytest.mark.parametrize("key", [lambda r: "x", partial(lambda r, kind: kind, kind="x"), ("ip", lambda r: "x")])
    def test_a_lambda_is_refused_since_its_subjects_would_change_with_its_line(
        self, key: Any, memory_store: None
    ) -> None:
        words = r"is a lambda, which has no name.*Write it as a function: def by_tenant"
        with pytest.raises(SubjectKeyError, match=words):
            check("1/m", request(), key=key)
        with pytest.raises(SubjectKeyError, match=words):
            quota("1/m", key=key, name="named")
        with pytest.raises(SubjectKeyError, match=words):
            concurrency(1, key=key)
        with pytest.raises(SubjectKeyError, match="Write it as a function: def by_tenant"):
            quota("1/m", distinct=key)

    def test_a_check_whose_rate_is_a_lambda_needs_a_name_to_count_under(self, memory_store: None) -> None:
        rate: Any = lambda r: "1/m"  # noqa: E731
        with pytest.raises(RateError, match=r"a lambda has no name to count under. Add name='\.\.\.'"):
            check(rate, request())
        assert check(rate, request(), name="tenants").rule == "tenants"

    def test_an_async_function_is_awaited_and_refused_where_it_cannot_be(self) -> None:
        async def key(of: HttpRequest) -> str:
            return "x"

        async def ask_without_waiting() -> None:
            subject_of(key, request())

        assert asyncio.run(asubject_of(key, request())).endswith(":x")
        assert subject_of(key, request()).endswith(":x")
        with pytest.raises(ConfigurationError, match="key is async and cannot be awaited here"):
            asyncio.run(ask_without_waiting())

    def test_a_runtime_error_of_an_async_function_is_its_own(self) -> None:
        async def key(of: HttpRequest) -> str:
            raise RuntimeError("its own")

        with pytest.raises(RuntimeError, match="its own"):
            subject_of(key, request())

    def test_a_function_that_queries_the_database_runs_in_a_thread_under_async(self) -> None:
        calls = []

        def key(of: HttpRequest) -> str:
            calls.append(threading.current_thread())
            return load()

        @async_unsafe
        def load() -> str:
            return "x"

        async def ask() -> threading.Thread:
            assert (await asubject_of(key, request())).endswith(":x")
            return threading.current_thread()

        loop = asyncio.run(ask())
        assert (calls[0], calls[1]) == (loop, calls[1])
        assert calls[1] is not loop


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("header:", "does not say which. Use, for example, 'header:X-Api-Key'"), ("usr", "Did you mean 'user'"),
        ("headers:X", "is not a key"), ("", "is not a key"), (None, "is not a key"), (5, "is not a key"),
        (("ip", 5), "is not a key"), ("ip:", "is not a key"), ({"anonymous": "ip"}, "is not a key"),
        ("tests.nowhere.key", "cannot be imported"), ("tests.api.test_subjects.nothing", "cannot be imported"),
        ("tests.api.test_subjects.NOT_CALLABLE", "is int. Use a function of the request"), (".a", "cannot be imported"),
        ("..a", "cannot be imported"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_refused_with_what_to_write_instead(key: object, text: str) -> None:
    with pytest.raises(RuleError, match=text):
        quota("1/m", key=key)


@pytest.mark.usefixtures("memory_store")
class TestNamedSubjects:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("ip:192.0.2.1", IP), ("ip:::ffff:192.0.2.1", IP), ("ip:2001:DB8::1", "ip:2001:db8::/64"),
            ("ip:2001:db8::/64", "ip:2001:db8::/64"), ("ip:2001:db8::1/128", "ip:2001:db8::1"),
            ("user:1", "user:1"), ("global", "global"),
        ],
    )  # fmt: skip
    def test_an_address_has_one_spelling(self, text: str, found: str) -> None:
        assert check("1/m", text).subject == found

    @pytest.mark.parametrize(
        "text", ["", "ip:", "ip:x", "ip:1.2.3", "ip:2001:db8::/999", "ip:::/x", "ip:192.0.2.1/24", "ip:1.2.3.4/99"]
    )
    def test_what_holds_no_address_is_refused(self, text: str) -> None:
        with pytest.raises(RuleError):
            check("1/m", text)

    @example("::/")
    @example("10.0.0.0/8")
    @example("10.0.0.0/8/8")
    @example("2001:db8::/32")
    @given(st.text("0123456789abcdef:./%+", max_size=20) | st.just("::/" + "9" * 5000))
    def test_any_text_behind_ip_is_an_address_or_a_rule_error(self, text: str) -> None:
        try:
            check("1/m", "ip:" + text)
        except RuleError as error:
            problem = str(error)
        else:
            return
        assert any(words in problem for words in ("is not an IP address", "is a network. Use one address"))

    def test_an_anonymous_user_is_no_subject(self, memory_store: None) -> None:
        with pytest.raises(RuleError, match="has no primary key"):
            check("1/m", AnonymousUser())
        with pytest.raises(RuleError, match="is not a subject"):
            check("1/m", None)

    @pytest.mark.parametrize("options", [{"methods": ["POST"]}, {"key": ["ip", "path"]}])
    def test_a_rate_takes_its_options_as_lists_too(self, options: dict[str, Any], memory_store: None) -> None:
        assert check("1/m", request(), **options)

    @pytest.mark.parametrize("rate", [["10/m"], {}, {"10/m"}, 10, b"10/m"])
    def test_what_is_neither_a_rate_nor_a_rule_is_a_rate_error(self, rate: Any, memory_store: None) -> None:
        with pytest.raises(RateError):
            check(rate, IP)


def test_a_digest_stays_the_same_from_release_to_release(settings: Any) -> None:
    """Counts, overrides and bans of a header or a cookie are found by it."""
    settings.QUOTA = {"DIGEST_KEY": "a long random text"}
    assert digest("secret") == "004fbeb51655218dd2060630cd847176"
