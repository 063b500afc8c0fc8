"""Lists and errors in the words of the reader."""

import pytest

from django_quota.error_texts import some_of


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param([], "", id="no word"),
        pytest.param(["a", "b"], "a, b", id="fewer than are shown"),
        pytest.param(["a", "b", "c"], "a, b, c", id="as many as are shown"),
        pytest.param(["a", "b", "c", "d"], "a, b, c and 1 more", id="one more"),
        pytest.param(["a", "b", *map(str, range(1_001))], "a, b, 0 and 1,000 more", id="many more"),
    ],
)
def test_a_list_says_how_many_words_it_leaves_out(words: list[str], said: str) -> None:
    assert some_of(words, 3) == said
