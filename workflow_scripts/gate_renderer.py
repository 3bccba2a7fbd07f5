"""Rule gate_renderer: the native renderer against the checkpoint's chat template -> verdict."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import verified_folder
from glimmer.cache import cached
from glimmer.renderer import check_parity
from glimmer.seal import check_seals, seal
from glimmer.search_r1.prompt import SEARCH_TOOL
from glimmer.verdict import settle

check_seals(snakemake.input)
out = Path(snakemake.output.verdict)
cached(
    snakemake.config["cache"],
    lambda: settle(
        check_parity(
            verified_folder(snakemake.input.checkpoint[0]),
            snakemake.params.settings["renderer"],
            tools=[SEARCH_TOOL],
        ),
        out,
        meaning="The model would be trained on prompts that it was not made for. `details` in the "
        "verdict shows each differing conversation with the text around the first difference.",
    ),
    stage=snakemake.rule,
    params=dict(snakemake.params.items()),
    inputs=[snakemake.input.checkpoint[0]],
    out=out,
)
seal(snakemake.output.verdict)
