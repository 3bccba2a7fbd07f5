# `make run` and `make test` start from a clone; everything else is for people who work on it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: run test lint lock clean

run: .venv/installed
	$(BIN)/snakemake

test: .venv/installed
	$(BIN)/pytest

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile rules
	$(BIN)/snakemake --lint

# torch goes first and alone: its wheel decides which CUDA libraries come along, if any.
.venv/installed: envs/workflow.txt pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info[:2] >= (3, 11), "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; set PYTHON=python3.11"'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' envs/workflow.txt)"
	$(BIN)/python -m pip install --quiet -r envs/workflow.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

# After an edit of envs/workflow.in: resolve anew into a fresh environment and write the lock.
lock:
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' envs/workflow.in)"
	$(BIN)/python -m pip install --quiet -r envs/workflow.in
	(echo "# Every package of the workflow environment, exact. Made by \`make lock\` from workflow.in."; \
	 $(BIN)/python -m pip freeze | sed 's/+cpu$$//') > envs/workflow.txt
	(echo "# The lock as a conda environment, for --software-deployment-method conda. Made by \`make lock\`."; \
	 printf 'channels:\n  - conda-forge\ndependencies:\n  - python=3.11\n  - pip\n  - pip:\n'; \
	 sed -n 's/^[^#].*==.*/      - "&"/p' envs/workflow.txt) > envs/workflow.yaml
	$(MAKE) .venv/installed

clean:
	rm -rf .venv .snakemake results
