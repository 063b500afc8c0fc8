"""`manage.py quota_metrics`: print the metrics, or serve them to Prometheus at an address of their own."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from prometheus_client import generate_latest, start_http_server

from django_quota.contrib.prometheus.views import registry
from django_quota.management.console import QuotaCommand, shared_store, stopping

DEFAULT_ADDRESS = "127.0.0.1:9105"


class Command(QuotaCommand):
    help = "Print the metrics of all processes, or serve them to Prometheus."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--serve",
            nargs="?",
            const=DEFAULT_ADDRESS,
            metavar="ADDRESS:PORT",
            help=f"serve them until you stop it (default: {DEFAULT_ADDRESS}); without a token",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        shared_store()
        if options["serve"] is not None:
            self._serve(options["serve"])
        else:
            self.stdout.write(generate_latest(registry).decode(), ending="")

    def _serve(self, given: str) -> None:
        address, colon, port = given.rpartition(":")
        if not colon or not port.isdecimal() or not 0 < int(port) < 65_536:  # noqa: PLR2004 — ports
            raise CommandError(f"{given!r} is not an address with a port. Use, for example, --serve {DEFAULT_ADDRESS}.")
        with stopping() as stop:
            try:
                server, thread = start_http_server(int(port), address.strip("[]"), registry)
            except OSError as error:
                raise CommandError(f"Cannot listen on {given}: {error.strerror or error}.") from error
            self.stdout.write(f"Serving the metrics at http://{given}/metrics. Stop with Ctrl-C.")
            self.stdout.flush()
            stop.wait()
            server.shutdown()
            server.server_close()
            thread.join()
