"""Where errors and checks say that a page of the documentation is."""

from collections.abc import Iterator
from email.message import Message
from importlib import metadata

import pytest

from django_quota import documentation


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Message]:
    """What the installed package declares, without an address of the documentation."""
    declared = Message()
    declared["Project-URL"] = "Source, https://example.com/django_quota"
    monkeypatch.setattr(metadata, "metadata", {"django-quota": declared}.__getitem__)
    documentation._address.cache_clear()
    yield declared
    documentation._address.cache_clear()


def test_a_page_is_at_the_address_that_the_package_declares(declared: Message) -> None:
    declared["Project-URL"] = "Documentation, https://quota.example.com/"
    assert documentation.page("rules") == "https://quota.example.com/docs/rules.html"


def test_an_address_may_have_a_comma(declared: Message) -> None:
    declared["Project-URL"] = "Documentation, https://quota.example.com/a, b/"

    assert documentation.page("rules") == "https://quota.example.com/a, b/docs/rules.html"


def test_a_package_without_any_address_has_its_pages_as_files(declared: Message) -> None:
    del declared["Project-URL"]

    assert documentation.page("rules") == "docs/rules.md"


@pytest.mark.usefixtures("declared")
def test_without_an_address_a_page_is_its_file() -> None:
    assert documentation.page("rules") == "docs/rules.md"


def test_a_placeholder_is_not_an_address(declared: Message) -> None:
    declared["Project-URL"] = "Documentation, https://django-quota.invalid/"
    assert documentation.page("rules") == "docs/rules.md"


def test_a_copied_folder_declares_nothing(declared: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Message:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "metadata", missing)
    assert documentation.page("rules") == "docs/rules.md"
