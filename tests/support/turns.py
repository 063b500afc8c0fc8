"""Processes that begin in turn: so a test says how much they ask for, however busy the machine is."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from tests.support.processes import ended, processes, started

Turns = Iterator[int]
"""The numbers that fall to one process."""


def in_turn(work: Callable[[int, Turns], object], number_of: int, last: int) -> None:
    """Run work in so many processes, each with its number and its turns, of all numbers from 0 up to `last`.

    As soon as a process takes a number, the next process gets the one after it. So what they do with it, they do at
    once.
    """
    ends = [os.pipe() for _ in range(number_of)]
    with processes() as children:
        for each, (baton, _) in enumerate(ends):
            turns = partial(_turns, baton, ends[(each + 1) % number_of][1], last)
            children.append(started(partial(_work, work, each, turns)))
        os.write(ends[0][1], (0).to_bytes(8))
        assert ended(children) == [0] * number_of
    for end in chain(*ends):
        os.close(end)


def _work(work: Callable[[int, Turns], object], each: int, turns: Callable[[], Turns]) -> None:
    work(each, turns())


def _turns(baton: int, following: int, last: int) -> Turns:
    while (number := int.from_bytes(os.read(baton, 8))) < last:
        os.write(following, (number + 1).to_bytes(8))
        yield number
    os.write(following, number.to_bytes(8))
