"""The server process: uvicorn on a socket that `stage` has opened. Its one argument is the socket's file descriptor."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress

import uvicorn


def main(descriptor: int) -> None:
    """Serve until told to stop."""
    config = uvicorn.Config(
        "example_project.asgi:application",
        log_level="warning",
        lifespan="off",  # Django has none
        proxy_headers=False,  # who is behind a proxy is QUOTA["TRUSTED_PROXIES"]' business; here there is none
        timeout_graceful_shutdown=2,
    )
    with suppress(KeyboardInterrupt), socket.socket(fileno=descriptor) as listener:
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(int(sys.argv[1]))
