# What ships in resources/, made again from nothing. Never part of a normal run.
# The results stand in results/bundled/; copy them over resources/ to ship them.

BUNDLED = f"{config['results']}/bundled"


rule bundled_world:
    output:
        directory(f"{BUNDLED}/toy_world"),
    log:
        f"{BUNDLED}/logs/toy_world.log",
    benchmark:
        f"{BUNDLED}/benchmarks/toy_world.tsv"
    conda:
        "../envs/workflow.yaml"
    resources:
        **place(),
        mem_mb=more(1000),
        runtime=more(10),
    params:
        seed=0,
        train=2400,
        heldout=600,
        code=code("bundled_world.py", "glimmer.bundled.world"),
        packages=packages("bundled_world.py", "glimmer.bundled.world"),
    message:
        "Drawing the toy world"
    script:
        "../workflow_scripts/bundled_world.py"


rule bundled_checkpoint:
    output:
        directory(f"{BUNDLED}/tiny_glimmer"),
    log:
        f"{BUNDLED}/logs/tiny_glimmer.log",
    benchmark:
        f"{BUNDLED}/benchmarks/tiny_glimmer.tsv"
    conda:
        "../envs/workflow.yaml"
    threads: THREADS
    resources:
        **place(),
        mem_mb=more(4000),
        runtime=more(120),
    params:
        seed=0,
        work=f"{BUNDLED}/work",
        renderer=settings("renderer"),
        code=code("bundled_checkpoint.py", "glimmer.bundled.checkpoint"),
        packages=packages("bundled_checkpoint.py", "glimmer.bundled.checkpoint"),
    message:
        "Training the tiny checkpoint until able, then spoiling it briefly"
    script:
        "../workflow_scripts/bundled_checkpoint.py"
