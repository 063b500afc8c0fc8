"""The 429 of limited views in the OpenAPI schema of drf-spectacular.

`REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "django_quota.contrib.rest_framework.spectacular.AutoSchema"}`
"""

from __future__ import annotations

from typing import Any

from drf_spectacular import openapi

from django_quota.conf import current
from django_quota.contrib.rest_framework.throttles import is_throttle


class QuotaSchemaMixin:
    """Adds the 429 to each operation whose view has a throttle of this package; for an `AutoSchema` of your own."""

    view: Any

    def get_operation(self, *args: Any, **kwargs: Any) -> Any:
        """Return an operation, with a response for 429."""
        operation: dict[str, Any] | None = super().get_operation(*args, **kwargs)  # type: ignore[misc]
        if operation is not None and any(map(is_throttle, self.view.get_throttles())):
            operation["responses"].setdefault("429", _refusal())
        return operation


class AutoSchema(QuotaSchemaMixin, openapi.AutoSchema):
    """The `AutoSchema` of drf-spectacular, with the 429 of limited views."""


def _refusal() -> dict[str, Any]:
    headers = {"Retry-After": _header("integer", "Seconds until the same request is allowed.")}
    if current().headers:
        headers["RateLimit-Policy"] = _header("string", 'The limits, such as "search";q=10;w=60.')
        headers["RateLimit"] = _header("string", 'What is left of each, such as "search";r=0;t=42.')
    body = {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}
    return {
        "description": "Too many requests",
        "headers": headers,
        "content": {"application/json": {"schema": body}},
    }


def _header(kind: str, description: str) -> dict[str, Any]:
    return {"schema": {"type": kind}, "description": description}
