"""Shortened lists, and errors in the reader's language."""

import pytest
from django.utils import translation

from django_quota.core.errors import Translatable
from django_quota.error_texts import error_in_words, some_of, text_in_words
from django_quota.exceptions import ConfigurationError, CounterError, LeaseLost, QuotaError, RateError, StoreUnavailable


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


@pytest.mark.parametrize(
    ("language", "said"),
    [("en", "The quota store is unavailable: gone"), ("de", "Der Speicher der Kontingente ist nicht erreichbar: gone")],
)
def test_the_error_of_a_store_is_in_the_language_of_the_reader(language: str, said: str) -> None:
    with translation.override(language):
        assert error_in_words(StoreUnavailable("gone")) == said


def test_an_error_of_the_settings_has_its_hint() -> None:
    assert error_in_words(ConfigurationError("It is wrong.", "Use 5.")) == "It is wrong. Use 5."


def test_any_other_error_has_its_own_words() -> None:
    assert error_in_words(QuotaError("something else")) == "something else"


NETWORK = Translatable("%(text)s is not a network.", text="'x'")
HINT = Translatable("Use, for example, 'ip:198.51.100.0/24'.")


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("en", "'x' is not a network. Use, for example, 'ip:198.51.100.0/24'."),
        ("de", "'x' ist kein Netz. Verwenden Sie zum Beispiel „ip:198.51.100.0/24“."),
    ],
)
def test_an_error_and_its_hint_are_in_the_language_of_the_reader(language: str, said: str) -> None:
    with translation.override(language):
        assert error_in_words(ConfigurationError(NETWORK, HINT)) == said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        pytest.param(
            CounterError("clicks", "user:1", NETWORK), "Zähler 'clicks' von user:1: 'x' ist kein Netz.", id="a counter"
        ),
        pytest.param(
            LeaseLost("export", "user:1"),
            "Der Platz 'export' von user:1 ging verloren: Seine Frist lief ab, oder er wurde entfernt, bevor er "
            "zurückgegeben wurde. Verwenden Sie ein längeres lease= oder renew=True.",
            id="a lease",
        ),
        pytest.param(
            RateError("5/x", 2, Translatable("the unit is missing"), ""),
            "'5/x' ist keine Rate: die Einheit fehlt (an Position 2).",
            id="a rate",
        ),
    ],
)
def test_each_kind_of_error_is_in_the_language_of_the_reader(error: QuotaError, said: str) -> None:
    with translation.override("de"):
        assert error_in_words(error) == said


def test_a_hint_that_begins_with_a_space_follows_after_one() -> None:
    assert text_in_words(Translatable.sentences("", " Use 5.")) == "Use 5."


def test_two_sentences_in_chinese_have_no_space_between_them() -> None:
    with translation.override("zh-hans"):
        assert error_in_words(ConfigurationError(NETWORK, NETWORK)) == "'x' 不是网络。'x' 不是网络。"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("Use '%s'.", "Use '%s'.", id="a plain string"),
        pytest.param(Translatable(""), "", id="an empty string"),  # gettext has the header of the catalog for it
        pytest.param(Translatable("the count is above %(most)d", most=5), "die Anzahl liegt über 5", id="a number"),
        pytest.param(Translatable.sentences(NETWORK, ""), "'x' ist kein Netz.", id="a string in a string"),
    ],
)
def test_a_string_is_translated_with_its_values(text: str, said: str) -> None:
    with translation.override("de"):
        assert text_in_words(text) == said
