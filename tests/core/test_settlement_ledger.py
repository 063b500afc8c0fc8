"""Real processes that settle the same reservations, some of them killed, beside a ledger: exact to the unit."""

import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from django_quota import Rule, counter, peek, reserve_all
from django_quota.core import clock
from django_quota.testing import freeze, server_programs
from django_quota.types import Reservation
from tests.support.processes import ended, forks, processes, started

CREDITS, BONUS = counter("credits"), counter("bonus", group="shop")
TOKENS = Rule.make("tokens", "1000000000/d", algorithm="fixed_window", key="user")
ORG = "org:7"
ALL = 10**9
ESTIMATE = 900
JOBS = 60
WORKERS = 4
KILLS = 12

pytestmark = [pytest.mark.thorough("processes"), forks, pytest.mark.usefixtures("either_store")]

on_each_store = pytest.mark.parametrize(
    "either_store", [*server_programs()[:1], "postgresql"], indirect=True, ids=["redis", "postgresql"]
)


@pytest.fixture(autouse=True)
def accounts(either_store: None) -> None:
    CREDITS.set(ORG, ALL)
    BONUS.set(ORG, ALL)


def left() -> list[int | None]:
    return [CREDITS.get(ORG), BONUS.get(ORG), peek(TOKENS, ORG).remaining]


def entries(subject: str = ORG) -> list[Any]:
    """Return what a job takes: of three places that all jobs share, and of an account of its own."""
    shared = [(CREDITS, ORG, ESTIMATE), (BONUS, ORG, ESTIMATE), (TOKENS, ORG, ESTIMATE)]
    return shared if subject == ORG else [*shared, (CREDITS, subject, ESTIMATE)]


def with_kills(work: Callable[[int], None], over: Path) -> None:
    """Let processes work until there is a file, kill some at random moments, and let others work in their place."""
    chance = random.Random(7)
    with processes() as children:
        children.extend(started(partial(work, number)) for number in range(WORKERS))
        for number in range(KILLS):
            time.sleep(chance.uniform(0.02, 0.2))
            victim = children.pop(chance.randrange(len(children)))
            os.kill(victim, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1]) == -signal.SIGKILL
            children.append(started(partial(work, WORKERS + number)))
        over.touch()
        assert ended(children) == [0] * WORKERS


def rows_in(folder: Path) -> Iterator[tuple[Path, Any]]:
    for row in sorted(folder.glob("row-*")):
        yield row, json.loads(row.read_text())


@on_each_store
def test_jobs_that_everybody_settles_are_settled_once(tmp_path: Path) -> None:
    """Each process settles all jobs, each by another cost; a job has an account that says by which cost it was."""
    texts = []
    for job in range(JOBS):
        CREDITS.set(f"org:job{job}", 10_000)
        texts.append(reserve_all(entries(f"org:job{job}")).dumps())

    def work(number: int) -> None:
        jobs, answers = list(range(JOBS)), {}
        random.Random(number).shuffle(jobs)
        more = itertools.takewhile(lambda _: not (tmp_path / "over").exists(), itertools.cycle(jobs))
        for job in itertools.chain(jobs, more):
            decision = Reservation.loads(texts[job]).settle(100 * (number % 17) + 3)
            answers[job] = decision.outcomes[-1].remaining
        (tmp_path / f"answers-{number}").write_text(json.dumps(answers))

    with_kills(work, tmp_path / "over")

    used = [10_000 - CREDITS.get(f"org:job{job}") for job in range(JOBS)]
    assert set(used) <= {100 * number + 3 for number in range(17)}
    assert left() == [ALL - sum(used)] * 3
    answers = {each.name: json.loads(each.read_text()) for each in tmp_path.glob("answers-*")}
    found = {name: [10_000 - of_jobs[str(job)] for job in range(JOBS)] for name, of_jobs in answers.items()}
    assert {name: costs for name, costs in found.items() if costs != used} == {}  # all got the first answer


@on_each_store
def test_a_process_that_is_killed_leaves_nothing_taken_but_what_its_row_says(tmp_path: Path) -> None:
    """A process stores the row of its job, settles, and deletes the row; it may be killed between any of these."""

    def work(number: int) -> None:
        chance = random.Random(number)
        for job in itertools.takewhile(lambda _: not (tmp_path / "over").exists(), itertools.count()):
            reservation = reserve_all(entries(), lease="1s")
            added = chance.choice([0, 0, 500])
            if added:
                reservation.extend(added)
            row, actual = tmp_path / f"row-{number}-{job}", chance.randint(0, ESTIMATE + 700)
            unfinished = tmp_path / f"new-{number}-{job}"
            unfinished.write_text(json.dumps([reservation.dumps(), actual]))
            unfinished.rename(row)
            reservation.settle(actual)
            row.rename(tmp_path / f"done-{number}-{job}")

    with_kills(work, tmp_path / "over")

    for row, (text, actual) in rows_in(tmp_path):
        for again in (actual, 0, 5_000):
            Reservation.loads(text).settle(again)
        row.rename(tmp_path / row.name.replace("row", "done"))
    time.sleep(1.1)
    reserve_all([(CREDITS, ORG, 1), (BONUS, ORG, 1)], lease="1s").cancel()  # what has ended goes back
    used = sum(json.loads(done.read_text())[1] for done in tmp_path.glob("done-*"))
    assert left()[:2] == [ALL - used] * 2


GRANTED = 1_000


@on_each_store
def test_an_order_that_everybody_sends_is_granted_once(tmp_path: Path) -> None:
    """Each process sends all orders again and again; each settles jobs of its own beside that."""
    CREDITS.set(ORG, 0)

    def work(number: int) -> None:
        orders, chance = list(range(JOBS)), random.Random(number)
        chance.shuffle(orders)
        more = itertools.takewhile(lambda _: not (tmp_path / "over").exists(), itertools.cycle(orders))
        for job, order in enumerate(itertools.chain(orders, more)):
            answer = CREDITS.grant(ORG, GRANTED, id=f"order-{order}", expires="1h" if order % 2 else "2h")
            answers = tmp_path / f"answers-{order}"
            with answers.open("a") as file:
                file.write(f"{answer}\n")
            taken = CREDITS.get(ORG) > GRANTED and chance.random() < 0.2
            if not taken:
                continue
            reservation = reserve_all([(CREDITS, ORG, 10)], lease="1s")
            row, actual = tmp_path / f"row-{number}-{job}", chance.randint(0, 15)
            unfinished = tmp_path / f"new-{number}-{job}"
            unfinished.write_text(json.dumps([reservation.dumps(), actual]))
            unfinished.rename(row)
            reservation.settle(actual)

    with_kills(work, tmp_path / "over")

    used = 0
    for _, (text, actual) in rows_in(tmp_path):
        Reservation.loads(text).settle(actual)
        used += actual
    time.sleep(1.1)
    reserve_all([(CREDITS, ORG, 1)], lease="1s").cancel()  # what has ended goes back
    assert {len(set(each.read_text().split())) for each in tmp_path.glob("answers-*")} == {1}
    assert len(list(tmp_path.glob("answers-*"))) == JOBS
    assert CREDITS.get(ORG) == JOBS * GRANTED - used == sum(grant.left for grant in CREDITS.grants(ORG))
    with freeze(clock.now() + 3_600 * clock.SECOND):
        assert CREDITS.get(ORG) == JOBS * GRANTED - max(used, JOBS // 2 * GRANTED)
