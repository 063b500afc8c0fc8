"""What is wrong with the markup of our part of a page, and what it has besides words."""

from collections import Counter
from html.parser import HTMLParser

_VOID = {"input", "br", "link", "meta", "img", "hr"}
_REFERENCES = ("for", "list", "aria-labelledby", "aria-describedby")
_HINTS = ("aria-label", "title", "placeholder", "action", "formaction", "datetime")
_BARS = ("min", "max", "value", "low", "high", "optimum")
_MADE_BY_A_SCRIPT = "_timezone_warning_helptext"
"""How the id of what Django's script puts beside a time ends."""
_WARNING = {"errornote", "quota-destructive", "quota-refused", "quota-warning", "quota-answer-no", "quota-answer-yes"}


class _Page(HTMLParser):
    """Reads the part of a page below `#content-main`, or all of it if it has none."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.hints: list[str] = []
        self._ids: list[str] = []
        self._references: list[str] = []
        self._open: list[str] = []
        self._form: str | None = None
        self._headings: list[str] = []
        self._cells = 0
        self._is_djangos = False
        self._has_token = False
        self.feed(html[max(0, html.find('<div id="content-main"')) :].partition("<footer")[0])
        self.close()
        self.faults += [f"two elements have the id {each}" for each, number in Counter(self._ids).items() if number > 1]
        here = [each for each in self._references if not each.endswith(_MADE_BY_A_SCRIPT)]
        self.faults += [f"no element has the id {each}" for each in here if each not in self._ids]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "i":
            self.faults.append("a name is not escaped")
        if "id" in given:
            self._ids.append(given["id"])
        self._references += [each for name in _REFERENCES if name in given for each in given[name].split()]
        self.hints += [f"{name}: {given[name]}" for name in _HINTS if name in given]
        self.hints += [
            f"{name}: {value}".strip() for name, value in given.items() if name.startswith("data-") and tag != "td"
        ]
        self.hints += [f"{tag}.{each}" for each in given.get("class", "").split() if each in _WARNING]
        if tag in ("meter", "progress"):
            self.hints.append(f"{tag}: " + " ".join(given.get(name, "-") for name in _BARS))
        self._read_form(tag, given)
        self._read_table(tag, given)

    def _read_form(self, tag: str, given: dict[str, str]) -> None:
        if tag == "form":
            self._form = given.get("method")
            self._has_token = False
        self._has_token = self._has_token or given.get("name") == "csrfmiddlewaretoken"

    def _read_table(self, tag: str, given: dict[str, str]) -> None:
        is_in_head = "thead" in self._open
        if tag == "table":
            self._headings = []
            self._is_djangos = given.get("id") == "result_list"
        if tag == "tr":
            self._cells = 0
        if tag == "th" and not self._is_djangos and given.get("scope") != ("col" if is_in_head else "row"):
            self.faults.append(f"a heading has the scope {given.get('scope')}")
        if tag in ("th", "td"):
            if is_in_head:
                self._headings.append("")
            else:
                label = given.get("data-label")
                heading = self._headings[self._cells] if self._cells < len(self._headings) else None
                if label is not None and label != heading:
                    self.faults.append(f"a cell below {heading} has the label {label}")
            self._cells += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "form" and self._form == "post" and not self._has_token:
            self.faults.append("a form has no token")
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "thead" in self._open and self._headings and not {"table", "th"} - set(self._open):
            self._headings[-1] = f"{self._headings[-1]} {data}".strip()


def faults_of(html: str) -> list[str]:
    """Return what is wrong: names that are not escaped (they hold `<i>`), forms without a token, ids that lead nowhere,
    and cells and headings of tables that a phone or a screen reader takes for others.
    """
    return _Page(html).faults


def hints_of(html: str) -> list[str]:
    """Return the labels, titles and moments of the elements, where forms lead, how long bars are, and what warns."""
    return _Page(html).hints
