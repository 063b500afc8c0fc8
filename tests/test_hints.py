"""Hints: what was typed and could never be met, and what is likely meant."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from django_quota.hints import MOST_USERS, meant_subject, rule_hint, subject_hint, users_called


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("127.0.0.1", "ip:127.0.0.1"),
        ("2001:DB8::7", "ip:2001:db8::/64"),
        ("ip:127.0.0.1", "ip:127.0.0.1"),
        ("joe", "joe"),
        ("global", "global"),
    ],
)
def test_a_bare_address_is_meant_as_one(text: str, subject: str) -> None:
    assert meant_subject(text) == subject


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
