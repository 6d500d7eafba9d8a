# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all lint bench install clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml requirements/lock.txt scripts/install.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash scripts/install.sh

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -m "not slow and not gpu"

test-all: lint
	$(BIN)/pytest

demo: install
	$(BIN)/python -m api.demo

bench: install
	$(BIN)/python -m benchmarks.cpu
	$(BIN)/python -m benchmarks.service

clean:
	rm -rf $(VENV)
