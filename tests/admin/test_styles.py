"""The classes of the pages and of the style sheets are the same, and scripts find the elements that they change."""

import re
from pathlib import Path

import pytest
from django.contrib import admin

import django_quota

TEMPLATES = Path(django_quota.__file__).parent / "templates/admin"
STYLES = Path(django_quota.__file__).parent / "static/django_quota"
DJANGOS_STYLES = Path(admin.__file__).parent / "static/admin/css"

OF_VARIABLES = {"*", "shade-*", "quota-kind-*", "app-*", "model-*"}

WITHOUT_A_STYLE = {
    *("quota-answer", "quota-change", "quota-kind", "quota-overview-page", "quota-required", "quota-same"),
    *("quota-title", "quota-usage-words", "usage-totals", "app-django_quota"),
}
"""Classes for the style sheet of a site, and for scripts."""

OF_LISTS = {
    "quota-label",
    "quota-span",
    "sortable",
    "field-who",
    "field-short_reason",
    "field-rule",
    "field-subject_link",
}
"""What Python or Django writes into a list."""


def classes_of_templates() -> set[str]:
    """Return the classes of our elements; a variable is `*`."""
    texts = [each.read_text() for each in TEMPLATES.rglob("*.html")]
    inside = r'class="((?:[^"{]|{%.*?%}|{{.*?}})*)"|bodyclass %}(.*?){% endblock'
    values = [" ".join(each) for text in texts for each in re.findall(inside, text)]
    return {name for value in values for name in re.sub(r"{{.*?}}", "*", re.sub(r"{%.*?%}", " ", value)).split()}


def classes_of_styles(folder: Path) -> set[str]:
    texts = [re.sub(r"/\*.*?\*/", "", each.read_text(), flags=re.DOTALL) for each in folder.rglob("*.css")]
    return {name for text in texts for name in re.findall(r"\.([a-zA-Z][\w-]*)", text)}


def test_each_class_of_an_element_has_a_style() -> None:
    styled = classes_of_styles(STYLES) | classes_of_styles(DJANGOS_STYLES)

    assert classes_of_templates() - styled - OF_VARIABLES == WITHOUT_A_STYLE


def test_each_style_is_that_of_an_element() -> None:
    named = classes_of_templates() | classes_of_styles(DJANGOS_STYLES)
    of_variables = {"quota-kind-banned", *(f"shade-{number}" for number in range(5))}

    assert classes_of_styles(STYLES) - named - of_variables - OF_LISTS == set()


@pytest.mark.parametrize(
    ("asked", "number", "written"),
    [
        pytest.param(r'getElementById\("([\w-]+)"\)', 2, 'id="{}"', id="by id"),
        pytest.param(r'querySelector\("\[([\w-]+)\]"\)', 3, r"\s{}[\s>]", id="by attribute"),
        pytest.param(r'querySelector\("[^"]*\.(quota-[\w-]+)"\)', 2, 'class="{}[" ]', id="by class"),
    ],
)
def test_each_element_that_a_script_looks_for_is_in_a_template(asked: str, number: int, written: str) -> None:
    scripts = "".join(each.read_text() for each in STYLES.glob("*.js"))
    templates = "".join(each.read_text() for each in TEMPLATES.rglob("*.html"))

    names = re.findall(asked, scripts)
    assert len(names) == number
    assert [each for each in names if not re.search(written.format(each), templates)] == []
