"""URLs of cache aliases: what a sign in a password does to them is found before somebody connects elsewhere."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import quote

import pytest
from django.test import override_settings
from hypothesis import example, given
from hypothesis import strategies as st
from redis.connection import parse_url

from tests.support.findings import alias_problem

HOST = "redis.example"


def problem_of(location: object) -> Any:
    with override_settings(CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}}):
        return alias_problem()


def read(url: str) -> dict[str, Any]:
    parse: Any = parse_url
    return cast("dict[str, Any]", parse(url))


@pytest.mark.parametrize(
    ("url", "sign"),
    [
        (f"redis://:p@ss#w@{HOST}", "#"), (f"redis://:12#w@{HOST}/0", "#"), ("redis://:12#w", "#"),
        (f"redis://{HOST}/0#first", "#"), (f"redis://:12/w@{HOST}/0", "/"), (f"rediss://:p@ss/w@{HOST}", "/"),
        (f"redis://:12?w@{HOST}", "?"), (f"redis://u:12?a=b@{HOST}/0", "?"), (f"redis://:1?a&b=c@{HOST}", "?"),
    ],
)  # fmt: skip
def test_e004_names_a_character_that_ends_the_host_early_and_no_password(url: str, sign: str) -> None:
    problem = problem_of(url)
    assert problem.id == "django_quota.E004"
    assert f"a {sign} that is not percent-encoded" in problem.msg
    assert "%23" in problem.hint
    shown = problem.msg.rpartition(" in ")[2]
    assert shown.strip("'.") in (
        "redis://***@redis.example",
        "rediss://***@redis.example",
        "redis://***@redis.example/0",
        "redis://",
    )


@pytest.mark.parametrize(
    "url",
    [
        "redis://:6379/0", "redis:///3", "redis://h", "redis://:p@ss@h/0", "redis://h/0?password=a@b&username=c@d",
        "rediss://h/0?ssl_ca_certs=/etc/a@b.pem", "unix://:p@/run/a@b.sock?db=1", "redis://u:%23%2F%3F%40@h:1/0",
        "redis://[::1]:6379/0",
    ],
)  # fmt: skip
def test_correct_urls_have_no_problem(url: str) -> None:
    assert problem_of(url) is None


@pytest.mark.parametrize(
    "location",
    [
        "redis://:p@wort#x", f"redis://:12,wort@{HOST}/0", f"redis://:12,wort,x@{HOST}/0", ["redis://a/0", f"redis://:1#wort@{HOST}"],
        "redis://a,b",
    ],
)  # fmt: skip
def test_all_urls_of_a_location_are_checked(location: object) -> None:
    problem = problem_of(location)
    assert problem.id == "django_quota.E004"
    assert "wort" not in problem.msg
    assert problem_of("redis://a/0, redis://b/0") is None


@pytest.mark.parametrize("port", ["port", "99999", "-1"])
def test_a_wrong_port_is_named_with_its_place_and_an_example(port: str) -> None:
    problem = problem_of(f"redis://{HOST}:{port}/0")
    assert problem.msg == (
        f"The LOCATION of CACHES[\"default\"] is not a Redis URL: 'redis://{HOST}:...' has no port from 0 to 65535."
    )
    assert problem.hint.startswith('Use, for example, "redis://127.0.0.1:6379/0".')


@given(st.text("a1:/?#@[]=&,;+. ", min_size=1, max_size=12), st.sampled_from(["", "u"]))
@example("p@ss#w", "").via("found by a stranger")
@example("1?a=a", "u")
@example("/:secret,", "")
def test_a_password_is_read_unchanged_or_reported_as_unquoted(password: str, user: str) -> None:
    url = f"redis://{user}:{password}@{HOST}:7/0"
    problem = problem_of(url)
    if problem is None:
        found = read(url)
        assert (found["host"], found["port"], found["password"]) == (HOST, 7, password)
    else:
        assert "%23" in problem.hint
        assert "secret" not in problem.msg
    quoted = f"redis://{user}:{quote(password, safe='')}@{HOST}:7/0"
    assert problem_of(quoted) is None
    assert read(quoted)["password"] == password
