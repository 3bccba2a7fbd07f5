"""Rule gate_bitwise: checkpoint and questions -> verdict on trainer against vLLM, on the GPU."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import verified_folder
from glimmer.parity.bitwise import check_bitwise
from glimmer.seal import check_seals, seal

check_seals(snakemake.input)
sections = snakemake.params.settings
check_bitwise(
    checkpoint=verified_folder(snakemake.input.checkpoint[0]),
    questions=Path(snakemake.input.questions),
    corpus=Path(snakemake.input.corpus),
    out=Path(snakemake.output.verdict),
    settings=sections["parity"],
    training=snakemake.config["training"],
    search=snakemake.config["search"],
    renderer=sections["renderer"],
    titan=snakemake.config["titan"],
    work=Path(snakemake.params.work),
    log=Path(snakemake.log[0]).with_suffix(".titan.log"),
)
seal(snakemake.output.verdict)
