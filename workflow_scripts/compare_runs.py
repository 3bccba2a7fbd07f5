"""Rule compare_runs: report.json of several runs -> one page, its content as JSON and Markdown."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.errors import DataError
from glimmer.files import read_json, write_json, write_text
from glimmer.heldout.pooled import compare_runs
from glimmer.heldout.runs_page import runs_markdown, runs_page

for path in map(Path, snakemake.params.runs):
    if not path.is_file():
        raise DataError(
            f"compare_runs.runs: found no {path}, expected the report of a finished run. Correct "
            "the name, or finish that run."
        )
found = compare_runs(
    [read_json(path) for path in snakemake.params.runs],
    seed=snakemake.params.seed,
    resamples=snakemake.params.resamples,
)
write_json(snakemake.output.json, found)
write_text(snakemake.output.markdown, runs_markdown(found))
write_text(snakemake.output.report, runs_page(found))
