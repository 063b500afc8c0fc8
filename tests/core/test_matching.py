"""`match` and `exclude`: paths, views and hosts, each read strictly and compared in full."""

import re
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.core.matching import path_keys, shape_of
from django_quota.exceptions import RuleError
from tests.support.calls import calls_in
from tests.support.inputs import inputs


class Place(NamedTuple):
    path: str = "/"
    view: str = ""
    host: str = ""


def read(match: object, option: str = "match") -> Any:
    """Return the option as a configured rule has it."""
    return getattr(Rule.from_setting("r", {"rate": "1/s", "match": "/", option: match}), option)


ANY = ["/api/", "shop:*", "host:api.example.com"]
EVERY_KIND = {"path": ["/api/", "/v2/"], "host": "*.example.com"}
DICTS = [{"path": "/a/", "host": "one.example"}, {"path": "/b/", "host": "two.example"}]


@pytest.mark.parametrize(
    ("match", "fitting", "others"),
    [
        ("/", [Place("/"), Place("/anything/at/all"), Place("*")], []),
        ("/api/", [Place("/api/"), Place("/api/search")], [Place("/api"), Place("/apis/"), Place("/v1/api/")]),
        ("/api", [Place("/api"), Place("/api/search")], [Place("/apikeys"), Place("/v1/api")]),
        ("/files/*.zip", [Place("/files/a.zip")], [Place("/files/a/b.zip"), Place("/files/a.zip/more")]),
        ("/files/**.zip", [Place("/files/a/b.zip")], [Place("/files/a/b.zi")]),
        ("/**/admin/", [Place("/de/x/admin/")], [Place("/admin/")]),
        ("/a/**/b/**/b/", [Place("/a/1/b/2/b/"), Place("/a/b/b/1/b/b/")], [Place("/a/1/b/"), Place("/a/b/1/b/")]),
        ("/a/**/b/**/c/", [Place("/a/1/b/2/c/")], [Place("/a/1/c/2/b/"), Place("/a/1/c/"), Place("/a/1/b/c/")]),
        ("re:^/v[12]/", [Place("/v1/x")], [Place("/v3/x")]),
        ("re:zip$", [Place("/files/a.zip")], [Place("/files/a.zip/x")]),
        ("api:search", [Place(view="api:search")], [Place(view="api:searches"), Place(view="search")]),
        ("api:*", [Place(view="api:v1:search")], [Place(view="apis:search"), Place(view="api"), Place()]),
        ("host:API.example.com", [Place(host="api.example.com")], [Place(host="example.com"), Place()]),
        ("host:bücher.example", [Place(host="xn--bcher-kva.example")], []),
        ("host:*.example.com", [Place(host="a.b.example.com")], [Place(host="xexample.com")]),
        # Of a list one is enough.
        (ANY, [Place("/api/x"), Place("/x", "shop:buy"), Place("/x", host="api.example.com")], [Place("/x", "blog")]),
        # Each kind of a dict must fit by one of its strings.
        (EVERY_KIND, [Place("/v2/x", host="a.example.com")], [Place("/v2/x"), Place("/x", host="a.example.com")]),
        (DICTS, [Place("/b/", host="two.example")], [Place("/a/", host="two.example")]),
        ({"view": "host:x"}, [Place(view="host:x")], [Place(host="x")]),
    ],
    ids=str,
)  # fmt: skip
def test_a_pattern_fits_only_what_it_names(match: object, fitting: list[Place], others: list[Place]) -> None:
    found = read(match)
    assert [where for where in (*fitting, *others) if found.matches(where)] == fitting


@inputs(1_000)
@given(st.text("ab/*.\n", max_size=10), st.text("ab/.\n", max_size=12))
def test_a_glob_fits_what_its_regular_expression_would(glob: str, path: str) -> None:
    expressions = {"": "", "*": "[^/]*"}
    parts = re.split(r"(\*+)", glob)
    expression = "".join(expressions.get(part, ".*" if part[:1] == "*" else re.escape(part)) for part in parts)
    if "*" in glob:
        fits = re.fullmatch(f"/{expression}", f"/{path}", re.DOTALL)
        assert read(f"/{glob}").matches(Place(f"/{path}")) is bool(fits)


LONG = "/reports/" + "-" * 1_000_000
MANY_STARS = ["/reports/*-*-*.csv", "/**-*-**-*.csv", "/reports/" + "*-" * 100 + ".csv", "/**/*-*-**-*/**.csv"]


@pytest.mark.parametrize("glob", MANY_STARS, ids=["stars", "double stars", "a hundred stars", "parts"])
def test_the_time_of_a_glob_grows_no_faster_than_the_path(glob: str) -> None:
    """Trying each place again would take hours for these paths."""
    fitting = LONG + ("/x.csv" if glob.endswith("/**.csv") else ".csv")
    assert [bool(read(glob).matches(Place(path))) for path in (LONG, fitting)] == [False, True]


@pytest.mark.parametrize("glob", MANY_STARS, ids=["stars", "double stars", "a hundred stars", "parts"])
def test_a_glob_makes_as_many_calls_for_a_long_path_as_for_a_short_one(glob: str) -> None:
    found = read(glob)
    short, long = (calls_in(partial(found.matches, Place("/reports/" + "-" * length))) for length in (200, 20_000))
    assert long == short


@given(
    st.sampled_from(
        [
            "/",
            "/a",
            "/a/",
            "/a/b",
            "/a/*",
            "/*/b",
            "/a*",
            "/**",
            "//a",
            "/*/*/a",
            "/a/*/**",
            "/*/a/**",
            "re:a",
            "re:^/a",
            "re:^/a/",
            "re:^/a/b",
            "re:^/a/?b",
            "re:^/a/{0}b",
            "re:^/a/+b",
            "re:^/a/b?/",
            "re:^/a/a|b",
            "re:^/[ab]/a/",
            "a",
            "a:b",
            "a:*",
            "a:b:*",
        ]
    ),
    st.sampled_from(["/", "/a", "/a/", "/ab", "/a/b", "/b/a", "//a/", "/a/b/a", "/a/a/b/", "*", "a/b"]),
    st.sampled_from(["", "a", "b", "a:b", "a:c", "a:b:c", "b:a"]),
)
def test_what_fits_is_found_by_one_of_the_index_keys(text: str, path: str, view: str) -> None:
    match, parts = read(text), view.split(":")
    if match.matches(Place(path, view)) and match.index_keys is not None:
        shapes = {shape_of(key) for kind, key in match.index_keys if kind == "path"}
        has = {("view", view), *(("path", key) for key in path_keys(path, shapes))}
        has |= {("view", ":".join(parts[:end]) + ":") for end in range(1, len(parts))}
        assert match.index_keys & has


@pytest.mark.parametrize(
    ("match", "says"),
    [
        ("", "is not a path, a view or a host"), ("*", "Use '/' (all paths)"),
        ("api*", "'api:*' (a namespace)"), (5, "match=5 is int, not a string"), ([], "match=[] is empty"),
        ({"paths": "/a"}, "is not a dict of 'path', 'view' and 'host'"), ({"path": []}, "match['path']=[] is empty"),
        ({"path": "api:x"}, "is not a path"), ({"view": "/x"}, "is not a path, a view"),
        ("host:example.com:8000", "without a port"), ("host:a*.com", "is not a host"),
        ("host:" + "ü" * 64 + ".example", "is not a host"), ("re:(", "is not a regular expression"),
        ("re:", "it is empty"), ("/search?q=1", "have no '?'"), ("/items/<int:pk>/", "use * and **"),
        ("/caf%C3%A9/", "paths are decoded"),
    ],
)  # fmt: skip
def test_the_error_of_a_wrong_match_says_how_to_correct_it(match: object, says: str) -> None:
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
