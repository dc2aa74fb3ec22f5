# Two commands for users:
#
#   make demo     shows on this machine what the package does
#   make test     lint, types and the tests that a change is likely to break: 5 minutes
#
# and two more for contributors:
#
#   make quick ROOM=ffmpeg    the tests of one room, from the source tree
#   make test-all             every test
#
# They work in a virtual environment of their own and are quick when nothing has
# changed. Settings, for example: PYTHON=python3.12  VENV=.venv-3.12  AZC_PORTABLE=1  LINT=0
# WORKERS=4  PYTEST_ARGS="-k pipe"  BENCH_ARGS="sockets"  FROM=results.json
# SLICES="races rings"  HOURS=8. For the other targets see CONTRIBUTING.md.

PYTHON ?=
VENV ?= .venv$(if $(AZC_PORTABLE),-portable)$(if $(AZC_SABOTAGE),-sabotage)
LINT ?= 1
ROOM ?= core
# Tests run in several processes; those marked "quiet" run alone on the machine.
WORKERS ?= 2
PYTEST_ARGS ?=
BENCH_ARGS ?=
FROM ?= docs/pages/benchmarks.json
SLICES ?=
HOURS ?= 0.1
# Debian packages, installed if possible: a headless OpenGL for the demo, and the programs
# that some tests use.
DEMO_PACKAGES ?= libegl1 libgl1 libgl1-mesa-dri libgles2
TEST_PACKAGES ?= $(DEMO_PACKAGES) caddy chromium ffmpeg iproute2 musl-tools nginx postgresql redis-server strace xvfb

override VENV := $(abspath $(VENV))
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PYTEST_FOLDERS = -o cache_dir=$(VENV)/pytest-cache
PYTEST = cd tests && $(BIN)/pytest -q $(PYTEST_FOLDERS)
BESIDE = -n $(WORKERS) --dist worksteal
COVERAGE := COVERAGE_FILE=$(VENV)/coverage/data $(BIN)/coverage

# Our own CI makes every warning an error; a user's build must not fail because of a
# newer compiler's warnings.
ifeq ($(CI),true)
export CFLAGS := $(CFLAGS) -Wall -Wextra -Werror
endif

SOURCES := setup.py pyproject.toml $(wildcard README.md) $(sort \
    $(shell find aiozerocopy csrc -name __pycache__ -prune -o -type f ! -name '*.so' -print))
C_SOURCES := $(wildcard csrc/*.[ch] csrc/*/*.[ch] tests/sim/*.[ch] tests/fuzz/*.c tests/bench/*.[ch] examples/*.c)

.PHONY: always demo test test-all quick coverage portable-test proof soak bench bench-table check lint types \
    docs venv python-t clean

demo: $(STAMPS)/packages-demo $(STAMPS)/demo
	@cd $(VENV) && bin/python -m aiozerocopy demo -o $(CURDIR)/demo.mp4

test: $(STAMPS)/packages-test $(STAMPS)/test $(if $(filter-out 0,$(LINT)),check)
	$(PYTEST) $(BESIDE) -m "not slow" $(PYTEST_ARGS)

# `make test` first, so that its failures are known in minutes.
test-all: test
	$(PYTEST) $(BESIDE) -m "slow and not quiet" $(PYTEST_ARGS)
	$(PYTEST) -m quiet $(PYTEST_ARGS)

# An edit needs no installation: Python finds the source tree first.
quick: $(STAMPS)/quick
	$(if $(wildcard tests/$(ROOM)),,$(error there is no tests/$(ROOM)))
	export PYTHONPATH=$(CURDIR); $(PYTEST) $(BESIDE) -m "not slow" $(ROOM) $(PYTEST_ARGS)

# Counts lines of the installed package that ran in the tests' own process.
coverage: $(STAMPS)/packages-test $(STAMPS)/test
	rm -rf $(VENV)/coverage
	mkdir $(VENV)/coverage
	cd tests && $(COVERAGE) run --rcfile=../pyproject.toml \
	    -m pytest $(PYTEST_FOLDERS) $(PYTEST_ARGS)
	$(COVERAGE) combine -q
	$(COVERAGE) html -q -d $(VENV)/coverage/html
	$(COVERAGE) report
	@echo "line by line: $(VENV)/coverage/html/index.html"

portable-test:
	$(MAKE) test AZC_PORTABLE=1

# Writes docs/pages/proof.md: all promises of the package, in figures.
proof: $(STAMPS)/packages-test $(STAMPS)/test
	@cd tests && $(BIN)/python -m proof $(SLICES)

# Runs streams over all kinds of links for hours, and compares every byte.
soak: $(STAMPS)/packages-test $(STAMPS)/test
	@cd tests && $(BIN)/python -m soak --hours $(HOURS)

# Builds a free-threaded Python, which .ci/run uses if it is there.
python-t:
	.make/python-t

# Compares the speed with that of rivals.
bench: $(STAMPS)/bench
	@cd tests && $(BIN)/python -m bench $(BENCH_ARGS)

# Makes the tables of the README and the documentation from a file of `--json`.
bench-table: $(STAMPS)/venv
	$(BIN)/python .make/bench_table.py $(FROM) .

check: lint types

lint: $(STAMPS)/test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $(C_SOURCES)

types: $(STAMPS)/test
	$(BIN)/mypy

# (Not strict in the source archive, which has no pictures: a missing one is an error.)
docs: STRICT = $(if $(wildcard docs/pages/*.png),--strict)
docs: $(STAMPS)/docs
	@cd $(VENV) && NO_MKDOCS_2_WARNING=1 bin/python -m mkdocs build --quiet $(STRICT) \
	    -f $(CURDIR)/docs/mkdocs.yml -d $(VENV)/site
	@echo $(VENV)/site/index.html

venv: $(STAMPS)/packages-test $(STAMPS)/test

clean:
	rm -rf .venv* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# Builds the C part into the source tree.  The installed package need not be up to date:
# only its dependencies are needed.
$(STAMPS)/quick: setup.py $(wildcard csrc/* csrc/*/*) | $(STAMPS)/packages-test \
    $(if $(wildcard $(STAMPS)/test),,$(STAMPS)/test)
	$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

$(STAMPS)/venv:
	@.make/prepare $(VENV) "$(PYTHON)"
	@touch $@

# The stamp changes when a source is added or removed.  (Folders would do, but they also
# change when Python adds __pycache__, and two steps of .ci/run would install at once.)
$(STAMPS)/names: $(STAMPS)/venv always
	@echo $(SOURCES) | cmp -s - $@ || echo $(SOURCES) >$@

always:

$(STAMPS)/packages-demo: $(STAMPS)/venv
	@.make/packages $(DEMO_PACKAGES)
	@touch $@

$(STAMPS)/packages-test: $(STAMPS)/venv
	@.make/packages $(TEST_PACKAGES)
	@touch $@

# The package itself is installed, not linked to, so that one checkout can serve
# several Pythons and both builds of the C part, and so that the tests see the package
# as a user does. (Python is always started in a folder without an aiozerocopy/, or it
# would import the source tree.) The stamp's name is the extra.
$(STAMPS)/demo $(STAMPS)/test $(STAMPS)/docs: $(STAMPS)/venv $(STAMPS)/names $(SOURCES)
	@# Files that were removed from the source must not come from an old build.
	@find $(VENV)/build -path '*/lib*' -type f ! -name '*.so' -delete
	DIST_EXTRA_CONFIG=$(VENV)/build.cfg $(BIN)/python -m pip install -q \
	    --disable-pip-version-check --no-build-isolation '.[$(@F)]'
	@touch $@

# Installs the rivals that no test needs.
$(STAMPS)/bench: $(STAMPS)/test tests/bench/requirements.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check \
	    -r tests/bench/requirements.txt
	@touch $@
