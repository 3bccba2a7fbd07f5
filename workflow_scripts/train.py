"""Rule grpo: gates passed, checkpoint and index -> final weights and metrics."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.training import train

sections = snakemake.params.settings
train(
    checkpoint=Path(snakemake.input.checkpoint[0]),
    train_questions=Path(snakemake.input.train_questions),
    heldout_questions=Path(snakemake.input.heldout_questions),
    index=Path(snakemake.input.index[0]),
    corpus=Path(snakemake.input.corpus),
    out=Path(snakemake.output.metrics).parent,
    # Ports, timeouts and how much is kept change no result: they are read past the params, so that
    # changing them makes nothing stale.
    settings=snakemake.config["training"] | sections["training"],
    search=sections["search"],
    retrieval=snakemake.config["retrieval"] | snakemake.params.service,
    renderer=sections["renderer"],
    threads=snakemake.params.threads,
    service_log=Path(snakemake.log[0]).with_suffix(".service.log"),
)
