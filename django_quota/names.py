"""What may be the name of a rule or a slot. Pure: it must not know what is named."""

from __future__ import annotations


def is_name(value: object) -> bool:
    """Say whether a value is a text, of at least one character, that can be written down.

    Halves of characters, as JSON may bring them, cannot: no page, no database and no terminal takes them.
    """
    if not isinstance(value, str) or not value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
