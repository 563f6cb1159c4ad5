# Tidepool. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
STAMP := build/.setup

export PYTHONPATH := e2e

.PHONY: help docs vendor pictures lock setup lint unit test bench sim sim-workflow bench-router bench-scaling bench-operator bench-full bench-workflow bench-tables bench-page soak manifests pages flags demo down clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make the virtual environment in .venv from requirements.lock

$(STAMP): pyproject.toml requirements.lock
	@echo "setup: virtual environment in $(VENV)"
	@test -x $(BIN)/uv || test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/pip install -q --disable-pip-version-check "$$(grep -oE '^uv==[^ ]+' requirements.lock)"
	@$(BIN)/uv pip install -q --require-hashes -r requirements.lock
	@$(BIN)/uv pip install -q --no-deps -e .
	@mkdir -p build && touch $@

vendor: setup ## Take the console's chart library from its npm package again (VERSION=, else the one that is there)
	PYTHONPATH=tests:e2e $(BIN)/python -m scripted.vendor $(VERSION)

pictures: setup ## Take pictures of the console of a made-up cluster into build/pictures, in a headless Chromium
	PYTHONPATH=tests:e2e $(BIN)/python -m scripted.pictures

docs: setup ## Build the site of the documentation into build/site; a link or anchor that leads nowhere is an error
	PYTHONPATH=tests:e2e $(BIN)/python -m scripted.site
	$(BIN)/zensical build --clean --strict

lock: setup ## Resolve the dependencies again into requirements.lock
	$(BIN)/uv pip compile -q pyproject.toml --all-extras --universal --generate-hashes --upgrade \
	  --no-emit-package tidepool --no-emit-index-url --no-header -o requirements.lock

lint: setup ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Bytecode is kept, and in build/, also where the environment asks for none: else each worker compiles five thousand
# modules anew, which is half of its time.
unit: export PYTHONDONTWRITEBYTECODE :=
unit: export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache
unit: setup ## Tests that need neither cluster nor engine
	$(BIN)/pytest -q -n 3 --dist loadfile -m "not apiserver and not cluster and not engine and not postgres and not prometheus and not traffic and not compiled and not browser and not bench" tests

manifests: setup ## Generate CRDs, rules and what the chart copies from them
	$(BIN)/python -m tidepool_api.manifests

pages: setup ## Write the table of reasons into docs/operations.md
	$(BIN)/python -m tidepool_operator.pages docs/operations.md

flags: setup ## Generate the table of vLLM's flags from the engine itself
	$(BIN)/python -m cluster.engine_flags

test: lint unit ## Every test: unit, real API server, real vLLM, the real cluster end to end
	$(BIN)/python -m cluster check
	$(BIN)/python -m cluster prepare
	$(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "(apiserver or engine or postgres or prometheus or cluster or traffic or compiled or browser) and not bench and not soak" tests
	$(BIN)/pytest -q -s -m "not soak" e2e

bench: bench-router bench-scaling bench-workflow bench-operator ## What router, workflows and operator cost, and scaling policies; JSON under build/bench

bench-scaling: setup ## Scaling policies on recorded demand that tuning never saw; minutes of one core (JOBS=2)
	PYTHONPATH=tests:e2e $(BIN)/python -m scaling.forecasts
	PYTHONPATH=tests:e2e $(BIN)/python -m scaling.looks
	PYTHONPATH=tests:e2e $(BIN)/python -m scaling $(if $(JOBS),--jobs $(JOBS))

bench-router: setup ## What the router costs beside its peers, at most 20 minutes (QUICK=1: one short round)
	PYTHONPATH=tests:e2e $(BIN)/python -m bench $(if $(QUICK),--quick)

bench-operator: setup ## The operator with 500 pools and 5,000 pods beside a plain one; two minutes of rest (MINUTES=); root
	PYTHONPATH=tests:e2e $(BIN)/python -m bench.operators $(if $(MINUTES),--minutes $(MINUTES))

bench-full: setup ## Longer runs, all works, and live quality over simulated engines, workflows too; about 90 minutes
	PYTHONPATH=tests:e2e $(BIN)/python -m bench --full
	PYTHONPATH=tests:e2e $(BIN)/python -m bench.quality
	PYTHONPATH=tests:e2e $(BIN)/python -m bench.live_workflows
	PYTHONPATH=tests:e2e $(BIN)/python -m bench.operators --minutes 10
	PYTHONPATH=tests:e2e $(BIN)/python -m scaling --full --seeds 3 $(if $(JOBS),--jobs $(JOBS))

# A figure that is missed ends its command with 1 and must not keep the others from being measured.
bench-tables: setup ## Every table of the router: cost, soak, live quality, simulator; 90 minutes of a quiet machine (JOBS=2)
	-PYTHONPATH=tests:e2e $(BIN)/python -m bench
	-PYTHONPATH=tests:e2e $(BIN)/python -m bench.soak
	-PYTHONPATH=tests:e2e $(BIN)/python -m bench.quality --rounds 2
	-PYTHONPATH=tests:e2e $(BIN)/python -m sim.validate
	-PYTHONPATH=tests:e2e $(BIN)/python -m sim $(if $(JOBS),--jobs $(JOBS))
	-PYTHONPATH=tests:e2e $(BIN)/python -m sim --tables gateways --rates 1 --only Predicted --seeds 20 \
	  --out build/bench/sim-gateways.json $(if $(JOBS),--jobs $(JOBS))
	PYTHONPATH=tests:e2e $(BIN)/python -m bench.page

bench-workflow: setup ## What workflows cost a step on both stores, policies in the simulator, gateways killed at every boundary (JOBS=2)
	PYTHONPATH=tests:e2e $(BIN)/python -m bench.workflows
	PYTHONPATH=tests:e2e $(BIN)/python -m sim.agents $(if $(JOBS),--jobs $(JOBS))
	PYTHONPATH=tests:e2e $(BIN)/pytest -q -s -m postgres tests/router/workflow/test_takeover.py -k killed_at_every

bench-page: setup ## Keep the last results in tests/bench/results and write docs/benchmarks.md from them
	PYTHONPATH=tests:e2e $(BIN)/python -m bench.page

sim: setup ## Routing quality in the simulator: minutes of one core; JSON under build/bench/sim.json (JOBS=2)
	PYTHONPATH=tests:e2e $(BIN)/python -m sim $(if $(JOBS),--jobs $(JOBS))

sim-workflow: setup ## Workflows under the router's policy and others, in the simulator; JSON under build/bench (JOBS=2)
	PYTHONPATH=tests:e2e $(BIN)/python -m sim.agents $(if $(JOBS),--jobs $(JOBS))

soak: setup ## What takes longer than make test may: a million requests, many examples of each property, long scenarios (ROLLOUT_SECONDS=), the oldest Kubernetes
	PYTHONPATH=tests:e2e $(BIN)/python -m bench.soak
	PYTHONPATH=tests:e2e $(BIN)/python -m bench.workflows --minutes 30
	$(BIN)/pytest -q -n 2 --hypothesis-profile soak -m "hypothesis and not compiled" tests
	-@$(BIN)/uv pip install -q --require-hashes -r tests/fuzz/requirements.txt
	PYTHONPATH=tests:e2e $(BIN)/python -m fuzz
	@test -x build/llamaindex/bin/python || $(BIN)/uv venv -q build/llamaindex
	@$(BIN)/uv pip install -q --python build/llamaindex/bin/python --require-hashes -r examples/clients/llamaindex.lock
	$(BIN)/pytest -q -m "(compiled or engine or postgres or apiserver or browser or traffic) and soak" tests
	$(BIN)/pytest -q -s -m soak e2e
	TIDEPOOL_KUBERNETES=oldest $(BIN)/pytest -q -n 2 --dist loadfile -m "apiserver and not soak" tests

demo: setup ## A real cluster, the chart, a ModelPool on vLLM, a streamed chat, load, 1 -> 2 -> 1 (CONTEXT=, IMAGES=)
	@$(BIN)/python -m scenarios.demo $(if $(CONTEXT),--context $(CONTEXT)) $(if $(IMAGES),--images $(IMAGES)) \
	  $(if $(TAG),--tag $(TAG)) $(if $(POOL),--pool $(POOL)) $(if $(PROMETHEUS),--prometheus $(PROMETHEUS))

down: ## Remove every trace of the demo's cluster
	@$(PYTHON) -m cluster down

clean: ## Remove build/ and the virtual environment
	rm -rf build $(VENV)
