"""A process that decides for subjects all the time: `python -m tests.faults.deciding FILE SUBJECT ...`.

It writes a line for each change of an answer: the subject, the moment at which it asked (`time.monotonic()`, which all
processes share), and "admitted" or "refused".
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import django

BETWEEN = 0.005
"""Seconds between two rounds."""


def main(file: Path, subjects: list[str]) -> None:
    """Decide until somebody ends the process."""
    from django_quota import check

    said = dict[str, str]()
    with file.open("w", buffering=1) as lines:
        while True:
            for subject in subjects:
                asked = time.monotonic()
                answer = "admitted" if check("1000000/m", subject) else "refused"
                if said.get(subject) != answer:
                    said[subject] = answer
                    lines.write(f"{subject} {asked} {answer}\n")
            threading.Event().wait(BETWEEN)


if __name__ == "__main__":
    django.setup()
    main(Path(sys.argv[1]), sys.argv[2:])
