"""Test clients of staff users, logged in, with only the given permissions."""

from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.management import create_permissions
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.backends.db import SessionStore
from django.test import Client


def have_permissions() -> None:
    """Create the permissions that an emptied database lacks, and drop the content types that Django has cached."""
    ContentType.objects.clear_cache()
    if not Permission.objects.filter(codename="view_user").exists():
        for app in apps.get_app_configs():
            create_permissions(app, verbosity=0)


def operator(*permissions: str, name: str = "operator", **client: Any) -> Client:
    """Return the client of a staff user with these permissions of django_quota (or `app.codename`)."""
    have_permissions()
    user = User.objects.create_user(name, is_staff=True)
    for permission in permissions:
        app, _, codename = permission.rpartition(".")
        user.user_permissions.add(
            Permission.objects.get(content_type__app_label=app or "django_quota", codename=codename)
        )
    return _logged_in(user, client)


def superuser(name: str = "root", **client: Any) -> Client:
    have_permissions()
    return _logged_in(User.objects.create_superuser(name, f"{name}@example.org"), client)


def _logged_in(user: User, options: dict[str, Any]) -> Client:
    """Log in by a new session alone: `force_login` takes five times as long, and most tests of pages log in."""
    session = SessionStore()
    words = (str(user.pk), settings.AUTHENTICATION_BACKENDS[-1], user.get_session_auth_hash())
    session.update(zip((SESSION_KEY, BACKEND_SESSION_KEY, HASH_SESSION_KEY), words, strict=True))
    session.save(must_create=True)
    client = Client(**options)
    client.cookies[settings.SESSION_COOKIE_NAME] = str(session.session_key)
    return client
