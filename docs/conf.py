"""The settings of Sphinx: `make docs` builds the site into docs/_build."""

import django_quota

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

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"django_quota {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
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
