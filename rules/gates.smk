# Stages 4, 6 and 7: the gates. Each writes its verdict, then fails if it must; training waits.
# A gate has one try, whatever a profile says: it must not pass by luck.


rule gate_recall:
    input:
        **CORPUS_INPUT,
        index=rules.index.output,
        vectors=rules.index.input.vectors,
        questions=rules.questions.output.train,
    output:
        verdict=f"{R}/gates/recall.json",
        search=f"{R}/retrieval/search.json",
    log:
        f"{R}/logs/gate_recall.log",
    benchmark:
        f"{R}/benchmarks/gate_recall.tsv"
    retries: 0
    conda:
        "../envs/workflow.yaml"
    threads: THREADS
    resources:
        **place(),
        mem_mb=index_mem_mb,
        runtime=more(120),
    params:
        settings=settings("recall"),
        code=code("gate_recall.py", "glimmer.retrieval.recall"),
        packages=packages("gate_recall.py", "glimmer.retrieval.recall"),
    message:
        "Gate: HNSW recall against exact search"
    script:
        "../workflow_scripts/gate_recall.py"


rule gate_renderer:
    input:
        checkpoint=rules.checkpoint.output,
    output:
        verdict=f"{R}/gates/renderer_parity.json",
    log:
        f"{R}/logs/gate_renderer.log",
    benchmark:
        f"{R}/benchmarks/gate_renderer.tsv"
    retries: 0
    conda:
        "../envs/workflow.yaml"
    resources:
        **place(),
        mem_mb=more(2000),
        runtime=more(30),
    params:
        settings=settings("renderer"),
        code=code("gate_renderer.py", "glimmer.renderer.parity"),
        packages=packages("gate_renderer.py", "glimmer.renderer.parity"),
    message:
        "Gate: the renderer against the checkpoint's chat template"
    script:
        "../workflow_scripts/gate_renderer.py"


rule gate_logprobs:
    input:
        **CORPUS_INPUT,
        checkpoint=rules.checkpoint.output,
        questions=rules.questions.output.train,
    output:
        verdict=f"{R}/gates/logprob_parity.json",
    log:
        f"{R}/logs/gate_logprobs.log",
    benchmark:
        f"{R}/benchmarks/gate_logprobs.tsv"
    retries: 0
    conda:
        "../envs/workflow.yaml"
    threads: THREADS
    resources:
        **place(),
        mem_mb=more(3000),
        runtime=more(60),
    params:
        settings=settings("parity", "search", "renderer"),
        threads=THREADS,
        code=code("gate_logprobs.py", "glimmer.parity.logprobs"),
        packages=packages("gate_logprobs.py", "glimmer.parity.logprobs"),
    message:
        "Gate: trainer against sampler, log-probabilities"
    script:
        "../workflow_scripts/gate_logprobs.py"


rule gate_model:
    input:
        **CORPUS_INPUT,
        checkpoint=rules.checkpoint.output,
        questions=rules.questions.output.train,
    output:
        verdict=f"{R}/gates/model_parity.json",
    log:
        f"{R}/logs/gate_model.log",
    benchmark:
        f"{R}/benchmarks/gate_model.tsv"
    retries: 0
    conda:
        "../envs/workflow.yaml"
    threads: THREADS
    resources:
        **place(),
        mem_mb=more(MEMORY["gate_model"]),
        runtime=more(60),
    params:
        settings=settings("parity", "renderer"),
        threads=THREADS,
        code=code("gate_model.py", "glimmer.parity.model"),
        packages=packages("gate_model.py", "glimmer.parity.model"),
    message:
        "Gate: torchtitan's model against transformers'"
    script:
        "../workflow_scripts/gate_model.py"


if TITAN:

    rule gate_bitwise:
        input:
            **CORPUS_INPUT,
            checkpoint=rules.checkpoint.output,
            questions=rules.questions.output.train,
        output:
            verdict=f"{R}/gates/bitwise_parity.json",
        log:
            f"{R}/logs/gate_bitwise.log",
        benchmark:
            f"{R}/benchmarks/gate_bitwise.tsv"
        retries: 0
        conda:
            ENGINE_ENV
        threads: THREADS
        resources:
            **place(gpu=1),
            mem_mb=more(32000),
            runtime=more(60),
        params:
            settings=settings("parity", "search", "renderer", "titan"),
            work=f"{R}/gates/bitwise",
            code=code("gate_bitwise.py", *BITWISE_MODULES),
            packages=packages("gate_bitwise.py", *BITWISE_MODULES),
        message:
            "Gate: trainer against vLLM, bit for bit"
        script:
            "../workflow_scripts/gate_bitwise.py"
