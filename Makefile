# `make demo` and `make test` set up all they need. Everything they install lies in .venv, .build and target.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
PYTHON := .venv/bin/python
CARGO := cargo
FUZZ_SECONDS ?= 60
# Tests wait more than they compute.
TESTS_AT_ONCE ?= $(shell expr 3 '*' $$(nproc))
# Tests start Python thousands of times: it keeps what it has compiled, and numpy makes no threads.
export PYTHONDONTWRITEBYTECODE :=
export OPENBLAS_NUM_THREADS := 1

.PHONY: help setup build demo test unit system numba-suite model fuzz soak lint deny bench-gpu figures install clean

help: ## This list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: ## CRIU and the Python packages, in private directories
	scripts/setup

build: ## The binaries, in target/release
	$(CARGO) build --release --locked

demo: setup build ## Train, checkpoint, kill, restore: the losses go on bit for bit
	$(PYTHON) scripts/demo

test: unit system ## Every test

# The interpreter itself, and no script that looks for one.
unit: export PATH := $(CURDIR)/.venv/bin:$(PATH)
unit: export RUST_TEST_THREADS := $(TESTS_AT_ONCE)
unit: setup build ## Tests of the crates
	scripts/containers
	$(CARGO) test --release --locked --workspace

system: setup build ## Whole programs through the real binaries, on the emulated GPU
	scripts/chromium || echo "tests with a browser will be skipped" >&2
	scripts/in_memory $(PYTHON) -m pytest tests -q -n $(TESTS_AT_ONCE) --dist worksteal
	scripts/in_memory $(PYTHON) -m pytest python/tests -q -n $(TESTS_AT_ONCE) --dist worksteal

numba-suite: setup build ## All of numba-cuda's own tests; writes their table in docs/compatibility.md
	$(PYTHON) tests/numba_suite/run.py

model: ## The ring, in every interleaving that loom can make, and under valgrind
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 $(CARGO) test --release -p rekindle-ring --test model --target-dir target/loom
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="valgrind --quiet --error-exitcode=9" $(CARGO) test --release --locked -p rekindle-ring --test stress

fuzz: ## Each fuzz target for FUZZ_SECONDS, from its corpus
	scripts/fuzz $(FUZZ_SECONDS)

lint: setup ## rustfmt, clippy, ruff, mypy, the order of the daemon's folders, examples that are tested, tables as the results say
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy --config-file python/pyproject.toml
	scripts/layers
	scripts/doctests
	benches/gpu/report --check

soak: build ## Thousands of generations: SOAK="--count 20000 --seed 1 --jobs 16 --out report.json"
	scripts/soak generations $(SOAK)

deny: ## Licences and sources of dependencies
	scripts/deny

bench-gpu: build ## What benches/gpu/run measures on one NVIDIA GPU; docs/benchmarks.md has the other commands
	benches/gpu/run --out benches/gpu/results/$$(date -u +%Y-%m-%d).json

figures: setup ## The tables and pictures of docs/benchmarks.md from the checked-in results
	benches/gpu/report
	.venv/bin/pip install --quiet matplotlib==3.10.*
	$(PYTHON) benches/gpu/plot

install: setup build ## Into PREFIX (default /usr/local)
	scripts/install $${PREFIX:-/usr/local}

clean: ## Everything that was built or set up
	rm -rf target .venv .build
