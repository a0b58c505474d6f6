# Each target does its own set-up: from a bare clone with Python 3.11, `make demo` or `make test` is all there is to type.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
VENV ?= .venv
LOCK ?= requirements/lab.lock
BIN := $(VENV)/bin
PACKAGES := instrumented_connectors exporters dashboards analysis
SOURCES := $(PACKAGES) lab benchmarks tests docs

# The stamps carry a checksum of what was installed, so an environment is used again whatever a checkout did to file times,
# and made again only when the lock itself (or the project's own metadata) says something else.
LOCK_STAMP = $(VENV)/.lock-$(shell cat $(LOCK) 2>/dev/null | sha256sum | cut -c1-16)
PROJECT_STAMP = $(VENV)/.project-$(shell cat pyproject.toml $(LOCK) 2>/dev/null | sha256sum | cut -c1-16)

# The demo: one small seeded workload, through push and then through pull (three to four minutes on two cores, after the set-up).
DEMO_DIR ?= runs/demo
DEMO_REQUESTS ?= 24
DEMO_RATE ?= 0.5
DEMO_INPUT_LENS ?= 200,1000,3000
DEMO_OUTPUT_LEN ?= 32
DEMO_SEED ?= 7
DEMO_ARGS ?=
DEMO_RUN = $(BIN)/kvlens lab run --requests $(DEMO_REQUESTS) --rate $(DEMO_RATE) --input-lens $(DEMO_INPUT_LENS) \
	--output-len $(DEMO_OUTPUT_LEN) --seed $(DEMO_SEED) $(DEMO_ARGS)

# The soak: the same command for longer, for leaks and slow drifts.
SOAK_DIR ?= runs/soak
SOAK_MODE ?= push
SOAK_REQUESTS ?= 600
SOAK_RATE ?= 0.5

PYTEST_ARGS ?=
CHECK_JOBS ?= 2
CHECK_SKIP ?= engine or slow or soak
CHECK_FIRST := $(wildcard tests/analysis tests/clocks tests/compare tests/critical tests/reuse)
FAST_PYTEST = $(BIN)/python -m pytest -p no:cacheprovider -q -m "not ($(CHECK_SKIP))" $(PYTEST_ARGS)
BENCH_ARGS ?=

.PHONY: help env debian demo test check check-first check-rest bench soak format lint typecheck docs clean distclean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

env: $(PROJECT_STAMP) ## make or bring up to date the environment in .venv

$(LOCK_STAMP):
	@test -f $(LOCK) || { echo "Error: $(LOCK) is missing. Try: restore it from the repository." >&2; exit 2; }
	@command -v $(PYTHON) >/dev/null || { echo "Error: $(PYTHON) not found. Try: install Python 3.11, or make PYTHON=/path/to/python3.11" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# Without --no-compile pip spends most of a minute on bytecode of modules that nobody imports.
	@echo "Installing $(LOCK) (about 5 GB, a few minutes)"
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile --no-deps -r $(LOCK)
	rm -f $(VENV)/.lock-* $(VENV)/.project-*
	touch $@

# Build isolation is off because setuptools is in the lock: this step asks the index nothing.
$(PROJECT_STAMP): $(LOCK_STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@# A left-over egg-info in the working directory would hide entry points that were added since.
	rm -rf kvlens.egg-info $(VENV)/.project-*
	touch $@

# promtool and prometheus check the exporters, chromium opens the reports. Without root the tests that need them say so and skip.
debian:
	@missing=""; \
	command -v promtool >/dev/null || missing="$$missing prometheus"; \
	command -v chromium >/dev/null || missing="$$missing chromium"; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $$missing </dev/null; \
	else \
		echo "Missing Debian packages:$$missing. Try: sudo apt-get install$$missing" >&2; \
	fi

demo: env ## the same workload through real engines in push and in pull, and where every first token's time went
	rm -rf $(DEMO_DIR)/push $(DEMO_DIR)/pull
	mkdir -p $(DEMO_DIR)
	$(DEMO_RUN) --mode push --out $(DEMO_DIR)/push
	$(DEMO_RUN) --mode pull --out $(DEMO_DIR)/pull
	$(BIN)/kvlens breakdown $(DEMO_DIR)/push $(DEMO_DIR)/pull

# First all that needs no engine, one half of it per core, then the engines one after the other with the cores to themselves.
# A failure in the first part doesn't keep the second from running: one run tells everything.
test: env debian ## everything: lint, types, and the whole suite with real engines
	@status=0; \
	$(MAKE) --no-print-directory check CHECK_SKIP="engine or soak" || status=1; \
	$(BIN)/python -m pytest -p no:cacheprovider --durations=15 -m "engine and not soak" $(PYTEST_ARGS) || status=$$?; \
	if [ $$status != 0 ]; then echo "make test: FAILED, see above"; fi; \
	exit $$status

check: env ## the fast tier: lint, types, and all tests that start no engine
	@$(MAKE) --no-print-directory -k -j$(CHECK_JOBS) -O lint typecheck check-first check-rest

# Two halves of about the same length, one per core; the tests of both start no engine and share no state.
check-first: env
	$(FAST_PYTEST) $(CHECK_FIRST)

check-rest: env
	$(FAST_PYTEST) $(addprefix --ignore=,$(CHECK_FIRST))

bench: env ## benchmarks; each prints its own reference beside the figure
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

soak: env debian ## a long seeded run, and the tests that are too long for every change
	rm -rf $(SOAK_DIR)/$(SOAK_MODE)
	mkdir -p $(SOAK_DIR)
	$(BIN)/kvlens lab run --mode $(SOAK_MODE) --requests $(SOAK_REQUESTS) --rate $(SOAK_RATE) --input-lens $(DEMO_INPUT_LENS) \
		--output-len $(DEMO_OUTPUT_LEN) --seed $(DEMO_SEED) --out $(SOAK_DIR)/$(SOAK_MODE)
	$(BIN)/kvlens breakdown $(SOAK_DIR)/$(SOAK_MODE)
	$(BIN)/python -m pytest -p no:cacheprovider -m soak $(PYTEST_ARGS)

format: env ## rewrite the sources in the house format
	$(BIN)/ruff format --quiet $(wildcard $(SOURCES))
	$(BIN)/ruff check --fix --quiet $(wildcard $(SOURCES))

lint: env ## ruff
	$(BIN)/ruff check $(wildcard $(SOURCES))

typecheck: env ## mypy, strict, on the four packages
	$(BIN)/mypy

docs: env ## write the generated pages again
	$(BIN)/python docs/generate.py

clean: ## remove caches and build outputs
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find $(wildcard $(SOURCES)) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environment and all runs too
	rm -rf $(VENV) runs
