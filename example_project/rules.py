"""The rules of the settings: those that more than a decorator needs, by name. The front page shows them too."""

from __future__ import annotations

RULES: dict[str, object] = {
    "login": {"rate": "5/10m", "key": "ip", "ban": {"after": "1/10m", "for": ["10m", "1h", "1d"]}},
    "tokens": {"rate": "10000/h", "key": "ip"},
}
