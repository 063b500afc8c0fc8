"""Slots of the settings, such as `{"at_once": 3, "match": "/export/"}`, which the middleware takes and gives back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse

from django_quota.conf import QuotaSettings, current
from django_quota.core.errors import RuleError
from django_quota.core.flow import Flow
from django_quota.core.matching import Match
from django_quota.requests.site_rules import RuleIndex
from django_quota.web.concurrency import Holding, RequestSlot


class SiteSlot(NamedTuple):
    """An entry of `RULES` with `at_once`."""

    slot: RequestSlot
    match: Match
    exclude: Match | None

    @property
    def name(self) -> str:
        """Its name in the settings."""
        return self.slot.name

    @classmethod
    def read(cls, name: str, given: Mapping[str, Any]) -> SiteSlot:
        """Read an entry. Raises `RuleError` with its place."""
        try:
            slot = RequestSlot.read(name, {each: given[each] for each in given if each not in ("match", "exclude")})
            if given.get("match") is None:
                raise RuleError(  # noqa: TRY301
                    "it has no 'match', so it limits nothing.",
                    "Use, for example, 'match': '/export/', or @concurrency on a view.",
                )
            exclude = given.get("exclude")
            match = Match.read("match", given["match"])
            return cls(slot, match, None if exclude is None else Match.read("exclude", exclude))
        except RuleError as error:
            raise RuleError(f'QUOTA["RULES"][{name!r}]: {error}') from error


def take_slots_flow(holding: Holding, request: HttpRequest, view: object) -> Flow[HttpResponse | None]:
    """Take the configured slots that fit a request; return the response if one is not free."""
    for each in slot_index(current()).find(request):
        _, refused = yield from each.slot.enter_flow(request, each.name, view, holding)
        if refused is not None:
            return refused
    return None


@lru_cache(maxsize=1)
def slot_index(settings: QuotaSettings) -> RuleIndex[SiteSlot]:
    """Return the slots of the settings."""
    return RuleIndex([SiteSlot.read(*entry) for entry in settings.slots().items()])
