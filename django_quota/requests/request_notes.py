"""Notes on a request: what one part of the package keeps there, for as long as the request lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.http import HttpRequest

N = TypeVar("N")


def notes_under(attribute: str, make: Callable[[], N]) -> Callable[[HttpRequest], N]:
    """Return a function that returns the notes of a request: its `attribute`, made when first asked for."""

    def notes_of(request: HttpRequest) -> N:
        notes: N | None = getattr(request, attribute, None)
        if notes is None:
            notes = make()
            setattr(request, attribute, notes)
        return notes

    return notes_of
