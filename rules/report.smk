# Stage 10: one self-contained page, and provenance.json.

from glimmer.config import read_yaml
from glimmer.files import sha256_file


rule report:
    input:
        paired=rules.compare.output.paired,
        before=rules.compare.input.before,
        after=rules.compare.input.after,
        metrics=rules.grpo.output.metrics,
        gates=expand(f"{R}/gates/{{gate}}.json", gate=GATES),
        checkpoint=rules.checkpoint.output,
        final=rules.grpo.output.final,
        corpus=rules.corpus.output.manifest,
        questions=rules.questions.output.manifest,
        index=rules.index.output,
    output:
        report=report(
            f"{R}/report.html",
            caption="../docs/captions/report.rst",
            category="Result",
        ),
        provenance=f"{R}/provenance.json",
    log:
        f"{R}/logs/report.log",
    benchmark:
        f"{R}/benchmarks/report.tsv"
    conda:
        "../envs/workflow.yaml"
    resources:
        **place(),
        mem_mb=more(1000),
        runtime=more(30),
    params:
        settings=config,
        defaults=read_yaml(BASE / "config" / "config.yaml"),
        benchmarks=f"{R}/benchmarks",
        lock=sha256_file(LOCK),
        code=code("report.py", "glimmer.heldout.report", "glimmer.provenance"),
    message:
        "Writing {output.report}"
    script:
        "../workflow_scripts/report.py"


rule heldout_report:
    input:
        rules.report.output,
