"""URLs of a Redis: what a sign in a password does to them is found before somebody connects elsewhere."""

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota.stores.redis.urls import read_server, read_url
from tests.support.findings import findings
from tests.support.inputs import inputs

HOST = "redis.example"
PASSWORD = "5ENTINEL"


def options_of(url: str) -> Any:
    """Return the options in a URL, None if it cannot be read."""
    try:
        return read_url(url)
    except ValueError:
        return None


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:p@ss#w@{HOST}", "redis://:12#w", f"redis://:12/w@{HOST}/0", f"redis://:12?w@{HOST}",
        f"redis://u:12?a=b@{HOST}/0", f"redis://:[w]@{HOST}", "redis://a,b", "redis://h:x", "redis://h:99999",
        "redis://h/cache", "redis://h/0x", "redis://h?db=x", "unix:/x", "unix://x", "redis://h?socket_timeout=w",
        "http://h", ":w@h:6379", "localhost", "", "redis+sentinel://h:26379", "redis+sentinel://h/m/x",
        "redis+sentinel://h:0/m", "redis+sentinel://h,/m", "redis+sentinel://:5/4@h/m", "redis+sentinel://h/m?db=x",
        "redis+cluster://h/1", "redis+cluster://h:70000", "redis+cluster://", "unix+cluster://h",
    ],
)  # fmt: skip
def test_what_redis_py_would_read_otherwise_cannot_be_read(url: str) -> None:
    assert options_of(url) is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://:6379/0", {"port": 6379, "db": 0}), ("redis:///3", {"db": 3}), ("redis://h", {"host": "h"}),
        ("redis://h/12?db=3", {"host": "h", "db": 3}), ("redis://[::1]:6379/", {"host": "::1", "port": 6379}),
        ("redis://:p@ss@h/0", {"host": "h", "db": 0, "password": "p@ss"}),
        ("redis://h?password=a@b&username=c@d", {"host": "h", "username": "c@d", "password": "a@b"}),
        ("rediss://h?ssl_ca_certs=/etc/a@b.pem", {"host": "h", "ssl": True, "ssl_ca_certs": "/etc/a@b.pem"}),
        ("redis://u:%23%2F%3F%40@h:1", {"host": "h", "port": 1, "username": "u", "password": "#/?@"}),
        ("redis+sentinel://a,b:5/m", {"sentinels": [("a", 26379), ("b", 5)], "service_name": "m"}),
        ("redis+sentinel://:p%2F@a/m/3/?socket_timeout=1",
         {"sentinels": [("a", 26379)], "service_name": "m", "db": 3, "password": "p/", "socket_timeout": 1.0}),
        ("rediss+sentinel://:p@[::1]:5/m?ssl_ca_certs=x",
         {"sentinels": [("::1", 5)], "service_name": "m", "password": "p", "ssl": True, "ssl_ca_certs": "x",
          "sentinel_kwargs": {"ssl": True, "ssl_ca_certs": "x"}}),
        ("redis+cluster://u:p@[::1]:7000,b/0?max_connections=4",
         {"startup_nodes": [("::1", 7000), ("b", 6379)], "username": "u", "password": "p", "max_connections": 4}),
        ("rediss+cluster://b", {"startup_nodes": [("b", 6379)], "ssl": True}),
    ],
)  # fmt: skip
def test_the_options_in_a_url(url: str, expected: dict[str, Any]) -> None:
    assert options_of(url) == expected
    options = read_server("unix://:p@/run/a@b.sock?db=1")
    assert (options["path"], options["db"], options["password"]) == ("/run/a@b.sock", 1, "p")


@given(st.text("a1:/?#@[]=&,;+. ", min_size=1, max_size=12), st.sampled_from(["", "u"]))
@example("p@ss#w", "").via("found by a stranger")
@example("1?a=a", "u")
def test_a_password_is_read_unchanged_or_not_at_all(password: str, user: str) -> None:
    found = options_of(f"redis://{user}:{password}@{HOST}:7/0")
    if found is not None:
        assert (found["host"], found["port"], found["password"]) == (HOST, 7, password)
    assert read_server(f"redis://{user}:{quote(password, safe='')}@{HOST}:7/0")["password"] == password


SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster", "http")
HOSTS = ("h", "h:1", "a:1,b", "[::1]:7000", "", ":", "h:99999999")


@inputs(60)
@given(
    st.sampled_from(SCHEMES), st.text("a1:/?#@[]=&,;+. ℀", max_size=8), st.sampled_from(HOSTS),
    st.sampled_from(["", "/", "/0", "/m", "/m/0", "/m/0?db=1"]),
)  # fmt: skip
@example("redis+cluster", "?a=a", "h", "")
@example("redis+sentinel", "]", "[::1", "/m")
def test_no_check_raises_or_shows_a_password(scheme: str, sign: str, hosts: str, path: str) -> None:
    url = f"{scheme}://:{PASSWORD}{sign}{PASSWORD}@{hosts}{path}"
    alias = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
    for found in findings({"REDIS": url}) + findings({}, {"default": alias}):
        assert str(found.id).startswith("django_quota.")
        assert PASSWORD not in f"{found.msg} {found.hint}"
