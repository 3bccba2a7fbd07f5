"""Rule preflight: the host against the config -> preflight.json and preflight.txt, or a refusal."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.preflight.check import require

require(snakemake.config, out=Path(snakemake.params.out))
