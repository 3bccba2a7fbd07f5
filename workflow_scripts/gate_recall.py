"""Rule gate_recall: HNSW against exact search over training questions -> verdict, efSearch."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import read_questions
from glimmer.cache import cached
from glimmer.files import read_json
from glimmer.retrieval import measure_recall
from glimmer.retrieval.recall import hand_over, sampled
from glimmer.seal import check_seals, seal
from glimmer.verdict import settle

check_seals(snakemake.input)
chosen = snakemake.params.settings["recall"]


def measured():
    questions = [q.question for q in read_questions(Path(snakemake.input.questions))]
    return measure_recall(
        Path(snakemake.input.index[0]).parent,
        Path(snakemake.input.corpus),
        [Path(path) for path in snakemake.input.vectors],
        queries=sampled(questions, chosen["queries"]),
        k=chosen["k"],
        min_recall=chosen["min_recall"],
        threads=snakemake.threads,
    )


out = Path(snakemake.output.verdict)
cached(
    snakemake.config["cache"],
    lambda: settle(
        measured(),
        out,
        meaning="Passages that exact search finds would be missing in training and evaluation. "
        "Raise index.ef_search or index.M.",
    ),
    stage=snakemake.rule,
    params=dict(snakemake.params.items()),
    inputs=[snakemake.input.index[0], snakemake.input.questions],
    out=out,
)
# After the cache, which knows one folder: all of it follows from the verdict.
hand_over(read_json(out), Path(snakemake.input.index[0]).parent, choose=chosen["choose"])
seal(snakemake.output.verdict, snakemake.output.search)
