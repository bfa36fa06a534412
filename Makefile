# commonwatt: `make demo` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= out/demo
WORKERS ?= auto

.PHONY: demo test soak lint types docs wheel-test bench clean venv

demo: $(VENV)/.core
	$(BIN)/commonwatt simulate examples/demo.yaml --out $(OUT) --overwrite
	@echo "open $(OUT)/report.html"

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --durations=25

# Everything that `make test` kills a few times, a hundred times: it takes its time.
soak: $(VENV)/.dev
	COMMONWATT_ROUNDS=100 $(BIN)/python -m pytest tests/live/test_chaos.py tests/live/test_databases.py \
		tests/live/test_over_slurm.py

venv: $(VENV)/.dev

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/commonwatt schema --dictionary > docs/dictionary.csv

# The wheel alone, in an environment of its own and without extras, passes the tests of what touches files and commands.
WHEEL_TESTS := cli/test_place.py cli/test_root.py cli/test_schema.py cli/test_simulate.py data model progress report \
	test_examples.py test_house.py test_optional.py
wheel-test: $(VENV)/.dev
	rm -rf build/wheel build/wheel-venv
	$(BIN)/python -m build --wheel --outdir build/wheel
	$(PYTHON) -m venv build/wheel-venv
	build/wheel-venv/bin/python -m pip install -q -c constraints.txt build/wheel/*.whl "$$(ls build/wheel/*.whl)[test]"
	cd build && PYTHONPATH= wheel-venv/bin/python -m pytest -n $(WORKERS) -m "not slow and not browser" \
		--rootdir .. -c ../pyproject.toml $(addprefix ../tests/,$(WHEEL_TESTS))

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.solve_time
	$(BIN)/python -m benchmarks.optimality_gap
	$(BIN)/python -m benchmarks.scheduling_cost
	$(BIN)/python -m benchmarks.device_shares
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.dashboard
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.market_size
	$(BIN)/python -m benchmarks.mapping
	$(BIN)/python -m benchmarks.mig_choice
	$(BIN)/python -m benchmarks.forecasting
	$(BIN)/python -m benchmarks.philly_week
	$(BIN)/python -m benchmarks.profiling
	$(BIN)/python -m benchmarks.andreas_scenarios
	$(BIN)/python -m benchmarks.live_load

clean:
	rm -rf $(VENV) build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python constraints.txt pyproject.toml
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python constraints.txt pyproject.toml
	$(BIN)/python -m pip install -q -c constraints.txt \
		-e ".[test,dev,onnx,torch,serve,gpu,forecast,search,rl,callbacks,live,mariadb,postgresql]"
	@touch $@ $(VENV)/.core
