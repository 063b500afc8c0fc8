"""Tests that are tried with many words, one row each."""

import pytest


def has_words(**words: str) -> pytest.MarkDecorator:
    """Try a test with each of these words; their names are those of the rows."""
    return pytest.mark.parametrize("words", [pytest.param(text, id=name) for name, text in words.items()])
