"""Who is limited: keys, secrets, users, addresses."""

import asyncio
import copy
import pickle
import re
import reprlib
import threading
from collections.abc import Callable
from enum import Enum
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends import cache, db, signed_cookies
from django.contrib.sessions.models import Session
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import ResolverMatch, path, re_path
from django.utils.asyncio import async_unsafe
from django.utils.functional import SimpleLazyObject
from hypothesis import assume, example, given
from hypothesis import strategies as st

from django_quota import Subject, acheck, ban, check, concurrency, counter, quota, reset, slot, unban
from django_quota.adapters import digest
from django_quota.core.errors import SubjectKeyError
from django_quota.core.keys import digested
from django_quota.exceptions import ConfigurationError, QuotaExceeded, RateError, RuleError
from django_quota.models import QuotaOverride
from django_quota.operating.lookup import parse_override_input, parse_subject_input
from django_quota.subjects.keys import is_given_by
from django_quota.subjects.subject import named_subject, override_subject, parts_of
from django_quota.types import QuotaRequest
from tests.support.calls import always, asubject_of, both, calls_in, fetch, subject_of
from tests.support.commands import said

IP = "ip:192.0.2.1"
ALWAYS = "key.tests.support.calls.always.<locals>.key"
VISITOR = AnonymousUser()
SECRET = "s3cret-value"


def request(**meta: Any) -> HttpRequest:
    return RequestFactory().get("/a+b%/", **{"REMOTE_ADDR": "192.0.2.1", **meta})


def subject(key: object, of: HttpRequest | None = None) -> str:
    asked = of or request()
    found = subject_of(key, asked)
    assert asyncio.run(asubject_of(key, asked)) == found
    return str(found)


def with_user(user: object) -> HttpRequest:
    made = request()
    made.user = user  # type: ignore[assignment]
    return made


def always_long(request: HttpRequest) -> str:
    return "a" * 201


@pytest.mark.parametrize("mounted", ["", "/mounted"], ids=["at the root", "under a path"])
@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("ip", IP), ("global", "global"), ("path", "path:/a%2Bb%25/"), (("ip", "path"), f"{IP}+path:/a%2Bb%25/"),
        (("user", "global"), f"{IP}+global"), (("ip", ("global",)), f"{IP}+global"),
        (("ip", "user"), f"{IP}+{IP}"), (("header:X-Key", "cookie:key"), f"{IP}+{IP}"),
        # what is longer than 200 characters
        (f"{__name__}.always_long", f"key.{__name__}.always_long:~[0-9a-f]{{64}}"),
    ],
)  # fmt: skip
def test_a_key_names_its_subject_whatever_the_site_is_mounted_under(key: Any, found: str, mounted: str) -> None:
    name = subject(key, request(SCRIPT_NAME=mounted))

    assert name == found or re.fullmatch(found.replace("+", r"\+"), name)


@pytest.mark.parametrize("key", ["user", "user_or_ip"])
@pytest.mark.parametrize(
    ("who", "found"),
    [
        pytest.param(User(pk=42), "user:42", id="a user"),
        pytest.param(SimpleNamespace(is_authenticated=True, pk="a+ip:1%"), "user:a%2Bip:1%25", id="an odd primary key"),
        pytest.param(AnonymousUser(), IP, id="a visitor"),
        pytest.param(SimpleNamespace(is_authenticated=True, pk=0), "user:0", id="a primary key of zero"),
    ],
)
def test_a_user_is_named_by_the_primary_key(key: str, who: Any, found: str) -> None:
    assert subject(key, with_user(who)) == found


@pytest.mark.parametrize("key", ["user", "user_or_ip"])
def test_a_site_without_users_names_all_by_their_ip(key: str) -> None:
    assert subject(key) == IP


def test_a_user_without_a_primary_key_is_an_error() -> None:
    with pytest.raises(RuleError) as refused:
        subject("user", with_user(SimpleNamespace(is_authenticated=True)))

    assert str(refused.value) == (
        "The request's user is of type SimpleNamespace, without the primary key that a limit needs. Give the class a "
        "`pk`, or use a function of the request as the key."
    )


@pytest.mark.django_db
def test_the_user_of_a_real_session_is_found_under_async(memory_store: None) -> None:
    user = User.objects.create_user("peter")

    async def ask() -> str:
        client = AsyncClient()
        await client.aforce_login(user)
        return (await client.get("/whoami-async/")).content.decode()

    assert async_to_sync(ask)() == f"user:{user.pk}"


SECRETS: dict[str, Callable[[str], HttpRequest]] = {
    "header:X-Api-Key": lambda value: request(HTTP_X_API_KEY=value),
    "cookie:device": lambda value: request(HTTP_COOKIE=f"device={value}"),
    "get:token": lambda value: RequestFactory().get("/", {"token": value}, REMOTE_ADDR="192.0.2.1"),
    "get:other": lambda value: RequestFactory().get("/", {"other": value}, REMOTE_ADDR="192.0.2.1"),
    "post:phone": lambda value: RequestFactory().post("/", {"phone": value}, REMOTE_ADDR="192.0.2.1"),
}


@pytest.mark.parametrize("key", ["header: X-Key ", "cookie: key ", "get: q "])
def test_blanks_around_the_name_in_a_key_do_not_matter(key: str) -> None:
    asked = RequestFactory(headers={"X-Key": SECRET}).get("/", {"q": SECRET})
    asked.COOKIES["key"] = SECRET

    assert subject(key, asked) == subject(key.replace(" ", ""), asked) != IP


def test_what_a_client_sent_never_shows_in_its_subject() -> None:
    found = [subject(key, make(SECRET)) for key, make in SECRETS.items()]

    assert [each for each in found if SECRET in each] == []
    assert len(set(found)) == len(SECRETS), "another place or name is another subject"


@pytest.mark.parametrize(("key", "make"), SECRETS.items(), ids=SECRETS)
def test_what_a_client_sent_is_a_digest(key: str, make: Callable[[str], HttpRequest]) -> None:
    found = subject(key, make(SECRET))

    assert found == subject(key, make(SECRET)) != subject(key, make(SECRET + "x"))


@pytest.mark.parametrize(("key", "make"), SECRETS.items(), ids=SECRETS)
def test_what_is_missing_falls_back_to_the_ip(key: str, make: Callable[[str], HttpRequest]) -> None:
    assert subject(key, request()) == subject(key, make("")) == IP


def test_the_name_of_a_header_may_be_written_in_other_cases() -> None:
    sent = SECRETS["header:X-Api-Key"](SECRET)

    assert subject("header: x-api-KEY ", sent) == subject("header:X-Api-Key", sent)


def test_another_key_gives_other_digests_at_once(settings: Any) -> None:
    found = [digest("secret")]

    for name, value in (("SECRET_KEY", "another"), ("SECRET_KEY", b"bytes"), ("QUOTA", {"DIGEST_KEY": "one more"})):
        setattr(settings, name, value)
        found.append(digest("secret"))

    assert len(set(found)) == 4


def test_one_key_always_gives_the_same_digest(settings: Any) -> None:
    settings.QUOTA = {"DIGEST_KEY": "a long random text"}

    assert digest("secret") == "004fbeb51655218dd2060630cd847176"


@pytest.mark.parametrize("character", ["+", "é"])
def test_a_long_value_costs_no_more_calls_than_a_short_one(character: str, memory_store: None) -> None:
    """A client chooses how long a path is, and perhaps what a key function returns."""

    def work(length: int) -> int:
        one = request()
        one.path_info = "/" + character * length
        keys = ("path", always(character * length))
        return calls_in(lambda: check("5/m", one, key=keys)) + calls_in(lambda: check("5/m", f"a:{one.path_info}"))

    work(500)  # the first check of all makes more
    assert work(60_000) < 1.5 * work(1_000)


@given(*[st.text("ab:+%.", max_size=4)] * 4)
def test_a_moved_boundary_between_parts_gives_another_subject(a: str, b: str, c: str, d: str) -> None:
    def of(one: str, other: str) -> str:
        return subject_of((always(one or None), always(other or None)), request())

    assert (of(a, b) == of(c, d)) == ((a, b) == (c, d))


# --- one name for each subject ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "found"),
    [
        pytest.param("a" * 200, "a" * 200, id="200 characters"),
        pytest.param("+" * 66 + "aa", "%2B" * 66 + "aa", id="200 once escaped"),
    ],
)
def test_a_value_of_200_characters_is_shown(value: str, found: str) -> None:
    assert Subject("org", value) == f"org:{found}"


def test_at_most_twenty_plus_signs_of_a_subject_join_parts() -> None:
    assert len(parts_of("+".join(["org:1"] * 30))) == 21


LONG = "k" * 201
ODD = {
    "an e-mail address": "ann+shop@example.org", "plus signs": "a++b+", "a percent sign": "50%", "an escape": "50%2B",
    "longer once escaped": "+" * 150, "invisible": "\u200b" * 40, "a half": "\ud800", "long": LONG,
    "long and escaped": "%2B" * 80, "like a digest": f"~{'0' * 64}", "like two parts": "a+user:7",
}  # fmt: skip
odd = pytest.mark.parametrize("value", ODD.values(), ids=list(ODD))


@odd
def test_a_subject_names_itself_wherever_it_is_written(value: str) -> None:
    request = with_user(SimpleNamespace(is_authenticated=True, pk=value))
    request.path_info = f"/{value}"
    request.resolver_match = ResolverMatch(print, (), {"pk": value})
    keys = ("user", "path", "kwarg:pk", always(value), ("user", "kwarg:pk"), ("path", "ip", "user", "global"))
    readers = (named_subject, override_subject, parse_subject_input, parse_override_input)
    subjects = [subject_of(key, request) for key in keys]

    found = [(each, read(each)) for each in subjects for read in readers]
    found += [(each, check("9/m", each, name="api").subject) for each in subjects]

    assert [(written, read) for written, read in found if read != written] == []


@pytest.mark.parametrize(
    ("bits", "found"),
    [({}, "ip:2001:db8::7/128"), ({"IPV6_PREFIX": 128}, "ip:2001:db8::7")],
    ids=["where an address stands for its network", "where it stands for itself"],
)
def test_the_override_of_a_network_of_one_address_is(bits: dict[str, int], found: str, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, **bits}

    assert override_subject("ip:2001:DB8::7/128") == found


def test_of_a_long_kind_without_a_value_the_error_shows_both_ends() -> None:
    with pytest.raises(RuleError, match=r"^'uuuu[u.]+:' has no value after the colon") as caught:
        named_subject(f"{'u' * 99}:")

    assert "..." in str(caught.value)


def test_of_a_long_string_that_is_not_a_network_the_error_shows_both_ends() -> None:
    with pytest.raises(RuleError, match=r"^'9999[9.]+99/24' is not a network\.") as caught:
        override_subject(f"ip:{'9' * 99}/24")

    assert "..." in str(caught.value)


def test_an_override_of_all_addresses_of_one_user_is_refused() -> None:
    with pytest.raises(RuleError, match=r"'ip:\*' is not an IP address"):
        override_subject("user:7+ip:*")


@given(st.text("ab:+%2B~\u200b=. ", min_size=1) | st.text(min_size=1))
def test_what_a_text_names_is_a_subject_that_names_itself(text: str) -> None:
    try:
        found = named_subject(text)
    except RuleError:
        assume(False)
    assert named_subject(found) == found
    assert all("+" not in part.partition(":")[2] for part in parts_of(found) if not part.startswith("ip:"))


@given(st.text("ab:+%2B~\u200b", min_size=1) | st.text(min_size=1), st.text("ab+%2B", min_size=1, max_size=9))
def test_two_values_are_two_subjects(one: str, other: str) -> None:
    assert (Subject("user", one) == Subject("user", other)) == (one == other)


INVISIBLE = (
    ("\0", "\x1f"), ("\x7f", "\x9f"), ("\xad", "\xad"), ("\u061c", "\u061c"), ("\u180e", "\u180e"),
    ("\u200b", "\u200f"), ("\u2028", "\u202e"), ("\u2060", "\u206f"), ("\ud800", "\udfff"), ("\ufeff", "\ufeff"),
    ("\ufff9", "\ufffb"), ("\U000e0000", "\U000e007f"),
)  # fmt: skip
"""The first and the last of each range."""


@pytest.mark.parametrize("character", sorted({*chain(*INVISIBLE)}), ids=lambda character: f"{ord(character):x}")
class TestACharacterThatNobodySees:
    def test_is_escaped_in_a_subject(self, character: str) -> None:
        found = Subject("org", f"a{character}b")

        assert (found[:6], found[-1], character in found) == ("org:a%", "b", False)

    def test_makes_no_other_value_of_a_field(self, character: str) -> None:
        plain = subject_of("get:token", RequestFactory().get("/", {"token": "ab"}))
        query = RequestFactory().get("/")
        query.GET = {"token": f"a{character}b"}  # type: ignore[assignment]

        assert subject_of("get:token", query) == plain


@pytest.mark.parametrize(
    "character", [" ", "~", "\xa0", "\xac", "\xae", "\u200a", "\u2010", "\u2027", "\u2070", "\ufffc"]
)
def test_a_character_that_is_seen_stays_in_a_subject(character: str) -> None:
    assert Subject("org", f"a{character}b") == f"org:a{character}b"


@pytest.mark.usefixtures("memory_store", "database")
@pytest.mark.parametrize("value", ["ann+shop@example.org", "50%", "+" * 150, LONG], ids=["plus", "%", "pluses", "long"])
@pytest.mark.parametrize("write", ["user:{}".format, partial(Subject, "user")], ids=["as it is", "escaped"])
class TestUserWithAnOddKey:
    @pytest.fixture(autouse=True)
    def rules(self, memory_store: None, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"api": {"rate": "2/m", "ban": {"after": "9/m", "for": ["1h"]}}}}

    @pytest.fixture
    def user(self, value: str) -> Any:
        return SimpleNamespace(is_authenticated=True, pk=value)

    @pytest.fixture
    def text(self, value: str, write: Callable[[str], str]) -> str:
        """The subject, as somebody writes it."""
        return write(value)

    def test_calls_reach_them(self, user: Any, text: str) -> None:
        check("api", user)

        assert check("api", text).remaining == 0

    def test_a_reset_reaches_them(self, user: Any, text: str) -> None:
        check("api", user)

        reset("api", text)

        assert check("api", text).remaining == 1

    def test_a_lifted_ban_reaches_them(self, user: Any, text: str) -> None:
        ban("api", user, "1h")

        assert unban("*", text) == 1

    def test_an_override_of_the_command_reaches_them(self, user: Any, text: str) -> None:
        said("quota_override", "set", text, "blocked", "--force")  # there is no such user

        assert check("api", user).outcomes[0].why == "blocked"

    def test_the_command_clears_their_override(self, user: Any, text: str) -> None:
        said("quota_override", "set", text, "blocked", "--force")

        said("quota_override", "clear", text)

        assert check("api", user).allowed

    def test_an_override_that_is_saved_reaches_them(self, user: Any, text: str) -> None:
        QuotaOverride.objects.create(subject=text, rule="api", mode="blocked")

        assert check("api", user).outcomes[0].why == "blocked"


@pytest.mark.usefixtures("memory_store")
def test_nobody_makes_up_the_digest_of_the_long_value_of_somebody_else(settings: Any) -> None:
    check("1/m", f"device:{LONG}", name="api")
    assert check("1/m", f"device:{digested(LONG)}", name="api")
    known = named_subject(f"device:{LONG}")
    settings.SECRET_KEY = "another"
    assert named_subject(f"device:{LONG}") != known


def test_a_value_that_is_the_digest_of_a_long_one_is_another_subject() -> None:
    of_long = subject(always(LONG))
    shown = of_long.rpartition(":")[2]

    assert subject(always(shown)) != of_long


class TestFunctions:
    @pytest.mark.parametrize("value", [None, "", AnonymousUser()], ids=["None", "empty", "a visitor"])
    def test_no_value_falls_back_to_the_ip(self, value: Any) -> None:
        assert subject(always(value)) == IP

    @pytest.mark.parametrize(
        ("user", "found"), [(User(pk=42), "user:42"), (AnonymousUser(), IP)], ids=["a user", "a visitor"]
    )
    def test_the_lazy_user_of_the_request_is_the_subject_of_the_user(self, user: Any, found: str) -> None:
        assert subject(user_of, with_user(SimpleLazyObject(lambda: user))) == found

    def test_a_user_is_the_subject_of_the_user(self) -> None:
        assert subject(always(User(pk=42))) == "user:42"

    @pytest.mark.parametrize("lazy", [False, True], ids=["known", "lazy"])
    @pytest.mark.parametrize(
        "value", [{"a": 1}, ["a"], {"a"}, ("a",), object()], ids=lambda value: type(value).__name__
    )
    def test_what_identifies_nobody_is_an_error_that_names_its_class(self, value: Any, lazy: bool) -> None:
        with pytest.raises(RuleError) as refused:
            subject_of(always(SimpleLazyObject(lambda: value) if lazy else value), request())

        assert str(refused.value) == (
            f"tests.support.calls.always.<locals>.key returned {type(value).__name__}, which identifies nobody. Return "
            "a string, a number, a user or a Subject, for example Subject('org', value.pk)."
        )

    @pytest.mark.parametrize(
        "value",
        [0, False, "x", 3.5, SimpleNamespace(pk=7), SimpleNamespace(is_authenticated=True)],
        ids=["zero", "False", "a string", "a fraction", "an object with a key", "an object that is no user"],
    )
    def test_a_value_is_a_subject_of_the_function(self, value: Any) -> None:
        assert subject(always(value)) == f"{ALWAYS}:{value}"

    @pytest.mark.parametrize("key", [lambda r: "x", partial(lambda r, kind: kind, kind="x"), ("ip", lambda r: "x")])
    def test_a_lambda_is_refused_since_its_counts_would_change_with_its_line(
        self, key: Any, memory_store: None
    ) -> None:
        for use in (partial(check, "1/m", request()), partial(quota, "1/m", name="named"), partial(concurrency, 1)):
            with pytest.raises(SubjectKeyError) as refused:
                use(key=key)
            assert str(refused.value).endswith(
                " is a lambda, which has no name. Its subjects would change when its line moves, and blocks and bans "
                "would be lost. Write it as a function: def by_tenant(request): ..."
            )
        rate: Any = lambda r: "1/m"  # noqa: E731
        with pytest.raises(RateError, match=r"a lambda has no name to count under. Add name='\.\.\.'"):
            check(rate, request())
        assert check(rate, request(), name="tenants").rule == "tenants"

    def test_a_function_that_queries_the_database_runs_in_a_thread_under_async(self) -> None:
        calls = []

        def key(of: HttpRequest) -> str:
            calls.append(threading.current_thread())
            return str(async_unsafe(str)("x"))

        async def ask() -> threading.Thread:
            assert (await asubject_of(key, request())).endswith(":x")
            return threading.current_thread()

        loop = asyncio.run(ask())
        assert (calls[0], calls[1] is loop) == (loop, False)

    @pytest.mark.parametrize(
        ("value", "found"),
        [(User(pk=7), "user:7"), (Subject("org", 7), "org:7"), ("x", f"{ALWAYS}:x"), (None, IP), ("", IP)],
        ids=["a user", "a subject", "a string", "None", "empty"],
    )
    def test_a_lazy_object_that_it_returns_is_loaded_in_a_thread_under_async(self, value: Any, found: str) -> None:
        lazy = SimpleLazyObject(async_unsafe(lambda: value))

        assert asyncio.run(asubject_of(always(lazy), request())) == found

    def test_a_lazy_object_that_it_returns_is_what_it_stands_for(self) -> None:
        assert subject(always(SimpleLazyObject(lambda: Subject("org", 7)))) == "org:7"

    def test_a_function_that_queries_the_database_is_an_error_of_a_sync_call_in_a_loop(self) -> None:
        async def ask() -> None:
            check("1/m", request(), key=queries, name="queries")

        with pytest.raises(SynchronousOnlyOperation):
            asyncio.run(ask())

    def test_an_async_function_is_an_error_of_a_sync_call_in_a_loop_that_says_what_to_do(self) -> None:
        async def ask() -> None:
            check("1/m", request(), key=by_organization_later, name="later")

        with pytest.raises(ConfigurationError) as refused:
            asyncio.run(ask())

        assert str(refused.value) == (
            "by_organization_later is async and cannot be awaited here. Use the async form of the function that you "
            "called, or write a sync function."
        )

    def test_an_error_of_an_async_function_reaches_a_sync_caller(self) -> None:
        with pytest.raises(RuntimeError, match="the site is closed"):
            check("1/m", request(), key=fails_later, name="fails")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("header:", "key='header:' does not say which. Use, for example, 'header:X-Api-Key'."),
        ("cookie:", "key='cookie:' does not say which. Use, for example, 'cookie:device'."),
        ("kwarg: ", "key='kwarg: ' does not say which. Use, for example, 'kwarg:pk'."),
        ("get", "key='get' does not say which. Use, for example, 'get:token'."),
        ("post:", "key='post:' does not say which. Use, for example, 'post:phone'."),
        *(
            (key, f"key={key!r} is not a path. Use, for example, 'json:phone' or 'json:user.email'.")
            for key in ("json", "json:", "json:user..email", "json:user. ")
        ),
        (
            "header:HTTP_X_API_KEY",
            "key='header:HTTP_X_API_KEY' names a header as request.META does. Write 'header:X-Api-Key'.",
        ),
        (
            "header: http_x_api_key",
            "key='header: http_x_api_key' names a header as request.META does. Write 'header:X-Api-Key'.",
        ),
        *(
            (key, f"key={key!r} is not a key. Did you mean {near!r}?")
            for key, near in {
                "usr": "user", "ip-24": "ip/24", "ip:": "ip", "hedaer:x.y": "header:X-Api-Key", "globl": "global",
                "jsn:phone": "json:phone", "cooky:device": "cookie:device", "kwrg:pk": "kwarg:pk", "pth": "path",
                "gt:token": "get:token", "pst:phone": "post:phone", "sesion": "session", "user_or_i": "user_or_ip",
            }.items()
        ),
        *(
            (
                key,
                (
                    f"key={key!r} is not a key. Use 'ip/24' for 1 to 32 bits of an IPv4 address, or 'ip/24,48' with 1 "
                    "to 128 bits of an IPv6 address."
                ),
            )
            for key in ("ip/", "ip/0", "ip/33", "ip/24,0", "ip/24,129", "ip/24,", "ip/a", "ip/24,48,1")
        ),
        (
            "",
            (
                "key='' is not a key. Known: cookie:device, get:token, global, header:X-Api-Key, ip, ip/24, "
                "json:phone, kwarg:pk, path, post:phone, session, user, user_or_ip."
            ),
        ),
        ((), "key=() is empty. Use, for example, 'ip'."),
        (None, "key=None is not a key. Use 'ip', 'user', 'header:X-Api-Key' or a function."),
        (("ip", 5), "key=5 is not a key. Use 'ip', 'user', 'header:X-Api-Key' or a function."),
        (
            "tests.nowhere.key",
            (
                "key='tests.nowhere.key' cannot be imported: No module named 'tests.nowhere'. Use the path of a "
                "function of the request, for example 'shop.limits.key'."
            ),
        ),
        (
            "tests.api.test_subjects.SECRET",
            "key='tests.api.test_subjects.SECRET' is str. Use a function of the request.",
        ),
    ],
)  # fmt: skip
def test_a_wrong_key_is_refused_with_what_to_write_instead(key: object, text: str) -> None:
    with pytest.raises(SubjectKeyError) as refused:
        quota("1/m", key=key)

    assert str(refused.value) == text


@pytest.mark.parametrize("key", ["tests.api.test_subjects.nothing", "..a"])
def test_a_key_that_cannot_be_imported_is_refused(key: str) -> None:
    with pytest.raises(SubjectKeyError, match="cannot be imported"):
        quota("1/m", key=key)


@pytest.mark.usefixtures("memory_store")
class TestNamedSubjects:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("ip:192.0.2.1", IP), ("ip:::ffff:192.0.2.1", IP), ("ip:2001:DB8::1", "ip:2001:db8::/64"),
            ("ip:2001:db8::/64", "ip:2001:db8::/64"), ("ip:2001:db8::1/128", "ip:2001:db8::1/128"),
            ("ip:192.0.2.1/24", "ip:192.0.2.0/24"), ("ip:192.0.2.1/32", IP),
            ("user:1", "user:1"), ("global", "global"), ("user:ann+shop@example.org", "user:ann%2Bshop@example.org"),
            ("user:ann+shop@example.org+ip:2001:DB8::1", "user:ann%2Bshop@example.org+ip:2001:db8::/64"),
            ("ip:192.0.2.1+ann", f"{IP}+ann"), ("org:7+device:a+b", "org:7+device:a%2Bb"), ("a+b", "a+b"),
            ("user:7+global", "user:7+global"),
            *((f"user:7+{kind}.name:1",) * 2 for kind in ("cookie", "get", "header", "json", "key", "kwarg")),
            *((f"user:7+{kind}:1",) * 2 for kind in ("login.username", "org", "path", "post.phone", "session")),
            ("org:50%", "org:50%25"), ("org:50%25", "org:50%25"), ("org:%41", "org:%2541"), ("org:%FF", "org:%25FF"),
            ("org:a:", "org:a:"), ("o\u200brg:7", "o%E2%80%8Brg:7"),
        ],
    )  # fmt: skip
    def test_a_subject_has_one_spelling(self, text: str, found: str) -> None:
        assert check("1/m", text).subject == found

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            (
                "",
                (
                    "An empty string is not a subject. Use, for example, 'ip:203.0.113.9', 'user:42' or 'global'."
                ),
            ),
            ("ip:1.2.3", "'ip:1.2.3' is not an IP address. Use, for example, 'ip:203.0.113.9'."),
            ("ip:192.0.2.1/33", "'192.0.2.1/33' is not a network. Use, for example, 'ip:198.51.100.0/24'."),
            *(
                (
                    text,
                    (
                        f"{text!r} has no value after the colon: all callers without one would share a limit. Use, for "
                        "example, 'user:42' or 'ip:203.0.113.9'."
                    ),
                )
                for text in ("user:", ":")
            ),
            (
                VISITOR,
                (
                    f"{VISITOR!r} has no primary key. Pass the request, so that an anonymous visitor is limited by IP, "
                    "or a subject such as 'ip:203.0.113.9'."
                ),
            ),
        ],
        ids=["nothing", "no address", "no network", "a kind", "a colon", "a visitor"],
    )  # fmt: skip
    @pytest.mark.parametrize("call", [partial(check, "1/m"), counter("clicks").incr], ids=["a limit", "a counter"])
    def test_what_names_nobody_is_refused(self, call: Callable[[Any], object], given: Any, words: str) -> None:
        with pytest.raises(RuleError) as refused:
            call(given)

        assert str(refused.value) == words

    @pytest.mark.parametrize("given", [None, 7], ids=repr)
    def test_what_is_no_subject_is_refused(self, given: Any) -> None:
        with pytest.raises(RuleError) as of_a_limit:
            check("1/m", given)
        with pytest.raises(RuleError) as of_a_counter:
            counter("clicks").incr(given)

        assert (str(of_a_limit.value), str(of_a_counter.value)) == (
            f"{given} is not a subject. Use a string such as 'ip:203.0.113.9', a user or a request.",
            f"{given} is not a subject of a counter. Use a string such as 'user:42', or a user.",
        )


def by_organization(request: Any) -> Subject:
    return Subject("org", request.GET["org"])


async def by_organization_later(request: Any) -> Subject:
    return by_organization(request)


def user_of(request: Any) -> Any:
    return request.user


async def fails_later(request: Any) -> str:
    raise RuntimeError("the site is closed")


def queries(request: Any) -> str:
    return str(async_unsafe(str)("x"))


PLAN: Any = Enum("PLAN", {"PRO": "pro"}, type=str)
LEVEL: Any = Enum("LEVEL", {"TWO": 2}, type=int)


@pytest.mark.usefixtures("memory_store")
class TestNamedByTheSite:
    @pytest.mark.parametrize(
        ("kind", "value", "text"),
        [
            ("sub-org_2", -7, "sub-org_2:-7"), ("user", 7, "user:7"), ("org", "acme", "org:acme"),
            ("org", UUID(int=7), "org:00000000-0000-0000-0000-000000000007"), ("ip", "2001:DB8::1", "ip:2001:db8::/64"),
            ("org", "a+user:7", "org:a%2Buser:7"), ("org", "a b:c\n", "org:a b:c%0A"), ("o" * 50, 7, f"{'o' * 50}:7"),
            ("plan", PLAN.PRO, "plan:pro"), ("level", LEVEL.TWO, "level:2"),
        ],
    )  # fmt: skip
    def test_it_is_a_string_that_escapes_its_value(self, kind: str, value: Any, text: str) -> None:
        subject = Subject(kind, value)

        assert (subject, str(subject), f"{subject}") == (text, text, text)
        assert pickle.loads(pickle.dumps(subject)) == copy.deepcopy(subject) == text
        assert check("9/m", subject).subject == text

    @given(st.text(min_size=1))
    def test_any_text_is_one_subject_that_stays_the_same(self, value: str) -> None:
        subject = Subject("org", value)
        assert named_subject(subject) == subject
        assert (subject[:4], "+" in subject) == ("org:", False)

    @pytest.mark.parametrize(
        "kind",
        [
            "", "Org", "a b", "a+b", "7", None, "x" * 51, "cookie", "get", "global", "header", "json", "key", "kwarg",
            "login", "path", "post", "ratelimit", "session", "throttle",
        ],
    )  # fmt: skip
    def test_a_kind_is_a_word_that_no_key_uses(self, kind: Any) -> None:
        with pytest.raises(RuleError) as refused:
            Subject(kind, 7)

        assert str(refused.value) == (
            f"{reprlib.repr(kind)} is not a kind of subject. Use a word of your own, such as 'org'."
        )

    @pytest.mark.parametrize(
        "value", ["", None, True, 7.0, b"7", object(), User(pk=7)], ids=lambda each: repr(each)[:7]
    )
    def test_a_value_is_a_string_a_number_or_a_uuid(self, value: Any) -> None:
        with pytest.raises(RuleError) as refused:
            Subject("org", value)

        assert str(refused.value) == (
            f"{reprlib.repr(value)} is not a value of a subject. Use a string, a whole number or a UUID, such as the "
            "primary key: Subject('org', 7)."
        )

    def test_a_function_of_the_request_gives_the_subject_of_a_call(self) -> None:
        request: Any = RequestFactory().get("/", {"org": "7"})

        assert check("3/m", request, key=by_organization, name="api").subject == "org:7"
        assert asyncio.run(acheck("3/m", request, key=by_organization_later, name="api")).remaining == 1
        assert check("3/m", Subject("org", 7), name="api").remaining == 0

    def test_a_counter_counts_for_the_same_subject_as_its_string(self) -> None:
        counter("reports").incr(Subject("org", 7))

        assert counter("reports").get("org:7") == 1

    def test_a_slot_is_held_by_the_same_subject_as_its_string(self) -> None:
        with slot("export", 1, subject=Subject("org", 7)), pytest.raises(QuotaExceeded, match="of org:7 is held"):
            slot("export", 1, subject="org:7").acquire()

    @given(st.text(min_size=1))
    @example("org:7")
    def test_a_plain_text_is_never_the_subject_of_somebody_else(self, sent: str) -> None:
        subject = check("3/m", request(), key=always(sent)).subject
        assert subject.startswith("key.tests.")
        assert not {"org:7", "user:7"} & set(subject.split("+"))


@pytest.mark.parametrize(
    ("length", "is_one"), [pytest.param(1_000, True, id="1,000 characters"), pytest.param(1_001, False, id="more")]
)
def test_of_a_field_that_is_longer_than_any_name_the_case_counts(length: int, is_one: bool) -> None:
    found = {subject_of("get:token", RequestFactory().get("/", {"token": letter * length})) for letter in "aA"}

    assert len(found) == (1 if is_one else 2)


# --- which subjects a key makes ---------------------------------------------------------------------------------------


def by_account(request: HttpRequest) -> str:
    return "account"


@pytest.mark.parametrize(
    ("keys", "subject", "expected"),
    [
        pytest.param(("user",), "user:42", True, id="user: a user"),
        pytest.param(("user_or_ip",), "user:42", True, id="user or ip: a user"),
        pytest.param(("user",), IP, True, id="user: a visitor"),
        pytest.param(("user",), "org:7", False, id="user: another kind"),
        pytest.param(("user",), "throttle:0a", True, id="user: the key of a throttle"),
        pytest.param(("user",), "ratelimit:0a", True, id="user: the key of a decorator of django-ratelimit"),
        pytest.param(("user",), "*", True, id="user: everybody"),
        pytest.param(("user",), "user:*", True, id="user: all users"),
        pytest.param(("ip",), IP, True, id="ip: an address"),
        pytest.param(("ip",), "ip:*", True, id="ip: all addresses"),
        pytest.param(("ip",), "ip:192.0.2.0/24", False, id="ip: a network"),
        pytest.param(("ip",), "ip:2001:db8::/64", True, id="ip: an address of IPv6"),
        pytest.param(("ip",), "ip:2001:db8::/48", False, id="ip: a network of IPv6"),
        pytest.param(("ip/24",), "ip:192.0.2.0/24", True, id="network: its size"),
        pytest.param(("ip/24",), "ip:2001:db8::/64", True, id="network: IPv6 as in the settings"),
        pytest.param(("ip/24,48",), "ip:2001:db8::/48", True, id="network: its size of IPv6"),
        pytest.param(("global",), "global", True, id="global: itself"),
        pytest.param(("global",), IP, False, id="global: an address"),
        pytest.param(("path",), "path:/a/", True, id="path: itself"),
        pytest.param(("path",), IP, False, id="path: an address"),
        pytest.param(("header: X-Key ",), "header.x-key:0a", True, id="header: its own"),
        pytest.param(("header:X-Key",), "header.x-other:0a", False, id="header: another one"),
        pytest.param(("cookie:Device",), "cookie.Device:0a", True, id="cookie: its own"),
        pytest.param(("cookie:Device",), "cookie.device:0a", False, id="cookie: another one"),
        pytest.param(("json:user.email",), "json.user.email:0a", True, id="json: its own"),
        pytest.param(
            ("json:user.email",), "org:7", False, id="json: another kind, though it has a dot as functions do"
        ),
        pytest.param(("user", "path"), "user:42+path:/a/", True, id="two parts"),
        pytest.param(("user", "path"), "user:42", False, id="one of two parts"),
        pytest.param((), "org:7", True, id="unknown parts"),
        pytest.param((by_account,), "org:7", True, id="function: any kind"),
        pytest.param((by_account,), "ip:192.0.2.0/24", True, id="function: a network"),
        pytest.param(("shop.by_account",), "key.shop.by_account:7", True, id="function: its own kind"),
        pytest.param((by_account,), "header.x-key:0a", False, id="function: the kind of a header"),
    ],
)
def test_a_key_makes_subjects_of_its_kinds(keys: Any, subject: str, expected: bool) -> None:
    assert is_given_by(keys, subject) is expected


@pytest.mark.parametrize(
    ("keys", "subject", "expected"),
    [
        pytest.param(("ip",), "ip:192.0.2.0/24", True, id="a network under ip"),
        pytest.param(("ip/24",), IP, False, id="an address under a network"),
    ],
)
def test_an_override_of_a_network_is_for_the_addresses_in_it(keys: Any, subject: str, expected: bool) -> None:
    assert is_given_by(keys, subject, is_group=True) is expected


@pytest.mark.parametrize(
    ("keys", "subject", "known", "expected"),
    [
        pytest.param((by_account,), "org:8", ("org:7",), True, id="a kind that it has made"),
        pytest.param((by_account,), "user:42", ("org:7",), False, id="one that it has not made"),
        pytest.param((by_account,), "user:42", (IP,), True, id="only visitors so far"),
        pytest.param(("ip", by_account), f"{IP}+org:8", ("org:7",), True, id="of other parts so far"),
        pytest.param(("ip", by_account), f"{IP}+org:8", (f"{IP}+org:7",), True, id="a kind of the second part"),
        pytest.param(("user", by_account), "user:1+user:2", ("user:1+org:7",), False, id="a kind of the first alone"),
    ],
)
def test_a_function_makes_subjects_of_the_kinds_that_it_has_made(
    keys: Any, subject: str, known: Any, expected: bool
) -> None:
    assert is_given_by(keys, subject, known) is expected


# --- arguments of the URL, and the session ----------------------------------------------------------------------------

UNKNOWN = "a" * 32


class Sku:
    def __str__(self) -> str:
        return "sku-7"


def with_arguments(**kwargs: Any) -> HttpRequest:
    made = request()
    made.resolver_match = ResolverMatch(request, (), kwargs)
    return made


@pytest.mark.parametrize(
    ("value", "found"),
    [
        pytest.param(0, "kwarg.pk:0", id="zero"),
        pytest.param("a+ip:1%\n", "kwarg.pk:a%2Bip:1%25%0A", id="odd characters"),
        pytest.param(SimpleNamespace(a=1), "kwarg.pk:namespace(a=1)", id="an object that is shown by its values"),
        pytest.param(Sku(), "kwarg.pk:sku-7", id="an object with a string of its own"),
    ],
)
def test_the_argument_names_the_subject(value: object, found: str) -> None:
    assert subject_of("kwarg:pk", with_arguments(pk=value)) == found


@pytest.mark.parametrize(
    "made",
    [with_arguments(), with_arguments(pk=None), with_arguments(pk=""), request()],
    ids=["no argument", "None", "an empty string", "no view"],
)
def test_without_the_argument_the_ip_names_the_subject(made: HttpRequest) -> None:
    assert subject_of("kwarg:pk", made) == IP


def test_an_argument_without_words_of_its_own_is_an_error() -> None:
    with pytest.raises(RuleError) as refused:
        subject_of("kwarg:pk", with_arguments(pk=object()))

    assert str(refused.value) == (
        "The URL argument 'pk' is of type object, which has no string form of its own. Give the class a __str__, or "
        "use a function of the request as the key."
    )


def shown(request: QuotaRequest, **_: Any) -> HttpResponse:
    return HttpResponse(request.quota.subject)


async def ashown(request: QuotaRequest, **_: Any) -> HttpResponse:
    return shown(request)


urlpatterns = [
    path("function/<int:pk>/", quota("2/m", key="kwarg:pk", name="function")(shown)),
    path("function-async/<int:pk>/", quota("2/m", key="kwarg:pk", name="function-async")(ashown)),
    path("settings/<int:pk>/", shown),
    re_path(r"^settings/(?:opt-(?P<pk>\w+)/)?$", shown),
    path("settings/fixed/", shown, {"pk": "fixed"}),
    path("who/", quota("9/m", key="session", name="who")(shown)),
    path("who-async/", quota("9/m", key="session", name="who-async")(ashown)),
]


@both
@pytest.mark.usefixtures("memory_store")
class TestTheArgumentOfAURL:
    @pytest.fixture(autouse=True)
    def site(self, memory_store: None, settings: Any) -> None:
        settings.ROOT_URLCONF = __name__
        rule = {"rate": "2/m", "key": "kwarg:pk", "match": "/settings/"}
        settings.QUOTA = {"STORE": "memory", "RULES": {"by-pk": rule}}

    @pytest.mark.parametrize("middleware", [[], ["django_quota.middleware.QuotaMiddleware"]], ids=["alone", "site"])
    @pytest.mark.parametrize("name", ["function", "function-async"])
    def test_is_what_a_decorator_limits_by(self, kind: str, name: str, middleware: list[str], settings: Any) -> None:
        settings.MIDDLEWARE = middleware

        assert [ask(kind, f"/{name}/{pk}/")[0] for pk in (1, "01", 2, 1)] == [200, 200, 200, 429]
        assert ask(kind, f"/{name}/2/")[1] == "kwarg.pk:2"

    @pytest.mark.parametrize(
        ("url", "found"), [("1", "1"), ("opt-ab", "ab"), ("fixed", "fixed")], ids=["path", "optional", "fixed"]
    )
    def test_is_what_a_rule_of_the_settings_limits_by(self, kind: str, url: str, found: str, settings: Any) -> None:
        settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"]

        assert ask(kind, f"/settings/{url}/") == (200, f"kwarg.pk:{found}")

    def test_falls_back_to_the_ip_where_there_is_no_argument_or_view(self, kind: str, settings: Any) -> None:
        settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"]

        assert [ask(kind, f"/settings/{url}")[0] for url in ("", "", "404/no-view/")] == [200, 200, 429]


def ask(kind: str, url: str) -> tuple[int, str]:
    (answer,) = fetch(kind, url)
    return answer.status_code, answer.content.decode()


def with_session(session: Any) -> HttpRequest:
    made = request()
    made.session = session
    return made


def saved(of: Any = db) -> str:
    store = of.SessionStore()
    store["a"] = 1
    store.save()
    return str(store.session_key)


@pytest.mark.django_db
class TestSessions:
    @pytest.fixture
    def no_sessions(self) -> dict[str, Any]:
        """What is no session of a visitor, by what it is."""
        flushed, over = db.SessionStore(saved()), db.SessionStore()
        flushed.flush()
        over.set_expiry(-1)
        over.save()
        keys = {"of a short key": "short", "of an unknown key": UNKNOWN, "over": over.session_key}
        unknown = {what: db.SessionStore(key) for what, key in keys.items()}
        cookies = signed_cookies.SessionStore(saved(signed_cookies))
        return {"flushed": flushed, "new": db.SessionStore(), **unknown, "cookies": cookies, "a dict": {}, "None": None}

    def test_a_visitor_without_a_session_falls_back_to_the_ip(self, no_sessions: dict[str, Any]) -> None:
        found = {what: subject_of("session", with_session(each)) for what, each in no_sessions.items()}

        assert {what: name for what, name in found.items() if name != IP} == {}
        assert subject_of("session", request()) == IP

    def test_a_visitor_without_a_session_gets_none(self, no_sessions: dict[str, Any]) -> None:
        before = Session.objects.count()

        for session in no_sessions.values():
            subject_of("session", with_session(session))

        assert [what for what, each in no_sessions.items() if getattr(each, "modified", False)] == ["flushed"]
        assert Session.objects.count() == before

    @pytest.mark.parametrize("find", [subject_of, async_to_sync(asubject_of)], ids=["sync", "async"])
    @pytest.mark.parametrize(("is_known", "subject"), [(True, "session:{}"), (False, IP)], ids=["known", "unknown"])
    def test_a_session_in_the_cache_counts_too(self, find: Any, is_known: bool, subject: str, settings: Any) -> None:
        settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
        key = saved(cache) if is_known else UNKNOWN

        assert find("session", with_session(cache.SessionStore(key))) == subject.format(digest(key))

    @pytest.mark.usefixtures("memory_store")
    @pytest.mark.parametrize("order", [[0], [0, 1], [1, 0]], ids=["no middleware", "after it", "before it"])
    @pytest.mark.parametrize("kind", ["sync", "async"])
    @pytest.mark.parametrize("is_known", [True, False], ids=["a session", "an unknown cookie"])
    def test_a_site_limits_by_the_session(self, is_known: bool, kind: str, order: list[int], settings: Any) -> None:
        known = ("django.contrib.sessions.middleware.SessionMiddleware", "django_quota.middleware.QuotaMiddleware")
        settings.ROOT_URLCONF = __name__
        settings.MIDDLEWARE = [known[each] for each in order]
        name, key = settings.SESSION_COOKIE_NAME, saved()
        client: Any = Client() if kind == "sync" else AsyncClient()
        client.cookies[name] = key if is_known else UNKNOWN

        answer = client.get("/who/") if kind == "sync" else async_to_sync(client.get)("/who-async/")

        assert answer.content.decode() == (f"session:{digest(key)}" if is_known else "ip:127.0.0.1")
        assert Session.objects.count() == 1
        assert not answer.cookies.get(name, SimpleNamespace(value="")).value
