# make help lists what can be made. Everything happens in .venv, which is set up once and again when its inputs change.

PYTHON ?= python3
PY     := .venv/bin/python
ARGS   ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
export TOKENIZERS_PARALLELISM := false

.DEFAULT_GOAL := help
.PHONY: help train test soak check lint format clean

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 12

train: .venv/ready ## A first run on the embedded example; ARGS="run.max_steps=10" is passed on
	$(PY) -m agentgrpo train +reward=retriever_aware $(ARGS)

test: lint ## Lint, types and the fast tests
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(PY) -m pytest -q -n 2 --dist loadfile $(ARGS)

soak: .venv/ready-dev ## 200 random SIGKILLs: START=FOLDER is the model to train from
	OMP_NUM_THREADS=1 $(PY) -W ignore scripts/soak/kill_loop.py --kills 200 --start "$(START)" $(ARGS)

check: test ## The same as test: what must hold before a commit

lint: .venv/ready-dev ## Style, format and types, nothing changed
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: .venv/ready-dev ## Let ruff put style and format right
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean: ## Remove the environment and caches; runs/ stays
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Debian keeps ensurepip in a package of its own; where it is missing, the system's pip fills the environment.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv || { $(PYTHON) -m venv --clear --without-pip .venv && $(PYTHON) -m pip --python $(PY) install --quiet pip; }
	$(PY) -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/ready-dev: .venv/ready
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@
