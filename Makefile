# make demo    install, then a small grid of several workloads and implementations, ending with the table
# make test    style, types, and all tests but those marked long
# make long    the tests marked long. CI runs both
# make docs    are the pages that are made from the code up to date, and does each say what is so?
# make quick   what to run while working: style, and the tests that take seconds
# All make their own environment in .venv first. TORCH=2.6 ... 2.13 chooses another torch, with its own Triton.
TORCH ?= 2.13
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PINS := constraints/torch-$(TORCH).txt
INSTALLED := $(VENV)/installed-torch-$(TORCH)

# 60 s of CPU at most; what costs more, as the YAML of every option, is in make test
QUICK := tests/records tests/store tests/findings tests/config tests/cli/test_cli.py tests/models tests/report/test_terminal.py \
	tests/api/test_frame.py tests/docs/test_architecture.py tests/measure/test_trace.py tests/measure/test_why.py \
	$(addprefix --ignore=tests/,config/test_conf.py config/test_earlier.py config/test_quick.py config/test_unfold.py \
	models/test_mlp.py models/test_training.py store/test_session.py)

.PHONY: demo test long docs quick lint types tests clean

demo: $(INSTALLED)
	$(BIN)/python -m runner +experiment=demo -m

test: $(INSTALLED)
	$(MAKE) --no-print-directory --jobs=3 lint types tests

tests: $(INSTALLED)
	$(BIN)/python -m pytest -n 4 -m 'not long'

long: $(INSTALLED)
	$(BIN)/python -m pytest -n 4 -m long

docs: $(INSTALLED)
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m pytest -n 2 tests/docs

quick: $(INSTALLED) lint
	$(BIN)/python -m pytest -q -n 2 -m 'not gpu and not long' $(QUICK)

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
