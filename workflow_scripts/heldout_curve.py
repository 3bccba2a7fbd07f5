"""Rule heldout_curve: records before, on the way and after -> curve.json."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.files import write_json
from glimmer.heldout.curve import heldout_curve
from glimmer.seal import check_seals, seal

check_seals(snakemake.input)
steps = [*snakemake.params.steps, snakemake.params.last]
later = [*snakemake.input.steps, snakemake.input.after]
curve = heldout_curve(
    Path(snakemake.input.before),
    dict(zip(steps, map(Path, later), strict=True)),
    seed=snakemake.params.seed,
    resamples=snakemake.params.resamples,
)
write_json(snakemake.output.curve, curve)
seal(snakemake.output.curve)
