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

# What pip needs to compile the C++ core; without the check its answer would be a page long.
$(VENV)/.compiler: $(VENV)/.made
	@for c in $${CXX:-c++ g++ clang++}; do command -v "$$c" >/dev/null && exit 0; done; echo "headstart compiles its core and found no C++ compiler; install one, e.g. apt-get install g++" >&2; exit 1
	@$(BIN)/python -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || { echo "headstart compiles its core and found no Python.h; install Python's headers, e.g. apt-get install python3-dev" >&2; exit 1; }
	@touch $@

SOURCES := pyproject.toml CMakeLists.txt $(wildcard csrc/*.*)

$(VENV)/.installed: $(SOURCES) $(VENV)/.compiler
	$(BIN)/pip install -q -e '.[plot]'
	@touch $@

# torch first, on its own: the spelling in TORCH decides which build is taken, and the extras below then leave it alone.
$(VENV)/.dev: $(SOURCES) $(VENV)/.compiler
	$(BIN)/pip install -q $(foreach word,$(TORCH),'$(word)')
	$(BIN)/pip install -q -e '.[transformers,plot,dev]'
	@touch $(VENV)/.installed $@

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
