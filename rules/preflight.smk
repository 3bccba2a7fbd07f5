# Stage 0: can this host carry this config? Neither output nor benchmark is declared, so that it looks
# each time, and Snakemake keeps the verdict of a refused host: <results>/<run>/preflight.json, .txt.


rule preflight:
    log:
        f"{R}/logs/preflight.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=500,
        runtime=5,
    params:
        out=f"{R}/preflight.json",
    message:
        "Preflight: the host against the config"
    script:
        "../workflow_scripts/preflight.py"
