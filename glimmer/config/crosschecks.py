"""Settings that are each valid and do not fit together. Called on a config that fits its schema."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from typing import Any

from glimmer.config.steps import curve_steps

SHARED = ("benchmarks", "bundled", "cache", "logs")
"""Folders in that of all runs which are no run's."""


def cross_checks(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each contradiction: keys, values found, relation expected, way out."""
    yield from _name(config)
    yield from _sources(config)
    yield from _dates(config)
    yield from _retrieval(config)
    yield from _rollouts(config)
    yield from _titan(config)
    yield from _evaluation(config)
    yield from _curve(config)


def _name(config: Mapping[str, Any]) -> Iterator[str]:
    run, results = config["run"], config["results"]
    # A file system may ignore case.
    if run.lower() in SHARED or run.lower().startswith("compare_runs."):
        yield (
            f"run: found {run!r}, expected another name: {results}/{run} belongs to all runs, as "
            f"do {', '.join(SHARED)} and compare_runs. Rename the run."
        )


def _sources(config: Mapping[str, Any]) -> Iterator[str]:
    for name in ("checkpoint", "corpus", "questions"):
        part = config[name]
        source, revision = part["source"], part.get("revision")
        if source.startswith("hub:") and not re.fullmatch("[0-9a-f]{40}", revision or ""):
            yield (
                f"{name}.revision: found {revision!r} with the source {source!r}, expected the "
                f"full commit of 40 hex digits. A branch or tag may change under a running project."
            )
        if not source.startswith("hub:") and revision is not None:
            yield (
                f"{name}.revision: found {revision!r} with the source {source!r}, expected null: "
                f"only hub:<owner>/<repo> has revisions. Set it to null."
            )
    embedding = config["embedding"]
    if embedding["model"].startswith("hub:") and not (
        embedding.get("revision") or re.search("@[0-9a-f]{40}$", embedding["model"])
    ):
        yield (
            f"embedding.revision: found null with the model {embedding['model']!r}, expected the "
            f"full commit of 40 hex digits. A branch or tag may change under a running project."
        )
    questions = config["questions"]
    if questions["train"] == questions["heldout"]:
        yield (
            f"questions.heldout: found {questions['heldout']!r}, the same file as questions.train, "
            f"expected another one."
        )


def _dates(config: Mapping[str, Any]) -> Iterator[str]:
    for key in ("current_date", "knowledge_cutoff"):
        text = config["renderer"].get(key)
        try:
            if text is not None:
                datetime.date.fromisoformat(text)
        except ValueError as error:
            yield f"renderer.{key}: found {text!r}, expected a date of the calendar ({error})."


def _retrieval(config: Mapping[str, Any]) -> Iterator[str]:
    index = ("index.ef_search", config["index"]["ef_search"])
    served = ("retrieval.ef_search", config["retrieval"].get("ef_search"))
    # HNSW returns at most efSearch passages; the service may be told another one than the index's.
    if (
        config["recall"]["choose"] == "smallest"
        and config["recall"]["k"] < config["search"]["topk"]
    ):
        yield (
            f"recall.k: found {config['recall']['k']} with recall.choose smallest, expected at "
            f"least search.topk, which is {config['search']['topk']}: the gate would choose an "
            f"efSearch for fewer passages than a search returns. Raise recall.k to it."
        )
    for key, value, (ef_key, ef_search) in (
        ("recall.k", config["recall"]["k"], index),
        ("search.topk", config["search"]["topk"], served if served[1] else index),
    ):
        if value > ef_search:
            yield (
                f"{key}: found {value}, expected at most {ef_key}, which is {ef_search}. "
                f"Lower {key} or raise {ef_key}."
            )


def _rollouts(config: Mapping[str, Any]) -> Iterator[str]:
    search = config["search"]
    if search["max_new_tokens"] > search["max_rollout_tokens"]:
        yield (
            f"search.max_new_tokens: found {search['max_new_tokens']}, expected at most "
            f"search.max_rollout_tokens, which is {search['max_rollout_tokens']}."
        )


def _titan(config: Mapping[str, Any]) -> Iterator[str]:
    if config["training"]["engine"] != "titan":
        return
    titan, training = config["titan"], config["training"]
    degrees = ("trainer_fsdp", "trainer_tp", "generator_tp")
    if titan["share_gpu"] and any(titan[key] != 1 for key in degrees):
        found = ", ".join(f"{key} {titan[key]}" for key in degrees)
        yield (
            f"titan.share_gpu: found true with {found}, expected 1 for each: one GPU holds both. "
            f"Set share_gpu to false, or the degrees to 1."
        )
    if titan["context"] < config["search"]["max_rollout_tokens"]:
        yield (
            f"titan.context: found {titan['context']}, expected at least search.max_rollout_tokens "
            f"= {config['search']['max_rollout_tokens']}: longer rollouts would be dropped from "
            f"the loss. Raise titan.context to it."
        )
    if training["temperature"] != 1.0:
        yield (
            f"training.temperature: found {training['temperature']}, expected 1.0 with the engine "
            f"titan: its loss compares untempered probabilities. Set it to 1.0."
        )
    if training["control"] == "shuffled_rewards":
        yield (
            "training.control: found 'shuffled_rewards', which only the engine local knows, "
            "expected 'none' or 'zero_advantages' with the engine titan."
        )
    if config["renderer"]["implementation"] != "glimmer":
        yield (
            f"renderer.implementation: found {config['renderer']['implementation']!r}, expected "
            f"'glimmer' with the engine titan, whose rollouts use no other renderer."
        )


def _evaluation(config: Mapping[str, Any]) -> Iterator[str]:
    evaluation = config["evaluation"]
    if evaluation["samples"] > 1 and not evaluation["temperature"]:
        yield (
            f"evaluation.samples: found {evaluation['samples']} with evaluation.temperature 0, at "
            f"which all samples of a question are the same; expected 1, or a temperature above 0."
        )


def _curve(config: Mapping[str, Any]) -> Iterator[str]:
    training = config["training"]
    if not config["report"].get("heldout_curve"):
        return
    if training["engine"] != "local":
        yield (
            f"report.heldout_curve: found true with training.engine {training['engine']!r}, "
            f"expected false: only the engine local's checkpoints can be evaluated on the way. Set "
            f"it to false."
        )
    elif not curve_steps(config):
        yield (
            f"report.heldout_curve: found true with training.keep_checkpoints "
            f"{training['keep_checkpoints']}, training.checkpoint_every "
            f"{training['checkpoint_every']} and {training['steps']} steps, of which none before "
            f"the last is kept. Raise keep_checkpoints or lower checkpoint_every."
        )
