"""Runs the README's tour on an installed django_quota, as a newcomer would: `python tour.py README.md redis://...`.

It starts from the settings that the README marks with `<!-- run: ... -->`, and runs its Python and its sessions in
their order. It imports nothing else of the checkout: tests/e2e/test_distributions.py runs it where only the wheel is
installed.
"""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path
from typing import Any

import django
from django.conf import settings


def run(page: str, redis_url: str) -> int:
    """Run the page; return how many blocks there were."""
    blocks = re.findall(r"(<!-- run: \w+ -->\n)?```(python|pycon)\n(.*?)```", page, re.DOTALL)
    shown: dict[str, Any] = {"QUOTA": {}}
    for is_marked, _, text in blocks:
        if is_marked:
            exec(text, shown)
    shown["CACHES"]["default"]["LOCATION"] = redis_url
    settings.configure(
        SECRET_KEY="secret",
        CACHES=shown["CACHES"],
        QUOTA=shown["QUOTA"],
        MIDDLEWARE=shown["MIDDLEWARE"],
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", *shown["INSTALLED_APPS"]],
    )
    django.setup()

    from django.contrib.auth.models import AnonymousUser
    from django.test import RequestFactory

    request = RequestFactory().get("/")
    request.user = AnonymousUser()
    names: dict[str, Any] = {"request": request}
    tour = [(language, text) for is_marked, language, text in blocks if not is_marked]
    for language, text in tour:
        if language == "python":
            exec(text, names)
        else:
            session = doctest.DocTestParser().get_doctest(text, {}, "README.md", "README.md", 0)
            session.globs = names
            if doctest.DocTestRunner(verbose=False).run(session, clear_globs=False).failed:
                raise SystemExit(text)
    return len(tour)


if __name__ == "__main__":
    print(run(Path(sys.argv[1]).read_text(), sys.argv[2]), "blocks ran")
