# make quickstart   train, fine-tune and generate on this machine
# make check        format, lint, types and the tests that need no torch, before each commit
# make lint         format, lint, and types for Python 3.11, 3.12 and 3.13
# make test         all tests
# make bench        how fast, next to other programs: ratios of one run
# make docs         the site of docs/, in site
# make clean        remove what the others made
# All but the last install what they need into .venv, which they make; PYTHON=python3.12 chooses its Python.
# make check installs 0.4 GB, without torch; the others 2.6 GB.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest
# Hundreds of processes of the tests import zerokit: it is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart check test browser lint bench docs clean

quickstart: $(VENV)/.installed
	@$(BIN)/zerokit quickstart

# torch is absent, or not: its types are left to make lint.
check: $(VENV)/.installed-test
	$(BIN)/ruff check zerokit launch tests tools
	$(BIN)/ruff format --check zerokit launch tests tools
	@# Types beside the tests: mypy keeps one core busy for half a minute.
	$(BIN)/mypy --ignore-missing-imports --no-warn-unused-ignores --allow-subclassing-any --allow-untyped-decorators --no-warn-return-any & types=$$!; \
	$(PYTEST) -q -m "not torch and not rehearsal and not distributed and not gpu and not slow" --hypothesis-profile=quick -n 2 --dist worksteal; \
	tests=$$?; wait $$types && exit $$tests

test: $(VENV)/.installed-dev browser
	@# Half of the files each, in order: what a file's tests share, such as a process with DeepSpeed in it, is
	@# made once. Who is done first takes half of what the other has left.
	$(PYTEST) -m "not distributed" -n 2 --dist worksteal
	@# A test of two ranks is two processes already, but they wait for each other, and for launchers.
	@# Files of few tests come first, which are long ones.
	$(PYTEST) -m distributed -n 2 --dist loadfile --no-loadscope-reorder

# Pages are tested in Chromium. Without it these tests are skipped, except in CI, where they fail.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing chromium, in which pages are tested"; \
		(apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium) >/dev/null 2>&1 || true; \
	fi

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check zerokit launch tests tools
	$(BIN)/ruff format --check zerokit launch tests tools
	$(BIN)/mypy
	$(BIN)/vermin --target=3.11- --no-tips --violations --quiet zerokit launch
	$(BIN)/mypy --python-version 3.12
	$(BIN)/mypy --python-version 3.13

bench: $(VENV)/.installed-dev
	$(BIN)/python -m tests.validation.benchmarks.start_time
	$(BIN)/python -m tests.validation.benchmarks.estimate
	$(BIN)/python -m tests.validation.benchmarks.rehearsal_speed
	$(BIN)/python -m tests.validation.benchmarks.generate_speed

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "zerokit needs Python 3.11, 3.12 or 3.13, and this is %d.%d: run make PYTHON=python3.12" % v)'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing zerokit, and what checks and the tests without torch need"
	@$(PIP) --editable '.[checkpoint,test]'
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@# torch alone first: DeepSpeed's setup looks for it.
	@echo "Installing torch into $(VENV): some minutes, most of them to download it"
	@$(PIP) torch
	@echo "Installing zerokit with all of its extras: DeepSpeed, transformers, datasets and more"
	@$(PIP) --editable '.[all]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing what tests and checks need"
	@$(PIP) --editable '.[dev]'
	@touch $@

docs: $(VENV)/.installed-dev
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

clean:
	rm -rf $(VENV) runs build dist site
