"""`make serve`: run the example site until Ctrl-C. `python -m example_project.serve --port 8001`."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack

from example_project.runner import RunnerError, ended_by_signals, running_site
from example_project.terminal import Terminal

PREFIX = "quota-example-site"


def main(arguments: list[str] | None = None) -> int:
    """Run the site until it is stopped; return the exit status."""
    parser = argparse.ArgumentParser(description="Run the example site until Ctrl-C.")
    parser.add_argument(
        "--port",
        type=int,
        default=os.environ.get("PORT") or "8000",
        help="the port to listen on (default: the environment's PORT, or 8000); 0 takes any free port",
    )
    parser.add_argument("--wsgi", action="store_true", help="serve by WSGI")
    chosen = parser.parse_args(arguments)
    try:
        with ended_by_signals(), ExitStack() as stack:
            with Terminal(stderr=True).progress() as report:
                site = stack.enter_context(
                    running_site(prefix=PREFIX, port=chosen.port, wsgi=chosen.wsgi, report=report)
                )
            print(
                f"The example site is up at {site.url}, on {site.store}.",
                site.sign_ins,
                site.commands,
                "Ctrl-C stops it.",
                sep="\n",
            )
            sys.stdout.flush()
            status = site.process.wait()
            print(f"The server stopped by itself (status {status}).", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        print("\nThe site has stopped.")
        return 0
    except RunnerError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
