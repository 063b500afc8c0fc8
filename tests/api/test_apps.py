"""What the app sets up when Django starts."""

from typing import Any

import pytest
from django.apps import apps
from django.core.checks.registry import registry
from django.utils import translation

from django_quota.apps import QuotaConfig
from django_quota.runtime import runtime


@pytest.mark.parametrize(
    ("checks", "tags"),
    [
        pytest.param(registry.registered_checks, [("database",), ("django_quota",)], id="always"),
        pytest.param(registry.deployment_checks, [("django_quota",)], id="with --deploy"),
    ],
)
def test_the_system_checks_are_registered_under_their_tags(checks: set[Any], tags: list[tuple[str, ...]]) -> None:
    assert sorted(each.tags for each in checks if each.__module__ == QuotaConfig.__module__) == tags


def test_the_databases_of_the_site_are_known() -> None:
    assert runtime.site is not None
    assert set(runtime.site.databases) == {"default"}


@pytest.mark.parametrize(("language", "name"), [("en", "Quotas"), ("es", "Cuotas")])
def test_the_app_has_a_name_in_the_language_of_the_reader(language: str, name: str) -> None:
    with translation.override(language):
        assert str(apps.get_app_config("django_quota").verbose_name) == name


def test_rows_have_keys_of_64_bits() -> None:
    assert apps.get_app_config("django_quota").default_auto_field == "django.db.models.BigAutoField"
