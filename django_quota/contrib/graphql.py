"""GraphQL: what a query costs, so that fifty aliases cost fifty.

It reads the query before it runs, with graphql-core, which Strawberry, Graphene and Ariadne bring.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.http import HttpRequest
from graphql import GraphQLError, parse
from graphql.language import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    OperationDefinitionNode,
    SelectionSetNode,
)

from django_quota.exceptions import RuleError
from django_quota.types import Rate

__all__ = ["MAX_TOKENS", "query_cost"]

MAX_TOKENS = 10_000
"""Tokens of a query. One with more is not read, and costs the most that a rule takes."""


def query_cost(costs: Mapping[str, int] | None = None) -> Callable[[HttpRequest], int]:
    """Return a function for `cost=` of a rule: it returns what the GraphQL queries of a request cost together.

    Each field of the first level costs 1, under whichever alias, also in a fragment. `costs` has the costs of other
    fields, 0 to 10^12, on every level: `{"search": 10}`. Without an operation name, the one that costs most counts.

    A request without a query that can be read costs 1: the view answers it with an error. So does a persisted query,
    of which only the name is sent. Raises `RuleError` if a cost is wrong.
    """
    prices = dict(costs or {})
    for name, price in prices.items():
        if type(price) is not int or not 0 <= price <= Rate.max_count:
            raise RuleError(
                f"query_cost() has {price!r} for {name!r}, which is not a whole number from 0 to {Rate.max_count}.",
                "Write, for example, query_cost({'search': 10}).",
            )

    def cost(request: HttpRequest) -> int:
        try:
            total = sum(_cost_of(sent, prices) for sent in _sent(request))
        except (ValueError, LookupError, RecursionError):
            return 1
        return min(total, Rate.max_count)

    return cost


def _sent(request: HttpRequest) -> Sequence[Any]:
    """Return the queries of a request: objects with `query` and `operationName`."""
    if request.method == "GET":
        return [request.GET]
    if request.content_type in ("multipart/form-data", "application/x-www-form-urlencoded"):
        form = request.POST
        given = json.loads(form["operations"]) if "operations" in form else form
    elif request.content_type == "application/graphql":
        given = {**request.GET.dict(), "query": request.body.decode()}
    else:
        given = json.loads(request.body)
    return given if isinstance(given, list) else [given]


def _cost_of(sent: Any, prices: Mapping[str, int]) -> int:
    query = sent.get("query") if isinstance(sent, Mapping) else None
    if not isinstance(query, str):
        return 1
    try:
        document = parse(query, no_location=True, max_tokens=MAX_TOKENS)
    except GraphQLError as error:
        return Rate.max_count if "more than" in error.message else 1
    name = sent.get("operationName")
    operations = [each for each in document.definitions if isinstance(each, OperationDefinitionNode)]
    named = [each for each in operations if each.name and each.name.value == name]
    found = _Prices(document, prices)
    return max((found.of_level(each.selection_set, is_first=True) for each in named or operations), default=1)


class _Prices:
    """What the selections of a document cost. Each fragment is added up once, since others may have it many times."""

    def __init__(self, document: DocumentNode, prices: Mapping[str, int]) -> None:
        self._prices = prices
        self._fragments = {
            each.name.value: each for each in document.definitions if isinstance(each, FragmentDefinitionNode)
        }
        self._known: dict[tuple[str, bool], int] = {}

    def of_level(self, selected: SelectionSetNode | None, *, is_first: bool) -> int:
        selections: Iterable[Any] = selected.selections if selected is not None else ()
        total = 0
        for each in selections:
            if isinstance(each, FieldNode):
                total += self._prices.get(each.name.value, int(is_first)) + self.of_level(
                    each.selection_set, is_first=False
                )
            elif isinstance(each, FragmentSpreadNode):
                total += self._of_fragment(each.name.value, is_first=is_first)
            else:
                total += self.of_level(each.selection_set, is_first=is_first)
        return total

    def _of_fragment(self, name: str, *, is_first: bool) -> int:
        key = name, is_first
        if key not in self._known and name in self._fragments:
            self._known[key] = 0  # one that contains itself is an error of the view
            self._known[key] = self.of_level(self._fragments[name].selection_set, is_first=is_first)
        return self._known.get(key, 0)
