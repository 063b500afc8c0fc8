"""The settings of the example site.

The environment sets what differs between runs; `runner` fills it in. So the demo, the server and `manage.py` use the
same Redis and the same database.
"""

from __future__ import annotations

import os
from pathlib import Path

from django.core.management.utils import get_random_secret_key

from example_project.rules import RULES

HERE = Path(__file__).resolve().parent

DEBUG = os.environ.get("DEBUG", "").lower() in ("1", "true", "yes")
SECRET_KEY = os.environ.get("EXAMPLE_SECRET_KEY") or get_random_secret_key()
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_quota",
    "example_project",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "example_project.policy.ContentSecurityPolicy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_quota.middleware.QuotaMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",  # below QuotaMiddleware, since it reads the form of each POST
]

# Each page shows one limit. A real site puts a rule by IP beside a key that comes from a header or a form.
# The timeouts below are long, so that the example works on a busy machine too.
SILENCED_SYSTEM_CHECKS = ["django_quota.W014", "django_quota.W012"]

# django_quota needs only a cache on django-redis. QUOTA is optional.
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("REDIS_URL") or "redis://127.0.0.1:6379/0",
        "OPTIONS": {"SOCKET_TIMEOUT": 5, "SOCKET_CONNECT_TIMEOUT": 5},  # use 0.25 on a real site
    }
}
QUOTA = {
    "STORE": os.environ.get("EXAMPLE_STORE") or "redis",  # or "database": then the site needs no Redis
    "PREFIX": os.environ.get("EXAMPLE_PREFIX") or "quota-example",
    "RULES": RULES,
    "TRUSTED_PROXIES": ["127.0.0.1"],  # the visitors of `traffic` come as through a proxy on this machine
}

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("EXAMPLE_DATABASE") or HERE / "example.sqlite3",
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The first one limits failed logins, such as those of the admin; docs/logins.md.
AUTHENTICATION_BACKENDS = [
    "django_quota.contrib.auth.LoginQuotaBackend",
    "django.contrib.auth.backends.ModelBackend",
]

ROOT_URLCONF = "example_project.urls"
ASGI_APPLICATION = "example_project.asgi.application"
STATIC_URL = "/static/"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
USE_TZ = True
TIME_ZONE = "UTC"

# All to stderr. Django logs every 4xx; this site refuses many on purpose, so it logs them only with DEBUG.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {"django": {"handlers": [], "level": "INFO" if DEBUG else "ERROR"}},
}
