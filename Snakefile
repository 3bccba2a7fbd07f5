# Search-R1 on Muse Glimmer by GRPO: download, embed, index, gates, train, evaluate, report.
# `snakemake` makes everything; targets: all, preflight, train, heldout_report, compare_runs,
# bundled_world, bundled_checkpoint. Settings: config/config.yaml, described in config/config.schema.yaml.


configfile: "config/config.yaml"


include: "rules/common.smk"
include: "rules/preflight.smk"
include: "rules/assets.smk"
include: "rules/retrieval.smk"
include: "rules/gates.smk"
include: "rules/training.smk"
include: "rules/heldout.smk"
include: "rules/report.smk"
include: "rules/bundled.smk"


rule all:
    default_target: True
    input:
        rules.heldout_report.input,


# Hours go by until training; a host that cannot carry it is refused in the first minute.
onstart:
    check_host({job.rule.name for job in workflow.dag.needrun_jobs()})


localrules:
    all,
    train,
    heldout_report,
