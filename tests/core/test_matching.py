"""`match` and `exclude`: paths, views and hosts, each read strictly and compared in full."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.exceptions import RuleError
from tests.support.calls import calls_in
from tests.support.inputs import inputs


class Place(NamedTuple):
    path: str = "/"
    view: str = ""
    host: str = ""


def read(match: object, option: str = "match") -> Any:
    """Return the option as a configured rule has it."""
    return getattr(Rule.from_setting("r", {"rate": "1/s", option: match}), option)


def holds(match: object, path: str = "/", view: str = "", host: str = "") -> bool:
    return bool(read(match).matches(Place(path, view, host)))


LONG_WAYS = (
    "/reports/*-*-*.csv",
    "/**-**-**.csv",
    "/**-*-**-*.csv",
    "/**-*-*-**.csv",
    "/**/*-*-**.csv",
    "/**-*-.csv",
    "/reports/" + "*-" * 100 + ".csv",
)
"""Globs that regular expressions match in very many ways."""


class TestPaths:
    @pytest.mark.parametrize(
        ("match", "path", "matches"),
        [
            ("/", "/", True), ("/", "/anything/at/all", True),
            ("/api/", "/api/", True), ("/api/", "/api/search", True), ("/api/", "/api", False),
            ("/api/", "/apis/", False),
            ("/api", "/api", True), ("/api", "/api/search", True), ("/api", "/apikeys", False),
            ("/api", "/v1/api", False),
            ("/files/*.zip", "/files/a.zip", True), ("/files/*.zip", "/files/a/b.zip", False),
            ("/files/*.zip", "/files/a.zip/more", False), ("/files/**.zip", "/files/a/b.zip", True),
            ("/*/admin/", "/de/admin/", True), ("/*/admin/", "/de/x/admin/", False),
            ("/**/admin/", "/de/x/admin/", True),
            ("/fi*", "/files", True), ("/fi*", "/files/x", False), ("/a.b/*", "/aXb/x", False),
            ("/a\n*", "/a\nb", True),
            ("re:^/v[12]/", "/v1/x", True), ("re:^/v[12]/", "/v3/x", False), ("re:zip$", "/files/a.zip", True),
            (re.compile("^/V1/", re.IGNORECASE), "/v1/", True), (re.compile("^/V1/"), "/v1/", False),
        ],
    )  # fmt: skip
    def test_prefixes_end_at_a_slash_and_globs_fit_a_whole_path(self, match: object, path: str, matches: bool) -> None:
        assert holds(match, path) is matches

    @inputs(2_000)
    @given(st.text("ab/*.\n", max_size=10), st.text("ab/.\n", max_size=12))
    def test_a_glob_fits_what_its_regular_expression_would(self, glob: str, path: str) -> None:
        pattern = f"/{glob}"
        if "*" in pattern:
            assert holds(pattern, f"/{path}") is bool(_expression(pattern).fullmatch(f"/{path}"))

    @pytest.mark.parametrize("glob", LONG_WAYS)
    def test_many_stars_on_a_long_path_are_compared_without_going_back(self, glob: str) -> None:
        assert not holds(glob, "/reports/" + "-" * 200_000)
        assert holds(glob, "/reports/" + "-" * 200_000 + ".csv")

    @pytest.mark.parametrize("glob", LONG_WAYS)
    @pytest.mark.parametrize("ending", ["", ".csv"])
    def test_a_glob_makes_no_call_for_each_character_of_a_path(self, glob: str, ending: str) -> None:
        match = read(glob)
        short, long = (
            calls_in(partial(match.matches, Place("/reports/" + "-" * length + ending))) for length in (300, 60_000)
        )
        assert long == short


def _expression(glob: str) -> re.Pattern[str]:
    """Return what a glob means, as a regular expression says it."""
    signs = (
        "[^/]*" if part == "*" else ".*" if part[:1] == "*" else re.escape(part) for part in re.split(r"(\*+)", glob)
    )
    return re.compile("".join(signs), re.DOTALL)


class TestViews:
    @pytest.mark.parametrize(
        ("match", "view", "matches"),
        [
            ("api:search", "api:search", True), ("api:search", "api:searches", False), ("search", "api:search", False),
            ("api:*", "api:search", True), ("api:*", "api:v1:search", True), ("api:*", "apis:search", False),
            ("api:*", "", False), ("api:v1:*", "api:v1:x", True), ("api:v1:*", "api:x", False),
            ("shop.views.buy", "shop.views.buy", True), ("blog-entry", "blog-entry", True),
        ],
    )  # fmt: skip
    def test_a_view_goes_by_its_name_and_a_namespace_holds_all_below(
        self, match: str, view: str, matches: bool
    ) -> None:
        assert holds(match, view=view) is matches


class TestHosts:
    @pytest.mark.parametrize(
        ("match", "host", "matches"),
        [
            ("host:api.example.com", "api.example.com", True), ("host:API.example.com", "api.example.com", True),
            ("host:example.com", "api.example.com", False), ("host:*.example.com", "api.example.com", True),
            ("host:*.example.com", "a.b.example.com", True), ("host:*.example.com", "example.com", False),
            ("host:*.example.com", "badexample.com", False), ("host:example.com", "", False),
            ("host:[::1]", "[::1]", True), ({"host": "*.example.com"}, "x.example.com", True),
        ],
    )  # fmt: skip
    def test_a_host_fits_whole_or_by_its_ending(self, match: object, host: str, matches: bool) -> None:
        assert holds(match, host=host) is matches


ANY = ["/api/", "shop:*", "host:api.example.com"]
EVERY_KIND = {"path": ["/api/", "/v2/"], "host": "*.example.com"}
DICTS = [{"path": "/a/", "host": "one.example"}, {"path": "/b/", "host": "two.example"}]


@pytest.mark.parametrize(
    ("match", "place", "matches"),
    [
        # Of a list one is enough.
        (ANY, Place("/api/x"), True), (ANY, Place("/x", "shop:buy"), True),
        (ANY, Place("/x", host="api.example.com"), True), (ANY, Place("/x", "blog", "example.com"), False),
        # Of a dict every kind must fit by one of its texts.
        (EVERY_KIND, Place("/v2/x", host="a.example.com"), True),
        (EVERY_KIND, Place("/v2/x", host="example.org"), False), (EVERY_KIND, Place("/x", host="a.example.com"), False),
        (DICTS, Place("/b/", host="two.example"), True), (DICTS, Place("/a/", host="two.example"), False),
    ],
)  # fmt: skip
def test_of_a_list_one_is_enough_and_of_a_dict_each_kind_must_fit(match: object, place: Place, matches: bool) -> None:
    assert holds(match, *place) is matches


class TestAnchors:
    @pytest.mark.parametrize(
        ("match", "index_keys"),
        [
            ("/api/", {("path", "api")}), ("/api", {("path", "api")}), ("/api/v1/x", {("path", "api")}),
            ("/files/*.zip", {("path", "files")}), ("/", None), ("/fi*", None), ("/*/x", None), ("re:^/api/", None),
            ("api:search", {("view", "api:search")}), ("api:*", {("view", "api:")}), ("host:a.b", None),
            (["/api/", "api:*"], {("path", "api"), ("view", "api:")}), (["/api/", "/"], None),
            ({"path": "/", "view": "api:*"}, {("view", "api:")}), ({"path": "/x/", "host": "a.b"}, {("path", "x")}),
            ({"path": ["/x/", "/"], "host": "a.b"}, None),
        ],
    )  # fmt: skip
    def test_what_can_be_looked_up_is_known_and_nothing_else(
        self, match: object, index_keys: set[object] | None
    ) -> None:
        assert read(match).index_keys == index_keys

    @given(
        st.sampled_from(["/", "/a", "/a/", "/a/b", "/a/*", "/*/b", "/a*", "/**", "re:a", "a", "a:b", "a:*", "a:b:*"]),
        st.sampled_from(["/", "/a", "/a/", "/ab", "/a/b", "/b/a", "//a/"]),
        st.sampled_from(["", "a", "b", "a:b", "a:c", "a:b:c", "b:a"]),
    )
    def test_what_fits_has_one_of_the_anchors(self, text: str, path: str, view: str) -> None:
        match = read(text)
        parts = view.split(":")
        has = {("path", path.split("/", 2)[1]), ("view", view)}
        has |= {("view", ":".join(parts[:end]) + ":") for end in range(1, len(parts))}
        if match.matches(Place(path, view)) and match.index_keys is not None:
            assert match.index_keys & has


@pytest.mark.parametrize(
    ("match", "says"),
    [
        ("", "is not a path, a view or a host"), ("*", "Use '/' for all paths"), ("api/search", "is not a path"),
        ("api:", "is not a path, a view or a host"), ("api*", "'api:*' (a namespace)"), (":a", "is not a path"),
        (5, "match=5 is int, not a text"),
        ([None], "is NoneType"), ([], "match=[] is empty"), ({}, "is empty"), (["/a", 5], "match=5 is int"),
        ({"paths": "/a"}, "Did you mean 'path'"), ({"path": []}, "match['path']=[] is empty"),
        ({"path": "api:x"}, "which is not a path"), ({"view": "/x"}, "which is not a view"),
        ({"host": "a b"}, "is not a host"),
        ("host:", "is not a host"), ("host:example.com:8000", "without a port"), ("host:*", "is not a host"),
        ("host:a*.com", "is not a host"), ("re:(", "is not a regular expression"), ("re:", "it is empty"),
        (re.compile(b"x"), "not a text"), ("/search?q=1", "no path has '?'"), ("/v?/", "Use a glob with * and **"),
        ("/items/<int:pk>/", "no path has '<'"), ("/v[12]/*", "or 're:^/v[12]/'"),
        ("/caf%C3%A9/", "Paths come decoded"),
        ("host:" + "ü" * 64 + ".example", "is not a host"),
    ],
)  # fmt: skip
def test_an_error_names_the_wrong_value_and_a_value_to_use(match: object, says: str) -> None:
    with pytest.raises(RuleError) as refused:
        read(match)
    assert says in str(refused.value)
    assert "match" in str(refused.value)


@given(st.recursive(
    st.none() | st.integers() | st.text() | st.sampled_from(["/", "api:*", "host:a.b", "re:a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["path", "view", "host", "x"]), inner),
).filter(lambda written: written is not None), st.text(), st.text(), st.text())  # fmt: skip
def test_whatever_is_written_is_read_or_refused(written: object, path: str, view: str, host: str) -> None:
    try:
        match = read(written, "exclude")
    except RuleError:
        return
    assert match.matches(Place(path, view, host)) in (True, False)
    assert read(match, "exclude") is match
    assert read(written, "exclude") == match
    hash(match)
