# `make run`, `make cluster` and `make test` need Python 3.11+ (and Java 17+ for the tests with Java clients) and
# nothing else: all create .venv and reuse it. Another interpreter: make PYTHON=python3.12 run
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INPUTS := pyproject.toml constraints.txt

LISTEN ?= 127.0.0.1:9092
DATA ?= data
CLUSTER ?= millrace-cluster
SECRETS ?= millrace-secrets
BROKERS ?= 3
ARGS ?=
SEEDS ?= 1-10

.PHONY: help run run-secure cluster test soak check format bench compat sim fuzz docs demo-pipeline constraints clean

help: ## show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	@echo "Creating $(VENV) ..."
	@tools/make_venv "$(PYTHON)" "$(VENV)"

# Two stamps, so that a first `make run` does not wait for the development tools.
$(VENV)/.installed-run: $(INPUTS) | $(BIN)/python
	@echo "Installing Millrace into $(VENV) ..."
	@$(PIP) install --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: $(INPUTS) | $(BIN)/python
	@echo "Installing Millrace and its development tools into $(VENV) ..."
	@$(PIP) install --constraint constraints.txt --editable '.[dev,spark,cluster,security]'
	@touch $@ $(VENV)/.installed-run $(VENV)/.installed-spark $(VENV)/.installed-cluster \
		$(VENV)/.installed-security

$(VENV)/.installed-cluster: $(INPUTS) | $(BIN)/python
	@echo "Installing Millrace and an etcd into $(VENV) ..."
	@$(PIP) install --constraint constraints.txt --editable '.[cluster,security]'
	@touch $@ $(VENV)/.installed-run $(VENV)/.installed-security

$(VENV)/.installed-security: $(INPUTS) | $(BIN)/python
	@echo "Installing Millrace and what makes certificates into $(VENV) ..."
	@$(PIP) install --constraint constraints.txt --editable '.[security]'
	@touch $@ $(VENV)/.installed-run

# Spark is large (800 MB with what it needs), so that only what uses it waits for it.
$(VENV)/.installed-spark: $(INPUTS) | $(BIN)/python
	@echo "Installing Millrace and Spark into $(VENV) ..."
	@$(PIP) install --constraint constraints.txt --editable '.[spark]'
	@touch $@ $(VENV)/.installed-run

run: $(VENV)/.installed-run ## start one broker on 127.0.0.1:9092 (LISTEN=, DATA=, ARGS="--set key=value")
	@exec $(BIN)/millrace serve --data-dir "$(DATA)" --listen "$(LISTEN)" $(ARGS)

run-secure: $(VENV)/.installed-security ## the same with TLS, logins and permissions (SECRETS=directory, LISTEN=, ARGS=)
	@test -e "$(SECRETS)/broker.toml" || $(BIN)/millrace secure init "$(SECRETS)" --listen "$(LISTEN)"
	@exec $(BIN)/millrace serve --config "$(SECRETS)/broker.toml" $(ARGS)

cluster: $(VENV)/.installed-cluster ## start an etcd and three brokers, until Ctrl-C (BROKERS=, CLUSTER=directory, ARGS=--secure)
	@exec $(BIN)/millrace cluster up --foreground --brokers $(BROKERS) --data-dir "$(CLUSTER)" $(ARGS)

test: $(VENV)/.installed-dev ## run every test, in a quarter of an hour (ARGS="-k name")
	@$(BIN)/python -m tools.run_tests $(ARGS)

soak: $(VENV)/.installed-dev ## the counts that take minutes each, which make test leaves out (ARGS="-k name")
	@$(BIN)/python -m pytest --soak tests $(ARGS)

check: $(VENV)/.installed-dev ## format, lint, types, import rules, unit tests: a minute and a half
	@$(BIN)/python -m tools.run_checks

format: $(VENV)/.installed-dev ## put the source into its format
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format .

bench: $(VENV)/.installed-dev ## measure Millrace and Apache Kafka side by side
	@$(BIN)/python -m benchmarks $(ARGS)

compat: $(VENV)/.installed-dev ## real clients and Apache Kafka's own tools against a real process
	@$(BIN)/python -m pytest tests/compat $(ARGS)

sim: $(VENV)/.installed-dev ## run whole brokers in simulated time under faults (SEEDS=1-100, ARGS="--scenario all")
	@$(BIN)/python -m millrace.sim --seeds $(SEEDS) $(ARGS)

fuzz: $(VENV)/.installed-dev ## throw damaged frames, record batches, logins and permissions at those who read them
	@$(BIN)/python -m fuzz $(ARGS)

docs: $(VENV)/.installed-dev ## write the pages that are derived from the code
	@$(BIN)/python -m tools.generate_docs

demo-pipeline: $(VENV)/.installed-spark ## a broker, generated orders, and a pipeline with its report, in a few minutes
	@$(BIN)/python -m tools.demo_pipeline $(ARGS)

constraints: $(VENV)/.installed-dev ## pin the versions of .venv in constraints.txt
	@$(BIN)/python -m tools.pin_constraints

clean: ## remove .venv and all caches; data/ stays
	@rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	@find . -name __pycache__ -prune -exec rm -rf {} +
