"""What a GraphQL query costs, and that a view of Strawberry is limited by it."""

import asyncio
import json
from typing import Any
from urllib.parse import urlencode

import pytest
import strawberry
from django.http import HttpRequest
from django.test import AsyncRequestFactory, RequestFactory
from strawberry.django.views import AsyncGraphQLView, GraphQLView

from django_quota import quota
from django_quota.contrib.graphql import query_cost
from django_quota.exceptions import RuleError
from django_quota.types import Rate
from tests.support.pages import run_page


def posted(query: Any, **more: Any) -> HttpRequest:
    return RequestFactory().post("/graphql/", {"query": query, **more}, content_type="application/json")


ALIASES = "{" + " ".join(f"a{number}: book(id: {number}) {{ title }}" for number in range(50)) + "}"
DOUBLED = "{...f0} " + " ".join(
    f"fragment f{number} on Query {{...f{number + 1} ...f{number + 1}}}" for number in range(40)
)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param("{ book { title author { name } } }", 1, id="one field of the first level"),
        pytest.param(ALIASES, 50, id="fifty aliases"),
        pytest.param("{ book { title } search }", 11, id="a field that has a price"),
        pytest.param("{ book { s: search } }", 11, id="a field that has a price on a lower level"),
        pytest.param("{ ping }", 0, id="a free field"),
        pytest.param("query { ...two } fragment two on Query { a b }", 2, id="a fragment"),
        pytest.param("{ ... on Query { a b } }", 2, id="an inline fragment"),
        pytest.param("{ book { ...all } } fragment all on Book { title search }", 11, id="a fragment on a lower level"),
        pytest.param("{ ...all } fragment all on Query { a ...all }", 1, id="a fragment in itself"),
        pytest.param("{ ...all } fragment all on Query { a ...all b }", 2, id="fields around a fragment in itself"),
        pytest.param("{ ...gone a b }", 2, id="a fragment that is missing"),
        pytest.param(f"{DOUBLED} fragment f40 on Query {{ a }}", Rate.max_count, id="fragments that double each other"),
        pytest.param("mutation { a b }", 2, id="a mutation"),
        pytest.param("query one { a } query two { a b }", 2, id="the one of two operations that costs most"),
        pytest.param("{ a", 1, id="no query"),
        pytest.param("", 1, id="an empty query"),
        pytest.param(None, 1, id="a persisted query"),
        pytest.param(7, 1, id="a number"),
        pytest.param("{" * 5_000, 1, id="nothing but braces"),
        pytest.param("{" + "a " * 10_000 + "}", Rate.max_count, id="too long"),
        pytest.param("fragment all on Query { a }", 1, id="no operation"),
        pytest.param("{" + "a " * 9_998 + "}", 9_998, id="as long as is read"),
        pytest.param("{ ...s ...s } fragment s on Query { search }", 20, id="a fragment twice"),
        pytest.param("{ ...x b { ...x } } fragment x on Query { a }", 2, id="a fragment first on the first level"),
        pytest.param("{ b { ...x } ...x } fragment x on Query { a }", 2, id="a fragment first on a lower level"),
        pytest.param("{ b { ... on Book { a search } } }", 11, id="an inline fragment on a lower level"),
        pytest.param("{ search { search } }", 20, id="a price within a price"),
    ],
)
def test_a_query_costs_the_fields_of_its_first_level_with_their_prices(query: Any, expected: int) -> None:
    assert query_cost({"search": 10, "ping": 0})(posted(query)) == expected


def test_the_named_operation_counts() -> None:
    request = posted("query one { a } query two { a b }", operationName="one")

    assert query_cost()(request) == 1


@pytest.mark.parametrize(
    ("prices", "query", "expected"),
    [
        pytest.param({"export": Rate.max_count}, "{ export }", Rate.max_count, id="the highest price"),
        pytest.param({"export": Rate.max_count}, "{ export a }", Rate.max_count, id="no more than a rule takes"),
        pytest.param({"a": 3}, "{ a b }", 4, id="a price of the first level"),
    ],
)
def test_a_price_may_be_as_high_as_a_rule_takes(prices: dict[str, int], query: str, expected: int) -> None:
    assert query_cost(prices)(posted(query)) == expected


def test_prices_stay_those_that_were_given() -> None:
    prices = {"search": 10}
    cost = query_cost(prices)

    prices.clear()

    assert cost(posted("{ search }")) == 10


@pytest.mark.parametrize("name", ["three", "", None], ids=["of no operation", "empty", "null"])
def test_without_the_name_of_an_operation_the_dearest_counts(name: str | None) -> None:
    request = posted("query one { a } query two { a b } { a b c }", operationName=name)

    assert query_cost()(request) == 3


TWO = "query one { a } query two { a b }"
NAMED = {
    "GET": lambda: RequestFactory().get("/", {"query": TWO, "operationName": "one"}),
    "a form": lambda: RequestFactory().post("/", {"query": TWO, "operationName": "one"}),
    "an upload": lambda: RequestFactory().post("/", {"operations": json.dumps({"query": TWO, "operationName": "one"})}),
    "application/graphql": lambda: RequestFactory().post(
        "/?operationName=one&query=ignored", TWO, content_type="application/graphql"
    ),
}


@pytest.mark.parametrize("make", NAMED.values(), ids=NAMED)
def test_the_name_of_the_operation_is_read_from_whatever_a_view_reads(make: Any) -> None:
    assert query_cost()(make()) == 1


def test_each_query_of_a_batch_costs_at_least_as_much_as_an_unreadable_one() -> None:
    batch = [{"query": "{ a b }"}, {"id": "persisted"}, {"query": "{"}, 7]
    request = RequestFactory().post("/", batch, content_type="application/json")

    assert query_cost()(request) == 5


QUERY = "{ a b }"

REQUESTS = {
    "JSON": lambda: posted(QUERY),
    "GET": lambda: RequestFactory().get("/graphql/", {"query": QUERY}),
    "a form": lambda: RequestFactory().post("/graphql/", {"query": QUERY}),
    "a form in one line": lambda: RequestFactory().post(
        "/", urlencode({"query": QUERY}), content_type="application/x-www-form-urlencoded"
    ),
    "an upload": lambda: RequestFactory().post("/graphql/", {"operations": json.dumps({"query": QUERY})}),
    "application/graphql": lambda: RequestFactory().post("/", QUERY, content_type="application/graphql"),
    "a batch of two": lambda: RequestFactory().post("/", [{"query": "{ a }"}] * 2, content_type="application/json"),
}


@pytest.mark.parametrize("make", REQUESTS.values(), ids=REQUESTS)
def test_a_query_is_read_from_whatever_a_view_reads(make: Any) -> None:
    assert query_cost()(make()) == 2


def test_a_cheap_query_beside_those_of_an_upload_hides_none_of_them() -> None:
    request = RequestFactory().post("/graphql/", {"operations": json.dumps({"query": QUERY}), "query": "{ a }"})

    assert query_cost()(request) == 2


BODIES = {"no JSON": b"{", "no object": b"7", "no bytes of text": b"\xff", "nothing": b"", "deep": b"[" * 100_000}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_without_a_query_costs_one(body: bytes) -> None:
    assert query_cost()(RequestFactory().post("/", body, content_type="application/json")) == 1


@pytest.mark.parametrize("price", [-1, 1.5, True, Rate.max_count + 1, "10"])
def test_a_wrong_price_is_an_error_that_names_it(price: Any) -> None:
    with pytest.raises(RuleError) as raised:
        query_cost({"search": price})

    assert str(raised.value) == (
        f"query_cost() has {price!r} for 'search', which is not a whole number from 0 to 1000000000000. "
        "Write, for example, query_cost({'search': 10})."
    )


@strawberry.type
class Query:
    @strawberry.field
    def hello(self) -> str:
        return "hello"


SCHEMA = strawberry.Schema(Query)
TEN = "{" + " ".join(f"a{number}: hello" for number in range(10)) + "}"


@pytest.mark.usefixtures("memory_store")
def test_a_view_of_strawberry_answers_until_the_fields_are_spent() -> None:
    view = quota("25/m", key="ip", cost=query_cost())(GraphQLView.as_view(schema=SCHEMA))

    responses: list[Any] = [view(posted(TEN)) for _ in range(3)]

    assert [each.status_code for each in responses] == [200, 200, 429]
    assert json.loads(responses[0].content)["data"]["a9"] == "hello"


@pytest.mark.usefixtures("memory_store")
def test_an_async_view_of_strawberry_answers_until_the_fields_are_spent() -> None:
    view: Any = quota("25/m", key="ip", cost=query_cost())(AsyncGraphQLView.as_view(schema=SCHEMA))

    async def ask() -> list[int]:
        make = AsyncRequestFactory()
        requests = [make.post("/", {"query": TEN}, content_type="application/json") for _ in range(3)]
        return [(await view(request)).status_code for request in requests]

    assert asyncio.run(ask()) == [200, 200, 429]


def test_the_page_runs_as_shown() -> None:
    names = run_page("docs/graphql.md", schema=SCHEMA)

    assert [str(each.pattern) for each in names["urlpatterns"]] == ["graphql/"]
