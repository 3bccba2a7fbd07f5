"""Rule gate_logprobs: trainer against sampler -> verdict."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import verified_folder
from glimmer.cache import cached
from glimmer.parity import check_logprobs
from glimmer.seal import check_seals, seal

check_seals(snakemake.input)
sections = snakemake.params.settings
out = Path(snakemake.output.verdict)
cached(
    snakemake.config["cache"],
    lambda: check_logprobs(
        checkpoint=verified_folder(snakemake.input.checkpoint[0]),
        questions=Path(snakemake.input.questions),
        corpus=Path(snakemake.input.corpus),
        out=out,
        settings=sections["parity"],
        search=sections["search"],
        renderer=sections["renderer"],
        threads=snakemake.params.threads,
    ),
    stage=snakemake.rule,
    params=dict(snakemake.params.items()),
    inputs=[
        snakemake.input.checkpoint[0],
        snakemake.input.corpus_manifest,
        snakemake.input.questions,
    ],
    out=out,
)
seal(snakemake.output.verdict)
