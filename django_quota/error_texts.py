"""Errors and lists in the language of the reader, for forms and pages. Logs and tracebacks have errors in English."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils import translation
from django.utils.translation import gettext, ngettext

from django_quota.core.errors import (
    ConfigurationError,
    CounterError,
    LeaseLost,
    QuotaError,
    StoreUnavailable,
    Translatable,
)


def some_of(words: Sequence[str], most: int) -> str:
    """Return the first words of a list, and how many more there are: `a, b, c and 4 more`."""
    some, more = ", ".join(words[:most]), len(words) - most
    if more <= 0:
        return some
    return f"{some} {ngettext('and %(number)s more', 'and %(number)s more', more) % {'number': f'{more:,}'}}"


def error_in_words(error: QuotaError) -> str:
    """Return the message of an error in the active language. The words of a store or a setting are not translated."""
    if isinstance(error, StoreUnavailable):
        return gettext("The quota store is unavailable: %s") % error.reason
    if isinstance(error, (ConfigurationError, CounterError, LeaseLost)):
        return text_in_words(error.in_full)
    return str(error)


def text_in_words(text: object) -> str:
    """Return a string in the active language if it is `Translatable`, else as it is."""
    return _translated(text).strip().replace("。 ", "。")  # Chinese has no space between sentences


def _translated(text: object) -> str:
    if not isinstance(text, Translatable) or not text:
        return str(text)
    words = translation.gettext(text.template)  # the core marks it with `Translatable`; here it is not a plain string
    values = {name: value if isinstance(value, int) else _translated(value) for name, value in text.values.items()}
    return words % values if values else words
