"""The configured rules, by name. The front page shows them too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.http import HttpRequest

PRO = "pro"
"""The group of the users in the tier `pro`."""
RESULTS_PER_UNIT = 20
"""How many search results cost one unit."""
MOST_PAGES = 5
"""The highest cost of a search."""

RULES: dict[str, object] = {
    "login": {"rate": "5/10m", "key": "ip", "ban": {"after": "1/10m", "for": ["10m", "1h", "1d"]}},
    "login-account": {"rate": "20/h", "key": "post:username"},
    "tokens": {"rate": "10000/h", "key": "ip"},
    # The API has no decorators: `match` says where these rules apply.
    "api": {
        "rate": {"anonymous": "10/m", "authenticated": "100/m", "pro": "1000/m"},
        "tier": "example_project.rules.tier",
        "key": "user",
        "match": "/api/",
        "exclude": "api:status",
    },
    "api-search": {
        "rate": "30/m",
        "key": "user",
        "match": "api:search",
        "cost": "example_project.rules.cost_of_search",
        "exempt": ["staff"],
    },
    "api-export": {"rate": "6/m", "key": "user", "match": "api:export"},
}


def tier(request: HttpRequest) -> str | None:
    """Return the tier of a pro; None for the others, who get `anonymous` or `authenticated`."""
    user = request.user
    return PRO if user.is_authenticated and user.groups.filter(name=PRO).exists() else None


def cost_of_search(request: HttpRequest) -> int:
    """Return one unit for every twenty results of a search."""
    wanted = request.GET.get("limit", "")
    pages = -(-int(wanted) // RESULTS_PER_UNIT) if wanted.isdecimal() and len(wanted) < len("1000") else 1
    return min(max(pages, 1), MOST_PAGES)
