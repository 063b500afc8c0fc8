"""The caller's own limits as JSON: `path("limits/", include("django_quota.urls"))`."""

from __future__ import annotations

from django.urls import path

from django_quota.http.limits import limits_view

app_name = "django_quota"

urlpatterns = [path("", limits_view, name="limits")]
