# Every target sets up what it needs: a virtual environment in .venv with the package and its tools.

MODEL ?= gpt3
CLUSTER ?=
BATCH ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SUITED := import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for candidate in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	$$candidate -c '$(SUITED)' >/dev/null 2>&1 && echo $$candidate && break; done)
COMPARED = --set pipeline --plot docs/compare.svg
JOB = $(MODEL) $(if $(CLUSTER),--cluster $(CLUSTER)) $(if $(BATCH),--batch $(BATCH)) $(ARGS)

.PHONY: help solve compare test lint bench bench-sharding bench-piper bench-placement bench-schedule check-schedules clean
.DEFAULT_GOAL := help

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "variables: MODEL=$(MODEL) CLUSTER=$(CLUSTER) BATCH=$(BATCH) ARGS=$(ARGS)"

solve: $(STAMP) ## prove the optimal plan of MODEL (on CLUSTER, with BATCH, options in ARGS)
	@$(BIN)/ilp-parallel solve $(JOB)

compare: $(STAMP) ## compare named heuristics with the optimum, of MODEL if given, else of the benchmark set
	@$(BIN)/ilp-parallel compare $(if $(filter file,$(origin MODEL)),$(COMPARED) $(ARGS),$(JOB))

test: lint ## lint, types and tests
	$(BIN)/python -m pytest -n auto

lint: $(STAMP) ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP) ## the benchmark of the README
	@$(BIN)/python benchmarks/bench.py $(ARGS)

bench-sharding: $(STAMP) ## contest instances of operator sharding (folder IOPDDL_DATA)
	@$(BIN)/python benchmarks/sharding.py $(ARGS)

bench-piper: $(STAMP) ## public inputs of Piper beside its published values (folder PIPER_DATA)
	@$(BIN)/python benchmarks/piper.py $(ARGS)

bench-schedule: $(STAMP) ## pipeline schedules against bounds (file ZERO_BUBBLE_CASES; tables in ARGS)
	@$(BIN)/python benchmarks/schedule.py $(ARGS)

check-schedules: $(STAMP) ## 10,000 random schedules: event simulator against the rules of the family
	@SCHEDULES_TO_COMPARE=10000 $(BIN)/python -m pytest tests/problems/test_schedule.py -k simulator

bench-placement: $(STAMP) ## public device placements, ours against the published value (folder PLACEMENT_DATA)
	@$(BIN)/python benchmarks/placement.py $(ARGS)

clean: ## remove the environment, caches and builds
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "needs Python 3.10 to 3.13 with venv; set PYTHON=..." >&2; exit 1; }
	@echo "setting up $(VENV)" >&2
	@"$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' >&2
	@touch $@
