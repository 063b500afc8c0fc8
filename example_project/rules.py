"""The rules of the settings: those that more than a decorator needs, by name. The front page shows them too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.http import HttpRequest

PRO = "pro"
"""The group whose users are in the tier of this name."""
A_PAGE = 20
"""Search results that cost one unit."""
MOST_PAGES = 5
"""Units that no search costs more than."""

RULES: dict[str, object] = {
    "login": {"rate": "5/10m", "key": "ip", "ban": {"after": "1/10m", "for": ["10m", "1h", "1d"]}},
    "login-account": {"rate": "20/h", "key": "post:username"},
    "tokens": {"rate": "10000/h", "key": "ip"},
    # The API has no decorators: these rules say themselves where they hold.
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
    """Say who is a pro; the others go by whether they are signed in."""
    user = request.user
    return PRO if user.is_authenticated and user.groups.filter(name=PRO).exists() else None


def cost_of_search(request: HttpRequest) -> int:
    """Take one unit for every twenty results that a search asks for."""
    wanted = request.GET.get("limit", "")
    pages = -(-int(wanted) // A_PAGE) if wanted.isdecimal() and len(wanted) < len("1000") else 1
    return min(max(pages, 1), MOST_PAGES)
