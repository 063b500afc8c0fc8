"""The HTTP methods that a rule may name. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from django_quota.exceptions import RuleError, did_you_mean

HTTP_METHODS = frozenset(
    "CONNECT COPY DELETE GET HEAD LINK LOCK MKCOL MOVE OPTIONS PATCH POST PROPFIND PROPPATCH PURGE PUT QUERY REPORT "  # noqa: SIM905
    "SEARCH TRACE UNLINK UNLOCK".split()
)
"""The methods that a rule may name: those of HTTP, WebDAV and caches."""


def read_methods(given: object) -> frozenset[str]:
    """Return the methods in capitals, HEAD with GET: it runs the same view. Raises `RuleError` where one is none."""
    names: Iterable[object] = [given] if isinstance(given, str) else cast("Iterable[object]", given)
    try:
        methods = frozenset(names)
    except TypeError:
        methods = frozenset()
    if not methods or not all(isinstance(name, str) and name.isalpha() for name in methods):
        raise RuleError(f"methods={given!r} are no HTTP methods; ['POST', 'PUT'] would do.")
    upper = frozenset(str(name).upper() for name in methods)
    for name in sorted(upper - HTTP_METHODS):
        raise RuleError(f"methods={given!r}: {name!r} is no HTTP method.", did_you_mean(name, HTTP_METHODS).strip())
    return upper | {"HEAD"} if "GET" in upper else upper
