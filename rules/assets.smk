# Stage 1: checkpoint, corpus and questions, from bundled files, a folder or the hub; verified.


rule checkpoint:
    output:
        manifest=CHECKPOINTS["before"],
    log:
        f"{R}/logs/checkpoint.log",
    benchmark:
        f"{R}/benchmarks/checkpoint.tsv"
    conda:
        "../envs/workflow.yaml"
    resources:
        **place(),
        mem_mb=more(2000),
        runtime=more(240),
    params:
        settings=settings("checkpoint"),
        source=source_state(config["checkpoint"]["source"]),
        code=code("fetch_checkpoint.py", "glimmer.assets.fetch"),
    message:
        "Fetching and verifying the checkpoint"
    script:
        "../workflow_scripts/fetch_checkpoint.py"


rule corpus:
    output:
        corpus=f"{CORPUS}/corpus.jsonl",
        manifest=f"{CORPUS}/manifest.json",
    log:
        f"{R}/logs/corpus.log",
    benchmark:
        f"{R}/benchmarks/corpus.tsv"
    conda:
        "../envs/workflow.yaml"
    resources:
        **place(),
        mem_mb=more(2000),
        runtime=more(240),
    params:
        settings=settings("corpus"),
        source=source_state(config["corpus"]["source"], corpus_files()),
        code=code("fetch_corpus.py", "glimmer.assets.fetch"),
    message:
        "Fetching and verifying the corpus"
    script:
        "../workflow_scripts/fetch_corpus.py"


rule questions:
    output:
        train=f"{QUESTIONS}/train.jsonl",
        heldout=f"{QUESTIONS}/heldout.jsonl",
        manifest=f"{QUESTIONS}/manifest.json",
    log:
        f"{R}/logs/questions.log",
    benchmark:
        f"{R}/benchmarks/questions.tsv"
    conda:
        "../envs/workflow.yaml"
    resources:
        **place(),
        mem_mb=more(1000),
        runtime=more(60),
    params:
        settings=settings("questions"),
        source=source_state(
            config["questions"]["source"],
            [config["questions"]["train"], config["questions"]["heldout"]],
        ),
        code=code("fetch_questions.py", "glimmer.assets.fetch"),
    message:
        "Fetching training and held-out questions"
    script:
        "../workflow_scripts/fetch_questions.py"
