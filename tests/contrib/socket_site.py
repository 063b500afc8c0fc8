"""A site of websockets with Channels, for a server in a process of its own: CACHES comes from the environment."""

import json
import os
from typing import Any

from django.conf import settings

settings.configure(
    SECRET_KEY="only-for-tests",
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "django_quota"],
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    CACHES=json.loads(os.environ["SITE_CACHES"]),
)

from django.core.asgi import get_asgi_application  # noqa: E402

http = get_asgi_application()

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.generic.websocket import AsyncWebsocketConsumer  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.urls import path  # noqa: E402

from django_quota.contrib.channels import QuotaSocket  # noqa: E402


class Echo(AsyncWebsocketConsumer):
    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        await self.send(text_data, bytes_data)


routes: Any = URLRouter([path("", Echo.as_asgi())])
limited = QuotaSocket(routes, connect="1000000/m", receive="3/h", at_once=9, key="get:who", lease=8)
refusing = QuotaSocket(routes, connect="0/m", key="ip")


async def websocket(scope: Any, receive: Any, send: Any) -> None:
    await (refusing if b"refused" in scope["query_string"] else limited)(scope, receive, send)


application = ProtocolTypeRouter({"http": http, "websocket": AuthMiddlewareStack(websocket)})
