# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all lint bench install install-test clean

install:
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash scripts/install.sh

install-test:
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash scripts/install.sh test

demo: install
	@$(BIN)/python -m api.demo

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The quick tests; what takes longer is left to test-all.
test: lint
	$(BIN)/pytest -m "not slow and not gpu" -n 2 --dist loadfile

test-all: lint
	$(BIN)/pytest -n 2 --dist loadfile

bench: install
	$(BIN)/python -m benchmarks.cpu
	$(BIN)/python -m benchmarks.service

clean:
	rm -rf $(VENV)
