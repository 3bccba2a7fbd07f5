# `make run` and `make test` start from a clone, `make env-train` adds the GPU stack; everything else
# is for people who work on it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: run test test-slurm test-long test-faults lint lock docs env-train lock-train clean

run: .venv/installed
	$(BIN)/snakemake

test: .venv/installed
	$(BIN)/pytest

# The pipeline as jobs of a real Slurm on this machine; as root, with Debian's slurm-wlm and munge.
test-slurm: .venv/installed
	$(BIN)/pytest -n 0 -m slurm tests/slurm

# Tests of minutes each, beside the fault harness.
test-long: .venv/installed
	$(BIN)/pytest -n 0 -m long --ignore=tests/faults

# Every kill and every other fault; the table in docs/reliability.md comes from it.
test-faults: .venv/installed
	$(BIN)/pytest -n 0 -m "long or not long" tests/faults

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

# Pages that are made from the schema, config.yaml, the table of edits and the messages.
docs: .venv/installed
	$(BIN)/python docs/generate.py

# The GPU stack: Python 3.12 (PYTHON_TRAIN), about 9 GB. Then titan.python: .venv-train/bin/python
# --no-deps: the lock is complete, and the pip of a fresh Python 3.12.1 takes a requirement with an
# extra (uvicorn[standard]) for one without a hash.
PYTHON_TRAIN ?= python3.12
TRAIN := .venv-train/bin

env-train: .venv-train/installed

.venv-train/installed: envs/train.txt envs/train.git.txt
	test -x $(TRAIN)/python || $(PYTHON_TRAIN) -m venv .venv-train
	$(TRAIN)/python -m pip install --quiet --no-deps --require-hashes -r envs/train.txt
	$(TRAIN)/python -m pip install --quiet --no-deps -r envs/train.git.txt
	PYTHONPATH=. $(TRAIN)/python -m glimmer.preflight.stack
	touch $@

# After an edit of envs/train.in: resolve anew for Python 3.12 on Linux, with hashes.
lock-train:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet uv
	.venv-lock/bin/uv pip compile envs/train.in --quiet --generate-hashes --no-header --no-annotate \
	  --python-version 3.12 --python-platform x86_64-manylinux_2_28 -o .venv-lock/train.txt
	(echo "# Every package of the GPU stack's environment with its hashes, Python 3.12 on Linux x86-64."; \
	 echo "# Made by \`make lock-train\` from train.in; the git revisions stand in train.git.txt."; \
	 cat .venv-lock/train.txt) > envs/train.txt
	rm -rf .venv-lock
	$(MAKE) envs/train.yaml

# Inline, for Snakemake copies this file away from the lock and takes its content for the identity.
envs/train.yaml: envs/train.txt
	(echo "# The GPU stack as a conda environment, for --software-deployment-method conda. Made by"; \
	 echo "# \`make lock-train\` from train.txt; train.post-deploy.sh adds the two git revisions."; \
	 printf 'channels:\n  - conda-forge\ndependencies:\n  - python=3.12\n  - pip\n  - git\n  - pip:\n'; \
	 sed -e ':a' -e '/\\$$/{N;s/ *\\\n */ /;ba' -e '}' envs/train.txt | sed -n 's/^[^#].*==.*/      - "&"/p') > $@

clean:
	rm -rf .venv .venv-train .snakemake results
