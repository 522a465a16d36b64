# Everything a contributor types. Needs Python 3.11, make and a C++ compiler; the rest goes into .venv.

BIN := .venv/bin

# The newest setup is known by a checksum of what it was made from, so that it is made once and after each change.
CONTRIB := $(wildcard contrib/*/pyproject.toml)
STAMP := .venv/.setup-$(shell cat pyproject.toml constraints.txt $(CONTRIB) $(wildcard kernels/cpu/*.cpp kernels/cpu/*.h) | cksum | cut -d' ' -f1)
IS_USABLE := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
HAS_PIP := -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))'
PYTHON = $(shell for p in python3.11 python3; do "$$p" $(IS_USABLE) 2>/dev/null && echo "$$p" && break; done)

# pip talks into a log; its last words are shown when it fails.
INSTALL := $(BIN)/python -m pip install --progress-bar off -c constraints.txt
LOGGED := >> .venv/setup.log 2>&1 || \
	{ tail -n 20 .venv/setup.log >&2; echo "setup: failed; the whole story is in .venv/setup.log" >&2; exit 1; }

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup run serve test test-fast check format clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

setup: $(STAMP)  ## make .venv with the engine, its tools and what is in contrib/

$(STAMP):
	@test -n "$(PYTHON)" || { echo "switchgear needs Python 3.11 or newer: install it, then run make again." >&2; exit 1; }
	@$(BIN)/python $(HAS_PIP) 2>/dev/null || \
		{ echo "setup: making .venv with $(PYTHON)"; $(PYTHON) -m venv --clear .venv; }
	@rm -f .venv/.setup-* .venv/setup.log
	@echo "setup: installing switchgear and its tools (once; takes minutes)"
	@$(INSTALL) --upgrade pip setuptools $(LOGGED)
	@$(INSTALL) --no-build-isolation -e '.[dev]' $(patsubst %/pyproject.toml,-e %,$(CONTRIB)) $(LOGGED)
	@touch $@

run: setup  ## stream answers to a few prompts from a small model
	@echo "run: a small model answers a few prompts"
	@$(BIN)/switchgear demo

serve: setup  ## serve the same model with OpenAI's API on 127.0.0.1:8000
	@$(BIN)/switchgear serve --model smollm2-135m --host 127.0.0.1 --port 8000

test: setup  ## run the whole suite
	@echo "test: the whole suite"
	@$(BIN)/python -m pytest -n auto

test-fast: setup  ## run the suite without the slow tests
	@echo "test: the suite without the slow tests"
	@$(BIN)/python -m pytest -n auto -m "not slow"

check: setup  ## format, lint, types and the design guards
	@echo "check: format"
	@$(BIN)/ruff format --check --quiet .
	@echo "check: lint"
	@$(BIN)/ruff check --quiet .
	@echo "check: types"
	@$(BIN)/mypy
	@echo "check: types of tests and contrib"
	@MYPYPATH=$(subst $() ,:,$(dir $(CONTRIB)) tests/bench/scheduling tests/bench/server tests/bench/experiments) $(BIN)/mypy tests $(dir $(CONTRIB))
	@echo "check: guards of the design"
	@$(BIN)/python -m pytest -q -m "not slow" tests/guards

format: setup  ## rewrite files in the project's format and fix what lint can
	@echo "format: rewriting files"
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:  ## remove .venv, builds and caches
	@echo "clean: removing .venv, builds and caches"
	@rm -rf .venv build dist *.egg-info contrib/*/build contrib/*/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
