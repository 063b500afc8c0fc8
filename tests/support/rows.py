"""Tests that run once for each of several strings."""

import pytest


def has_words(**words: str) -> pytest.MarkDecorator:
    """Run a test with each of these strings as `words`; each keyword is the id of its row."""
    return pytest.mark.parametrize("words", [pytest.param(text, id=name) for name, text in words.items()])
