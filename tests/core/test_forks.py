"""A child process resets what its parent's threads held."""

import gc
import weakref

from django_quota.core.forks import register_fork_aware
from tests.support.processes import ended, forks, processes, started


class Aware:
    """An object that counts the forks it was told of."""

    def __init__(self) -> None:
        self.forks = 0

    def after_fork(self) -> None:
        self.forks += 1


def forks_in_a_child(aware: Aware) -> int:
    with processes() as children:
        children.append(started(lambda: aware.forks, status=int))
        (status,) = ended(children)
    return status


@forks
def test_a_child_process_tells_each_object_that_asked_for_it() -> None:
    aware, also = Aware(), Aware()
    register_fork_aware(aware)
    register_fork_aware(also)

    assert [forks_in_a_child(each) for each in (aware, also)] == [1, 1]


@forks
def test_an_object_that_asked_twice_is_told_once() -> None:
    aware = Aware()
    register_fork_aware(aware)
    register_fork_aware(aware)

    assert forks_in_a_child(aware) == 1


@forks
def test_the_parent_of_a_process_tells_nobody() -> None:
    aware = Aware()
    register_fork_aware(aware)

    forks_in_a_child(aware)

    assert aware.forks == 0


def test_an_object_lives_no_longer_because_it_asked() -> None:
    aware = Aware()
    register_fork_aware(aware)
    alive = weakref.ref(aware)

    del aware
    gc.collect()

    assert alive() is None
