"""Errors in the language of the reader, for forms and pages. Logs and tracebacks have them in English."""

from __future__ import annotations

import reprlib

from django.utils import translation
from django.utils.translation import gettext

from django_quota.core.errors import ConfigurationError, QuotaError, RateError, StoreUnavailable, Translatable


def error_in_words(error: QuotaError) -> str:
    """Return what an error says, in the active language. What only a store or a setting says stays as it is."""
    if isinstance(error, StoreUnavailable):
        return gettext("The quota store is unavailable: %s") % error.reason
    if not isinstance(error, ConfigurationError):
        return str(error)
    problem = _translated(error.problem)
    if isinstance(error, RateError):
        words = {"text": reprlib.repr(error.text), "problem": problem, "position": error.position}
        if error.position is None:
            problem = gettext("%(text)s is not a rate: %(problem)s.") % words
        else:
            problem = gettext("%(text)s is not a rate: %(problem)s (at position %(position)d).") % words
    return f"{problem} {_translated(error.hint)}".strip().replace("。 ", "。")


def _translated(text: object) -> str:
    if not isinstance(text, Translatable) or not text:
        return str(text)
    values = {name: _translated(value) for name, value in text.values.items() if not isinstance(value, int)}
    words = translation.gettext(text.template)  # the core marks it with `Translatable`
    return words % {**text.values, **values} if text.values else words
