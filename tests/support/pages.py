"""The pages of the documentation, run as shown.

`python -m tests.support.pages README.md redis://...` runs the README's tour on an installed django_quota, as a newcomer
would: tests/e2e/test_distributions.py does so where only the wheel is installed, with this file alone.
"""

import doctest
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^(?:<!-- run: (\w+) -->\n)?```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def read(page: str | Path) -> str:
    return (ROOT / page).read_text()


def blocks(page: str | Path) -> list[tuple[str, str]]:
    """Return the code blocks of a page that have no mark: the language and the content of each."""
    return [(language, text) for mark, language, text in BLOCK.findall(read(page)) if not mark]


def part(page: str | Path, name: str) -> str:
    """Return what stands between two marks of a page, which a tool writes."""
    return read(page).partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0].strip()


def write_part(page: str | Path, name: str, text: str) -> None:
    begin, end = f"<!-- {name}: begin -->\n\n", f"\n\n<!-- {name}: end -->"
    before, _, rest = read(page).partition(begin)
    (ROOT / page).write_text(before + begin + text + end + rest.partition(end)[2])


def marked(page: str | Path, mark: str, **names: Any) -> dict[str, Any]:
    """Run the block below `<!-- run: mark -->`, mostly settings; return what it defines, and the names given."""
    (text,) = [text for found, _, text in BLOCK.findall(read(page)) if found == mark]
    exec(text, names)
    return names


def run_page(page: str | Path, **names: Any) -> dict[str, Any]:
    """Run the Python blocks and sessions of a page in their order; return what they define."""
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    for language, text in blocks(page):
        if language == "python":
            exec(text, names)
        elif language == "pycon":
            session = parser.get_doctest(text, {}, str(page), str(page), 0)
            session.globs = names
            assert runner.run(session, clear_globs=False).failed == 0, text
    return names


def run_tour(page: str, redis_url: str) -> int:
    """Run a page from the settings that it marks with `<!-- run: ... -->`; return how many blocks there were."""
    import django
    from django.conf import settings

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
    print(run_tour(*sys.argv[1:]), "blocks ran")
