"""Why would a job run? The workflow's dry run, one line a job.

The only module of glimmer that knows Snakemake: it asks its command line for a dry run and reads
the graph that this leaves. Nothing is run and nothing is written to the results.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from glimmer.errors import ConfigError
from glimmer.provenance.changes import changes


def why(arguments: Sequence[str]) -> list[str]:
    """`job: cause; cause` for each job that `snakemake *arguments` would run, in running order.

    Raises:
        ConfigError: Snakemake refuses the arguments, the config or the workflow; with its words.
    """
    workflow = _dry_run(arguments)
    return [f"{label}: {'; '.join(causes)}" for label, causes in _jobs(workflow)]


def stale_jobs(arguments: Sequence[str]) -> list[str]:
    """The jobs that `snakemake *arguments` would run, such as `grpo` or `evaluate after`."""
    return [label for label, _ in _jobs(_dry_run(arguments))]


def _jobs(workflow: Any) -> Iterator[tuple[str, list[str]]]:
    """(label, causes) of each job to run; targets without output are left out."""
    dag = workflow.dag
    needed = _needed(dag)
    for level in dag.toposorted():
        for job in sorted((j for j in level if j in needed and j.output), key=str):
            wildcards = "-".join(job.wildcards)
            label = f"{job.rule.name} {wildcards}" if wildcards else job.rule.name
            yield label, _causes(job, dag, workflow.persistence)


def _causes(job: Any, dag: Any, persistence: Any) -> list[str]:
    reason = dag.reason(job)
    found: list[str] = []
    for path in job.output:
        recorded = persistence.params(path)
        if recorded is not None:
            present = {name or "value": value for name, value in job.params._allitems()}
            found += [text for text in changes(recorded, present) if text not in found]
    if reason.forced:
        found.append("asked for by --force")
    missing = sorted(str(path) for path in reason.missing_output)
    if missing:
        found.append(f"missing {', '.join(missing)}")
    if reason._incomplete_output:
        found.append("was interrupted")
    made_now = {str(f) for files in dag.dependencies[job].values() for f in files}
    newer = sorted(str(f) for f in reason.updated_input if str(f) not in made_now)
    newer += sorted(
        str(f) for f in reason.updated_input if str(f) in made_now and not _runs(dag, job, f)
    )
    if newer:
        found.append(f"changed {', '.join(newer)}")
    if any(persistence.input_changed(job)):
        found.append("other input files than before")
    before = sorted({other.rule.name for other in dag.dependencies[job] if other in _needed(dag)})
    if before:
        found.append(f"after {', '.join(before)}")
    return found or ["no reason given"]


def _needed(dag: Any) -> set[Any]:
    """The jobs that the dry run has gone through."""
    return set(dag.needrun_jobs(exclude_finished=False))


def _runs(dag: Any, job: Any, path: Any) -> bool:
    """Will the job that makes this input run too?"""
    needed = _needed(dag)
    return any(path in files and other in needed for other, files in dag.dependencies[job].items())


def _dry_run(arguments: Sequence[str]) -> Any:
    """The workflow after Snakemake's own dry run, silent."""
    from snakemake.api import DAGApi
    from snakemake.cli import args_to_api, parse_args

    kept: list[Any] = []
    execute = DAGApi.execute_workflow

    def keep(api: Any, *args: Any, **kwargs: Any) -> Any:
        kept.append(api.workflow_api._workflow)
        return execute(api, *args, **kwargs)

    said = io.StringIO()
    DAGApi.execute_workflow = keep
    level = logging.root.manager.disable
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                parser, options = parse_args([*arguments, "--dry-run", "--nocolor"])
                good = args_to_api(options, parser)
            except SystemExit as stop:
                good = not stop.code
    finally:
        DAGApi.execute_workflow = execute
        logging.disable(level)
    if not good or not kept:
        text = said.getvalue().strip() or "it said nothing"
        raise ConfigError(f"snakemake --dry-run {' '.join(arguments)}: {text[-2000:]}")
    return kept[0]
