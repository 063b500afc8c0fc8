"""`match` and `exclude`: paths, views and hosts, each read strictly and compared in full."""

import re
from functools import partial
from itertools import product
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
        ("/files/**.zip", [Place("/files/a/b.zip"), Place("/files/a\n/b\n.zip")], [Place("/files/a/b.zi")]),
        ("/**/admin/", [Place("/de/x/admin/")], [Place("/admin/")]),
        ("/a/**/b/**/b/", [Place("/a/1/b/2/b/"), Place("/a/b/b/1/b/b/")], [Place("/a/1/b/"), Place("/a/b/1/b/")]),
        ("/a/**/b/**/c/", [Place("/a/1/b/2/c/")], [Place("/a/1/c/2/b/"), Place("/a/1/c/"), Place("/a/1/b/c/")]),
        ("/**/a/**/a/**", [Place("/1/a/2/a/3"), Place("//a//a/")], [Place("/1/a/3"), Place("/1/a/2/b/3")]),
        ("/a/**.m*n/**", [Place("/a/b.m1n/c"), Place("/a/b/.mn/")], [Place("/a/bxm1n/c"), Place("/a/b.m/n/c")]),
        ("/a*b*b", [Place("/abb"), Place("/a1b2b")], [Place("/ab"), Place("/a/b/b"), Place("/xabb"), Place("/abbx")]),
        ("/a*b*/c/", [Place("/a1b2/c/"), Place("/ab/c/")], [Place("/a1b2/3/c/"), Place("/ab/d/"), Place("/a/c/")]),
        ("/*/x/*/", [Place("/1/x/2/"), Place("//x//")], [Place("/x/2/"), Place("/1/x/2"), Place("/1/x/2/3/")]),
        ("/**/x*", [Place("/a/x"), Place("/a/b/xy")], [Place("/a/x/y"), Place("/x"), Place("/a/y")]),
        ("/**x*", [Place("/ax"), Place("/x"), Place("/a/bxy")], [Place("/ay"), Place("/x/y")]),
        ("/a*/**/b", [Place("/a//b"), Place("/a1/2/3/b")], [Place("/a1/2/c"), Place("/c/2/b"), Place("/a/b")]),
        ("/a*/**/b*", [Place("/a1/2/b3"), Place("/a//b")], [Place("/c1/2/b3"), Place("/a1/2/c3"), Place("/a1/b/3")]),
        ("re:^/v[12]/", [Place("/v1/x")], [Place("/v3/x")]),
        ("re:zip$", [Place("/files/a.zip")], [Place("/files/a.zip/x")]),
        ("api:search", [Place(view="api:search")], [Place(view="api:searches"), Place(view="search")]),
        ("api:*", [Place(view="api:v1:search")], [Place(view="apis:search"), Place(view="api"), Place()]),
        ("host:API.example.com", [Place(host="api.example.com")], [Place(host="example.com"), Place()]),
        ("host:api.example", [Place(host="api.example")], [Place(host="xapi.example"), Place(host="v1.api.example")]),
        ("host:api.example.", [Place(host="api.example")], [Place(host="api.example.com")]),
        ("host:[::1]", [Place(host="[::1]")], [Place(host="[::2]")]),
        ("host:bücher.example", [Place(host="xn--bcher-kva.example")], []),
        ("host:*.example.com", [Place(host="a.b.example.com")], [Place(host="xexample.com")]),
        # Of a list one is enough.
        (ANY, [Place("/api/x"), Place("/x", "shop:buy"), Place("/x", host="api.example.com")], [Place("/x", "blog")]),
        (frozenset({"/a/"}), [Place("/a/x")], [Place("/b/")]),
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


@pytest.mark.parametrize(
    "text",
    [
        "/", "/a", "/a/", "/a/b", "/a/*", "/*/b", "/a*", "/**", "//a", "/*/*/a", "/a/*/**", "/*/a/**", "/a/*/b/*",
        "re:a", "re:^/a", "re:^/a/", "re:^/a/b", "re:^/a/?b", "re:^/a/{0}b", "re:^/a/+b", "re:^/a/*b", "re:^/a/b?/",
        "re:^/a/a|b", "re:^/[ab]/a/", "a", "a:b", "a:*", "a:b:*",
    ],
)  # fmt: skip
def test_what_fits_is_found_by_one_of_the_index_keys(text: str) -> None:
    match = read(text)
    shapes = {shape_of(key) for kind, key in match.index_keys or () if kind == "path"}
    missed = []
    for path, view in product(
        ["/", "/a", "/a/", "/ab", "/a/b", "/b/a", "//a/", "/a/b/a", "/a/a/b/", "/a/b/b/a", "/b/a/a", "*", "a/b"],
        ["", "a", "b", "a:b", "a:c", "a:b:c", "b:a"],
    ):
        parts = view.split(":")
        has = {("view", view), *(("path", key) for key in path_keys(path, shapes))}
        has |= {("view", ":".join(parts[:end]) + ":") for end in range(1, len(parts))}
        if match.matches(Place(path, view)) and match.index_keys is not None and not match.index_keys & has:
            missed.append((path, view))

    assert missed == []


def test_a_path_has_an_index_key_of_each_shape() -> None:
    shapes = [shape_of(key) for key in ("/a", "/a/*", "/a/b/c", "/*/b/*", "/a/b/c/d")]

    assert list(path_keys("/1/2/3", shapes)) == ["/1", "/1/*", "/1/2/3", "/*/2/*"]


@pytest.mark.parametrize(
    ("match", "keys"),
    [
        ("/", None), ("/api", ["path /api"]), ("/api/v1/", ["path /api/v1"]), ("/api/v*/", ["path /api/*/"]),
        ("/*/items", ["path /*/items"]), ("/api/**", ["path /api"]), ("/**/items", None), ("/a*", None),
        ("re:^/api/v1/", ["path /api/v1"]), ("re:^/api", None), ("re:/api/", None), ("re:^/a/|/b/", None),
        ("api:search", ["view api:search"]), ("api:*", ["view api:"]), ("host:a.example", ["host a.example"]),
        ("host:*.example", ["host .example"]), (["/a/", "/b/"], ["path /a", "path /b"]), (["/a/", "/"], None),
        ({"path": "/a/", "host": "a.example"}, ["path /a"]), ({"path": "/a/", "view": "b"}, ["view b"]),
        ({"path": "/", "host": "a.example"}, ["host a.example"]),
        ({"path": ["/a/", "/"], "host": "a.example"}, ["host a.example"]),
    ],
    ids=str,
)  # fmt: skip
def test_a_match_is_found_by_the_keys_that_narrow_most(match: object, keys: list[str] | None) -> None:
    found = read(match).index_keys

    assert (found and sorted(map(" ".join, found))) == keys


def test_a_match_that_is_read_stays_as_it_is() -> None:
    rule = Rule.from_setting("r", {"rate": "1/s", "match": "/api/"})

    assert rule.but(shadow=True).match is rule.match


@pytest.mark.parametrize("unknown", [True, False])
@pytest.mark.parametrize("match", ["host:a.example", {"host": "a.example", "path": "/"}], ids=["a host", "a dict"])
def test_a_host_that_is_not_allowed_fits_every_match_where_that_is_asked(match: object, unknown: bool) -> None:
    where: Any = Place("/api/", host=None)  # type: ignore[arg-type]

    assert read(match).matches(where, unknown=unknown) is unknown


def test_an_expression_that_python_cannot_read_is_an_error() -> None:
    with pytest.raises(RuleError, match="is not a regular expression"):
        read("re:" + "(" * 9_000 + ")" * 9_000)


def test_a_host_that_is_not_allowed_does_not_make_another_path_fit() -> None:
    where: Any = Place("/other/", host=None)  # type: ignore[arg-type]

    assert not read({"host": "a.example", "path": "/api/"}).matches(where, unknown=True)


EXAMPLES = (
    "Use '/' (all paths), '/api/', '/files/**.zip', 're:^/v[12]/', 'api:search' (a view), 'api:*' (a namespace) or "
    "'host:api.example.com'."
)
NO_HOST = "is not a host without a port, such as 'host:*.example.com'"
STARS = "use * and **, or 're:^/v[12]/'"
LONG_HOST = "host:" + "ü" * 64 + ".example"


@pytest.mark.parametrize(
    ("match", "says"),
    [
        ("", "match='' is not a path, a view or a host"), ("*", "match='*' is not a path, a view or a host"),
        ("api*", "match='api*' is not a path, a view or a host"), (5, "match=5 is int, not a string"),
        ([], "match=[] is empty"),
        ({"paths": "/a"}, "match={'paths': '/a'} is not a dict of 'path', 'view' and 'host'"),
        ({}, "match={} is not a dict of 'path', 'view' and 'host'"),
        ({"path": []}, "match['path']=[] is empty"), ({"path": "api:x"}, "match['path']='api:x' is not a path"),
        ({"view": "/x"}, "match['view']='/x' is not a path, a view or a host"),
        ("host:example.com:8000", f"match='host:example.com:8000' {NO_HOST}"),
        ("host:a*.com", f"match='host:a*.com' {NO_HOST}"), (LONG_HOST, f"match={LONG_HOST!r} {NO_HOST}"),
        ("re:(", "match='re:(' is not a regular expression: missing ), unterminated subpattern at position 0"),
        ("re:", "match='re:' is not a regular expression: it is empty"),
        ("re:a{99999999999999999999}",
         "match='re:a{99999999999999999999}' is not a regular expression: the repetition number is too large"),
        *((path, f"match={path!r} never matches: paths are decoded and have no {part!r}; {STARS}")
          for path, part in (("/search?q=1", "?"), ("/items/<int:pk>/", "<"), ("/caf%C3%A9/", "%C3"))),
    ],
    ids=str,
)  # fmt: skip
def test_the_error_of_a_wrong_match_says_how_to_correct_it(match: object, says: str) -> None:
    with pytest.raises(RuleError) as refused:
        read(match)

    assert str(refused.value) == f"QUOTA[\"RULES\"]['r']: {says}. {EXAMPLES}"


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
