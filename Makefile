# make demo    install, then a small grid of several workloads and implementations, ending with the table
# make test    style, types, and all tests but those marked long
# make long    the tests marked long. CI runs both
# make quick   what to run while working: style, and the tests that take seconds
# All make their own environment in .venv first. TORCH=2.6 ... 2.13 chooses another torch, with its own Triton.
TORCH ?= 2.13
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PINS := constraints/torch-$(TORCH).txt
INSTALLED := $(VENV)/installed-torch-$(TORCH)

.PHONY: demo test long quick lint types tests clean

demo: $(INSTALLED)
	$(BIN)/python -m runner +experiment=demo -m

test: $(INSTALLED)
	$(MAKE) --no-print-directory --jobs=3 lint types tests

tests: $(INSTALLED)
	$(BIN)/python -m pytest -n 4 -m 'not long'

long: $(INSTALLED)
	$(BIN)/python -m pytest -n 4 -m long

quick: $(INSTALLED) lint
	$(BIN)/python -m pytest -q -n 2 tests/config tests/cli tests/experiment tests/store tests/models tests/report/test_derive.py \
		tests/report/test_terminal.py tests/report/test_frame.py tests/docs/test_house.py tests/measure/test_trace.py tests/measure/test_why.py -m 'not gpu'

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(INSTALLED)
	$(if $(filter 2.13,$(TORCH)),$(BIN)/mypy,@echo "types are checked against torch 2.13 alone: older ones lack names")

$(INSTALLED): pyproject.toml constraints/base.txt $(PINS)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	@echo 'Installing torch $(TORCH) and this project into $(VENV), once: some minutes, and some GB of disk'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(PINS) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
