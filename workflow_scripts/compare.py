"""Rule compare: records, repeated passes, leakage and ceiling -> paired.json."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.files import write_json
from glimmer.heldout import compare
from glimmer.seal import check_seals, seal

check_seals(snakemake.input)
paired = compare(
    Path(snakemake.input.before),
    Path(snakemake.input.after),
    seed=snakemake.params.seed,
    resamples=snakemake.params.resamples,
    repeats=tuple(map(Path, snakemake.input.repeats)),
    leakage=Path(snakemake.input.leakage),
    ceiling=Path(snakemake.input.ceiling),
)
write_json(snakemake.output.paired, paired)
seal(snakemake.output.paired)
