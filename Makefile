# The few verbs of this project; CI calls the same ones.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find shardbroker acceptor shm perf -name '*.py[x]' -o -name '*.pxd') pyproject.toml setup.py

.PHONY: install serve test conformance lint types fuzz sim debug docs clean

install: $(VENV)/.installed

$(VENV)/.installed: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip "setuptools>=80" "Cython>=3.3,<3.4"
	$(BIN)/pip install --quiet --no-build-isolation --editable ".[test,dev]"
	touch $@

serve: install
	$(BIN)/shardbroker serve

test: install lint
	$(BIN)/pytest -q
	$(BIN)/python -m tests.conformance.coverage

conformance: install
	$(BIN)/pytest -q tests/conformance $(if $(BROKER),--broker $(BROKER))
	$(BIN)/python -m tests.conformance.coverage

lint: install
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy

docs: install
	$(BIN)/shardbroker config reference > docs/configuration.md

clean:
	rm -rf build dist *.egg-info
	find shardbroker acceptor shm perf -name '*.so' -delete -o -name '*.c' -delete
	rm -f $(VENV)/.installed
