"""What a page says, line by line."""

import re
from html import unescape


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
