# `make demo` and `make test` do all the set-up on a machine with Python >= 3.11 and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS := .ci/constraints.txt
PROTOS := $(sort $(wildcard proto/arena/rpc/v1/*.proto))

# Arena is installed in place: without the files that Python caches, each of the processes that a cluster is made of
# compiles it again, a third of a scheduler's start.
unexport PYTHONDONTWRITEBYTECODE

# pip would compile all of torch for over a minute. What a cluster's processes import is compiled here, once: else the
# first ones would do it side by side, while someone waits for them.
IMPORTED := import arena.cli.main, arena_scheduler.app, arena_agent.app, arena_agent.worker.main

.PHONY: help install demo test test-fast explore lint types bench proto clean

help: ## What can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(BIN)/arena: pyproject.toml $(CONSTRAINTS)
	@echo "installing into $(VENV): torch and what Arena and its checks need, one or two minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --no-compile -c $(CONSTRAINTS) -e '.[dev]'
	$(BIN)/python -c '$(IMPORTED)'
	@touch $@

install: $(BIN)/arena ## The virtual environment with everything

demo: $(BIN)/arena ## Three jobs share four virtual GPUs and change their plans while they train
	$(BIN)/python experiments/demo/run.py

test: $(BIN)/arena lint types ## Everything that must hold: lint, types, layers, tests (fast ones first)
	$(BIN)/pytest -q -m "not slow and not benchmark" -n 2 --dist worksteal
	$(BIN)/pytest -q -m "slow and not benchmark" -n 2 --dist worksteal

test-fast: $(BIN)/arena ## Tests that need no training
	$(BIN)/pytest -q -m "not slow and not benchmark" -n 2 --dist worksteal

explore: $(BIN)/arena ## Properties on cases that nobody has drawn yet; what fails is kept and becomes an example
	$(BIN)/pytest -q --hypothesis-profile=explore -m "not benchmark" tests/property tests/machine

lint: $(BIN)/arena ## Style, layers, contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/buf lint proto

types: $(BIN)/arena ## mypy --strict
	$(BIN)/mypy arena scheduler/arena_scheduler agents/arena_agent traces/arena_traces experiments

bench: $(BIN)/arena ## Speed, on an otherwise idle machine
	$(BIN)/pytest -q -s -m benchmark tests/benchmarks

proto: $(BIN)/arena ## Generated code from proto/
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I proto --python_out=. --grpc_python_out=. --mypy_out=. $(PROTOS)

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis out
