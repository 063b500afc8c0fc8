"""A site of websockets with Channels, for a server in a process of its own."""

from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import path

http = get_asgi_application()

from django_quota.contrib.channels import QuotaSocket  # noqa: E402 — the settings come first


class Echo(AsyncWebsocketConsumer):
    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        await self.send(text_data, bytes_data)


routes: Any = URLRouter([path("", Echo.as_asgi())])
limited = QuotaSocket(routes, connect="1000000/m", receive="3/h", at_once=9, key="get:who", lease=8)
refusing = QuotaSocket(routes, connect="0/m", key="ip")


async def websocket(scope: Any, receive: Any, send: Any) -> None:
    await (refusing if b"refused" in scope["query_string"] else limited)(scope, receive, send)


application = ProtocolTypeRouter({"http": http, "websocket": AuthMiddlewareStack(websocket)})
