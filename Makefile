# One .venv for everything: `make demo` and `make test` make it when it is missing, and never use a half-made one.

PYTHON ?= python3
ARGS ?=

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.NOTPARALLEL:
.SILENT:
.DEFAULT_GOAL := help
.PHONY: help venv demo test nightly lint unit matrix gpu gpu-wheels slurm docs dist clean

BIN := .venv/bin
STAMP := .venv/complete
EXTRAS := .venv/extras
PIP := $(BIN)/pip --disable-pip-version-check install --quiet -c constraints.txt
# exec: who ends make with SIGTERM ends the suite, which tears its clusters down.
SUITE := exec $(BIN)/python tests/suite.py -n 3 --dist loadfile --no-loadscope-reorder  # the long ones first, see tests/conftest.py
quietly = out=$$($(1) 2>&1) || { echo "$$out"; exit 1; }

help:  ## show this
	sed -nE 's/^([a-z-]+):[^#]*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18
	echo "  PYTHON=python3.12 chooses the interpreter of .venv, ARGS='-k name' goes to pytest"

venv: $(STAMP)  ## make .venv with ftslurm and what its tests need

demo: $(STAMP)  ## train three groups on this machine, kill one, watch it come back
	$(BIN)/python -m ftslurm job=ddp groups.count=3 faults=kill_one cluster=local job.args.steps=200 checkpoint.every=50

test: $(STAMP) slurm lint  ## lint, then the tests, on a throwaway Slurm (installs slurm-wlm and munge if it may): ten minutes
	$(SUITE) -m "not nightly" $(ARGS)

nightly: $(EXTRAS) slurm lint  ## the tests that take longer: frameworks, campaigns, benchmarks in small, four times the examples
	tests/install-slurm.sh gcc libc6-dev libslurm-dev slurmdbd mariadb-server-core mariadb-client-core
	export FTSLURM_EXAMPLES=1
	$(SUITE) --name nightly -m "nightly or hypothesis" $(ARGS)

lint: $(STAMP)  ## ruff, mypy, and actionlint for the workflows where it is to be had
	$(call quietly,$(BIN)/ruff check .)
	$(call quietly,$(BIN)/ruff format --check .)
	$(call quietly,$(BIN)/mypy)
	[ ! -e $(BIN)/actionlint ] || $(BIN)/actionlint -shellcheck= -pyflakes= .github/workflows/*.yml
	echo "==> lint: clean ($${SECONDS} s)"

unit: $(STAMP)  ## only the tests of each part alone: a minute and a half
	$(SUITE) --name unit -m "not nightly" tests/unit $(ARGS)

matrix: $(STAMP) slurm  ## try the supported versions of Python, torch, torchft and Slurm, one after another: an hour or two
	$(BIN)/python tests/versions.py --folder .matrix $(ARGS)

gpu-wheels: $(STAMP)  ## collect in .wheels/ what a machine with torch, but no network, lacks for `make gpu`; ARGS=3.12: its Python
	$(BIN)/python benchmarks/gpu_wheels.py .wheels $(ARGS)

gpu:  ## try ftslurm on this machine's GPUs, without a network: ten minutes (ARGS=--rest: the rest), into benchmarks/results/gpu.md
	$(PYTHON) -c 'import torch' 2> /dev/null \
		|| { echo "==> gpu: $(PYTHON) has no torch; name one that has: make gpu PYTHON=/path/to/python3"; exit 1; }
	rm -rf .gpu
	$(PYTHON) -m venv --without-pip .gpu
	$(PYTHON) -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' > $$(echo .gpu/lib/python3*/site-packages)/torch.pth
	$(call quietly,$(PYTHON) -m pip --python .gpu/bin/python install --no-index --find-links .wheels --no-build-isolation -e . pytest pytest-timeout pytest-xdist hypothesis)
	.gpu/bin/python benchmarks/gpu.py $(ARGS)

docs: $(EXTRAS)  ## build the documentation as a web site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	echo "==> docs: site/index.html"

dist: $(STAMP)  ## build the sdist and the wheel into dist/, and check what an index would show
	rm -rf dist
	$(call quietly,$(BIN)/python -m build --no-isolation)
	$(BIN)/twine check --strict dist/*

clean:  ## remove .venv, builds and caches; runs/ stays
	rm -rf .venv .matrix .gpu .wheels build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

slurm:
	tests/install-slurm.sh

# A .venv belongs to the interpreter it was made with: whoever names another one gets another .venv.
ifneq ($(origin PYTHON),file)
version_of = $(shell { $(1) -V; } 2>&1 || true)
ifneq ($(call version_of,$(PYTHON)),$(call version_of,$(BIN)/python))
.PHONY: $(STAMP)
FRESH := yes
endif
endif

# The stamp goes first and comes back last: interrupted anywhere, there is none, and the next time starts afresh.
$(STAMP): pyproject.toml constraints.txt
	version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null) \
		|| { echo "==> venv: there is no $(PYTHON); name one: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "==> venv: ftslurm needs Python 3.10 or newer, $(PYTHON) is $$version; make PYTHON=python3.11"; exit 1; }
	if ! $(PYTHON) -c 'import ensurepip, venv' 2> /dev/null; then  # Debian packs them apart
		tests/install-slurm.sh python$$version-venv \
			|| { echo "==> venv: $(PYTHON) needs that package; install it or name another: make PYTHON=..."; exit 1; }
	fi
	if [ -n "$(FRESH)" ] || [ ! -e $@ ]; then
		rm -rf .venv
		$(PYTHON) -m venv .venv
	fi
	rm -f $@
	echo "==> venv: installing into .venv for Python $$version (torch is large: minutes, the first time)"
	$(call quietly,$(PIP) -e '.[test]')
	touch $@
	echo "==> venv: ready ($${SECONDS} s)"

$(EXTRAS): $(STAMP)
	echo "==> venv: installing what only nightly tests and the web site need"
	$(call quietly,$(PIP) -e '.[nightly]')
	touch $@
	echo "==> venv: complete ($${SECONDS} s)"
