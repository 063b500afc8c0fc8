"""What is not permitted is not tried again later, by a thread that outlives its test."""

from __future__ import annotations

import pytest

from django_quota import republishing


@pytest.fixture(autouse=True)
def nobody_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(republishing, "in_background", lambda *_: None)
