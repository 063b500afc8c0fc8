# Each target makes its own .venv if there is none. You need python3 (3.11 or newer) and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: help demo serve test test-all test-versions fuzz lint docs dist check-dist bench chaos messages screenshots clean
.DEFAULT_GOAL := help

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

# How many processes run the tests. Many tests wait for a server, so one more than there are cores keeps them busy.
WORKERS ?= 3

# One stamp for each extra, so `make demo` does not wait for the developers' tools.
$(VENV)/.installed-%: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing django-quota[$*] into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

# Where the example site counts: "redis" or "database".
STORE ?= redis

demo: $(VENV)/.installed-demo ## Start the example site on a real Redis, send it real requests, print the results; STORE=database: without Redis
	@EXAMPLE_STORE=$(STORE) exec $(BIN)/python -m example_project.demo

serve: $(VENV)/.installed-demo ## Run the example site at http://127.0.0.1:8000/; STORE=database: without Redis
	@EXAMPLE_STORE=$(STORE) exec $(BIN)/python -m example_project.serve

PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest

test: $(VENV)/.installed-dev ## Run the tests, in about two minutes; its last lines say what it leaves out
	@$(PYTEST) --numprocesses $(WORKERS) --dist loadfile $(ARGS)

test-all: $(VENV)/.installed-release ## Run every test: the stores on each server, PostgreSQL, failures, browser, scale
	@$(PYTEST) --numprocesses $(WORKERS) --dist loadfile --all $(ARGS)

# pyenv keeps its Pythons off PATH.
test-versions: $(VENV)/.installed-dev ## Run the tests on each Python and Django, and on the oldest and newest packages; it says which Pythons are missing
	@PATH="$$PATH:$$(ls -d "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/*/bin 2>/dev/null | tr '\n' ':')" $(BIN)/nox $(ARGS)

fuzz: $(VENV)/.installed-dev ## Try every property on many more inputs, new ones each time: FUZZ=10 times as many
	@FUZZ=$(or $(FUZZ),10) $(PYTEST) --all -m hypothesis $(ARGS)

lint: $(VENV)/.installed-bench ## Run ruff (format and lint) and mypy strict
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

docs: $(VENV)/.installed-docs ## Build the documentation into docs/_build, check its links; ARGS="-b linkcheck": also those to other sites
	@rm -rf docs/_build
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs $(ARGS) . docs/_build
	@echo "Open docs/_build/index.html"

dist: $(VENV)/.installed-release ## Build the wheel and the sdist into dist/, check them, and try the wheel in an empty environment
	@rm -rf dist
	@$(BIN)/python -m build --quiet
	@$(MAKE) --no-print-directory check-dist

check-dist: $(VENV)/.installed-release ## Check the wheel and the sdist in dist/
	@DIST=dist $(PYTEST) --all tests/e2e/test_distributions.py

bench: $(VENV)/.installed-bench ## Measure a check beside bare EVALSHA and six other limiters
	@$(BIN)/python -m tests.benchmarks $(ARGS)

chaos: $(VENV)/.installed-dev ## Kill, hang, empty and fill a Redis while workers use it; print the results
	@$(BIN)/python -m tests.chaos $(ARGS)

messages: $(VENV)/.installed-dev ## Write new messages into the translations and compile them; say what is missing
	@$(BIN)/python -m tests.support.catalogs

screenshots: $(VENV)/.installed-dev ## Take pictures of every page, into screenshots/ or the folder of ARGS
	@$(BIN)/python -m tests.e2e.screenshots $(or $(ARGS),screenshots)

clean: ## Delete what the targets made
	rm -rf $(VENV) .nox dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
