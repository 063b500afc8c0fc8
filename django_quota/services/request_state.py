"""What the limiter notes on a request, from the middleware to the decorator and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from django_quota.core.decisions import Decision
from django_quota.core.rules import Rule
from django_quota.engine.plans import Plan

Decided = Sequence[tuple[Sequence[Rule], Decision]]
"""Rules of the settings that have been decided for a request, each group with its Decision."""


@dataclass(slots=True)
class RequestState:
    """The notes of one request. The middleware, the decorators and the integrations share them."""

    is_in_middleware: bool = False
    """Whether the response passes the middleware, which then settles rules and writes the headers."""
    is_asked: bool = False
    """Whether the rules of the settings have been looked up, so that a view called by another view is not limited."""
    claimed: object = None
    """The `@quota` whose rules the middleware decides before it calls the view."""
    waiting: Sequence[Rule] = ()
    """The rules that the view decides itself; see `web/request_rules`."""
    decided: Decided = ()
    """What `@quota` does not count again."""
    unsettled: Sequence[Plan] = ()
    """The plans whose rules look at the response; see `web/settlements`."""
    parse_body: Callable[[], Any] | None = None
    """Returns the fields of the body, if a framework parses it by itself; for the keys `post:` and `json:`."""
    json_body: dict[str, Any] | None = None
    """The object in the JSON body, once it has been read; an empty dict if it has none."""

    def take_claim(self, decorator: object) -> bool:
        """Return whether the middleware has decided a `@quota` for this call of the view, but not for the next."""
        if self.claimed is not decorator:
            return False
        self.claimed = None
        return True

    def take_waiting(self) -> Sequence[Rule]:
        """Return the rules that the view must decide; they wait no longer."""
        waiting, self.waiting = self.waiting, ()
        return waiting

    def take_unsettled(self) -> Sequence[Plan]:
        """Return the plans that the caller settles now."""
        unsettled, self.unsettled = self.unsettled, ()
        return unsettled


def state_of(request: HttpRequest) -> RequestState:
    """Return the notes of a request."""
    state: RequestState | None = getattr(request, _STATE, None)
    if state is None:
        state = RequestState()
        setattr(request, _STATE, state)
    return state


_STATE = "_django_quota"
"""The attribute of a request with its state."""
