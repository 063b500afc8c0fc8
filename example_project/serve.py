"""`make serve`: leaves the example site up until Ctrl-C. `python -m example_project.serve --port 8001`."""

from __future__ import annotations

import argparse
import os
import sys

from example_project.stage import StageError, ended_by_signals, running_site

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
    port = parser.parse_args(arguments).port
    try:
        with ended_by_signals(), running_site(prefix=PREFIX, port=port) as site:
            print(f"The example site is up at {site.url}, on {site.redis}.\nCtrl-C ends it.", flush=True)
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
