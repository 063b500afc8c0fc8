"""The pages of the documentation, run as shown."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the code blocks of a page: the language and the text of each."""
    return re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def run_page(page: str, **names: Any) -> dict[str, Any]:
    """Run the Python blocks and sessions of a page in their order; return what they define."""
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    for language, text in blocks(page):
        if language == "python":
            exec(text, names)
        elif language == "pycon":
            session = parser.get_doctest(text, {}, page, page, 0)
            session.globs = names
            assert runner.run(session, clear_globs=False).failed == 0, text
    return names
