"""What the pages show of a rule that takes units ahead."""

from typing import Any

import pytest
from django.test import Client

from django_quota import check
from django_quota.testing import QuotaKit
from tests.admin.operators import superuser

SUBJECT = "user:7"


@pytest.fixture
def client(database: dict[str, Any], memory_store: None, the_clock_stands: QuotaKit, settings: Any) -> Client:
    """Return a client of an operator, after 8 checks that asked, and 16 units that were taken ahead with the last."""
    settings.QUOTA = {**settings.QUOTA, "RULES": {"hot": {"rate": "1000/m", "key": "user", "prefetch": True}}}
    for _ in range(8 + 5):
        check("hot", SUBJECT)
    return superuser()


TITLE = "These asked no store, since a process had taken units ahead."
PAGES = {
    "the overview": ("overview/", f'title="{TITLE}"><code>prefetch</code>: 5</span>'),
    "the page of the rule": ("quotaoverride/rule/?name=hot", f'title="{TITLE}"><code>prefetch</code>: 5</span>'),
    "the page of a subject": (f"subject/?subject={SUBJECT}", "24 of 1,000 used, 976 left (16 taken ahead)"),
}


@pytest.mark.parametrize(("page", "words"), PAGES.values(), ids=PAGES)
def test_pages_show_what_is_taken_ahead(client: Client, page: str, words: str) -> None:
    assert words in client.get(f"/admin/django_quota/{page}").content.decode()


def test_the_page_of_the_rule_says_how_much_is_out_at_most(client: Client) -> None:
    shown = client.get("/admin/django_quota/quotaoverride/rule/?name=hot").content.decode()

    assert "each process for 1.2 s, all processes at most half of what is left" in shown
