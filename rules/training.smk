# Stage 8: GRPO. Resumes from its newest whole checkpoint after a kill.


rule grpo:
    input:
        **CORPUS_INPUT,
        checkpoint=rules.checkpoint.output,
        index=rules.index.output,
        search=rules.gate_recall.output.search,
        train_questions=rules.questions.output.train,
        heldout_questions=rules.questions.output.heldout,
        gates=expand(f"{R}/gates/{{gate}}.json", gate=GATES),
    output:
        final=CHECKPOINTS["after"],
        metrics=f"{R}/training/metrics.jsonl",
    log:
        f"{R}/logs/grpo.log",
    benchmark:
        f"{R}/benchmarks/grpo.tsv"
    conda:
        ENGINE_ENV
    threads: THREADS
    resources:
        **place(gpu=GPUS["grpo"]),
        mem_mb=more(MEMORY["grpo"]),
        runtime=more(1440),
    params:
        settings=settings("training", "search", "renderer", *ENGINE_SECTIONS),
        ef_search=config["retrieval"].get("ef_search"),
        threads=THREADS,
        code=code("train.py", "glimmer.training.run", *ENGINE_MODULES),
        packages=packages("train.py", "glimmer.training.run", *ENGINE_MODULES),
    message:
        "Training"
    script:
        "../workflow_scripts/train.py"


rule step_checkpoint:
    input:
        checkpoint=rules.checkpoint.output,
        final=rules.grpo.output.final,
        metrics=rules.grpo.output.metrics,
    output:
        manifest=f"{R}/training/steps/step-{{step}}/manifest.json",
    log:
        f"{R}/logs/step_checkpoint-{{step}}.log",
    benchmark:
        f"{R}/benchmarks/step_checkpoint-{{step}}.tsv"
    wildcard_constraints:
        step=r"\d{6}",
    conda:
        "../envs/workflow.yaml"
    resources:
        **place(),
        mem_mb=more(4000),
        runtime=more(30),
    params:
        code=code("step_checkpoint.py", "glimmer.training.local.kept"),
        packages=packages("step_checkpoint.py", "glimmer.training.local.kept"),
    message:
        "Weights of step {wildcards.step}"
    script:
        "../workflow_scripts/step_checkpoint.py"


rule train:
    input:
        rules.grpo.output,
