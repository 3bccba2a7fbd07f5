"""Rule gate_logprobs: trainer against sampler -> verdict."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import verified_folder
from glimmer.parity import check_logprobs

sections = snakemake.params.settings
check_logprobs(
    checkpoint=verified_folder(snakemake.input.checkpoint[0]),
    questions=Path(snakemake.input.questions),
    corpus=Path(snakemake.input.corpus),
    out=Path(snakemake.output.verdict),
    settings=sections["parity"],
    search=sections["search"],
    renderer=sections["renderer"],
    threads=snakemake.params.threads,
)
