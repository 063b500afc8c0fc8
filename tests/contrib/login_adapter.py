"""The adapter of the site with django-allauth, as docs/logins.md shows it."""

from __future__ import annotations

from allauth.account.adapter import DefaultAccountAdapter

from django_quota.contrib.auth import LoginQuotaAdapter


class Adapter(LoginQuotaAdapter, DefaultAccountAdapter):
    pass
