# Stage 9: the same held-out questions before and after, then the paired comparison.


rule heldout_questions:
    input:
        questions=rules.questions.output.heldout,
    output:
        chosen=f"{R}/heldout/questions.jsonl",
    log:
        f"{R}/logs/heldout_questions.log",
    benchmark:
        f"{R}/benchmarks/heldout_questions.tsv"
    conda:
        "../envs/workflow.yaml"
    resources:
        **place(),
        mem_mb=more(1000),
        runtime=more(30),
    params:
        settings={
            name: config["evaluation"][name]
            for name in ("questions", "seed", "ids", "datasets")
        },
        ids=file_state(config["evaluation"]["ids"]),
        code=code("heldout_questions.py", "glimmer.heldout.questions"),
        packages=packages("heldout_questions.py", "glimmer.heldout.questions"),
    message:
        "Choosing the held-out questions"
    script:
        "../workflow_scripts/heldout_questions.py"


rule leakage:
    input:
        train=rules.questions.output.train,
        heldout=rules.heldout_questions.output.chosen,
    output:
        leakage=f"{R}/heldout/leakage.json",
    log:
        f"{R}/logs/leakage.log",
    benchmark:
        f"{R}/benchmarks/leakage.tsv"
    conda:
        "../envs/workflow.yaml"
    threads: 1
    resources:
        **place(gpu=GPUS["embed"]),
        mem_mb=more(4000),
        runtime=more(120),
    params:
        settings=settings("leakage"),
        embedding=settings("embedding", drop=("shards",)),
        code=code("leakage.py", "glimmer.heldout.leakage"),
        packages=packages("leakage.py", "glimmer.heldout.leakage", also=MODEL_PACKAGE),
    message:
        "Looking for held-out questions in the training set"
    script:
        "../workflow_scripts/leakage.py"


rule ceiling:
    input:
        **CORPUS_INPUT,
        index=rules.index.output,
        search=rules.gate_recall.output.search,
        train=rules.questions.output.train,
        heldout=rules.heldout_questions.output.chosen,
    output:
        ceiling=f"{R}/heldout/ceiling.json",
    log:
        f"{R}/logs/ceiling.log",
    benchmark:
        f"{R}/benchmarks/ceiling.tsv"
    conda:
        "../envs/workflow.yaml"
    threads: 1
    resources:
        **place(),
        mem_mb=more(4000),
        runtime=more(60),
    params:
        settings=settings("ceiling"),
        topk=config["search"]["topk"],
        ef_search=config["retrieval"].get("ef_search"),
        code=code("ceiling.py", "glimmer.heldout.ceiling"),
        packages=packages("ceiling.py", "glimmer.heldout.ceiling", also=MODEL_PACKAGE),
    message:
        "Retrieval ceiling: answers in the first k passages"
    script:
        "../workflow_scripts/ceiling.py"


rule evaluate:
    input:
        **CORPUS_INPUT,
        checkpoint=lambda wildcards: CHECKPOINTS[wildcards.when],
        index=rules.index.output,
        search=rules.gate_recall.output.search,
        questions=rules.heldout_questions.output.chosen,
        gates=expand(f"{R}/gates/{{gate}}.json", gate=GATES),
    output:
        records=f"{R}/heldout/{{when}}.jsonl",
        repeats=f"{R}/heldout/{{when}}.repeats.jsonl",
        timings=f"{R}/heldout/{{when}}.timings.jsonl",
    log:
        f"{R}/logs/evaluate-{{when}}.log",
    benchmark:
        f"{R}/benchmarks/evaluate-{{when}}.tsv"
    wildcard_constraints:
        when="|".join(CHECKPOINTS),
    conda:
        ENGINE_ENV
    threads: THREADS
    resources:
        **place(gpu=GPUS["evaluate"]),
        mem_mb=more(MEMORY["evaluate"]),
        runtime=more(240),
    params:
        settings=settings("evaluation", "search", "renderer"),
        ef_search=config["retrieval"].get("ef_search"),
        engine={key: config["titan"][key] for key in VLLM_DECISIVE} if VLLM else None,
        threads=THREADS,
        code=code("evaluate.py", "glimmer.heldout.evaluation", *SAMPLER_MODULES),
        packages=packages("evaluate.py", "glimmer.heldout.evaluation", *SAMPLER_MODULES),
    message:
        "Evaluating held-out questions: {wildcards.when}"
    script:
        "../workflow_scripts/evaluate.py"


rule compare:
    input:
        before=f"{R}/heldout/before.jsonl",
        after=f"{R}/heldout/after.jsonl",
        repeats=[
            f"{R}/heldout/before.repeats.jsonl",
            f"{R}/heldout/after.repeats.jsonl",
        ],
        leakage=rules.leakage.output.leakage,
        ceiling=rules.ceiling.output.ceiling,
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


rule heldout_curve:
    input:
        before=f"{R}/heldout/before.jsonl",
        after=f"{R}/heldout/after.jsonl",
        steps=[f"{R}/heldout/step-{step:06d}.jsonl" for step in CURVE_STEPS],
    output:
        curve=f"{R}/heldout/curve.json",
    log:
        f"{R}/logs/heldout_curve.log",
    benchmark:
        f"{R}/benchmarks/heldout_curve.tsv"
    conda:
        "../envs/workflow.yaml"
    resources:
        **place(),
        mem_mb=more(1000),
        runtime=more(30),
    params:
        steps=CURVE_STEPS,
        last=config["training"]["steps"],
        resamples=config["report"]["resamples"],
        seed=config["report"]["seed"],
        code=code("heldout_curve.py", "glimmer.heldout.curve"),
        packages=packages("heldout_curve.py", "glimmer.heldout.curve"),
    message:
        "Held-out questions by step"
    script:
        "../workflow_scripts/heldout_curve.py"
