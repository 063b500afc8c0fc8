"""`make serve`: leaves the example site up until Ctrl-C. `python -m example_project.serve --port 8001`."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack

from rich.console import Console

from example_project.stage import StageError, ended_by_signals, running_site
from example_project.waiting import shown

PREFIX = "quota-example-site"


def main(arguments: list[str] | None = None) -> int:
    """Run the site until it is told to stop; return the exit status."""
    parser = argparse.ArgumentParser(description="Leave the example site up.")
    parser.add_argument(
        "--port",
        type=int,
        default=os.environ.get("PORT") or "8000",
        help="the port to listen on (default: the environment's PORT, or 8000); 0 is any free one",
    )
    parser.add_argument("--wsgi", action="store_true", help="serve by WSGI: live pages ask every few seconds")
    chosen = parser.parse_args(arguments)
    try:
        with ended_by_signals(), ExitStack() as stack:
            with shown(Console(stderr=True)) as told:
                site = stack.enter_context(running_site(prefix=PREFIX, port=chosen.port, wsgi=chosen.wsgi, told=told))
            print(f"The example site is up at {site.url}, on {site.redis}.", site.sign_ins, "Ctrl-C ends it.", sep="\n")
            sys.stdout.flush()
            status = site.process.wait()
            print(f"The server has ended by itself (status {status}).", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        print("\nThe site has ended.")
        return 0
    except StageError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
