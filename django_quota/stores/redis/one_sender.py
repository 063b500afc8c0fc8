"""Threads that meet on their way to a server: one of them sends for all who wait.

The first calls at once have a connection each (`SEPARATE`), and each further one joins a queue. The first of the queue
takes the turn when it is free, sends for the whole queue in one write, and hands out the replies. Then it passes the
turn on, so that no thread sends for others twice in a row.

A call is

* waiting: it is in the queue, and nothing was sent;
* taken: the thread that has the turn has removed it, and sends it;
* answered: it has its reply, or an error.

Whoever removes a call from the queue sends it, so that each goes out once. Only the thread that has the turn takes the
calls of others. It answers each of them, also if it fails or is interrupted. A call that nobody takes leaves the queue
after `LONGEST_IN_QUEUE`, and goes out alone, whatever happens to the thread that has the turn.

Threads that ask a server nearby wait for the interpreter most of the time, and fewer writes and reads save that. They
would wait for a server far away twice: for the replies to others, and for their own. So calls to it do not share.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota.stores.redis.errors import leaves_a_reply
from django_quota.stores.redis.wire import Wire

SEPARATE = 2
"""Calls at once that have a connection each: two threads lose more by waiting for each other than they save."""

MOST_TOGETHER = 64
"""Commands of one write: Redis serves others in between, and a lost connection costs no more calls."""

LONGEST_IN_QUEUE = 0.01
"""Seconds after which a call that nobody has taken goes out alone."""

NEAR = 0.00025
"""Seconds in which a server nearby replies, unless this process looks later."""

FAR_ROUNDS = 64
"""Writes in a row without such a reply that show that the server is far away."""

FAR_TIME = 10.0
"""Seconds in which calls to a server far away have a connection each. Then they find out again."""

INTERRUPTED = "Connection lost: the thread that sent for others was interrupted"


class Queued:
    """A call of a thread that waits for its reply."""

    __slots__ = ("_bell", "command", "is_answered", "reply")

    def __init__(self, command: bytes) -> None:
        self.command = command
        self.reply: Any = None
        """The reply, or an error."""
        self.is_answered = False
        self._bell = threading.Lock()
        self._bell.acquire()

    def wait(self, seconds: float) -> bool:
        """Wait for a ring, and say whether it has come."""
        return self._bell.acquire(timeout=seconds)

    def ring(self) -> None:
        """End the wait of its thread, or the next one."""
        with suppress(RuntimeError):  # it rings already
            self._bell.release()

    def answer(self, reply: Any) -> None:
        """Hand over the reply, or an error."""
        self.reply = reply
        self.is_answered = True
        self.ring()


SendCommand = Callable[[bytes, "OneSender | None"], Any]
"""Sends a command, and returns its reply; with a `OneSender`, by its `send`."""


class OneSender:
    """The turn and the queue of the threads that ask a server.

    `timeout`: seconds for a write, and as many for all replies to it.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._queue: deque[Queued] = deque()
        self._turn = threading.RLock()  # of which each thread can try to release only its own
        self._far_rounds = 0
        """Writes in a row to which no reply came as from near."""
        self._far_until = 0.0
        """Seconds of the monotonic clock."""

    def ask(self, command: bytes, send: SendCommand) -> Any:
        """Return the reply to a command, which this thread sends, or another."""
        if time.monotonic() < self._far_until:
            return send(command, None)
        call = Queued(command)
        try:
            self._queue.append(call)
            self._wait(call, send)
        except BaseException:
            self._remove(call)
            self._pass_on()
            raise
        if not call.is_answered:
            return send(command, None)
        if isinstance(call.reply, Exception):
            raise call.reply.with_traceback(None)  # its frames belong to another thread
        return call.reply

    def _wait(self, call: Queued, send: SendCommand) -> None:
        """Wait until a call is answered, by this thread if it gets the turn, or until it has left the queue."""
        patience = LONGEST_IN_QUEUE
        while not call.is_answered:
            if self._is_first(call) and self._turn.acquire(blocking=False):
                if self._remove(call):
                    call.reply, call.is_answered = send(call.command, self), True
                self._pass_on()
            elif not call.wait(patience) and not call.is_answered:
                if self._remove(call):
                    self._pass_on()
                    return
                if patience > LONGEST_IN_QUEUE:
                    raise RedisTimeoutError("Timeout reading from socket")
                patience += 2 * self._timeout  # it was taken: a write, and its replies

    def send(self, wire: Wire, command: bytes) -> Any:
        """Send a command with all that wait, hand out their replies, and return its own. You have the turn."""
        taken: list[Queued] = []
        try:
            with suppress(IndexError):  # in one step of the interpreter, so that an interruption loses none of them
                taken.extend(islice(iter(self._queue.popleft, None), MOST_TOGETHER - 1))
            wire.send(b"".join([command, *[each.command for each in taken]]))
            sent = time.monotonic()
            replies = wire.replies(1 + len(taken), self._timeout)
            own = next(replies)
            self._note_distance(sent, time.monotonic())
            for call, reply in zip(taken, replies, strict=False):
                if isinstance(reply, Exception) and leaves_a_reply(reply):
                    wire.generation = -1  # the pool does not use it again
                call.answer(reply)
        except BaseException as error:
            lost = error if isinstance(error, Exception) else RedisConnectionError(INTERRUPTED)
            for call in taken:
                if not call.is_answered:
                    call.answer(lost)
                call.ring()
            raise
        if isinstance(own, Exception):
            raise own
        return own

    def _note_distance(self, sent: float, replied: float) -> None:
        self._far_rounds = 0 if replied - sent < NEAR else self._far_rounds + 1
        if self._far_rounds >= FAR_ROUNDS:
            self._far_rounds = 0
            self._far_until = replied + FAR_TIME

    def _is_first(self, call: Queued) -> bool:
        try:
            return self._queue[0] is call
        except IndexError:  # it was taken
            return False

    def _remove(self, call: Queued) -> bool:
        """Remove a call from the queue; False: another thread has taken it."""
        try:
            self._queue.remove(call)
        except ValueError:
            return False
        return True

    def _pass_on(self) -> None:
        """Give the turn back, where this thread has it, and wake the first of the queue."""
        with suppress(RuntimeError):
            self._turn.release()
        with suppress(IndexError):
            self._queue[0].ring()
