"""`@concurrency`: a limit on requests that are in a view at once, sync, async or class-based."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Unpack, cast

from django.http import HttpRequest

from django_quota.core.errors import RuleError
from django_quota.core.rules import dotted_path
from django_quota.http.request_slots import SlotOptions, SlotRule
from django_quota.http.view_kinds import V, dispatch_of, mark, path_of_view
from django_quota.subjects.subject import GLOBAL


def concurrency(
    limit: int, key: Any = GLOBAL, *, name: str | None = None, **options: Unpack[SlotOptions]
) -> Callable[[V], V]:
    """Limit how many requests are in a view at once.

    `limit`: 1 to 1,000,000, for each subject. `key`: the key of a rule: `"user"`, `"ip"`, a function of the request;
    `"global"` counts all requests together. `lease`: the time after which a slot is free again, even if its worker was
    killed: above 0 and up to 366 days, by default 30 seconds. Choose more than the view takes. `wait`: how long to wait
    for a slot; None or 0: do not wait. `name`: the name of the slot, by default the path of the function, of the class,
    or of the class and the method. Views with the same name share it. `renew`: renew the lease in the background, for
    views that may take longer. `on_unavailable`: what happens while the store does not answer: `"allow"`, `"deny"`
    (503) or `"local"` (each process counts by itself); None for the setting. `block`: if False, a refusal only shows on
    `request.quota`, and the view runs without a slot. `share`: how much of the limit requests of each tier may fill,
    `{"critical": 1.0, "batch": 0.5}`: all count together, and batch is refused above half of the limit. `tier`: a
    function of the request that returns the tier; by default `"anonymous"` or `"authenticated"`.

    A `TemplateResponse` is rendered after the slot has been given back.

    Raises `RuleError` at import if an argument is wrong.
    """
    if callable(cast("object", limit)):
        raise RuleError(f"@concurrency has no limit on {dotted_path(limit)}. Write, for example, @concurrency(10).")
    named = SlotRule.make("@concurrency" if name is None else name, limit, key=key, **options)

    def decorate(view: Any) -> Any:
        if isinstance(view, type):
            cast("Any", view).dispatch = decorate(dispatch_of(view, "@concurrency"))
            return view
        if isinstance(view, HttpRequest) or not callable(view):
            raise RuleError(f"@concurrency is on {type(view).__name__}, not on a view.")
        path = path_of_view(view)
        rule = replace(named, name_for=partial(_name_of, view, path)) if name is None else named
        wrapped = rule.around(view)
        mark(wrapped, view, path, rule)
        return wrapped

    return decorate


def _name_of(view: Any, path: str, owner: type | None) -> str:
    """Return the name of the slot of a view: its path, as part of a class if it is a method."""
    return path if owner is None else path_of_view(view, owner)
