"""Rule report: everything measured -> report.html, report.md, report.json and provenance.json."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.files import read_json, write_json
from glimmer.heldout import write_report
from glimmer.heldout.report_transcripts import token_pieces
from glimmer.provenance import collect
from glimmer.seal import check_seals

check_seals(snakemake.input)
config = snakemake.params.settings
repository = Path(snakemake.scriptdir).parent
provenance = collect(
    repository=repository,
    lock=repository / "envs" / "workflow.txt",
    seeds={name: config[name]["seed"] for name in ("training", "evaluation", "report")},
    files={
        "checkpoint": Path(snakemake.input.checkpoint[0]),
        "trained": Path(snakemake.input.final),
        "corpus": Path(snakemake.input.corpus),
        "questions": Path(snakemake.input.questions),
        "index": Path(snakemake.input.index[0]),
        "before": Path(snakemake.input.before),
        "after": Path(snakemake.input.after),
        "metrics": Path(snakemake.input.metrics),
    },
)
write_json(snakemake.output.provenance, provenance)
write_report(
    Path(snakemake.output.report),
    paired=read_json(snakemake.input.paired),
    before=Path(snakemake.input.before),
    after=Path(snakemake.input.after),
    metrics=Path(snakemake.input.metrics),
    gates={Path(path).stem: Path(path) for path in snakemake.input.gates},
    provenance=provenance,
    config=config,
    defaults=snakemake.params.defaults,
    benchmarks=Path(snakemake.params.benchmarks),
    json_out=Path(snakemake.output.json),
    markdown_out=Path(snakemake.output.markdown),
    timings=(
        Path(snakemake.input.before_timings),
        Path(snakemake.input.after_timings),
    ),
    curve=read_json(snakemake.input.curve[0]) if snakemake.input.curve else None,
    piece=token_pieces(Path(snakemake.input.checkpoint[0]).parent),
)
