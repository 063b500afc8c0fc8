"""Key names: two subjects, rules or limits never share one, and what was written can be read."""

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.core import keys as our_keys
from django_quota.core.algorithms import ALGORITHMS, Limit
from django_quota.core.keys import MAX_PART, escape, pattern, read, subject_base
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


LONG = "k" * MAX_PART
"""The longest subject that is not replaced by its digest."""
LONG_ESCAPED = "é" * 33 + "kk"
"""The same, of characters that a key has escaped: six for each é."""
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
