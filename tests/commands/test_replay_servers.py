"""What `quota_replay` makes of the access log of a real server is what that server decided."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from django.test import override_settings

from django_quota.conf import current
from django_quota.management.commands.quota_replay import rules_of_views
from django_quota.services.access_log import find_format
from django_quota.services.replay import LineReader, RuleSet, decide, read_rules
from django_quota.web.request_rules import claim_view_rules
from tests.support.commands import PATIENCE, wait_until
from tests.support.ports import free_port, listens

ROOT = Path(__file__).parents[2]

SITE = """
from tests.support.settings import *
ROOT_URLCONF = "tests.support.urls_of_rules"
QUOTA = {
    "STORE": "memory",
    "TRUSTED_PROXIES": %s,
    "RULES": {
        "api": {"rate": ["9/h", "30/d"], "match": "/api/", "exclude": "/api/v1/"},
        "posts": {"rate": "3/h", "methods": ["POST"], "match": "/", "key": ["ip", "path"]},
        "fixed": {"rate": "30/h", "algorithm": "fixed_window", "key": %r, "match": "/"},
        "bans": {"rate": "25/h", "match": "/class/", "ban": {"after": "5/h", "for": "1h"}},
        "values": {"rate": "3/h", "distinct": "get:q", "match": "api:search", "exempt": "203.0.113.3"},
        "unseen": {"rate": "1/h", "match": "/", "key": "global", "shadow": True},
    },
}
"""
"""The limits are over hours and days, so that the whole seconds of a log make no difference."""

GUNICORN = '%(h)s %(l)s %(u)s %(t)s "%(r)s" %(s)s %(b)s "%(f)s" "%(a)s" "%({x-forwarded-for}i)s"'
UVICORN = '%(asctime)s %(client_addr)s - "%(request_line)s" %(status_code)s'


@contextmanager
def server(folder: Path, name: str, site: str) -> Iterator[int]:
    """Run a site on a server that writes `access.log`; yield its port."""
    (folder / "site_of_logs.py").write_text(site)
    (folder / "uvicorn.json").write_text(json.dumps(LOGGING))
    port = free_port()
    options = {
        "gunicorn": ["--bind", f"127.0.0.1:{port}", "--access-logfile", "access.log", "--access-logformat", GUNICORN],
        "uvicorn": ["--port", str(port), "--log-config", "uvicorn.json", "--factory"],
    }
    application = {"gunicorn": "wsgi:get_wsgi_application()", "uvicorn": "asgi:get_asgi_application"}
    process = subprocess.Popen(
        [sys.executable, "-m", name, *options[name], f"django.core.{application[name]}"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "DJANGO_SETTINGS_MODULE": "site_of_logs"},
        cwd=folder,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: process.poll() is None and listens(port))
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"access": {"()": "uvicorn.logging.AccessFormatter", "fmt": UVICORN, "use_colors": False}},
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "access.log", "formatter": "access"}},
    "loggers": {"uvicorn.access": {"handlers": ["file"], "level": "INFO"}},
}


def send(port: int, chance: Random) -> list[int]:
    """Send requests of several clients, one after the other; return the statuses."""
    statuses = []
    for _ in range(300):
        search = f"/api/search/?q={chance.randrange(6)}"
        path = chance.choice(["/api/plain/", search, "/api/v1/items/", "/class/", "/b%20c"])
        headers = {"User-Agent": chance.choice(["curl", "wget"]), "X-Forwarded-For": f"203.0.113.{chance.randrange(5)}"}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request(chance.choice(["GET", "GET", "POST"]), path, headers=headers)
        with connection.getresponse() as response:
            response.read()
            statuses.append(response.status)
        connection.close()
    return statuses


@pytest.mark.thorough("processes")
@pytest.mark.parametrize(
    ("name", "log_format", "proxies", "key"),
    [("gunicorn", GUNICORN, ["127.0.0.1"], "header:User-Agent"), ("uvicorn", UVICORN, [], "path")],
    ids=["gunicorn", "uvicorn"],
)
def test_replay_refuses_what_the_server_refused(
    name: str, log_format: str, proxies: list[str], key: str, tmp_path: Path
) -> None:
    site = SITE % (proxies, key)
    with server(tmp_path, name, site) as port:
        statuses = send(port, Random(name))
    lines = (tmp_path / "access.log").read_text().splitlines()
    names: dict[str, Any] = {}
    exec(site, names)
    with override_settings(QUOTA=names["QUOTA"], ROOT_URLCONF=names["ROOT_URLCONF"]):
        log = find_format(lines, log_format)
        sets = [
            RuleSet("rules", read_rules(current().rules, "RULES"), log.fields, (rules_of_views(), claim_view_rules))
        ]
        traffic = LineReader(log, sets).read("\n".join(lines).encode())
        traffic.sort()
        refusals = decide(sets[0], traffic, 0, range(len(traffic.times)))
    assert (sets[0].left_out, traffic.shown) == ({}, [])
    assert (len(traffic.times), traffic.unordered) == (len(statuses), 0)
    expected = [position for position, status in enumerate(statuses) if status == 429]
    assert list(refusals.positions) == expected
    assert 50 < len(expected) < 250
    assert {rule for rule, _ in refusals.by_rule} >= {"api", "posts", "fixed", "values", "unseen"}
