# Stage 4: embed the corpus in shards, build the HNSW index.


rule embed:
    input:
        **CORPUS_INPUT,
    output:
        vectors=f"{R}/retrieval/vectors/shard-{{i}}-of-{{n}}.npy",
        meta=f"{R}/retrieval/vectors/shard-{{i}}-of-{{n}}.json",
    log:
        f"{R}/logs/embed-{{i}}-of-{{n}}.log",
    benchmark:
        f"{R}/benchmarks/embed-{{i}}-of-{{n}}.tsv"
    conda:
        "../envs/workflow.yaml"
    threads: config["embedding"]["threads"]
    resources:
        **place(gpu=GPUS["embed"], alone=False),
        mem_mb=more(3000 + 300 * config["embedding"]["threads"]),
        runtime=more(720),
    params:
        settings=settings("embedding", drop=("shards", "threads")),
        code=code("embed.py", "glimmer.retrieval.embed"),
        packages=packages("embed.py", "glimmer.retrieval.embed", also=MODEL_PACKAGE),
    message:
        "Embedding shard {wildcards.i} of {wildcards.n}"
    script:
        "../workflow_scripts/embed.py"


rule index:
    input:
        **CORPUS_INPUT,
        vectors=ancient(expand("{shard}.npy", shard=SHARDS)),
        meta=expand("{shard}.json", shard=SHARDS),
    output:
        f"{INDEX}/index.json",
    log:
        f"{R}/logs/index.log",
    benchmark:
        f"{R}/benchmarks/index.tsv"
    conda:
        "../envs/workflow.yaml"
    threads: config["index"]["threads"]
    resources:
        **place(gpu=GPUS["index"]),
        mem_mb=index_mem_mb,
        runtime=more(720),
    params:
        settings=settings("index"),
        code=code("build_index.py", "glimmer.retrieval.build"),
        packages=packages("build_index.py", "glimmer.retrieval.build"),
    message:
        "Building the HNSW index"
    script:
        "../workflow_scripts/build_index.py"
