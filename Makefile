SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup demo test soak check bench clean

BIN := .venv/bin
# scripts/setup leaves the Java it found here; recipes read it when they run, not when make starts.
JAVA := export JAVA_HOME="$$(cat .venv/java-home)";
# The longest first: two workers take file by file, and a long one begun last would keep one of them waiting.
SUITES = $(wildcard tests/recovery tests/end_to_end tests/capture tests/house tests/conformance tests/rights tests/api tests/kit tests/unit)
TWO = -n 2 --dist loadfile --no-loadscope-reorder

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv from requirements.lock and find Java 17+
	@scripts/setup

demo: setup ## run the example shop from message to proof
	@$(JAVA) $(BIN)/python -m examples.shop.demo

check: setup ## lint, format and types, without running anything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check ## check, then every test but the long ones
	@$(JAVA) $(BIN)/python -m pytest -q -m "not soak" $(TWO) --durations=10 $(SUITES)

soak: setup ## the long tests
	@$(JAVA) $(BIN)/python -m pytest -q -m soak tests

bench: setup ## measure and compare with the recorded numbers
	@$(JAVA) $(BIN)/tidings bench

clean: ## remove what setup, tests, demo and bench made
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build spark-warehouse metastore_db derby.log
	rm -rf examples/*/data examples/*/drop examples/*/secrets examples/*/tombstones.jsonl
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
