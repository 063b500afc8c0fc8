"""The server process. Its arguments are the file descriptor of the socket that `runner` opened, and `asgi` or `wsgi`.

uvicorn serves ASGI. Django's own server serves WSGI, with a thread for each request.
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress

import uvicorn
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler


class QuietHandler(WSGIRequestHandler):
    """Answer requests without logging each one."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 — http.server's name
        pass


def serve_asgi(listener: socket.socket) -> None:
    config = uvicorn.Config(
        "example_project.asgi:application",
        log_level="warning",
        lifespan="off",  # Django has no lifespan events
        proxy_headers=False,  # QUOTA["TRUSTED_PROXIES"] decides which proxies to believe
        timeout_keep_alive=120,  # a visitor may be away for a while
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[listener])


def serve_wsgi(listener: socket.socket) -> None:
    from example_project.wsgi import application  # noqa: PLC0415 — importing it sets Django up

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
    with suppress(KeyboardInterrupt), socket.socket(fileno=descriptor) as listener:
        {"asgi": serve_asgi, "wsgi": serve_wsgi}[interface](listener)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
