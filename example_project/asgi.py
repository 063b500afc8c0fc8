"""The ASGI application. It serves static files too; on a real site a web server does that."""

from __future__ import annotations

import os

from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

application = ASGIStaticFilesHandler(get_asgi_application())
