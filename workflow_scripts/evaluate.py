"""Rule evaluate: checkpoint and chosen questions -> one record a question, and repeated passes."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import verified_folder
from glimmer.files import sole_writer
from glimmer.heldout import evaluate
from glimmer.seal import check_seals, seal

check_seals(snakemake.input)
sections = snakemake.params.settings
with sole_writer(Path(snakemake.output.records).with_name(f".{snakemake.wildcards.when}.lock")):
    evaluate(
        checkpoint=verified_folder(snakemake.input.checkpoint),
        questions=Path(snakemake.input.questions),
        index=Path(snakemake.input.index[0]).parent,
        corpus=Path(snakemake.input.corpus),
        out=Path(snakemake.output.records),
        repeats=Path(snakemake.output.repeats),
        timings=Path(snakemake.output.timings),
        settings=sections["evaluation"],
        # The whole sections: what the params leave out changes no result and makes nothing stale.
        search=snakemake.config["search"],
        retrieval=snakemake.config["retrieval"],
        renderer=sections["renderer"],
        titan=snakemake.config["titan"],
        threads=snakemake.params.threads,
        code=snakemake.params.code,
        service_log=Path(snakemake.log[0]).with_suffix(".service.log"),
        engine_log=Path(snakemake.log[0]).with_suffix(".vllm.log"),
    )
    seal(*snakemake.output)
