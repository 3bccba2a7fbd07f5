"""All checks -> a verdict. Looks at the host and asks the hub; judging is done elsewhere."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from glimmer.errors import GateFailed, GlimmerError
from glimmer.files import read_json, write_json, write_text
from glimmer.logs import get_logger
from glimmer.operational import decisive
from glimmer.preflight.degrees import check_degrees
from glimmer.preflight.findings import Finding, ok, refuse, warn
from glimmer.preflight.host import check_gpus, check_limits, check_links, check_memory
from glimmer.preflight.inventory import Inventory, look
from glimmer.preflight.shapes import Shape, parameters
from glimmer.preflight.storage import check_storage
from glimmer.preflight.table import as_text

logger = get_logger(__name__)
RESOURCES = Path(__file__).resolve().parents[2] / "resources"
# config.json of released checkpoints, so that preflight needs no download: the text model's part.
KNOWN_MODELS = {"hub:meta-models/Muse-Glimmer-30B": "muse_glimmer_30b.json"}
_HUB_S = 15.0
_STACK_S = 50.0
# Sections of a job that its checkpoints go by.
_DECIDES = ("training", "search", "renderer", "titan")
_SOURCES = ("checkpoint", "corpus", "questions", "embedding")


def preflight(
    config: Mapping[str, Any],
    *,
    host: Inventory,
    model: Mapping[str, Any],
    resources: Path = RESOURCES,
) -> dict[str, Any]:
    """The verdict for a config on a host.

    Args:
        config: whole and valid, except that revisions may be null.
        host: what `inventory.look` returned, or a simulated one.
        model: the checkpoint's `config.json`.
        resources: folder of the bundled sources.

    Returns:
        A verdict (`glimmer.verdict`); `details` holds the findings, `memory` the items in bytes.
    """
    shape = Shape.of(model)
    findings = [*_pins(config), *_hub(config, host)]
    memory: dict[str, Any] | None = None
    if config["training"]["engine"] == "titan":
        findings += check_gpus(config, host)
        findings += check_degrees(shape, config)
        fits, memory = check_memory(shape, config, host)
        findings += [*fits, *check_links(config, host), *check_limits(shape, config, host)]
        findings += _stack(config, host)
    else:
        findings += [
            refuse("port", f"{port} in use", "a free one", "Set retrieval.port to 0.")
            for port in host.busy_ports
        ]
    findings += check_storage(shape, config, host, resources)
    refused = [f for f in findings if f.level == "refuse"]
    return {
        "gate": "preflight",
        "passed": not refused,
        "measured": {
            "refused": len(refused),
            "warned": sum(f.level == "warn" for f in findings),
            "checks": len(findings),
        },
        "threshold": {"refused": 0},
        "measured_on": {
            "engine": config["training"]["engine"],
            "parameters": parameters(shape),
            "gpus": [asdict(gpu) for gpu in host.gpus],
            "cores": host.cores,
            "ram": host.ram[0],
            "variables": dict(host.variables),
            "hub_token_set": host.token_set,
        },
        "details": [asdict(f) for f in findings],
        "memory": memory,
    }


def require(config: Mapping[str, Any], *, out: Path, ask_hub: bool = True) -> dict[str, Any]:
    """Look at this host, write the verdict to `out` and its table beside it, and return it.

    Args:
        config: the whole config.
        out: `preflight.json`; the table becomes `preflight.txt`.
        ask_hub: whether hub sources are asked for; not needed once they have been fetched.

    Raises:
        GateFailed: the host cannot carry the config; each refusal names the key to change.
        GlimmerError: the checkpoint's config.json cannot be read.
    """
    start = time.monotonic()
    model = model_config(config["checkpoint"])
    with concurrent.futures.ThreadPoolExecutor() as pool:
        hub = {
            config[name].get("source") or config[name]["model"]: pool.submit(ask, config, name)
            for name in _SOURCES
            if ask_hub and (config[name].get("source") or config[name]["model"]).startswith("hub:")
        }
        stack = None
        if config["training"]["engine"] == "titan":
            stack = pool.submit(ask_stack, config["titan"]["python"])
        answers = {source: future.result() for source, future in hub.items()}
        problems = stack.result() if stack is not None else None
    host = look(
        results=Path(config["results"]),
        run=config["run"],
        ports=[config["retrieval"]["port"]] if config["retrieval"]["url"] is None else [],
        others=other_checkpoints(config),
        hub=answers,
        stack=problems,
    )
    verdict = preflight(config, host=host, model=model)
    text = as_text(verdict)
    write_json(out, verdict)
    write_text(out.with_suffix(".txt"), text)
    for line in text.splitlines():
        logger.info("%s", line)
    logger.info("preflight took %.1f s", time.monotonic() - start)
    if not verdict["passed"]:
        ways = [
            f"  {f['what']}: found {f['found']}, expected {f['expected']}. {f['way_out']}"
            for f in verdict["details"]
            if f["level"] == "refuse"
        ]
        raise GateFailed(f"preflight refused this host ({out}):\n" + "\n".join(ways))
    return verdict


def other_checkpoints(config: Mapping[str, Any]) -> list[Path]:
    """Folders of this run's training checkpoints of other settings: they stay, and training writes
    its own beside them."""
    folder = Path(config["results"]) / config["run"] / "training" / "checkpoints"
    others = []
    for path in sorted(folder.glob("*/job.json")):
        job = read_json(path)
        if any(decisive(job[name]) != decisive(config[name]) for name in _DECIDES):
            others.append(path.parent)
    return others


def model_config(checkpoint: Mapping[str, Any], resources: Path = RESOURCES) -> dict[str, Any]:
    """The checkpoint's `config.json`: of a folder, a bundled one, or a known hub repository.

    Raises:
        GlimmerError: it cannot be read, or the hub repository is not a known one and does not
            answer.
    """
    source = checkpoint["source"]
    if source in KNOWN_MODELS:
        return read_json(Path(__file__).with_name(KNOWN_MODELS[source]))
    if source.startswith("hub:"):
        return _fetch_config(source, checkpoint.get("revision"))
    folder = resources / source[8:] if source.startswith("bundled:") else Path(source)
    path = folder / "config.json"
    try:
        return read_json(path)
    except OSError as error:
        raise GlimmerError(
            f"{path}: cannot be read ({error.strerror}), expected the checkpoint's config.json. "
            "Correct checkpoint.source."
        ) from error


def _fetch_config(source: str, revision: str | None) -> dict[str, Any]:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session

    url = hf_hub_url(
        source[4:],
        "config.json",
        revision=revision,
        endpoint=os.environ.get("HF_ENDPOINT", "").rstrip("/") or None,
    )
    try:
        answer = get_session().get(
            url, headers=build_hf_headers(), timeout=_HUB_S, follow_redirects=True
        )
        answer.raise_for_status()
        return answer.json()
    except Exception as error:
        raise GlimmerError(
            f"{source}: its config.json cannot be had ({type(error).__name__}), without which no "
            "memory can be told. Check the network and HF_TOKEN, or set checkpoint.source to a "
            "folder."
        ) from error


def ask(config: Mapping[str, Any], name: str) -> str | None:
    """None if the hub lists a section's source, else why not; no token is in the words."""
    from glimmer.assets.hub import list_hub
    from glimmer.assets.sources import Source

    section = config[name]
    source, revision = section.get("source") or section["model"], section.get("revision")
    if not revision:
        return None  # told by `_pins`
    kind = "model" if name in ("checkpoint", "embedding") else "dataset"
    try:
        list_hub(Source(source, "hub", repo=source[4:].partition("@")[0], revision=revision), kind)
    except GlimmerError as error:
        return str(error)
    return None


def ask_stack(
    python: str | None, run: Callable[..., Any] = subprocess.run
) -> tuple[tuple[str, str], ...]:
    """(level, problem) of the GPU stack's environment, by `glimmer.preflight.stack` in its own
    Python; versions only, for the imports take up to a minute."""
    from glimmer.training.titan.launch import environment, interpreter

    try:
        done = run(
            [interpreter({"python": python}), "-m", "glimmer.preflight.stack", "--versions"],
            capture_output=True,
            text=True,
            timeout=_STACK_S,
            env=environment(),
        )
        return tuple((level, text) for level, text in json.loads(done.stdout))
    except GlimmerError as error:
        return (("refuse", str(error)),)
    except subprocess.TimeoutExpired:
        return (("refuse", f"the check took longer than {_STACK_S:.0f} s"),)
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:]
        return (("refuse", f"the check itself failed: {' '.join(last)}"),)


def _pins(config: Mapping[str, Any]) -> Iterator[Finding]:
    for name in _SOURCES:
        section = config[name]
        source = section.get("source") or section["model"]
        if not source.startswith("hub:"):
            continue
        if section.get("revision") or "@" in source:
            yield ok(f"revision of {name}", str(section.get("revision") or source.split("@")[1]))
            continue
        kind = "model" if name in ("checkpoint", "embedding") else "dataset"
        yield refuse(
            f"revision of {name}",
            f"{name}.revision null with {source}",
            "the full commit of 40 hex digits",
            f'Set {name}.revision to what this prints: python -c "from huggingface_hub import '
            f"HfApi; print(HfApi().{kind}_info('{source[4:]}').sha)\"",
        )


def _hub(config: Mapping[str, Any], host: Inventory) -> Iterator[Finding]:
    if not host.hub:
        return
    if host.variables.get("HF_HUB_OFFLINE") in ("1", "ON", "YES", "TRUE"):
        yield refuse(
            "hub",
            "HF_HUB_OFFLINE is set",
            "a reachable hub for " + ", ".join(host.hub),
            "Unset HF_HUB_OFFLINE, or set the sources to local folders.",
        )
        return
    for source, problem in host.hub.items():
        if problem is None:
            yield ok(f"hub, {source[4:]}", "answers for this commit")
        else:
            section = next(
                n for n in _SOURCES if source == (config[n].get("source") or config[n].get("model"))
            )
            out = f"Set {section}.{'model' if section == 'embedding' else 'source'} to a folder "
            out += "that holds it, or mend what the message names."
            yield refuse(f"hub, {source[4:]}", problem, "a listing of its files", out)
    if not host.token_set:
        yield warn(
            "hub token",
            "none",
            "needed where a repository has terms to accept",
            "Set HF_TOKEN if the hub asks for it.",
        )


def _stack(config: Mapping[str, Any], host: Inventory) -> Iterator[Finding]:
    if host.stack is None:
        return
    what = "GPU stack's environment"
    for level, problem in host.stack:
        yield Finding(
            what,
            level,
            problem,
            "what envs/train.in and envs/train.git.txt pin",
            "Run `make env-train` and set titan.python to .venv-train/bin/python.",
        )
    if not host.stack:
        yield ok(what, str(config["titan"]["python"] or "this Python"))
