# commonwatt: `make demo` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= out/demo
WORKERS ?= auto
# What installs packages into the environment of a Python. CI sets UV to a uv: the same packages, sooner.
install = $(if $(UV),$(UV) pip install --python $(1),$(1) -m pip install) -q -c constraints.txt
SHARED := -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
# Compiled modules are kept even where that is switched off: it halves the time to collect the tests.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo demo-week fast test test-all stranger soak lint types docs wheel-test peers-test bench bench-check bench-check-quick claims clean venv \
	image-lock

# A day of jobs, in under a minute; then a week, in some minutes.
demo: $(VENV)/.core
	$(BIN)/commonwatt simulate examples/demo.yaml --out $(OUT) --overwrite
	@echo "open $(OUT)/report.html"

demo-week: $(VENV)/.core
	$(BIN)/commonwatt simulate examples/demo-week.yaml --out $(OUT)-week --overwrite
	@echo "open $(OUT)-week/report.html"

# While you work: no servers, nothing slow. Under 90 seconds on two quiet cores.
fast: $(VENV)/.dev
	$(BIN)/python -m pytest -q $(SHARED) -m "not (slow or long or slurm or kubernetes or database or browser)"

# Before you push: eight minutes on two quiet cores. Tests whose server is missing are skipped.
test: $(VENV)/.dev
	$(BIN)/python -m pytest $(SHARED) -m "not long"

# Everything, as CI runs it.
test-all: $(VENV)/.dev
	$(BIN)/python -m pytest $(SHARED) --durations=25

# As on a machine without servers and without third-party data.
stranger: $(VENV)/.dev
	.ci/stranger -m "not long"

# Kills a hundred times what `make test-all` kills a few times.
soak: $(VENV)/.dev
	COMMONWATT_ROUNDS=100 $(BIN)/python -m pytest --timeout 3600 tests/controlplane/test_chaos.py tests/controlplane/test_databases.py \
		tests/controlplane/test_over_slurm.py tests/controlplane/test_over_kubernetes.py tests/controlplane/test_standby.py

venv: $(VENV)/.dev

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# The site, strictly: a warning is an error. Reference pages are generated from the code (docs/hooks).
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "serve it with: $(BIN)/python -m http.server --directory out/docs"

$(VENV)/.docs: $(VENV)/bin/python constraints.txt pyproject.toml
	$(call install,$(BIN)/python) -e ".[docs]"
	@touch $@

# The wheel in environments of its own: without extras every verb runs, or names the extra it needs; light extras run by
# themselves, over the packages of the first; and with the tests' packages it passes what touches files and commands.
WHEEL_TESTS := cli/test_place.py cli/test_root.py cli/test_schema.py cli/test_simulate.py data model progress report \
	test_code_layout.py test_examples.py test_optional.py
LIGHT_EXTRAS := live onnx search
wheel-test: $(VENV)/.dev
	rm -rf build/wheel build/wheel-venv build/wheel-extras
	$(BIN)/python -m build --wheel --outdir build/wheel
	$(PYTHON) -m venv build/wheel-venv
	$(call install,build/wheel-venv/bin/python) build/wheel/*.whl
	for extra in $(LIGHT_EXTRAS); do \
		$(PYTHON) -m venv build/wheel-extras/$$extra && \
		ls -d $$PWD/build/wheel-venv/lib/*/site-packages \
			> "$$(echo build/wheel-extras/$$extra/lib/*/site-packages)/bare.pth" && \
		$(call install,build/wheel-extras/$$extra/bin/python) --force-reinstall --no-deps \
			build/wheel/*.whl && \
		$(call install,build/wheel-extras/$$extra/bin/python) \
			"$$(ls build/wheel/*.whl)[$$extra]" || exit 1; \
	done
	COMMONWATT_BARE=$$PWD/build/wheel-venv/bin/commonwatt COMMONWATT_EXTRAS=$$PWD/build/wheel-extras \
		$(BIN)/python -m pytest -q -n $(WORKERS) tests/test_bare_wheel.py
	$(call install,build/wheel-venv/bin/python) "$$(ls build/wheel/*.whl)[test]"
	cd build && PYTHONPATH= wheel-venv/bin/python -m pytest -q -n $(WORKERS) \
		-m "not (slow or long or browser)" --rootdir .. -c ../pyproject.toml $(addprefix ../tests/,$(WHEEL_TESTS))

# Peers that the tests' environment cannot have: neuralforecast brings Ray, which fails beside `amdsmi` of the extra `gpu`.
PEERS := peers,ray chronos
peers-test: $(VENV)/.dev
	rm -rf build/peers-venv
	for extras in $(PEERS); do \
		$(PYTHON) -m venv build/peers-venv/$$extras && \
		$(call install,build/peers-venv/$$extras/bin/python) \
			-e ".[$$extras]" hypothesis pytest pytest-timeout || exit 1; \
	done
	build/peers-venv/peers,ray/bin/python -m pytest -q -p no:cacheprovider tests/bench/test_peers.py
	for extras in $(PEERS); do \
		build/peers-venv/$$extras/bin/python -m pytest -q -p no:cacheprovider tests/test_optional.py \
			-k "$$(echo $$extras | sed 's/,/ or /')" || exit 1; \
	done

# Scores of `commonwatt bench` beside the recorded ones: ratios, no times. Fails with a table of what got worse.
bench-check: $(VENV)/.dev
	$(BIN)/commonwatt bench --check docs/data/bench.json

# The same of the first problems, with small budgets: half a minute. CI runs it.
bench-check-quick: $(VENV)/.dev
	$(BIN)/commonwatt bench --quick --check docs/data/bench-quick.json

# Pages of what was reproduced and of the leaderboard, from docs/data.
claims: $(VENV)/.dev
	$(BIN)/python docs/hooks/measured_pages.py

# What the image installs, with hashes, in the versions of constraints.txt. Needs uv and the package index.
IMAGE_LOCK = $(UV) pip compile -q --generate-hashes --no-annotate --no-header --python-version 3.11 -c constraints.txt
image-lock:
	@test -n "$(UV)" || { echo "UV: expected a uv, as in: make image-lock UV=$$(command -v uv || echo uv)"; exit 2; }
	set -e; say() { echo "# $$1, with the hashes of all their files. Made by \`make image-lock\`; versions are those of constraints.txt."; }; \
	{ say "What the image of Containerfile installs"; \
	  $(IMAGE_LOCK) --extra live --extra postgresql --extra mariadb pyproject.toml; } > deploy/image/requirements.txt; \
	{ say "What builds commonwatt's wheel for that image"; \
	  echo "hatchling>=1.25" | $(IMAGE_LOCK) -; } > deploy/image/build.txt

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.solve_time
	$(BIN)/python -m benchmarks.optimality_gap
	$(BIN)/python -m benchmarks.scheduling_cost
	$(BIN)/python -m benchmarks.device_shares
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.serving_batches
	$(BIN)/python -m benchmarks.serving_llm
	$(BIN)/python -m benchmarks.dashboard
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.market_size
	$(BIN)/python -m benchmarks.mapping
	$(BIN)/python -m benchmarks.mig_choice
	$(BIN)/python -m benchmarks.forecasting
	$(BIN)/python -m benchmarks.philly_week
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.profiling
	$(BIN)/python -m benchmarks.andreas_scenarios
	$(BIN)/python -m benchmarks.live_load

clean:
	rm -rf $(VENV) build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python constraints.txt pyproject.toml
	$(call install,$(BIN)/python) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python constraints.txt pyproject.toml
	$(call install,$(BIN)/python) \
		-e ".[test,dev,onnx,torch,serve,llm,gpu,forecast,search,rl,callbacks,live,mariadb,postgresql,docs]"
	@touch $@ $(VENV)/.core
