"""Runs the README's tour on an installed django_quota, as a newcomer would: `-m tests.support.tour README.md redis://...`.

It starts from the settings that the README marks with `<!-- run: ... -->`, and runs its Python and its sessions in
their order. It imports nothing of the checkout but `pages`: tests/e2e/test_distributions.py runs both where only the
wheel is installed.
"""

from __future__ import annotations

import sys

import django
from django.conf import settings

from tests.support.pages import blocks, marked, run_page


def run(page: str, redis_url: str) -> int:
    """Run the page; return how many blocks there were."""
    shown = marked(page, "settings")
    shown["CACHES"]["default"]["LOCATION"] = redis_url
    settings.configure(
        SECRET_KEY="secret",
        CACHES=shown["CACHES"],
        QUOTA=marked(page, "site")["QUOTA"],
        MIDDLEWARE=shown["MIDDLEWARE"],
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", *shown["INSTALLED_APPS"]],
    )
    django.setup()

    from django.contrib.auth.models import AnonymousUser
    from django.test import RequestFactory

    request = RequestFactory().get("/")
    request.user = AnonymousUser()
    run_page(page, request=request)
    return sum(language in ("python", "pycon") for language, _ in blocks(page))


if __name__ == "__main__":
    print(run(*sys.argv[1:]), "blocks ran")
