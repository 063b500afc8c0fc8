"""Key names: two subjects, rules or limits never share one, and what was written can be read."""

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.core import keys as our_keys
from django_quota.core.algorithms import ALGORITHMS, Limit
from django_quota.core.algorithms.stock import StockLimit
from django_quota.core.keys import escape, pattern, read, subject_base
from django_quota.core.rates import MAX_PERIOD, UNITS, Rate

anything = st.text(st.characters(), min_size=1) | st.text("ab:+%{}~/\\ \n\ud800é", min_size=1, max_size=8)
names = (st.text(min_size=1) | st.text("ab:+%{}~/\\ \né", min_size=1, max_size=8)).filter(lambda name: name != "*")
prefixes = st.text("quota:*?[]\\-_.", min_size=1, max_size=6)


def state_key(prefix: str, subject: str, of: Limit) -> str:
    return f"{subject_base(prefix, subject)}}}:{our_keys.state_part(of)}"


def limit(rule: str, rate: str = "10/m", **options: object) -> Limit:
    return Rule.make(rule, rate, **options).limits[0]


@given(anything, names, anything, names)
def test_no_two_subjects_or_rules_share_a_key(s1: str, r1: str, s2: str, r2: str) -> None:
    same = state_key("q", s1, limit(r1)) == state_key("q", s2, limit(r2))
    assert same == ((s1, r1) == (s2, r2))


@given(anything, names, prefixes)
def test_a_key_is_printable_ascii(subject: str, rule: str, prefix: str) -> None:
    key = state_key(prefix, subject, limit(rule))

    assert re.fullmatch(r"\{[!-z|~]+\}:r:[!-z|~]+:sw\.60s", key.removeprefix(f"{prefix}:1:"))


@given(anything, names, prefixes)
def test_a_key_has_one_hash_tag(subject: str, rule: str, prefix: str) -> None:
    key = state_key(prefix, subject, limit(rule))

    assert key.count("{") == key.count("}") == 1


@given(anything, names, prefixes)
def test_a_key_is_read_back(subject: str, rule: str, prefix: str) -> None:
    found = read(prefix, state_key(prefix, subject, limit(rule)))

    assert found is not None
    assert found.subject == subject or (found.subject is None and len(escape(subject)) <= MAX_PART)
    assert found.what.startswith("r:")


MAX_PART = 200
"""The most characters of a part of a key, as all releases have it: another number would make other keys."""
LONG = "k" * MAX_PART
"""The longest subject that is not replaced by its digest."""
LONG_ESCAPED = "é" * (MAX_PART // 6) + "k" * (MAX_PART % 6)
"""The same with é, each of which is six characters in a key."""
TOO_LONG = pytest.mark.parametrize(
    "subject",
    [LONG + "k", LONG + "k" * 5_000, LONG_ESCAPED + "k", "\ud800" * 300],
    ids=["by one", "by far", "by one when escaped", "of what UTF-8 cannot encode"],
)


@pytest.mark.parametrize("subject", [LONG, LONG_ESCAPED], ids=["as it is", "escaped"])
def test_the_longest_subject_is_read_back_from_its_key(subject: str) -> None:
    found = read("q", state_key("q", subject, limit("r")))

    assert found is not None
    assert found.subject == subject


@TOO_LONG
def test_a_digest_replaces_a_subject_that_is_too_long(subject: str) -> None:
    found = read("q", state_key("q", subject, limit("r")))

    assert found is not None
    assert found.subject is None


@pytest.mark.parametrize("extra", [0, 1, 5_000])
def test_the_length_of_a_key_is_bounded(extra: int) -> None:
    assert len(state_key("q", LONG + "k" * extra, limit("r"))) < MAX_PART + 40


@pytest.mark.parametrize("extra", [0, 1, 5_000])
def test_no_two_long_subjects_share_a_key(extra: int) -> None:
    long = LONG + "k" * extra

    assert state_key("q", long, limit("r")) != state_key("q", long + "x", limit("r"))


@TOO_LONG
def test_a_subject_that_looks_like_a_digest_is_not_taken_for_one(subject: str) -> None:
    assert escape(escape(subject)) != escape(subject)


@pytest.mark.parametrize(
    "key",
    ["", "q", "other:1:{a}:r:b", "q:2:{a}:r:b", "q:1:a:r:b", "q:1:{a}", "q:1:{a{b}:r:x", "xq:1:{a}:r:b"],
)
def test_a_key_that_is_not_ours_is_not_read(key: str) -> None:
    assert read("q", key) is None


OF_A_SUBJECT = subject_base("q", "user:a b")
COUNTER = StockLimit("credits:left", ttl=1)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (state_key("q", "user:a b", limit("api:v1")), "q:1:{user:a%20b}:r:api%3Av1:sw.60s"),
        (state_key("q", "user:a b", limit("r", algorithm="token_bucket")), "q:1:{user:a%20b}:r:r:tb.60s"),
        (our_keys.status_key("q", "user:a b"), "q:1:{user:a%20b}:s"),
        (our_keys.key_of(OF_A_SUBJECT, "day", "2026-11-21"), "q:1:{user:a%20b}:day:2026-11-21"),
        (our_keys.key_of(OF_A_SUBJECT, "b", "api:v1"), "q:1:{user:a%20b}:b:api%3Av1"),
        (our_keys.key_of(OF_A_SUBJECT, "c", "clicks", "2026-11"), "q:1:{user:a%20b}:c:clicks:2026-11"),
        (our_keys.group_base("q", "shop b"), "q:1:{group!shop%20b"),
        (our_keys.system_key("q", "events"), "q:1:{!}:events"),
        (our_keys.state_part(COUNTER), "c:credits%3Aleft"),
        (our_keys.grants_part(COUNTER), "grants:credits%3Aleft"),
        (our_keys.leased_part(COUNTER), "leased:credits%3Aleft"),
        (our_keys.ahead_part(limit("api:v1")), "a:api%3Av1:sw.60s"),
        (our_keys.grants_key("q:1:{g}:c:credits"), "q:1:{g}:grants:credits"),
        (our_keys.counter_key("q:1:{g}:leased:credits"), "q:1:{g}:c:credits"),
        (our_keys.ahead_key("q:1:{g}:r:api:sw.60s"), "q:1:{g}:a:api:sw.60s"),
        (our_keys.grants_key("q:1:{org:c:7}:c:credits"), "q:1:{org:c:7}:grants:credits"),
        (our_keys.counter_key("q:1:{org:leased:7}:leased:credits"), "q:1:{org:leased:7}:c:credits"),
        (our_keys.ahead_key("q:1:{org:r:7}:r:api:sw.60s"), "q:1:{org:r:7}:a:api:sw.60s"),
        (our_keys.subject_part("q:1:{user:a%20b}:r:api:sw.60s"), "user:a%20b"),
        (our_keys.part_of_key("q:1:{user:a%20b}:r:api:sw.60s"), "r:api:sw.60s"),
        (escape("aZ09:/@+=,.-_"), "aZ09:/@+=,.-_"),
        (escape("~%{}*?[]\\!#&;'\" é"), "%7E%25%7B%7D%2A%3F%5B%5D%5C%21%23%26%3B%27%22%20%C3%A9"),
        (escape("k" * 201), "~ebf0ead0a3b837bc388d6a36c93833fff64a0a8bc8198fc0f1b7b5031dddd254"),
    ],
    ids=[
        "a limit", "a bucket", "the status", "a day", "refusals", "the days of a counter", "a group", "events",
        "a counter", "its grants", "its leases", "units taken ahead", "from a counter to its grants",
        "from leases to their counter", "from a limit to its units taken ahead",
        "from a counter to its grants, of a subject with a c", "from leases to their counter, of a subject with leased",
        "from a limit to its units taken ahead, of a subject with an r", "the subject", "what it holds",
        "what stays as it is", "what is encoded", "a digest",
    ],
)  # fmt: skip
def test_the_name_of_a_key_stays_so_that_counts_outlive_an_upgrade(key: str, name: str) -> None:
    assert key == name


@pytest.mark.parametrize(
    ("key", "is_system"),
    [
        (our_keys.system_key("q", "events"), True), (our_keys.status_key("q", "user:1"), False),
        (our_keys.status_key("q", "!"), False), (our_keys.system_key("other", "events"), False),
        ("q:1:{!17}:metrics:2026-11-21", True), (our_keys.status_key("q", "!17"), False),
    ],
    ids=[
        "a key of all subjects", "a key of a subject", "of a subject with its name", "with another prefix",
        "the part of one server of a cluster", "of a subject with the name of a part",
    ],
)  # fmt: skip
def test_a_key_of_all_subjects_is_told_from_the_others(key: str, is_system: bool) -> None:
    assert our_keys.is_system("q", key) is is_system


@pytest.mark.parametrize("name", ["api", "api:v1", "é", "a%20b", "\ud800", "~"])
def test_a_name_is_read_back_from_its_part_of_a_key(name: str) -> None:
    assert our_keys.named(our_keys.field(name)) == name


def test_a_name_that_is_too_long_is_not_known() -> None:
    assert our_keys.named(our_keys.field(LONG + "k")) is None


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (our_keys.digested("a"), True), (our_keys.digested("a") + "0", False), (our_keys.digested("a")[1:], False),
        (our_keys.digested("a").upper(), False), ("~", False),
    ],
    ids=["a digest", "longer", "without its first character", "in capitals", "shorter"],
)  # fmt: skip
def test_a_digest_is_told_from_a_name(text: str, is_one: bool) -> None:
    assert bool(our_keys.is_digest(text)) is is_one


@given(st.sampled_from(["second", "minute", "hour", "day", "week"]), st.data())
def test_limits_of_a_rule_share_a_key_only_if_their_windows_are_equal(unit: str, data: st.DataObject) -> None:
    multiples = st.integers(1, MAX_PERIOD // UNITS[unit])
    one, other = Rate(1, unit, data.draw(multiples)), Rate(9, "second", data.draw(st.integers(1, 100)))

    keys = {state_key("q", "s", limit("r", str(rate))) for rate in (one, other)}  # whatever their counts

    assert (len(keys) == 1) == (one.period == other.period)


def test_no_two_algorithms_or_zones_share_a_key() -> None:
    kinds: list[dict[str, object]] = [{"algorithm": name} for name in ALGORITHMS]
    kinds += [{"algorithm": "calendar", "tz": zone} for zone in ("Europe/Berlin", "Europe/Paris")]

    assert len({state_key("q", "s", limit("r", "1/day", **kind)) for kind in kinds}) == len(kinds)


def matches(prefix: str, key: str) -> bool:
    """Say whether a scan for our keys finds a key. fnmatch quotes by brackets where Redis quotes by a backslash."""
    in_fnmatch = re.sub(r"\\(.)", lambda m: f"[{m[1]}]" if m[1] in "*?[" else m[1], pattern(prefix))
    return fnmatch.fnmatchcase(key, in_fnmatch)


@given(prefixes, anything)
def test_the_scan_pattern_matches_our_keys(prefix: str, subject: str) -> None:
    assert pattern(prefix).endswith(":1:{*")
    assert matches(prefix, state_key(prefix, subject, limit("r")))


@given(prefixes)
def test_the_scan_pattern_matches_no_other_prefix(prefix: str) -> None:
    assert not matches(prefix, f"x{prefix}:1:{{a}}:r:b")
