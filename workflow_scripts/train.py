"""Rule grpo: gates passed, checkpoint and index -> final weights and metrics."""

import importlib
from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import verified_folder
from glimmer.files import sole_writer
from glimmer.seal import check_seals, seal
from glimmer.training import train

check_seals(snakemake.input)
sections = snakemake.params.settings
with sole_writer(Path(snakemake.output.metrics).parent / ".training.lock"):
    if snakemake.config["training"]["engine"] == "titan":
        # By name, so that a change of these checks, which change no result, makes nothing stale.
        check = importlib.import_module("glimmer.preflight.check")
        verdict = Path(snakemake.output.metrics).with_name("preflight.json")
        check.require(snakemake.config, out=verdict, ask_hub=False)
    train(
        checkpoint=verified_folder(snakemake.input.checkpoint[0]),
        train_questions=Path(snakemake.input.train_questions),
        heldout_questions=Path(snakemake.input.heldout_questions),
        index=Path(snakemake.input.index[0]).parent,
        corpus=Path(snakemake.input.corpus),
        out=Path(snakemake.output.metrics).parent,
        # The whole sections: what the params leave out changes no result and makes nothing stale.
        settings=snakemake.config["training"],
        search=snakemake.config["search"],
        retrieval=snakemake.config["retrieval"],
        renderer=sections["renderer"],
        titan=snakemake.config["titan"],
        threads=snakemake.params.threads,
        code=snakemake.params.code,
        service_log=Path(snakemake.log[0]).with_suffix(".service.log"),
    )
    seal(snakemake.output.metrics)
