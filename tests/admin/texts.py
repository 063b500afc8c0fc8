"""What a page says, line by line, and its messages."""

import re
from html import unescape
from typing import Any

from django.test import Client

from django_quota.testing import freeze
from tests.support.steps import START

NO_ANSWER = (
    "The quota store is unavailable: ConnectionError: Error 2 connecting to /nowhere/redis.sock. No such file or "
    "directory."
)
"""What the pages say of a Redis at `unix:///nowhere/redis.sock`."""


def html_of(client: Client, url: str, **form: Any) -> str:
    """Return a page at START, after a form was sent if there is one."""
    with freeze(START):
        answer = client.post(f"/admin/django_quota/{url}", form) if form else client.get(f"/admin/django_quota/{url}")
    assert answer.status_code == 200
    return answer.content.decode()


def said(client: Client, url: str, **form: Any) -> list[str]:
    """Return what a page says at START, after a form was sent if there is one."""
    return lines_of(html_of(client, url, **form))


def messages_of(answer: Any) -> list[tuple[str, str]]:
    """Return the kind and the words of each message of a page."""
    return [(each.level_tag, str(each)) for each in answer.context["messages"]]


def below_search(lines: list[str]) -> list[str]:
    """Return the lines below the form of a search and its help."""
    (form,) = [number for number, line in enumerate(lines) if line.endswith("} Find") or line == "Find"]
    return lines[form + 2 :]


def lines_of(html: str) -> list[str]:
    """Return a line for each paragraph, row, item and button of a page, without drawings and with plain dashes.

    Links are `words [url]`, by the URL within our part of the admin. What a form sends is `{name=value}`, and `*` marks
    what is chosen.
    """
    content = (html.partition('id="content-main"')[2].partition(">")[2] or html).partition("<footer")[0]
    content = re.sub(r"<svg.*?</svg>", "", content, flags=re.DOTALL)
    content = re.sub(r"<[^>]* (?:selected|checked|open|aria-current=[^>]*)>", r"\g<0>* ", content)
    content = re.sub(
        r'<a [^>]*href="(?:/admin/django_quota/)?([^"]*)"[^>]*>(.*?)</a>', r"\2 [\1]", content, flags=re.DOTALL
    )
    content = re.sub(r'<input[^>]*name="csrf[^>]*>', "", content)
    content = re.sub(r'<(?:input|button)\b[^>]*? name="([^"]*)"(?:[^>]*? value="([^"]*)")?[^>]*>', r"{\1=\2} ", content)
    content = re.sub(r"</t[hd]>\s*(?=<t[hd])", " | ", content.replace("<wbr>", ""))
    parts = re.split(r"</(?:p|tr|li|h2|h3|dd|caption|option|button|summary|label|legend)>", content)
    lines = [" ".join(unescape(re.sub("<[^>]*>", " ", part)).replace("\N{EN DASH}", "-").split()) for part in parts]
    return [line for line in lines if line]
