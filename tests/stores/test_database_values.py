"""The values of states as JSON: each comes back as it was, and nothing else is written or read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota.core.algorithms.fixed_window import WindowCount
from django_quota.core.algorithms.sliding_window import Entry
from django_quota.core.algorithms.token_bucket import Bucket
from django_quota.stores.database.values import dumps, loads
from tests.support.inputs import inputs

WHOLE = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text()

VALUES = st.one_of(
    WHOLE,
    st.builds(WindowCount, WHOLE, WHOLE),
    st.builds(Bucket, WHOLE, WHOLE),
    st.lists(st.builds(Entry, WHOLE, WHOLE, WHOLE)).map(tuple),
    st.dictionaries(TEXTS, WHOLE),
    st.dictionaries(TEXTS, TEXTS),
    st.frozensets(TEXTS),
)


@inputs(500)
@given(VALUES)
def test_each_value_comes_back_as_it_was(value: Any) -> None:
    written = dumps(value)
    found = loads(written)
    assert (found, type(found)) == (value, type(value))
    assert written.isascii()
    assert "\0" not in written


def test_entries_come_back_as_entries_and_a_mapping_in_its_order() -> None:
    (entry,) = loads(dumps((Entry(3, 2, 1),)))
    assert type(entry) is Entry
    assert list(loads(dumps({"b": 1, "a": 2}))) == ["b", "a"]


@pytest.mark.parametrize(
    "value",
    [None, True, 1.5, "text", b"a", [1], (1,), ((1, 2, 3),), {1: 2}, {"a": None}, {"a": True}, {1}, frozenset({1})],
)
def test_what_no_specification_keeps_is_not_written(value: object) -> None:
    with pytest.raises(TypeError):
        dumps(value)


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "true", "1.0", "1e3", "NaN", '"text"', "[]", "[1]", '["other"]', '["window",1]', '["bucket",1,2,3]',
        '["entries",1,2]', '["entries",1,2,"3"]', '["set",1]', '["window",true,2]', '{"a":null}', '{"a":[1]}',
        '{"a":1.5}', '{"a":true}', "[[1,2,3]]", "1 2",
    ],
)  # fmt: skip
def test_what_is_not_ours_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        loads(text)
