#!/usr/bin/env bash
# Snakemake runs this inside the new conda environment: the two packages that come from git.
set -euo pipefail
pip install --no-deps \
  "torchstore @ git+https://github.com/meta-pytorch/torchstore@5a4d5d3f4d653f2ed7cc913a66e49f822dfd6c1d" \
  "batch_invariant_ops @ git+https://github.com/thinking-machines-lab/batch_invariant_ops@f22b1fbe534b1fe045080f44a970a441caaf3c4f"
