"""The settings of Sphinx: `make docs` builds the site into docs/_build."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

from django.dispatch import Signal
from docutils import nodes
from sphinx import addnodes

import django_quota.signals
from django_quota import exceptions

project = "django_quota"
copyright = "the django_quota developers"
version = release = django_quota.__version__

extensions = ["myst_parser", "sphinx_copybutton"]
nitpicky = True

# The sources are the whole repository, so a link between pages means the same here and on GitHub.
root_doc = "docs/index"
include_patterns = ["docs/*.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
exclude_patterns = [".*", "django_quota", "example_project", "tests", "docs/_build"]

# GitHub's anchors, so that a link to a heading works there and here.
myst_heading_anchors = 4

html_baseurl = tomllib.loads(Path(__file__).parent.with_name("pyproject.toml").read_text())["project"]["urls"][
    "Documentation"
]
html_extra_path = ["../LICENSE"]
html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"django_quota {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "_static" / "search_scorer.js")
html_additional_pages = {"index": "to_docs.html"}
templates_path = ["_templates"]
html_copy_source = False
html_show_sphinx = False

# A copied session or console leaves out its prompts and what was printed.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

linkcheck_anchors = False
linkcheck_ignore = [r"http://127\.0\.0\.1", r"https?://[\w.]*example\.(com|org)"]


WIDE = 4
"""Columns of a table whose cells stand below each other on a phone; site.css counts them, too."""

_MADE_FROM = re.compile(r"<!-- (?:names of (.*)|list ([\w.]+): (.*)|(errors)|(signals)) -->", re.DOTALL)


def _list_names(app, doctree):
    """Let `objects.inv` have the names that the reference describes, so that other sites can link to them."""
    ids = {section[0].astext(): section["ids"][0] for section in doctree.findall(nodes.section)}
    domain = app.env.get_domain("py")

    def note(module, name, section, place):
        kind = "method" if "." in name else "class" if name[0].isupper() else "function"
        domain.note_object(f"{module}.{name}", kind, section, location=place)

    for comment in doctree.findall(nodes.raw):
        found = _MADE_FROM.fullmatch(comment.astext().strip())
        modules, module, names, errors, signals = found.groups() if found else (None,) * 5
        for headed in modules.split(", ") if modules else ():
            for name in ids.keys() & set(import_module(headed).__all__):
                note(headed, name, ids[name], comment)
        for name in names.split(", ") if names else ():
            note(module, name, comment.parent["ids"][0], comment)
        for name in exceptions.__all__ if errors else ():
            domain.note_object(f"django_quota.exceptions.{name}", "exception", ids["Errors"], location=comment)
        for name, value in vars(django_quota.signals).items() if signals else ():
            if isinstance(value, Signal):
                domain.note_object(f"django_quota.signals.{name}", "data", ids["Signals"], location=comment)


def _name_cells(_app, doctree):
    """Put the name of its column into each cell: a phone shows the cells of a wide table below each other."""
    for table in doctree.findall(nodes.tgroup):
        head = next(table.findall(nodes.thead), None)
        if head is None or table["cols"] < WIDE:
            continue
        names = [entry.astext() for entry in head.findall(nodes.entry)]
        for row in next(table.findall(nodes.tbody)).findall(nodes.row):
            for name, entry in zip(names, row.findall(nodes.entry), strict=False):
                if name and entry.children:
                    entry.insert(0, nodes.paragraph("", name, classes=["column-name"]))


def _write_llms_txt(app, error):
    """Write `llms.txt`, the index for programs that read pages: https://llmstxt.org."""
    if error is not None or app.builder.format != "html":
        return
    index = app.env.get_doctree(root_doc)
    lines = [f"# {project}", f"> {next(index.findall(nodes.paragraph)).astext()}"]
    for toctree in index.findall(addnodes.toctree):
        titles = [(app.env.titles[page].astext(), page) for _, page in toctree["entries"]]
        links = [f"- [{title}]({html_baseurl}{app.builder.get_target_uri(page)})" for title, page in titles]
        lines += [f"## {toctree['caption']}", "\n".join(links)]
    (Path(app.outdir) / "llms.txt").write_text("\n\n".join(lines) + "\n")


def setup(app):
    """Be an extension of Sphinx."""
    app.connect("doctree-read", _list_names)
    app.connect("doctree-read", _name_cells)
    app.connect("build-finished", _write_llms_txt)
