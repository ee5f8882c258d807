# Everything a checkout needs; each target prepares the virtual environment first.
PYTHON3 ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
STAMP := $(VENV)/.engram-installed

# Tests start many interpreters; without bytecode each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# Interpreters under which `make wheel` tries the wheel; those that are missing are named.
PYTHONS ?= python3.11 python3.12 python3.13
# What must pass before `make release` tags.
CHECK ?= .ci/run

.PHONY: help demo test faults style lint bench docs wheel release clean .venv

help:
	@echo "make demo    run the demonstration (engram demo)"
	@echo "make test    run all tests and doctests, JOBS=$(JOBS) processes; says which were slowest"
	@echo "make faults  kill, fill, damage and delete what runs, edit what is read: the whole campaign"
	@echo "make lint    ruff, formatting, mypy --strict (these: make style), import layers"
	@echo "make bench   speed against a bare PyTorch loop and what is recorded (RECORD=--record renews)"
	@echo "make docs    the documentation as a site in build/site, examples run"
	@echo "make wheel   build the wheel; install it and run the demonstration outside the checkout (PYTHONS)"
	@echo "make release VERSION=1.2.3  version, changelog, checks (CHECK=$(CHECK)), build, commit, tag"
	@echo "make clean   remove caches and build output (keeps $(VENV))"

# Installed once, and again when the requirements change. An existing environment is kept.
$(STAMP): pyproject.toml constraints.txt
	test -x $(PYTHON) || $(PYTHON3) -m venv $(VENV)
	# most files are never imported; the others are compiled when they first are
	$(PYTHON) -m pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	touch $@

.venv: $(STAMP)

demo: $(STAMP)
	$(BIN)/engram demo

test: $(STAMP)
	$(PYTHON) -m pytest -n $(JOBS) --dist worksteal --durations=15

faults: $(STAMP)
	$(PYTHON) -m tests.faults
	$(PYTHON) -m tests.fuzz
	ENGRAM_TRIES=1000 $(PYTHON) -m pytest tests/cli/test_bad_values.py

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src/engram

lint: style
	$(PYTHON) -m pytest tests/test_imports.py

bench: $(STAMP)
	$(PYTHON) -m benchmarks.speed $(RECORD)

# Offline, and any warning is an error.
docs: $(STAMP)
	$(PYTHON) -m pip install --quiet --no-compile -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

# A fresh environment for each interpreter, in a folder from which the checkout is not seen.
wheel: $(STAMP)
	rm -f dist/engram_cl-*.whl
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .
	set -e; for python in $(PYTHONS); do \
	  if ! $$python --version; then echo "$$python is not here: skipped"; continue; fi; \
	  place="$$(mktemp -d)"; $$python -m venv "$$place/venv"; \
	  "$$place/venv/bin/pip" install --quiet -c constraints.txt dist/engram_cl-*.whl; \
	  (cd "$$place" && env -u PYTHONPATH venv/bin/engram demo); \
	  test -s "$$place/runs/demo/report.html"; rm -rf "$$place"; \
	done

release: $(STAMP)
	$(PYTHON) -m pip install --quiet --no-compile -c constraints.txt -e '.[release]'
	$(PYTHON) .ci/release.py "$(VERSION)" --check "$(CHECK)"

clean:
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
