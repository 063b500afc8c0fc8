"""The links from the admin page of a user to limits and usage."""

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.urls import path

from django_quota.admin.users import UsageLinks
from tests.admin.operators import operator, superuser

QUOTA, USAGE = "/admin/django_quota/subject/?subject=user%3A", "/admin/django_quota/dailycounter/usage/?subject=user%3A"


class Member(User):
    """A user model that the templates for Django's own do not reach."""

    class Meta:
        proxy = True
        app_label = "auth"


class Members(UsageLinks, admin.ModelAdmin):  # type: ignore[type-arg]  # Django's own takes none
    """Its admin, as a project would write it."""


site = admin.AdminSite()
site._registry.update(admin.site._registry)
site.register(Member, Members)
urlpatterns = [path("admin/", site.urls)]


@pytest.mark.usefixtures("database", "memory_store")
def test_the_page_of_a_user_links_to_limits_and_usage_for_those_who_may_see_them() -> None:
    ann = User.objects.create_user("ann")

    def links(asker: Any) -> list[bool]:
        answer = asker.get(f"/admin/auth/user/{ann.pk}/change/")
        assert answer.status_code == 200
        return [f'href="{url}{ann.pk}"' in answer.content.decode() for url in (QUOTA, USAGE)]

    assert links(superuser()) == [True, True]
    assert links(operator("auth.view_user", "view_subject")) == [True, False]
    assert links(operator("auth.view_user", name="other")) == [False, False]


@pytest.mark.usefixtures("database", "memory_store")
def test_a_mixin_adds_the_links_to_a_custom_user_model(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    client, ann = superuser(), User.objects.create_user("ann")
    shown = client.get(f"/admin/auth/member/{ann.pk}/change/").content.decode()
    assert f'href="{QUOTA}{ann.pk}"' in shown
    assert f'href="{USAGE}{ann.pk}"' in shown
    assert client.get("/admin/auth/member/add/").status_code == 200
