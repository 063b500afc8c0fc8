"""The server process, on a socket that `stage` has opened: its file descriptor, and `asgi` or `wsgi`.

uvicorn serves ASGI. For WSGI, where pages ask again and again for what ASGI would send by itself, Django's own server
does: a thread for each request.
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress

import uvicorn
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler


class QuietHandler(WSGIRequestHandler):
    """Answers requests, and does not write each one down."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 — http.server's name
        pass


def serve_asgi(listener: socket.socket) -> None:
    """Serve until told to stop."""
    config = uvicorn.Config(
        "example_project.asgi:application",
        log_level="warning",
        lifespan="off",  # Django has none
        proxy_headers=False,  # who is behind a proxy is QUOTA["TRUSTED_PROXIES"]' business
        timeout_keep_alive=120,  # a visitor may look at something else for a while
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[listener])


def serve_wsgi(listener: socket.socket) -> None:
    """Serve until told to stop."""
    from example_project.wsgi import application  # noqa: PLC0415 — it sets Django up, which asgi does otherwise

    host, port = listener.getsockname()
    server = ThreadedWSGIServer((host, port), QuietHandler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_name, server.server_port = host, port
    server.setup_environ()
    server.set_app(application)
    server.server_activate()
    server.serve_forever()


def main(descriptor: int, interface: str) -> None:
    """Serve until told to stop."""
    with suppress(KeyboardInterrupt), socket.socket(fileno=descriptor) as listener:
        {"asgi": serve_asgi, "wsgi": serve_wsgi}[interface](listener)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
