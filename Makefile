# Two commands on a fresh machine, each builds its environment first:
#     make demo     a swarm on this machine that trains, is hurt, and goes on
#     make test     the whole test suite
#
# PYTHON   the interpreter that makes the environment (3.10 or later)
# VENV     where the environment lies

PYTHON ?= python3
VENV ?= .venv
PYTEST_FLAGS ?=
PYTEST := $(VENV)/bin/python -m pytest $(PYTEST_FLAGS)
STAMP := $(VENV)/.installed
BENCHES := allreduce recovery success overhead simulator emulator fidelity goodput

.PHONY: help venv demo test lint format bench others soak dist clean

help:
	@sed -n 's/^#  *//p' Makefile | head -3
	@echo 'make lint     style, types, layers, generated code'
	@echo 'make bench    every bench, against the other systems (builds their environments in .others/)'
	@echo 'make soak     what takes long: all pairs of role and phase, many more random cases, an hour of storms'
	@echo 'make dist     sdist and wheel'

venv: $(STAMP)

# Only a finished install leaves the stamp, so a broken one is done again.
$(STAMP): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: venv
	$(VENV)/bin/p2ptrain demo

# What only computes shares two processes; what starts peers, or talks to itself by network, has the machine alone.
COMPUTING := tests/codec tests/core tests/data tests/models tests/observe tests/oracle tests/sim tests/train tests/wire \
  $(wildcard tests/test_*.py)
LAB_COMPUTING := $(patsubst %,tests/lab/test_%.py,collecting compare expectations goodput_sim report scenario simulated \
  storms summary timeline traces wan_paths)
TALKING := tests/bench tests/cli tests/e2e tests/net tests/runtime \
  $(filter-out $(LAB_COMPUTING),$(wildcard tests/lab/test_*.py))

test: venv
	status=0; \
	$(PYTEST) --timeout=240 --durations=5 -n 2 --dist worksteal $(COMPUTING) $(LAB_COMPUTING) || status=1; \
	$(PYTEST) --timeout=240 --durations=10 $(TALKING) || status=1; \
	exit $$status

lint: venv
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/python tools/generate_proto.py --check

format: venv
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

others: venv
	PYTHON=$(PYTHON) bash bench/make_others.sh

bench: others
	mkdir -p bench/results
	set -e; for name in $(BENCHES); do \
	  echo "bench/$$name.py"; \
	  $(VENV)/bin/python bench/$$name.py --json > bench/results/$$name.jsonl.part; \
	  mv bench/results/$$name.jsonl.part bench/results/$$name.jsonl; \
	  cat bench/results/$$name.jsonl; \
	done

soak: venv
	P2PTRAIN_STORM_S=3600 HYPOTHESIS_PROFILE=soak $(PYTEST) --timeout=3600 --durations=10 -m 'soak or not soak'

dist: venv
	rm -rf dist
	$(VENV)/bin/python -m build --outdir dist .

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis bench/results
	find . -name __pycache__ -type d -not -path './.venv/*' -not -path './.others/*' -prune -exec rm -rf {} +
