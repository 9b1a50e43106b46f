.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
DEV := .venv/dev
DOCS := .venv/docs
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

# Which process gets which files, and in which order, is said in tests/conftest.py.
JOBS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
COVERED := -p tests.covered

.PHONY: help setup run test quick whole fast docs dist coverage check clean
unexport PYTHONDONTWRITEBYTECODE  # every process would compile the tests and this package anew

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(DEV) ## create .venv and install fedpm and all developer tools into it

run: $(READY) ## train FedPM on the embedded handwritten digits (at most 3 minutes on 2 cores)
	$(BIN)/fedpm run --preset quickstart

test: $(DEV) ## ruff, mypy --strict and all tests, with branch coverage (4 to 8 minutes on 2 cores), side by side
	@$(MAKE) --no-print-directory -j 2 check whole

quick: $(DEV) ## the same without tests that train at length, start processes or run Flower (a minute), both at a time
	@$(MAKE) --no-print-directory -j 2 -O check fast

whole: $(DEV)
	$(PYTEST) $(COVERED) --durations=30 --durations-min=3

fast: $(DEV)
	$(PYTEST) -q -n 2 -m "not slow and not flower" --ignore tests/engines/flower

docs: $(DOCS) ## build the site into site/, with executed tutorials (about 2 minutes on 2 cores; no network once installed)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

dist: $(READY) ## build wheel and sdist into dist/, and try the wheel in a new environment without extras
	$(INSTALL) build
	rm -rf dist
	$(BIN)/python -m build --quiet --outdir dist .
	$(BIN)/python -m zipfile --test dist/fedpm-*.whl
	$(PYTHON) -m venv dist/try
	dist/try/bin/pip install --quiet --disable-pip-version-check -c constraints.txt dist/fedpm-*.whl
	cd dist && try/bin/fedpm run --set model.name=conv4-slim --set rounds=1 --set local.epochs=1 --out try/run
	cd dist && try/bin/fedpm model eval try/run

coverage: $(DEV) ## all tests, and every line and branch of src/ that they miss
	$(PYTEST) $(COVERED) --missing

check: $(DEV) ## ruff and mypy alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean: ## remove .venv and caches; run folders stay
	rm -rf .venv site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@echo 'Making .venv and installing fedpm into it: 1 to 2 minutes'
	$(PYTHON) -m venv .venv
	$(INSTALL) -e '.[report]'
	touch $@

$(DEV): $(READY)
	@echo 'Installing all developer tools: some minutes'
	$(INSTALL) -e '.[dev]'
	touch $@

$(DOCS): $(READY)
	@echo 'Installing what the site needs: about a minute'
	$(INSTALL) -e '.[docs]'
	touch $@
