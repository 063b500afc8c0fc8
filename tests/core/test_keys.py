"""Key names: two subjects, rules or limits never share one, and what was written can be read."""

import fnmatch
import re

from hypothesis import given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.core import keys as our_keys
from django_quota.core.algorithms import ALGORITHMS, Limit
from django_quota.core.keys import MAX_PART, escape, pattern, read, subject_base
from django_quota.core.rates import MAX_PERIOD, UNITS, Rate

anything = st.text(st.characters(), min_size=1) | st.text("ab:+%{}~/\\ \n\ud800é", min_size=1, max_size=8)
names = st.text(min_size=1) | st.text("ab:+%{}~/\\ \né", min_size=1, max_size=8)
prefixes = st.text("quota:*?[]\\-_.", min_size=1, max_size=6)


def state_key(prefix: str, subject: str, of: Limit) -> str:
    return f"{subject_base(prefix, subject)}}}:{our_keys.state_part(of)}"


def limit(rule: str, rate: str = "10/m", **options: object) -> Limit:
    return Rule.make(rule, rate, **options).limits[0]


@given(anything, names, anything, names)
def test_different_pairs_of_subject_and_rule_never_share_a_key(s1: str, r1: str, s2: str, r2: str) -> None:
    same = state_key("q", s1, limit(r1)) == state_key("q", s2, limit(r2))
    assert same == ((s1, r1) == (s2, r2))


@given(anything, names, prefixes)
def test_a_key_is_printable_ascii_with_one_hash_tag_and_reads_back(subject: str, rule: str, prefix: str) -> None:
    key = state_key(prefix, subject, limit(rule))
    assert re.fullmatch(r"\{[!-z|~]+\}:r:[!-z|~]+:sw\.60s", key.removeprefix(f"{prefix}:1:"))
    assert key.count("{") == key.count("}") == 1
    found = read(prefix, key)
    assert found is not None
    assert found.subject == subject or (found.subject is None and len(escape(subject)) <= MAX_PART)
    assert found.what.startswith("r:")


def test_a_digest_replaces_a_long_subject_and_what_is_not_ours_reads_as_none() -> None:
    for extra in (0, 1, 5_000):
        long = "k" * (MAX_PART + extra)
        key = state_key("q", long, limit("r"))
        assert len(key) < MAX_PART + 40
        assert key != state_key("q", long + "x", limit("r"))
        found = read("q", key)
        assert found is not None
        assert found.subject == (long if extra == 0 else None)
        assert escape(escape(long)) != escape(long) or extra == 0, "a subject that looks like a digest is none"
    for key in ("", "q", "other:1:{a}:r:b", "q:2:{a}:r:b", "q:1:a:r:b", "q:1:{a}", "q:1:{a{b}:r:x", "xq:1:{a}:r:b"):
        assert read("q", key) is None


@given(st.sampled_from(["second", "minute", "hour", "day", "week"]), st.data())
def test_limits_of_a_rule_share_a_key_if_their_windows_algorithms_and_zones_are_one(
    unit: str, data: st.DataObject
) -> None:
    multiples = st.integers(1, MAX_PERIOD // UNITS[unit])
    one, other = Rate(1, unit, data.draw(multiples)), Rate(9, "second", data.draw(st.integers(1, 100)))
    keys = {state_key("q", "s", limit("r", str(rate))) for rate in (one, other)}  # whatever their counts
    assert (len(keys) == 1) == (one.period == other.period)
    kinds: list[dict[str, object]] = [{"algorithm": name} for name in ALGORITHMS]
    kinds += [{"algorithm": "calendar", "tz": zone} for zone in ("Europe/Berlin", "Europe/Paris")]
    assert len({state_key("q", "s", limit("r", "1/day", **kind)) for kind in kinds}) == len(kinds)


@given(prefixes, anything)
def test_the_scan_pattern_matches_our_keys_and_no_other_prefix(prefix: str, subject: str) -> None:
    escaped = pattern(prefix)
    assert escaped.endswith(":1:{*")
    # fnmatch quotes by brackets where Redis quotes by a backslash.
    in_fnmatch = re.sub(r"\\(.)", lambda m: f"[{m[1]}]" if m[1] in "*?[" else m[1], escaped)
    assert fnmatch.fnmatchcase(state_key(prefix, subject, limit("r")), in_fnmatch)
    assert not fnmatch.fnmatchcase(f"x{prefix}:1:{{a}}:r:b", in_fnmatch)
