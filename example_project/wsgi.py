"""The WSGI application. It serves static files too; on a real site a web server does that."""

from __future__ import annotations

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

application = StaticFilesHandler(get_wsgi_application())
