# Everything a person does with a checkout. No root, no containers, no services needed.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

WORKERS ?= 5
PYTEST := $(BIN)/python -m pytest

# Where Python is told to write no bytecode, each process of the tests and each worker would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install up test test-fast test-long check check-workflows docs bench kube-assets node node-assets protos engine openstack-client clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | awk -F '\t' '{printf "make %-16s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.12 …")'
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { echo "no venv module: sudo apt install python3-venv" >&2; rm -rf $(VENV); exit 1; }

# Stamps, so that what is installed already costs nothing.
$(VENV)/installed: pyproject.toml requirements.lock | $(BIN)/python
	@$(BIN)/python tools/install.py requirements.lock .
	@$(BIN)/python -m moorage.cli.up.warm
	@touch $@

$(VENV)/developed: requirements-dev.lock testkit/pyproject.toml $(VENV)/installed
	@$(BIN)/python tools/install.py requirements-dev.lock testkit
	@$(BIN)/python -m compileall -q services shared testkit
	@$(PYTEST) --collect-only -q >/dev/null || true # compiles the tests, once for all processes that run them
	@touch $@

install: $(VENV)/installed ## make .venv with the command .venv/bin/moorage

up: $(VENV)/installed ## run a whole mesh with the example; Ctrl-C stops it
	@exec $(BIN)/moorage up --example

# Most tests wait most of their time, so there are more processes than cores; one of them runs those that only compute.
test: $(VENV)/developed ## run the tests in parallel (ARGS="-k name" for some, WORKERS=0 for one process)
	$(PYTEST) -n $(WORKERS) $(ARGS)

test-fast: $(VENV)/developed ## run unit, bus and contract tests and one end-to-end test
	$(PYTEST) -n $(WORKERS) $(ARGS) tests/contract tests/e2e/test_commands.py tests/mesh/test_bus.py \
		tests/mesh/test_bus_losses.py tests/unit

test-long: $(VENV)/developed ## run what takes long: property tests with 50 times the examples, and tests with many seeds
	MOORAGE_TEST_EXAMPLES=50 $(PYTEST) -n $(WORKERS) -m "long or hypothesis" --timeout 3600 $(ARGS)

check: $(VENV)/developed ## formatting, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-workflows: ## lint the GitHub workflows (needs Go)
	go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.7

docs: $(VENV)/installed ## make the pages that are made from tables in code
	$(BIN)/python -c 'from moorage.mesh import discovery, docs; print(end=docs.markdown(discovery.installed()))' >docs/subjects.md
	$(BIN)/python -c 'from moorage.model import reasons; print(end=reasons.markdown())' >docs/reasons.md

bench: $(VENV)/developed ## measure everything, or NAME=one of them; writes bench.json
	$(BIN)/python -m tests.bench $(NAME)

kube-assets: $(VENV)/developed ## build etcd, Kubernetes, kwok and helm for tests, once, into the user's cache
	@$(BIN)/python tools/kube_assets.py

node: $(VENV)/installed ## add what the node agent needs to .venv: the extra moorage[node]
	@$(BIN)/python tools/install.py requirements-node.lock .

node-assets: $(VENV)/developed ## get containerd, runc, a kubelet and a plugin in Go for tests of the node agent, once, into the user's cache
	@$(BIN)/python tools/node_assets.py

engine: $(VENV)/developed ## as root: get a container engine for tests/compose, once, into the user's cache
	@$(BIN)/python tools/container_engine.py

openstack-client: $(VENV)/developed ## install the OpenStack client for tests, once, into the user's cache
	@$(BIN)/python -m moorage_testkit.openstack_client

protos: $(VENV)/developed ## make the message types of the node agent from their .proto files
	$(BIN)/python -m grpc_tools.protoc -I services --python_out=services --pyi_out=services services/moorage/node/api/*.proto

clean: ## remove what was built, .venv too; state of a mesh stays
	rm -rf $(VENV) build dist bench.json .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
