.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

# Whole files to one process, so that what they train is trained once, the longest first (tests/conftest.py).
JOBS ?= 2
PYTEST := $(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: help setup run test quick coverage check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv and install fedpm into it

run: $(READY) ## train FedPM on the embedded handwritten digits (about 2 minutes on 2 cores)
	$(BIN)/fedpm run --preset quickstart

test: check ## ruff, mypy --strict and all tests, with branch coverage (about 6 minutes on 2 cores)
	$(PYTEST) --cov

quick: check ## the same without tests that train at length, start processes or run Flower (a minute)
	$(PYTEST) -m "not slow and not flower"

coverage: $(READY) ## all tests, and every line and branch of src/ that they miss
	$(PYTEST) --cov --cov-report=term-missing:skip-covered

check: $(READY) ## ruff and mypy alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean: ## remove .venv and caches; run folders stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)
