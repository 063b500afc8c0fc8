"""A process that blocks a subject and is killed at the moment of the commit: `python -m tests.faults.blocking SUBJECT`.

It prints the moment (`time.monotonic()`) before it dies.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import django
from django.db import transaction


def main(subject: str) -> None:
    """Save the block, and die as soon as it is committed."""
    from django_quota.models import QuotaOverride

    def die() -> None:
        print(time.monotonic(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    with transaction.atomic():
        transaction.on_commit(die)
        QuotaOverride.objects.create(subject=subject, mode="blocked")


if __name__ == "__main__":
    django.setup()
    main(sys.argv[1])
