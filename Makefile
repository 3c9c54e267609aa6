# Two commands do all the set-up: `make train` and `make test`. Both make .venv on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

MINUTES ?= 20

.PHONY: train test docs bench fuzz lint types format experiments clean help

help:
	@echo "make train        train the list-reduction RNN to 97 % validation accuracy"
	@echo "make test         lint, types and all tests"
	@echo "make docs         the docs site with the API reference, in docs/_build/html"
	@echo "make fuzz         property tests with new random examples, for MINUTES=20 minutes"
	@echo "make bench        slow tests, then all workloads beside their peers (ampnet bench all)"
	@echo "make experiments  the paper's tables and figures, some hours; writes docs/results.md (ARGS=--quick: ten minutes)"
	@echo "make lint         ruff and mypy only"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first, from the constraints, so that nothing else resolves it to another build.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	@touch $(STAMP)

train: $(STAMP)
	$(BIN)/ampnet train list-reduction --target 0.97

test: lint
	$(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist loadfile

docs: $(STAMP)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --fresh-env -d docs/_build/trees docs docs/_build/html

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m pytest -m slow --timeout 1800
	$(BIN)/ampnet bench all

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

experiments: $(STAMP)
	$(BIN)/python -m bench.paper --jobs 2 $(ARGS)

clean:
	rm -rf $(VENV) build dist docs/_build docs/api src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
