"""Rule leakage: training and held-out questions -> leakage.json."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.files import write_json
from glimmer.heldout.leakage import check_leakage
from glimmer.seal import check_seals, seal

check_seals(snakemake.input)
found = check_leakage(
    Path(snakemake.input.train),
    Path(snakemake.input.heldout),
    settings=snakemake.params.settings["leakage"],
    embedding=snakemake.params.embedding["embedding"],
)
write_json(snakemake.output.leakage, found)
seal(snakemake.output.leakage)
