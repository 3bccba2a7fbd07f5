# Stage 10: one self-contained page, its content for machines, and provenance.json.

from glimmer.config import read_yaml


rule report:
    input:
        paired=rules.compare.output.paired,
        before=rules.compare.input.before,
        after=rules.compare.input.after,
        before_timings=f"{R}/heldout/before.timings.jsonl",
        after_timings=f"{R}/heldout/after.timings.jsonl",
        metrics=rules.grpo.output.metrics,
        gates=expand(f"{R}/gates/{{gate}}.json", gate=GATES),
        checkpoint=rules.checkpoint.output,
        final=rules.grpo.output.final,
        corpus=rules.corpus.output.manifest,
        questions=rules.questions.output.manifest,
        index=rules.index.output,
        curve=CURVE,
    output:
        report=report(
            f"{R}/report.html",
            caption="../docs/captions/report.rst",
            category="Result",
        ),
        markdown=report(
            f"{R}/report.md",
            caption="../docs/captions/report_markdown.rst",
            category="Result",
        ),
        json=report(
            f"{R}/report.json",
            caption="../docs/captions/report_json.rst",
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


rule compare_runs:
    output:
        report=report(
            f"{config['results']}/compare_runs.html",
            caption="../docs/captions/compare_runs.rst",
            category="Result",
        ),
        markdown=f"{config['results']}/compare_runs.md",
        json=f"{config['results']}/compare_runs.json",
    log:
        f"{config['results']}/logs/compare_runs.log",
    benchmark:
        f"{config['results']}/benchmarks/compare_runs.tsv"
    conda:
        "../envs/workflow.yaml"
    resources:
        **place(),
        mem_mb=more(1000),
        runtime=more(30),
    params:
        runs=lambda wildcards: compared_runs(),
        resamples=config["report"]["resamples"],
        seed=config["report"]["seed"],
        code=code(
            "compare_runs.py", "glimmer.heldout.pooled", "glimmer.heldout.runs_page"
        ),
        packages=packages(
            "compare_runs.py", "glimmer.heldout.pooled", "glimmer.heldout.runs_page"
        ),
    message:
        "Comparing runs"
    script:
        "../workflow_scripts/compare_runs.py"
