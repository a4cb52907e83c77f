# The front door. Each target makes what it needs by itself: packages (as root), .venv, then the work.
#
#   make bringup    a cluster in namespaces on this machine, a real preflight on it, the verdict
#   make test       lint, types, layers, tests                (about what CI runs)
#   make again      the tests that failed last, one by one
#   make test-all   the slow suites too
#   make kube       build a Kubernetes for the tests that ask a real API server (minutes, once a machine)
#   make audit      known holes in the packages of this environment (asks the advisory databases)
#   make bench      every figure in docs/benchmarks, measured again

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# One place for the version of torch. Elsewhere than on PyPI mirrors with a CPU build, add
# TORCH_ARGS="--index-url https://download.pytorch.org/whl/cpu" to keep gigabytes of CUDA away.
TORCH      ?= 2.13.0
TORCH_ARGS ?=

# The Blob storage of the tests, where npm is; what needs it is skipped elsewhere.
AZURITE ?= 3.35.0

# What the full run uses from Debian; without root they are only named, and what needs them is skipped.
DEBIAN := python3-venv iproute2 nftables slurm-wlm munge openssh-client openssh-server ethtool faketime chromium \
          skopeo umoci docker-registry libpmix-dev

# Tests wait more than they compute: more at once than there are processors. WORKERS=0 runs them one by one.
WORKERS ?= 5
PYTEST  := $(BIN)/python -m pytest -n $(WORKERS)

.PHONY: bringup test again test-all kube lint unit audit bench docs packages clean

bringup: $(VENV)/ready
	$(BIN)/fairlead bringup

test: lint $(VENV)/ready
	$(PYTEST) -m "not slow"

# what failed in the last run, one by one, with nothing of the suite beside it
again: $(VENV)/ready
	$(BIN)/python -m pytest -n 0 --last-failed --last-failed-no-failures none --maxfail 1 -m "not slow"

test-all: export FAIRLEAD_DEPTH ?= 5
test-all: lint $(VENV)/ready
	$(PYTEST)

# a real Kubernetes for the tests that use one where it is: built from Debian's source into the user's cache, in minutes
kube: $(VENV)/ready
	$(BIN)/python tests/support/kube/build.py

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell src docs README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md

unit: $(VENV)/ready
	$(PYTEST) -m "not slow and not real"

# in an environment of its own: what audits is no part of what is audited
audit: $(VENV)/ready
	$(PYTHON) -m venv $(VENV)/audit
	scripts/audit $(VENV)/audit/bin/pip-audit \
		$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

bench: $(VENV)/ready
	$(BIN)/python bench/all.py

# the generated pages; a test holds them fresh
docs: $(VENV)/ready
	$(BIN)/python -m fairlead.cli.reference

packages:
	@scripts/debian-packages $(DEBIAN)

$(VENV)/ready: pyproject.toml Makefile | packages
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(TORCH_ARGS) torch==$(TORCH)
	$(BIN)/pip install --quiet --editable '.[all]' --group dev
	@if command -v npm >/dev/null; then npm install --silent --prefix $(VENV)/node azurite@$(AZURITE); fi
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
