"""Finding users, subjects and rules by typed text, with hints about what is probably meant."""

import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import ImproperlyConfigured
from django.db.models import DurationField
from django.http import HttpResponse
from django.test import RequestFactory
from django.urls import ResolverMatch, path
from hypothesis import assume, example, given
from hypothesis import strategies as st

from django_quota import check, quota
from django_quota.exceptions import RuleError
from django_quota.operating import lookup
from django_quota.operating import who_counts as counting
from django_quota.operating.lookup import (
    MAX_USERS,
    SubjectMatch,
    find_subjects,
    find_users,
    has_page,
    is_group,
    login_names,
    login_names_among,
    named_override_subject,
    network_hint,
    networks_around,
    override_problems,
    parse_override_input,
    parse_rule_input,
    parse_subject_input,
    parse_user_key,
    related_subjects,
    rule_hint,
    smaller_hint,
    subject_hint,
    subjects_meant,
    user_names,
    user_of,
)
from django_quota.subjects.subject import login_subject, session_subject, user_subject
from tests.support.calls import subject_of
from tests.support.databases import LaggingReplica


@pytest.mark.parametrize("key", ["json:phone", "json:user.phone", "kwarg:pk", "get:phone", "header:X-Phone"])
def test_a_typed_value_becomes_the_subject_of_a_request_that_sends_it(key: str) -> None:
    body = {"phone": "+1 555", "user": {"phone": " +1 555 "}}
    sent: Any = {"REMOTE_ADDR": "127.0.0.1", "HTTP_X_PHONE": "+1 555"}
    request = RequestFactory().post("/?phone=%2B1+555", body, content_type="application/json", **sent)
    request.resolver_match = ResolverMatch(print, (), {"pk": "+1 555"})
    subject = subject_of(("ip", key), request)

    assert parse_subject_input(f"127.0.0.1+{key}=+1 555") == parse_subject_input(subject) == subject


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("127.0.0.1", "ip:127.0.0.1"), ("2001:DB8::7", "ip:2001:db8::/64"), ("joe", "joe"),
        ("user:1+device:7", "user:1+device:7"), ("key.a.b:c%2Bd+path:/x y", "key.a.b:c%2Bd+path:/x y"),
        ("path:/c%2B%2B/+ip:2001:DB8::7+global", "path:/c%2B%2B/+ip:2001:db8::/64+global"),
        ("path:/c++/100%", "path:/c%2B%2B/100%25"), ("kwarg:pk=a+b%", "kwarg.pk:a%2Bb%25"),
        ("path:/%FF", "path:/%25FF"), ("path:/a%20b", "path:/a b"), ("kwarg: pk =a", "kwarg.pk:a"),
        (f"path:~{'0' * 64}", f"path:~{'0' * 64}"),
        ("user:ann+shop@example.org", "user:ann%2Bshop@example.org"),
        ("127.0.0.1+session=abc", f"ip:127.0.0.1+{session_subject('abc')}"),
        ("user:7+session=abc", f"user:7+{session_subject('abc')}"),
    ],
)  # fmt: skip
def test_typed_texts_become_subjects(text: str, subject: str) -> None:
    assert parse_subject_input(text) == subject
    assert parse_override_input(subject) == subject


@given(
    name=st.text(min_size=1).filter(lambda name: name.strip() and "=" not in name),
    value=st.text(min_size=1).filter(str.strip),  # a blank one is as good as none
    path=st.text(st.characters(exclude_categories=["Cs"])),
)
@example(name="a", value="b", path="a+b%" * 60)  # of which a subject has a digest
def test_plain_values_become_the_subject_of_such_a_request(name: str, value: str, path: str) -> None:
    request = RequestFactory().get("/", REMOTE_ADDR="2001:db8::7")
    request.path_info = f"/{path}"
    request.COOKIES[name.strip()] = value
    subject = subject_of(("ip", f"cookie:{name}", "path"), request)
    written = quote(request.path_info, safe="/ äß")
    text = f"2001:db8::7+cookie:{name}={value}+path:{written}"
    assume(value.strip())  # else it is missing
    assume(not re.search(r"\+.*[:=]", f"{name}={value}", re.DOTALL))  # "+ip:" in it cannot be told from two parts
    assert parse_subject_input(text) == subject
    assert parse_subject_input(subject) == subject


@pytest.mark.parametrize("text", ["post:phone=", "ip:nowhere+post:phone=1", "10.0.0.0/8"])
def test_an_error_about_a_part_does_not_show_its_value(text: str) -> None:
    with pytest.raises(RuleError) as caught:
        parse_subject_input(text)
    assert "phone=" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("post:phone= ", "The value after the equals sign is missing.", id="no value"),
        pytest.param("login:user=ann", 'Write "login:username=<name>".', id="another name for a login"),
        pytest.param(
            "10.0.0.0/8",
            'No request has the subject "10.0.0.0/8": it is a network. Use one address. IPv6 addresses count by their '
            "/64.",
            id="a network",
        ),
    ],
)
def test_an_error_says_what_to_write(text: str, problem: str) -> None:
    with pytest.raises(RuleError) as caught:
        parse_subject_input(text)

    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        pytest.param("ip:198.51.100.7/24", "ip:198.51.100.0/24", id="a network with its kind"),
        pytest.param("2001:db8::7/32", "ip:2001:db8::/32", id="a network of IPv6"),
        pytest.param("*", "*", id="everybody"),
        pytest.param("org:*", "org:*", id="a kind"),
        pytest.param("ip:*", "ip:*", id="all addresses"),
        pytest.param("ip:198.51.100.0/24+user:7", "ip:198.51.100.0/24+user:7", id="a network and a user"),
        pytest.param(
            "198.51.100.0/24+post:phone=5",
            f"ip:198.51.100.0/24+{parse_subject_input('post:phone=5')}",
            id="a network and a value",
        ),
        pytest.param("203.0.113.9", "ip:203.0.113.9", id="an address"),
        pytest.param("post:phone=+1 5:*", parse_subject_input("post:phone=+1 5:*"), id="a value that ends like a kind"),
        pytest.param("login:username=Ann", login_subject("Ann"), id="a failed login"),
        pytest.param("login: username =Ann", login_subject("Ann"), id="a failed login with blanks"),
    ],
)
def test_typed_texts_become_subjects_of_overrides(text: str, meant: str) -> None:
    assert parse_override_input(text) == meant


@pytest.mark.parametrize(
    ("subject", "groups", "has_its_page"),
    [
        pytest.param("*", True, False, id="everybody"),
        pytest.param("user:*", True, False, id="a kind"),
        pytest.param("ip:198.51.100.0/24", True, False, id="a network"),
        pytest.param("ip:203.0.113.0/28", True, True, id="a network that a rule counts by"),
        pytest.param("ip:2001:db8::/64", False, True, id="an IPv6 client"),
        pytest.param("ip:203.0.113.9", False, True, id="an address"),
        pytest.param("ip:203.0.113.9+path:/a", False, True, id="an address at a path"),
        pytest.param("path:/a", False, True, id="a path"),
        pytest.param("ip:nowhere", False, True, id="not an address"),
    ],
)
def test_a_group_has_a_page_if_a_rule_counts_by_it(
    subject: str, groups: bool, has_its_page: bool, settings: Any
) -> None:
    settings.QUOTA = {"RULES": {"near": {"rate": "5/m", "key": "ip/28,64"}}}

    assert (is_group(subject), has_page(subject)) == (groups, has_its_page)


@pytest.mark.parametrize(
    ("subject", "is_hint"),
    [
        pytest.param("ip:203.0.113.0/28", False, id="as large as those of a rule"),
        pytest.param("ip:203.0.113.7/28", False, id="with bits of a client"),
        pytest.param("ip:203.0.113.0/24", True, id="larger"),
        pytest.param("ip:203.0.113.0/29", True, id="smaller"),
        pytest.param("ip:2001:db8::/28", True, id="of IPv6, as large as those of IPv4"),
        pytest.param("ip:203.0.113.0/28+user:7", False, id="several parts"),
        pytest.param("user:7", False, id="a user"),
    ],
)
def test_only_a_network_that_no_rule_counts_by_gets_a_hint(subject: str, is_hint: bool, settings: Any) -> None:
    settings.QUOTA = {"RULES": {"near": {"rate": "5/m", "key": "ip/28,64"}}}

    hint = (
        f'No request has the subject "{subject}": it is a network. Use one address. IPv6 addresses count by their /64.'
    )
    assert network_hint(subject) == (hint if is_hint else "")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        pytest.param("203.0.113.0/24", "", id="as large as a client"),
        pytest.param("ip:203.0.113.0/16", "", id="larger"),
        pytest.param("user:7", "", id="not a network"),
        pytest.param(
            "ip:203.0.113.9/30",
            "'ip:203.0.113.9/30' is smaller than a /24, and all addresses of a /24 count as one client. Use "
            "'ip:203.0.113.0/24'.",
            id="smaller",
        ),
        pytest.param(
            "2001:db8::7/80",
            "'2001:db8::7/80' is smaller than a /64, and all addresses of a /64 count as one client. Use "
            "'ip:2001:db8::/64'.",
            id="smaller of IPv6",
        ),
    ],
)
def test_a_network_that_is_smaller_than_a_client_gets_a_hint(text: str, hint: str) -> None:
    assert smaller_hint(text, [(4, 20), (4, 24), (6, 64)]) == hint


@pytest.mark.parametrize(
    ("rule", "hint"),
    [
        pytest.param("*", "", id="all rules"),
        pytest.param("search", "", id="a rule"),
        pytest.param("serch", '"serch" is not a rule of the settings or the views. Did you mean "search"?', id="near"),
        pytest.param("upload", '"upload" is not a rule of the settings or the views.', id="unlike any"),
    ],
)
def test_a_hint_about_a_rule_names_the_nearest(rule: str, hint: str, settings: Any) -> None:
    settings.QUOTA = {"RULES": {"search": "5/m"}}

    assert rule_hint(rule) == hint


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        pytest.param("10 per minute", "10/m", id="a rate in words"),
        pytest.param("5/min", "5/min", id="a rule with the name of a rate"),
        pytest.param("gone", "gone", id="a name"),
    ],
)
def test_a_rate_has_one_name_however_it_is_typed(text: str, rule: str, settings: Any) -> None:
    settings.QUOTA = {"RULES": {"5/min": "7/m"}}

    assert parse_rule_input(text) == rule


@pytest.mark.usefixtures("memory_store")
def test_an_override_of_a_rate_may_be_of_any_subject() -> None:
    assert override_problems("10/m", "org:7", with_users=False) == []


def test_a_rule_of_a_view_may_have_a_rate_in_words_as_its_name(settings: Any) -> None:
    view = quota("7/m", key="ip", name="9 per hour")(lambda request: HttpResponse())
    settings.ROOT_URLCONF = (path("a/", view),)

    assert parse_rule_input("9 per hour") == "9 per hour"


@pytest.mark.django_db
class TestNamesOfUsers:
    """What is read of users by their subjects and names."""

    @pytest.fixture
    def ann(self) -> User:
        return User.objects.create_user("Ann", "ann@example.org", first_name="Bea", last_name="Lee")

    def test_the_name_of_one_user_is_the_subject_of_an_override(self, ann: User) -> None:
        assert named_override_subject("Ann", with_users=True) == (f"user:{ann.pk}", 1)

    def test_of_an_address_that_two_users_have_both_are_counted(self, ann: User) -> None:
        User.objects.create_user("bob", ann.email)

        assert named_override_subject(ann.email, with_users=True)[1] == 2

    def test_a_name_is_its_own_subject_where_users_are_not_looked_up(self, ann: User) -> None:
        assert named_override_subject("Ann", with_users=False) == ("Ann", 0)

    def test_a_subject_of_an_override_is_not_looked_up_as_a_name(self) -> None:
        User.objects.create(username="ip:203.0.113.9")

        assert named_override_subject("ip:203.0.113.9", with_users=True) == ("ip:203.0.113.9", 0)

    def test_a_name_in_other_letters_means_its_user_alone(self, ann: User) -> None:
        User.objects.create_user("Annabel")

        assert find_users("ann", prefix=True) == [ann]

    def test_the_beginning_of_a_name_is_its_own_subject(self, ann: User) -> None:
        assert named_override_subject("An", with_users=True) == ("An", 0)

    def test_a_name_that_nobody_has_is_its_own_subject(self) -> None:
        assert named_override_subject("bob", with_users=True) == ("bob", 0)

    def test_a_name_means_the_user_the_failed_logins_and_itself(self, ann: User) -> None:
        assert subjects_meant(" Ann ") == {f"user:{ann.pk}", login_subject("Ann"), "Ann"}

    def test_a_name_means_the_related_subjects_of_the_user(self, ann: User, settings: Any) -> None:
        settings.QUOTA = {"RELATED": lambda user: [f"org:{user.username}"]}

        assert subjects_meant("Ann") == {f"user:{ann.pk}", "org:Ann", login_subject("Ann"), "Ann"}

    def test_an_address_means_only_itself(self) -> None:
        assert subjects_meant("203.0.113.9") == {"ip:203.0.113.9"}

    def test_a_subject_means_only_itself(self) -> None:
        assert subjects_meant("org:7") == {"org:7"}

    @pytest.mark.parametrize(
        ("text", "subject"),
        [
            pytest.param(" 203.0.113.9 ", "ip:203.0.113.9", id="an address"),
            pytest.param("org:7", "org:7", id="a kind with a value"),
            pytest.param("global", "global", id="everybody"),
        ],
    )
    def test_a_subject_is_found_as_it_is(self, text: str, subject: str) -> None:
        User.objects.create_user("global")

        assert find_subjects(text, with_users=True) == [SubjectMatch(subject)]

    def test_a_user_is_found_with_the_subject(self, ann: User) -> None:
        assert find_subjects(" ann ", with_users=True) == [SubjectMatch(f"user:{ann.pk}", ann)]

    def test_a_name_that_nobody_has_is_found_as_a_guess(self) -> None:
        assert find_subjects("bob", with_users=True) == [SubjectMatch("bob", is_guess=True)]

    def test_a_blank_search_says_what_to_type(self) -> None:
        with pytest.raises(RuleError) as caught:
            find_subjects("  ", with_users=True)

        assert str(caught.value) == "Type a user, an address or a subject."

    @pytest.mark.parametrize(
        ("text", "is_found"),
        [
            pytest.param("Ann", True, id="the name"),
            pytest.param("ann", False, id="the name in lower case"),
            pytest.param("ANN@example.ORG", True, id="the address in any case"),
            pytest.param("ann@", False, id="the beginning of the address"),
            pytest.param("Bea", False, id="the first name"),
        ],
    )
    def test_without_a_prefix_only_a_whole_name_or_address_is_found(self, text: str, is_found: bool, ann: User) -> None:
        assert find_users(text) == ([ann] if is_found else [])

    @pytest.mark.parametrize(
        ("text", "is_found"),
        [
            pytest.param("Bea L", True, id="both"),
            pytest.param("Bea X", False, id="another last name"),
            pytest.param("Xi L", False, id="another first name"),
            pytest.param("Bea ", False, id="a blank at the end"),
        ],
    )
    def test_a_first_and_a_last_name_are_those_of_one_user(self, text: str, is_found: bool, ann: User) -> None:
        assert find_users(text, prefix=True) == ([ann] if is_found else [])

    def test_a_user_is_found_by_subject(self, ann: User) -> None:
        assert user_of(f"user:{ann.pk}") == ann

    def test_a_string_without_an_at_sign_is_no_address(self, ann: User) -> None:
        User.objects.create_user("bob", "ann")

        assert find_users("ann") == []

    @pytest.mark.parametrize("subject", ["user:", "user:x", "org:{}", "user:{}+ip:203.0.113.9", "{}"])
    def test_another_subject_is_not_a_user(self, subject: str, ann: User) -> None:
        assert user_of(subject.format(ann.pk)) is None

    def test_the_names_of_users_are_read_in_one_query(self, ann: User, django_assert_num_queries: Any) -> None:
        bob = User.objects.create_user("bob")

        with django_assert_num_queries(1):
            names = user_names([f"user:{ann.pk}", f"user:{bob.pk}", "user:x", "ip:203.0.113.9"])

        assert names == {f"user:{ann.pk}": "Ann", f"user:{bob.pk}": "bob"}

    def test_without_users_no_name_is_read(self, django_assert_num_queries: Any) -> None:
        with django_assert_num_queries(0):
            assert user_names(["ip:203.0.113.9", "user:x"]) == {}

    def test_on_a_site_without_users_nobody_is_looked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lookup, "get_user_model", Mock(side_effect=ImproperlyConfigured))

        assert user_names(["ip:203.0.113.9"]) == {}

    def test_a_user_may_log_in_by_name_and_address(self, ann: User) -> None:
        names = login_names([ann, User(username="bob")])

        assert names == {
            login_subject("Ann"): "Ann", login_subject("ann@example.org"): "ann@example.org",
            login_subject("bob"): "bob",
        }  # fmt: skip

    def test_of_two_ways_to_write_a_login_the_name_is_shown(self) -> None:
        names = login_names([User(username="ANN@example.org", email="ann@example.org")])

        assert names == {login_subject("ann@example.org"): "ANN@example.org"}

    def test_the_digest_of_a_login_is_that_of_a_given_user(self, ann: User, django_assert_num_queries: Any) -> None:
        subject = login_subject("Ann")

        with django_assert_num_queries(0):
            assert login_names_among([f"ip:203.0.113.9+{subject}"], [ann]) == {subject: "Ann"}

    def test_the_digest_of_a_login_is_looked_for_among_all_users(self, ann: User) -> None:
        subject = login_subject("Ann")

        assert login_names_among([subject, login_subject("nobody"), "user:7"], []) == {subject: "Ann"}

    def test_a_digest_of_another_user_is_looked_for_beside_those_of_given_users(
        self, ann: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lookup, "MAX_LOGIN_USERS", 1)  # of the newest, who is not Ann
        User.objects.create_user("bob")
        names = {login_subject(name): name for name in ("Ann", "bob")}

        assert login_names_among(names, [ann]) == names

    def test_the_names_of_the_newest_users_are_read_once_a_minute(
        self, ann: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subject, times = login_subject("bob"), iter([119.9, 60.0, 120.0])
        monkeypatch.setattr(lookup, "time", SimpleNamespace(monotonic=lambda: next(times)))
        login_names_among([subject], [])
        User.objects.create_user("bob")

        found = [login_names_among([subject], []) for _ in range(2)]

        assert found == [{}, {subject: "bob"}]

    def test_only_the_names_of_one_minute_stay_in_memory(
        self, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
    ) -> None:
        times = iter([60.0, 120.0, 60.0])
        monkeypatch.setattr(lookup, "time", SimpleNamespace(monotonic=lambda: next(times)))

        with django_assert_num_queries(3):
            for _ in range(3):
                login_names_among([login_subject("bob")], [])

    def test_the_names_of_the_newest_users_are_compared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lookup, "MAX_LOGIN_USERS", 1)
        for name in ("ann", "bob"):
            User.objects.create_user(name)

        found = login_names_among([login_subject("ann"), login_subject("bob")], [])

        assert found == {login_subject("bob"): "bob"}

    def test_the_names_of_at_most_five_thousand_users_are_read(self, django_assert_num_queries: Any) -> None:
        with django_assert_num_queries(1) as asked:
            login_names_among([login_subject("ann")], [])

        assert asked.captured_queries[0]["sql"].endswith(" LIMIT 5000")


@pytest.mark.django_db
class TestUserModelWithoutAnAddress:
    """A user model of the site may have a name and no field for an e-mail address."""

    @pytest.fixture(autouse=True)
    def ann(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setattr(Group, "USERNAME_FIELD", "name", raising=False)
        monkeypatch.setattr(Group, "get_email_field_name", lambda: "email", raising=False)
        monkeypatch.setattr(lookup, "get_user_model", lambda: Group)
        return Group.objects.create(name="ann@home")

    @pytest.mark.parametrize(
        ("text", "prefix"), [("ann@home", False), ("ann", True), ("ann@", True)], ids=["a name", "a prefix", "with @"]
    )
    def test_a_user_is_found_by_name(self, text: str, prefix: bool, ann: Any) -> None:
        assert find_users(text, prefix=prefix) == [ann]

    def test_the_name_is_all_that_logs_in(self, ann: Any) -> None:
        assert login_names([ann]) == {login_subject("ann@home"): "ann@home"}

    def test_a_hint_names_the_user(self, ann: Any) -> None:
        assert f'The user with this name is "user:{ann.pk}".' in subject_hint("ann@home")


@pytest.mark.parametrize("text", ["9" * 20, "99999999999 00:00:00", "P999999999999D", "-"])
def test_a_key_that_is_longer_than_any_duration_is_of_nobody(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = DurationField()  # this field alone raises an OverflowError
    monkeypatch.setattr(User._meta, "get_field", lambda name: key)

    assert parse_user_key(text) is None


OF_A_CALL = (
    'No request has the subject "{}". Use, for example, user:<key>, ip:<address> or global. It works only where your '
    "code passes this subject itself."
)


@pytest.mark.django_db
class TestHints:
    """What a hint about a subject says, word for word."""

    @pytest.fixture(autouse=True)
    def users(self) -> None:
        for key, name in ((41, "ann"), (42, "bob"), (43, "bobby")):
            User.objects.create_user(name, pk=key)

    @pytest.mark.parametrize(
        ("subject", "hint"),
        [
            pytest.param(
                "ann", 'No request has the subject "ann". The user with this name is "user:41".', id="a user's name"
            ),
            pytest.param(
                "ANN", 'No request has the subject "ANN". The user with this name is "user:41".', id="in capitals"
            ),
            pytest.param("an", OF_A_CALL.format("an"), id="how a name begins"),
            pytest.param(
                "cid", f"Nobody's name or e-mail begins with 'cid'. {OF_A_CALL.format('cid')}", id="nobody's name"
            ),
            pytest.param(
                "user:ann",
                'There is no user with the key "ann". The user with this name is "user:41".',
                id="a name as a key",
            ),
            pytest.param("user:an", 'There is no user with the key "an".', id="how a name begins, as a key"),
            pytest.param("user:cid", 'There is no user with the key "cid".', id="nobody's key"),
            pytest.param("user:41", "", id="a user"),
            pytest.param(user_subject(SimpleNamespace(pk="7" * 300)), "", id="a key that is a digest"),
            pytest.param("user:41+ip:203.0.113.9", "", id="a user at an address"),
        ],
    )
    def test_a_hint_says_what_is_meant(self, subject: str, hint: str) -> None:
        assert subject_hint(subject) == hint

    def test_a_key_that_two_users_have_as_their_address_names_neither(self) -> None:
        User.objects.filter(pk__in=[42, 43]).update(email="same@example.org")

        assert subject_hint("user:same@example.org") == 'There is no user with the key "same@example.org".'

    @pytest.mark.parametrize(
        ("subject", "hint"), [("ann", OF_A_CALL.format("ann")), ("user:ann", "")], ids=["a name", "a key"]
    )
    def test_no_user_is_looked_up_for_people_who_may_not_see_users(
        self, subject: str, hint: str, django_assert_num_queries: Any
    ) -> None:
        with django_assert_num_queries(0):
            assert subject_hint(subject, with_users=False) == hint


@pytest.mark.django_db
class TestUsers:
    def test_a_hint_names_whom_a_text_means(self) -> None:
        ann = User.objects.create_user("ann")
        for name in ("bob", "cid"):
            User.objects.create_user(name, "same@example.org")
        assert f'is "user:{ann.pk}"' in subject_hint("ann")
        assert f'is "user:{ann.pk}"' in subject_hint("user:ann")
        assert "user:<key>" in subject_hint("ann", with_users=False)  # it reveals no users
        assert subject_hint("user:nobody") == 'There is no user with the key "nobody".'
        assert "user:<key>" in subject_hint("same@example.org")  # two of them
        assert len(find_users("same@example.org")) == 2 <= MAX_USERS
        assert all(map(subject_hint, ("a\0b", "user:", "ip:198.51.100.0/24", "nobody")))
        known = ["global", "tenant:7", "ip:127.0.0.1", "post.phone:abc", "user:1+ip:127.0.0.1", f"user:{ann.pk}"]
        assert [subject_hint(subject) for subject in known] == [""] * 6

    def test_a_search_finds_users_in_full_or_else_by_how_they_begin(self) -> None:
        ann, anna = (User.objects.create_user(name, f"{name}@example.org") for name in ("ann", "anna"))
        expected: dict[str, set[Any]] = {
            "ann": {ann}, "ANN": {ann}, "an": {ann, anna}, "anna@e": {anna}, str(anna.pk): {anna}, "n": {None}
        }  # fmt: skip

        found = {text: {match.user for match in find_subjects(text, with_users=True)} for text in expected}

        assert found == expected

    def test_a_search_without_users_takes_the_input_as_a_subject(self) -> None:
        User.objects.create_user("ann")

        assert find_subjects("ann", with_users=False) == [SubjectMatch("ann", is_guess=True)]

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("Ann", id="the first name"),
            pytest.param("lee", id="the last name in lower case"),
            pytest.param("Ann Lee", id="both"),
            pytest.param("an le", id="how both begin"),
        ],
    )
    def test_a_search_finds_a_user_by_first_or_last_name(self, text: str) -> None:
        ann = User.objects.create_user("u1", first_name="Ann", last_name="Lee")
        User.objects.create_user("u2", first_name="Bob", last_name="Ray")

        assert [match.user for match in find_subjects(text, with_users=True)] == [ann]

    def test_the_name_to_log_in_comes_before_first_names(self) -> None:
        ann = User.objects.create_user("ann", first_name="Bea")
        User.objects.create_user("u2", first_name="Ann")

        assert [match.user for match in find_subjects("ann", with_users=True)] == [ann]


@pytest.mark.django_db
def test_a_search_finds_at_most_twenty_users() -> None:
    User.objects.bulk_create(User(username=f"ann{number}") for number in range(21))

    assert len(find_users("ann", prefix=True)) == 20


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "queries"),
    [
        pytest.param("a" * 320, 1, id="320 characters"),
        pytest.param("a" * 321, 0, id="321 characters"),
        pytest.param("a\0b", 0, id="a null character"),
        pytest.param("a\ud800", 0, id="half a character"),
    ],
)
def test_a_user_is_looked_up_by_a_short_string_that_a_database_can_hold(
    text: str, queries: int, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(queries):
        assert find_users(text) == []


@pytest.mark.django_db
def test_a_new_user_is_found_though_a_replica_lags(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [LaggingReplica()]
    ann = User.objects.create_user("ann")

    assert (find_users("ann"), user_of(f"user:{ann.pk}")) == ([ann], ann)


@pytest.mark.parametrize(
    ("subject", "networks"),
    [
        pytest.param("ip:203.0.113.9", ["ip:203.0.113.0/24", "ip:203.0.0.0/16"], id="IPv4"),
        pytest.param("ip:2001:db8::/64", ["ip:2001:db8::/48"], id="IPv6"),
        pytest.param("ip:203.0.113.0/24", ["ip:203.0.0.0/16"], id="a network"),
        pytest.param("ip:203.0.113.9+user:7", [], id="several parts"),
        pytest.param("user:7", [], id="a user"),
    ],
)
def test_the_networks_around_an_address_come_smallest_first(subject: str, networks: list[str], settings: Any) -> None:
    keys = {"wide": "ip/16,48", "near": "ip/24,64", "own": "ip"}
    settings.QUOTA = {"RULES": {name: {"rate": "5/m", "key": key} for name, key in keys.items()}}

    assert networks_around(subject) == networks


class TestRelatedSubjects:
    USER: Any = User(pk=7)

    @staticmethod
    def of_numbers(user: User) -> Any:
        return ["org:1", 42, 43]

    def test_at_most_ten_are_read(self, settings: Any) -> None:
        settings.QUOTA = {"RELATED": lambda user: [f"org:{number}" for number in range(11)]}

        assert related_subjects(self.USER) == [f"org:{number}" for number in range(10)]

    def test_without_a_function_of_the_site_there_are_none(self) -> None:
        assert related_subjects(self.USER) == []

    def test_each_is_named_as_requests_name_it(self, settings: Any) -> None:
        settings.QUOTA = {"RELATED": lambda user: ["ip:2001:DB8::7"]}

        assert related_subjects(self.USER) == ["ip:2001:db8::/64"]

    def test_each_is_named_once_without_the_user(self, settings: Any) -> None:
        settings.QUOTA = {"RELATED": lambda user: ["org:1", "user:7", "org:2", "org:1"]}

        assert related_subjects(self.USER) == ["org:1", "org:2"]

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            pytest.param(LookupError("no such account"), ": no such account", id="without a full stop"),
            pytest.param(LookupError("No such account."), ": No such account", id="with a full stop"),
            pytest.param(LookupError(), "", id="without words"),
        ],
    )
    def test_a_function_that_fails_is_an_error_that_says_so(self, error: Exception, said: str, settings: Any) -> None:
        settings.QUOTA = {"RELATED": Mock(side_effect=error, __module__="shop", __qualname__="owners")}

        with pytest.raises(RuleError) as caught:
            related_subjects(self.USER)

        assert str(caught.value) == (
            f'shop.owners, QUOTA["RELATED"], raised LookupError for user:7{said}. Return a list of subjects, such as '
            "[Subject('org', 7)]."
        )

    def test_a_result_that_is_not_a_subject_is_an_error_that_names_it(self, settings: Any) -> None:
        settings.QUOTA = {"RELATED": self.of_numbers}

        with pytest.raises(RuleError) as caught:
            related_subjects(self.USER)

        assert str(caught.value) == (
            f'{__name__}.TestRelatedSubjects.of_numbers, QUOTA["RELATED"], returned 42 for user:7. Return subjects: '
            "Subject('org', 7), or 'org:7'."
        )


def view(request: object) -> HttpResponse:
    return HttpResponse()


def by_tenant(request: object) -> str:
    return "7"


@pytest.fixture
def keyed(settings: Any) -> None:
    keys: dict[str, Any] = {
        "signup": "ip", "api": "user", "devices": "header:X-Device", "tenants": by_tenant, "all": "global",
        "form": ("ip", "post:username"),
    }  # fmt: skip
    rules: dict[str, Any] = {name: {"rate": "5/m", "key": key} for name, key in keys.items()}
    settings.QUOTA = {"RULES": {**rules, "import": "5/m", "5/min": "7/m"}}
    settings.ROOT_URLCONF = (path("", quota("5/m", name="view")(view)),)


@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize(
    ("subject", "rule", "meant"),
    [
        ("user:3", "signup", "ip"), ("user:*", "signup", "ip"), ("org:42", "api", "user"),
        ("header.x-other:abc", "devices", "header:X-Device"), ("ip:203.0.113.9", "all", "global"),
        ("header.x-a:abc", "tenants", "tests.api.test_lookup.by_tenant"),
        ("ip:198.51.100.0/24", "form", "ip+post:username"), ("user:3", "view", "ip"),
    ],
)  # fmt: skip
def test_a_subject_that_the_key_of_a_rule_never_gives_is_a_problem(subject: str, rule: str, meant: str) -> None:
    assert override_problems(rule, subject, with_users=False) == [
        f'No request has the subject "{subject}" under the rule "{rule}", which limits "{meant}".'
    ]


@pytest.mark.usefixtures("keyed", "memory_store")
def test_a_problem_shows_subjects_that_the_rule_has_counted(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory"}
    check("tenants", "org:7", 6)

    assert override_problems("tenants", "user:1", with_users=False) == [
        'No request has the subject "user:1" under the rule "tenants", which limits "tests.api.test_lookup.by_tenant".',
        "Subjects look like org:7.",
    ]


@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize(
    ("subject", "rule"),
    [
        ("*", "all"), ("user:*", "*"), ("ip:203.0.113.9", "signup"), ("ip:2001:db8::/32", "signup"),
        ("user:3", "api"), ("user:*", "api"), ("ip:203.0.113.9", "api"), ("header.x-device:*", "devices"),
        ("org:7", "tenants"), ("key.tests.api.test_lookup.by_tenant:7", "tenants"), ("global", "all"),
        ("ip:203.0.113.9+post.username:abc", "form"), ("org:42", "import"), ("ip:203.0.113.9", "view"),
        ("org:7", "5/m"), ("org:7", "5/min"),
    ],
)  # fmt: skip
def test_an_override_that_may_have_an_effect_has_no_problem(subject: str, rule: str) -> None:
    assert override_problems(rule, subject, with_users=False) == []


@pytest.mark.django_db
@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize(
    ("rule", "subject", "problem"),
    [
        pytest.param("api", "user:3", 'There is no user with the key "3".', id="user"),
        pytest.param("ap", "*", '"ap" is not a rule of the settings or the views. Did you mean "api"?', id="rule"),
        pytest.param("5 per minute", "*", '"5 per minute" is not a rule of the settings or the views.', id="rate"),
        pytest.param(
            "*",
            "ip:2001:db8::/80",
            "'ip:2001:db8::/80' is smaller than a /64, and all addresses of a /64 count as one client. Use "
            "'ip:2001:db8::/64'.",
            id="network",
        ),
    ],
)
def test_an_override_of_an_unknown_one_has_a_problem(rule: str, subject: str, problem: str) -> None:
    assert override_problems(rule, subject) == [problem]


@pytest.mark.django_db
@pytest.mark.usefixtures("keyed")
def test_an_override_may_have_two_problems() -> None:
    assert override_problems("ap", "user:3") == [
        'There is no user with the key "3".',
        '"ap" is not a rule of the settings or the views. Did you mean "api"?',
    ]


@pytest.mark.django_db
@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize(
    ("typed", "subject"), [("user:*", "user:*"), ("198.51.100.7/24", "ip:198.51.100.0/24")], ids=["users", "network"]
)
def test_an_override_of_many_has_no_problem(typed: str, subject: str) -> None:
    assert parse_override_input(typed) == subject
    assert override_problems("*", subject) == []


@pytest.mark.django_db
@pytest.mark.usefixtures("keyed", "memory_store")
@pytest.mark.parametrize(
    ("rule", "number"), [pytest.param("api", 0, id="a plain key"), pytest.param("tenants", 1, id="a function")]
)
def test_problems_of_an_override_read_the_last_events_if_a_function_is_the_key(
    rule: str, number: int, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory"}
    read = Mock(return_value=[])
    monkeypatch.setattr(counting, "newest_events", read)

    override_problems(rule, "user:1", with_users=False)

    assert read.call_count == number
