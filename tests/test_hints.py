"""Hints: what was typed and could never be met, and what is likely meant."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.test import RequestFactory
from hypothesis import assume, given
from hypothesis import strategies as st

from django_quota.exceptions import RuleError
from django_quota.hints import _BETWEEN_PARTS, MOST_USERS, meant_subject, rule_hint, subject_hint, users_called
from django_quota.subjects import answer, subject_flow


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("127.0.0.1", "ip:127.0.0.1"),
        ("2001:DB8::7", "ip:2001:db8::/64"),
        ("ip:127.0.0.1", "ip:127.0.0.1"),
        ("joe", "joe"),
        ("global", "global"),
        ("user:1+device:7", "user:1+device:7"),
        ("key.a.b:c%2Bd+path:/x y", "key.a.b:c%2Bd+path:/x y"),
        ("path:/c++/100%", "path:/c%2B%2B/100%25"),
        ("path:/c%2B%2B/+ip:2001:DB8::7+global", "path:/c%2B%2B/+ip:2001:db8::/64+global"),
        ("127.0.0.1+path:/a/", "ip:127.0.0.1+path:/a/"),
    ],
)
def test_a_bare_address_is_meant_as_one(text: str, subject: str) -> None:
    assert meant_subject(text) == subject


@given(
    name=st.text(min_size=1).filter(lambda name: name.strip() and "=" not in name),
    value=st.text(min_size=1),
    path=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_what_a_human_writes_for_the_parts_of_a_subject_means_that_of_the_request(
    name: str, value: str, path: str
) -> None:
    request = RequestFactory().get("/", REMOTE_ADDR="2001:db8::7")
    request.path_info = f"/{path}"
    request.COOKIES[name.strip()] = value
    subject = answer(subject_flow(("ip", f"cookie:{name}", "path"), request))
    written = quote(request.path_info, safe="/ äß")
    text = f"2001:db8::7+cookie:{name}={value}+path:{written}"
    assume(len(_BETWEEN_PARTS.split(text)) == 3)  # a value with "+ip:" in it cannot be told from two parts
    assert meant_subject(text) == subject
    assert meant_subject(subject) == subject


@pytest.mark.parametrize("text", ["post:phone=", "ip:127.0.0.1+post:phone=", "ip:nowhere+post:phone=1"])
def test_parts_that_mean_nobody_are_an_error_that_does_not_show_the_value(text: str) -> None:
    with pytest.raises(RuleError) as caught:
        meant_subject(text)
    assert "phone=" not in str(caught.value)


@pytest.mark.parametrize(
    ("subject", "meant"),
    [("header:X-Api-Key", "header:X-Api-Key=<value>"), ("ip:127.0.0.1+post:username", "post:username=<value>")],
)
def test_a_field_without_its_value_is_told_to_bring_it(subject: str, meant: str) -> None:
    assert subject_hint(subject, with_users=False) == (
        f"No request has the subject “{subject}”: the value is missing. Write “{meant}”."
    )


@pytest.mark.parametrize("subject", ["global", "ip:127.0.0.1", "post.phone:abc", "user:1+ip:127.0.0.1", "key.a:b"])
@pytest.mark.django_db
def test_what_a_request_may_have_is_left_alone(subject: str) -> None:
    assert subject_hint(subject) == ""


@pytest.mark.django_db
class TestUsers:
    def test_the_one_of_a_name_is_said(self) -> None:
        ann = User.objects.create_user("ann")
        assert f"user:{ann.pk}" in subject_hint("ann")
        assert f"user:{ann.pk}" in subject_hint("user:ann")
        assert subject_hint(f"user:{ann.pk}") == ""

    def test_of_several_none_is_said(self) -> None:
        for name in ("bob", "cid"):
            User.objects.create_user(name, "same@example.org")
        assert "user:<key>" in subject_hint("same@example.org")
        assert len(users_called("same@example.org")) == 2 <= MOST_USERS

    def test_where_there_is_none_that_is_said(self) -> None:
        assert "No user is called “nobody”" in subject_hint("nobody")
        assert subject_hint("user:nobody") == "There is no user with the key “nobody”."
        assert "user:" in subject_hint("a\0b")
        assert subject_hint("user:") != ""


def test_users_stay_unknown_to_those_who_may_not_see_them() -> None:
    assert "user:<key>" in subject_hint("ann", with_users=False)
    assert subject_hint("user:ann", with_users=False) == ""


def test_a_rule_that_is_not_known_is_said_with_a_near_one(settings: Any) -> None:
    settings.QUOTA = {"RULES": {"search": "10/m"}}
    assert rule_hint("serch").endswith("Did you mean “search”?")
    assert rule_hint("zzz") == "“zzz” is no rule of the settings or the views."
    assert (rule_hint("search"), rule_hint("*")) == ("", "")
