"""Work in a thread of its own, one of a name at a time: nobody waits for it, and what goes wrong is logged.

It must not know what the work is.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from django.db import DatabaseError, connections

from django_quota.exceptions import QuotaError

logger = logging.getLogger("django_quota")

_threads: dict[str, threading.Thread] = {}
_starting = threading.Lock()


def in_background(name: str, work: Callable[[], None]) -> None:
    """Do something in a thread of this name, unless it is being done; the process may end meanwhile."""
    with _starting:
        running = _threads.get(name)
        if running is None or not running.is_alive():
            thread = threading.Thread(target=_guarded, args=(name, work), name=name, daemon=True)
            _threads[name] = thread
            thread.start()


def join(name: str) -> None:
    """Wait until the work of a name is done, if there is any."""
    thread = _threads.get(name)
    if thread is not None:
        thread.join()


def _guarded(name: str, work: Callable[[], None]) -> None:
    """Log what goes wrong: there is nobody else to be told."""
    try:
        work()
    except (QuotaError, DatabaseError) as error:
        logger.error("%s: %s", name, error)  # noqa: TRY400 — to be expected while a server is away
    except Exception:
        logger.exception("%s", name)
    finally:
        connections.close_all()


def _after_fork() -> None:
    global _starting  # noqa: PLW0603 — a lock that another thread held at the fork would never come free
    _starting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
