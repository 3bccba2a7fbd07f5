# Stage 9: the same held-out questions before and after, then the paired comparison.


rule evaluate:
    input:
        **CORPUS_INPUT,
        checkpoint=lambda wildcards: CHECKPOINTS[wildcards.when],
        index=rules.index.output,
        questions=rules.questions.output.heldout,
        gates=expand(f"{R}/gates/{{gate}}.json", gate=GATES),
    output:
        records=f"{R}/heldout/{{when}}.jsonl",
    log:
        f"{R}/logs/evaluate-{{when}}.log",
    benchmark:
        f"{R}/benchmarks/evaluate-{{when}}.tsv"
    wildcard_constraints:
        when="before|after",
    conda:
        "../envs/workflow.yaml"
    threads: THREADS
    resources:
        **place(),
        mem_mb=more(4000),
        runtime=more(240),
    params:
        settings=settings("evaluation", "search", "renderer"),
        threads=THREADS,
        code=code("evaluate.py", "glimmer.heldout.evaluation"),
        packages=packages("evaluate.py", "glimmer.heldout.evaluation"),
    message:
        "Evaluating held-out questions, {wildcards.when} training"
    script:
        "../workflow_scripts/evaluate.py"


rule compare:
    input:
        before=f"{R}/heldout/before.jsonl",
        after=f"{R}/heldout/after.jsonl",
    output:
        paired=f"{R}/heldout/paired.json",
    log:
        f"{R}/logs/compare.log",
    benchmark:
        f"{R}/benchmarks/compare.tsv"
    conda:
        "../envs/workflow.yaml"
    resources:
        **place(),
        mem_mb=more(1000),
        runtime=more(30),
    params:
        resamples=config["report"]["resamples"],
        seed=config["report"]["seed"],
        code=code("compare.py", "glimmer.heldout.paired"),
        packages=packages("compare.py", "glimmer.heldout.paired"),
    message:
        "Comparing before and after, paired"
    script:
        "../workflow_scripts/compare.py"
