# The two commands: `make demo`, `make test`. Both work on a fresh machine with Python 3.11+, a C++ compiler and make.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test check bench docs clean
.DELETE_ON_ERROR:

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "headstart needs Python 3.11 or newer; point PYTHON at one: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing; install it, e.g. apt-get install python3-venv" >&2; exit 1; }
	@touch $@

# torch first, on its own: the spelling in TORCH decides which build is taken, and the extras below then leave it alone.
$(VENV)/.installed: pyproject.toml $(VENV)/.made
	$(BIN)/pip install -q $(foreach word,$(TORCH),'$(word)')
	$(BIN)/pip install -q -e '.[transformers,plot]'
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/pip install -q -e '.[transformers,plot,dev]'
	@touch $@

demo: $(VENV)/.installed
	@$(BIN)/headstart models fetch smollm2
	@$(BIN)/python examples/demo.py

test: $(VENV)/.dev
	@$(BIN)/headstart models fetch smollm2
	$(BIN)/python -m pytest

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python benches/bench_generate.py

docs: $(VENV)/.dev
	$(BIN)/python -m headstart.cli.reference > docs/commands.md

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
