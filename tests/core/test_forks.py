"""A child process resets what its parent's threads held."""

import gc
import weakref

from django_quota.core.forks import register_fork_aware
from tests.support.processes import forks, in_child


class Aware:
    """An object that counts how often `after_fork` was called."""

    def __init__(self) -> None:
        self.forks = 0

    def after_fork(self) -> None:
        self.forks += 1


@forks
def test_a_child_process_calls_each_object_that_asked_for_it() -> None:
    aware, also = Aware(), Aware()
    register_fork_aware(aware)
    register_fork_aware(also)

    assert (in_child(lambda: aware.forks), in_child(lambda: also.forks)) == (1, 1)


@forks
def test_an_object_that_asked_twice_is_called_once() -> None:
    aware = Aware()
    register_fork_aware(aware)
    register_fork_aware(aware)

    assert in_child(lambda: aware.forks) == 1


@forks
def test_the_parent_of_a_process_calls_nobody() -> None:
    aware = Aware()
    register_fork_aware(aware)

    in_child(lambda: 0)

    assert aware.forks == 0


def test_an_object_lives_no_longer_because_it_asked() -> None:
    aware = Aware()
    register_fork_aware(aware)
    alive = weakref.ref(aware)

    del aware
    gc.collect()

    assert alive() is None
