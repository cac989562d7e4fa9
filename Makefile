# Everything is installed into .venv/, with the versions in constraints.txt. `rm -r .venv` starts over.

PYTHON ?= python3
BIN := .venv/bin
# Tests are spread over so many processes; each computes with one thread.
WORKERS ?= logical
SENTENCE ?= The plot is thin and the jokes are old, but the two leads are a joy to watch.

# A file's tests share what they make, so one process has them all.
SPREAD = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Compiled modules are kept, wherever that is switched off: tests start dozens of processes.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-quick check test-levels test-oldest test-wheel lint native-check compile-gate docs bench \
	device-check clean

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

demo: .venv/installed-demo  ## explain one sentence, in the terminal and as build/demo.html
	@mkdir -p build
	@HF_HUB_OFFLINE=1 $(BIN)/decompx-fast explain "$(SENTENCE)" --html build/demo.html
	@echo "The same as a page: $(CURDIR)/build/demo.html"

test: .venv/installed-test  ## run the tests
	@$(BIN)/python -m pytest -q $(SPREAD)

test-quick: .venv/installed-test  ## run a few cases of each test that takes milliseconds
	@$(BIN)/python -m pytest -q $(SPREAD) --quick

check: lint test-quick  ## before a commit: style, types and the quick tests

# Where a processor's kind decides what is computed how. What this one has not runs lowered to AVX2.
LEVELS := portable avx2 avx512 avx512_bf16 amx
LEVEL_TESTS := tests/test_native.py tests/test_native_library.py tests/test_mixing_masks.py tests/test_plan.py \
	tests/test_forward.py tests/test_forward_asked.py
WAY_TESTS := tests/test_products.py tests/test_plan.py tests/test_forward.py

test-levels: .venv/installed-test  ## run the tests of what depends on the processor as each kind of it would
	@set -e; lowered=0; for level in $(LEVELS); do \
		if ! DECOMPX_FAST_CPU_LEVEL=$$level $(BIN)/python -c 'import sys; from decompx_fast import ops; \
			sys.exit(not ops.usable("native", "cpu")[0])'; then \
			test $$lowered = 1 || DECOMPX_FAST_LOWERED=1 DECOMPX_FAST_NATIVE=1 \
				$(BIN)/python setup.py -q build_ext --inplace --build-temp build/lowered; \
			lowered=1; \
		fi; \
		echo "== level $$level, lowered: $$lowered"; \
		DECOMPX_FAST_LOWERED=$$lowered DECOMPX_FAST_CPU_LEVEL=$$level \
			$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow" $(LEVEL_TESTS); \
	done
	@set -e; for way in float32=torch onednn widened native; do echo "== products by $$way"; \
		DECOMPX_FAST_PRODUCTS=$$way $(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow" $(WAY_TESTS); done

# The oldest transformers that pyproject.toml allows, beside all else that is installed.
OLDEST = $(shell sed -n 's/.*"transformers>=\([0-9.]*\)".*/\1/p' pyproject.toml)
OLDEST_TESTS := $(addprefix tests/test_,$(addsuffix .py,vision picture_similarity sounds families encoder_heads decoders \
	decoder_heads llama_like routed encoder_decoders plain_attention layoutlm sentence similarity tasks language_models))

test-oldest: .venv/installed-test  ## run the tests of architectures with the oldest transformers that is allowed
	@test -d build/transformers-$(OLDEST) || $(BIN)/python -m pip install --quiet --target build/transformers-$(OLDEST) \
		"transformers==$(OLDEST).*"
	@PYTHONPATH=build/transformers-$(OLDEST) $(BIN)/python -m pytest -q -n $(WORKERS) $(OLDEST_TESTS)

# make test-wheel PYTHONS="python3.10 python3.13"; WHEEL_ARGS=--oldest takes the oldest dependencies that are allowed.
PYTHONS ?= $(PYTHON)

test-wheel: .venv/installed-test  ## build the wheel, and explain a text with it in new environments of PYTHONS
	@rm -rf build/lib build/wheel
	@$(BIN)/python -m build --wheel --no-isolation --outdir build/wheel . > build/wheel.log || { cat build/wheel.log; exit 1; }
	@$(BIN)/python tools/check_wheel.py build/wheel/*.whl --python $(PYTHONS) $(WHEEL_ARGS)

lint: .venv/installed-test  ## check style, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

native-check:  ## the C++ kernels' own tests under the address and the thread sanitizer
	@csrc/cpu/tests/run.sh address
	@csrc/cpu/tests/run.sh thread

compile-gate: .venv/installed-test  ## compile every kernel for every architecture, without a GPU
	@$(BIN)/python tools/compile_gate.py
	@$(BIN)/python tools/nvcc_gate.py

docs: .venv/installed-docs  ## build the documentation into build/docs; a warning is an error
	@$(BIN)/python -m sphinx -q -b html -W --keep-going docs build/docs
	@echo "The documentation: $(CURDIR)/build/docs/index.html"

bench: .venv/installed-bench  ## run the benchmarks on the CPU; tables and plots go to bench/results
	@mkdir -p build
	@$(BIN)/python -m pytest -q bench/bench_kernels.py bench/bench_explain.py --benchmark-only --device=cpu \
		--benchmark-json=build/bench.json
	@$(BIN)/python bench/report.py build/bench.json --device=cpu

device-check:  ## on a machine with a GPU, with the Python that is there: tests and benchmarks, into the folder OUT
	@$(PYTHON) bench/device_check.py

clean:  ## remove build outputs and caches; .venv stays
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	@find . -path ./.venv -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# One stamp for each extra of pyproject.toml, made anew when what is to be installed or compiled has changed. First what
# it needs, PyTorch among it, then the package once more with the C++ kernels, which are compiled against that PyTorch.
.venv/installed-%: pyproject.toml setup.py constraints.txt $(wildcard csrc/cpu/*.cpp csrc/cpu/*.h) | $(BIN)/python
	@echo "Installing decompx_fast and what '$*' needs into .venv (the first time takes minutes)"
	@$(BIN)/python -m pip install --quiet -c constraints.txt setuptools wheel
	@DECOMPX_FAST_NATIVE=0 $(BIN)/python -m pip install --quiet -c constraints.txt -e ".[$*]"
	@$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps -e .
	@$(BIN)/python -c 'from decompx_fast import ops; can, reason = ops.usable("native", "cpu"); \
	can or print("Going on without the C++ kernels:", reason)'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("decompx_fast needs Python 3.10 or newer, \
	and %s is %s. Name another one: make PYTHON=python3.12 ..." % (sys.executable, sys.version.split()[0]))'
	@$(PYTHON) -m venv .venv
