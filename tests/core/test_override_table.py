"""Which override holds, compared with a search that reads like the promise; and what a look-up costs."""

import sys
import threading
from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota.core.overrides import Override, OverrideTable
from tests.support.inputs import inputs

ADDRESSES = ("0.0.0.0", "192.0.2.1", "192.0.2.2", "255.255.255.255", "::", "2001:db8::1", "2001:db8:0:1::1")
SUBJECTS = (
    *(f"ip:{address}" for address in ADDRESSES),
    *("ip:2001:db8::/64", "ip:192.0.2.1+user:1", "user:1", "user:2", "org:1", "global"),
)
RULES = ("a", "b")
LAST = 9
"""The last moment at which an override begins or ends."""


@st.composite
def networks(draw: st.DrawFn) -> str:
    address = ip_address(draw(st.sampled_from(ADDRESSES)))
    length = draw(st.integers(0, address.max_prefixlen))
    network = ip_network((int(address), length), strict=False)
    return f"ip:{network if length < address.max_prefixlen else address}"


@st.composite
def overrides(draw: st.DrawFn) -> Override:
    begins, ends = draw(st.integers(0, LAST)), draw(st.integers(0, LAST))
    return Override(
        draw(st.integers(1, 8)),
        draw(st.sampled_from([*SUBJECTS, "user:*", "ip:*", "org:*", "*"]) | networks()),
        draw(st.sampled_from([*RULES, "*"])),
        draw(st.sampled_from(["blocked", "blocked", "exempt", "shadow", "rate"])),
        begins=begins,
        ends=ends if not ends or begins < ends else 0,
    )


def network_of(subject: str) -> Any:
    kind, _, text = subject.partition(":")
    try:
        return ip_network(text) if kind == "ip" else None
    except ValueError:
        return None


def distance(override: Override, subject: str, rule: str) -> tuple[int, int, bool] | None:
    """Return how far an override is from a subject and a rule; None if it does not concern them."""
    own, other = network_of(subject), network_of(override.subject)
    if override.rule not in (rule, "*"):
        return None
    for_all = override.rule == "*"
    if override.subject == subject:
        return 0, 0, for_all
    if own and other and own.version == other.version and own.subnet_of(other):
        return 1, -other.prefixlen, for_all
    if override.subject == subject.partition(":")[0] + ":*" and ":" in subject and "+" not in subject:
        return 2, 0, for_all
    return (3, 0, for_all) if override.subject == "*" else None


def holder(rows: Iterable[Override], subject: str, rule: str, now: int) -> Override | None:
    near = [(distance(row, subject, rule), row) for row in rows if row.in_force(now)]
    return min(((far, row) for far, row in near if far is not None), key=lambda pair: pair[0], default=(0, None))[1]


def expected(overrides: list[Override], subject: str, rule: str, now: int) -> Override | None:
    """Return what holds: of a block, with the moment at which the subject is no longer blocked."""
    found = holder(overrides, subject, rule, now)
    if found is None or found.mode != "blocked":
        return found
    for later in range(now, LAST + 1):
        then = holder(overrides, subject, rule, later)
        if then is None or then.mode != "blocked":
            return found._replace(ends=later)
    return found._replace(ends=0)


STEPS = st.lists(st.tuples(st.just("put"), overrides()) | st.tuples(st.just("drop"), st.integers(1, 8)), max_size=20)


@inputs(500)
@given(STEPS, st.integers(0, LAST))
def test_what_holds_is_the_nearest_override_in_force(steps: Any, now: int) -> None:
    table, rows = OverrideTable(), dict[int, Override]()

    def agree() -> None:
        assert len(table) == len(rows)
        subjects = (*SUBJECTS, "user:*", "*")
        found = {(rule, subject): table.find(rule, subject, now) for subject in subjects for rule in RULES}
        assert found == {(rule, subject): expected(list(rows.values()), subject, rule, now) for rule, subject in found}
        assert {subject: sorted(table.of_subject(subject)) for subject in subjects} == {
            subject: sorted(
                row for row in rows.values() if any(distance(row, subject, rule) for rule in (row.rule, "a"))
            )
            for subject in subjects
        }

    for what, row in steps:
        if what == "drop":
            table.drop(row)
            rows.pop(row, None)
        # The database has one row for each subject and rule.
        elif not any((each.subject, each.rule) == row[1:3] and each.pk != row.pk for each in rows.values()):
            table.put(row)
            rows[row.pk] = row
    agree()
    table.drop_ended(now)
    rows = {pk: row for pk, row in rows.items() if not row.ends or row.ends > now}
    agree()


def test_the_smallest_network_takes_precedence() -> None:
    table = OverrideTable([Override(bits, f"ip:192.0.0.0/{bits}", "*", "blocked") for bits in (16, 24, 8)])
    found = [table.find("api", f"ip:{address}", 0) for address in ("192.0.0.7", "192.0.7.7", "192.7.7.7")]
    assert [override and override.pk for override in found] == [24, 16, 8]


def test_a_look_up_during_a_change_finds_a_block() -> None:
    """One thread changes rows back and forth, while this one looks."""
    table, ended = OverrideTable([Override(1, "ip:192.0.2.0/24", "*", "blocked")]), threading.Event()

    def change() -> None:
        for number in range(3_000):
            table.put(Override(1, "ip:192.0.2.0/24", "*", "blocked", ends=number + 1))
            table.put(Override(2, f"ip:192.0.{number % 256}.0/{24 + number % 8}", "b", "exempt"))
            table.drop(2)
        ended.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=change)
    thread.start()
    try:
        while not ended.is_set():
            assert table.find("a", "ip:192.0.2.1", 0) is not None
    finally:
        thread.join()
        sys.setswitchinterval(before)


def test_a_look_up_that_a_change_overtakes_is_not_remembered() -> None:
    """The block comes when the look-up has seen that the subject itself has no override."""
    table = OverrideTable([Override(1, "user:*", "*", "exempt")])

    class Overtaken(str):
        __slots__ = ()

        def __contains__(self, part: str) -> bool:  # type: ignore[override]
            table.put(Override(2, str(self), "*", "blocked"))
            return super().__contains__(part)

    table.find("a", Overtaken("user:1"), 0)
    found = table.find("a", "user:1", 0)
    assert found is not None
    assert found.mode == "blocked"


def test_what_is_remembered_of_many_subjects_stays_small() -> None:
    table, most = OverrideTable([Override(1, "*", "*", "blocked")]), 8_192

    sizes = []
    for number in range(most + 1):
        table.find("a", f"user:{number}", 0)
        sizes.append(len(table._found))

    assert (max(sizes), sizes[-1]) == (most, 1)


def test_a_block_that_another_one_follows_at_once_ends_with_that_one() -> None:
    first = Override(1, "user:1", "a", "blocked", ends=5)
    later = Override(2, "*", "*", "blocked", begins=5, ends=9)

    found = OverrideTable([first, later]).find("a", "user:1", 1)

    assert found == first._replace(ends=9)


def test_a_block_ends_when_a_more_specific_exemption_begins() -> None:
    block = Override(1, "*", "*", "blocked", ends=9)
    exemption = Override(2, "user:1", "a", "exempt", begins=5)

    found = OverrideTable([block, exemption]).find("a", "user:1", 1)

    assert found == block._replace(ends=5)


def test_a_block_that_another_one_without_an_end_follows_has_no_end() -> None:
    short, endless = Override(1, "user:1", "a", "blocked", ends=5), Override(2, "*", "*", "blocked", begins=3)
    found = OverrideTable([short, endless]).find("a", "user:1", 1)
    assert found is not None
    assert (found.pk, found.ends) == (1, 0)


def test_a_block_ends_at_the_first_moment_without_one() -> None:
    """The moments are such that a set of them is not in their order."""
    first = Override(1, "user:1", "a", "blocked", ends=47)
    later = Override(2, "*", "*", "blocked", begins=81, ends=90)

    found = OverrideTable([first, later]).find("a", "user:1", 1)

    assert found is not None
    assert (found.pk, found.ends) == (1, 47)


@pytest.mark.parametrize("mode", ["exempt", "shadow", "rate"])
def test_a_block_ends_where_another_override_is_next(mode: Any) -> None:
    table = OverrideTable([Override(1, "user:1", "a", "blocked", ends=5), Override(2, "*", "*", mode)])

    found = table.find("a", "user:1", 1)

    assert found is not None
    assert (found.pk, found.ends) == (1, 5)


@pytest.mark.parametrize(
    ("begins", "ends", "applies"),
    [
        (0, 0, True), (5, 0, True), (6, 0, False), (4, 6, True),
        (0, 6, True), (0, 5, False), (0, 4, False), (5, 6, True),
    ],
)  # fmt: skip
def test_an_override_applies_from_its_first_moment_up_to_its_end(begins: int, ends: int, applies: bool) -> None:
    table = OverrideTable([Override(1, "user:1", "a", "exempt", begins=begins, ends=ends)])

    assert bool(table.find("a", "user:1", 5)) is applies


@pytest.mark.parametrize(
    ("now", "kept"), [(4, 2), (5, 1), (6, 1)], ids=["before its end", "at its end", "after its end"]
)
def test_an_override_is_dropped_when_it_has_ended(now: int, kept: int) -> None:
    table = OverrideTable([Override(1, "user:1", "a", "exempt", ends=5), Override(2, "user:1", "b", "exempt")])

    table.drop_ended(now)

    assert (len(table), len(table.of_subject("user:1"))) == (kept, kept)


BY_DISTANCE = (
    "ip:192.0.2.7", "ip:192.0.2.0/28", "ip:192.0.2.0/24", "ip:0.0.0.0/0", "ip:*", "*",
)  # fmt: skip
"""What an override may be about, the nearest to the first of them first."""


@pytest.mark.parametrize("nearest", range(len(BY_DISTANCE)), ids=BY_DISTANCE)
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
def test_the_nearest_override_applies_whichever_came_first(order: int, nearest: int) -> None:
    rows = [Override(pk, subject, "*", "exempt") for pk, subject in enumerate(BY_DISTANCE)][nearest:]

    found = OverrideTable(rows[::order]).find("a", BY_DISTANCE[0], 0)

    assert found is not None
    assert found.subject == BY_DISTANCE[nearest]


@pytest.mark.parametrize("subject", BY_DISTANCE)
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
def test_at_each_distance_an_override_of_the_rule_comes_first(order: int, subject: str) -> None:
    rows = [Override(1, subject, "a", "exempt"), Override(2, subject, "*", "blocked")]

    matching = OverrideTable(rows[::order]).matching("a", BY_DISTANCE[0])

    assert [each.pk for each in matching] == [1, 2]


@pytest.mark.parametrize(
    ("about", "subject"),
    [
        ("ip:0.0.0.0/0", "ip:::1"), ("ip:::/0", "ip:192.0.2.7"), ("ip:2001:db8::1/128", "ip:2001:db8::/64"),
        ("ip:192.0.2.0/28", "ip:192.0.2.16"), ("ip:192.0.2.0/24", "ip:192.0.2.7+user:1"), ("ip:*", "ip"),
        ("global:*", "global"), ("user:*", "users:1"), ("user:1", "user:12"), ("user:a/b", "user:a"),
    ],
)  # fmt: skip
def test_an_override_does_not_apply_to_what_it_is_not_about(about: str, subject: str) -> None:
    assert OverrideTable([Override(1, about, "*", "blocked")]).find("a", subject, 0) is None


@pytest.mark.parametrize(
    "subject", ["user:a/b", "user:*", "*", "ip:*", "ip:192.0.2.0/24", "ip:192.0.2.7+user:1", "global"]
)
def test_an_override_applies_to_exactly_its_subject_once(subject: str) -> None:
    assert len(OverrideTable([Override(1, subject, "*", "blocked")]).of_subject(subject)) == 1


@pytest.mark.parametrize(("subject", "left"), [("user:2", []), ("ip:192.0.2.0/24", ["ip:192.0.2.0/24"]), ("*", ["*"])])
def test_an_override_that_moves_to_another_subject_leaves_the_earlier_one(subject: str, left: list[str]) -> None:
    table = OverrideTable([Override(1, "ip:192.0.2.0/28", "*", "blocked"), Override(2, "user:1", "*", "exempt")])

    table.put(Override(1, subject, "*", "blocked"))

    assert [each.subject for each in table.of_subject("ip:192.0.2.1")] == left
    assert len(table) == 2


def test_an_unknown_override_is_not_dropped() -> None:
    table = OverrideTable([Override(1, "user:1", "*", "blocked")])

    table.drop(2)

    assert len(table) == 1


def test_an_override_of_a_kind_is_not_about_subjects_of_several_parts() -> None:
    table = OverrideTable([Override(1, "user:*", "*", "blocked")])
    assert [bool(table.find("a", subject, 1)) for subject in ("user:1", "user:1+path:/x/")] == [True, False]
