PYTHON ?= python3
WORKERS ?= 2
PART ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.stamp-base
DEV := $(VENV)/.stamp-dev
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help test test-slow test-lowest test-newest lint format docs tutorials docs-figures demo bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  PYTHON=python3.12 chooses the interpreter, WORKERS=4 the test processes, ARGS='-k kernel' goes to pytest."

test: $(DEV) ## Run the tests that take seconds
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(DEV) ## Run the tests that take minutes; with PART=3, the third part of them
	$(PYTEST) -m slow $(if $(PART),--part $(PART)) $(ARGS)

test-lowest: $(BIN)/python ## Try the library with the lowest versions it allows
test-newest: $(BIN)/python ## Try the library with the newest versions of everything
test-lowest test-newest: test-%:
	rm -rf build/$*
	$(BIN)/python -m venv build/$*
	$(BIN)/python tests/support/versions.py $* > build/$*/requirements.txt
	build/$*/bin/python -m pip install --quiet --disable-pip-version-check --requirement build/$*/requirements.txt .
	cd build/$* && bin/python ../../tests/support/smoke.py

lint: $(DEV) ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

format: $(DEV) ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: $(DEV) ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html, or for its search run $(BIN)/python -m http.server --directory site"

tutorials: $(DEV) ## Run the tutorials again, and keep what they print and draw (ARGS=regression for one)
	$(BIN)/python docs/freeze.py $(ARGS)

docs-figures: $(DEV) ## Draw the pictures of the documentation again
	$(BIN)/python docs/figures.py

demo: $(BASE) ## Train a sampler and look at its draws
	$(BIN)/python -m gpvi demo

bench: $(DEV) ## Time everything, other libraries too (ARGS='--case svgd' for a part)
	$(BIN)/python -m gpvi bench --peers $(ARGS)

clean: ## Remove caches and build products; keep the environment and results
	rm -rf build dist site .pytest_cache .ruff_cache .hypothesis
	find src tests -type d -name __pycache__ -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "gpvi needs Python 3.11 or newer, and '$(PYTHON)' is not ($$($(PYTHON) --version 2>&1));" \
	       "name one that is: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu it comes with the package python3-venv" >&2; exit 1; }

$(BASE): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing gpvi into $(VENV)"
	@$(PIP_INSTALL) --editable '.[cli,plots]'
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing gpvi and its development tools into $(VENV)"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $(BASE) $@
