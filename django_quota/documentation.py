"""Where the documentation is."""

from __future__ import annotations

from functools import cache
from importlib import metadata

PLACEHOLDER = ".invalid/"
"""How an address begins its path if the project has none yet: no such host can exist."""


def page(name: str) -> str:
    """Return where a page such as "rules" is: its address, or its file if the documentation has no address yet."""
    address = _address()
    return f"{address}docs/{name}.html" if address else f"docs/{name}.md"


@cache
def _address() -> str:
    """Return the address of the documentation, as pyproject.toml has it; an empty string if there is none."""
    try:
        urls = metadata.metadata("django-quota").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:  # its folder was copied
        return ""
    found = dict(url.split(", ", 1) for url in urls).get("Documentation", "")
    return "" if PLACEHOLDER in found else found
