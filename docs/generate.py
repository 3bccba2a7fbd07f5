"""Makes the pages that are drawn from the schema, the table of edits and the code's messages.

`python docs/generate.py` writes them; `--check` only says which differ (exit status 1).
"""

import ast
import sys
import textwrap
from pathlib import Path

import yaml

from glimmer.retrieval.settings import SERVICE_DEFAULTS

ROOT = Path(__file__).resolve().parents[1]
WORDS = {"integer": "whole number", "string": "text", "boolean": "true or false"}

VARIABLES = {
    "`HF_TOKEN`, `HF_HOME`, `HF_ENDPOINT`": "Of huggingface_hub: the account's token, where its "
    "own file of the token is, another hub.",
    "`HF_HUB_OFFLINE`": "1: nothing is fetched. Set for the GPU stack's processes if it is not.",
    "the one that `retrieval.token_env` names": "Token of the search service.",
    "`WANDB_API_KEY`, `WANDB_MODE`, `WANDB_BASE_URL`": "For `training.wandb_project`.",
    "`CUDA_VISIBLE_DEVICES`": "GPUs that a run may take.",
    "`NCCL_IB_DISABLE`, `NCCL_CTRAN_BACKENDS`, `TORCHSTORE_RDMA_ENABLED`": "What a host without "
    "InfiniBand needs; preflight says when, and to what.",
    "`TORCHSTORE_SHARED_MEMORY_ENABLED`": "0: the weight sync goes without /dev/shm, slower.",
    "`GLIMMER_JOB`": "Job file for TitanRL's own launcher.",
    "`PYTORCH_CUDA_ALLOC_CONF`, `VLLM_USE_FLASHINFER_SAMPLER`, `VLLM_NO_USAGE_STATS`": "Set for "
    "the GPU stack's processes to `expandable_segments:True`, 0 and 1, unless they are set.",
    "`OMP_WAIT_POLICY`": "`PASSIVE` unless it is set: threads that wait leave the cores to others.",
}


def configuration() -> str:
    """Every key of config/config.schema.yaml with its type, limits, default and meaning."""
    schema = yaml.safe_load((ROOT / "config/config.schema.yaml").read_text())
    defaults = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    defaults["retrieval"] = SERVICE_DEFAULTS | defaults["retrieval"]
    lines = [
        "# Configuration",
        "",
        _prose(
            "Every key of the config, made from `config/config.schema.yaml` by `make docs`. The "
            "default is that of `config/config.yaml`, the embedded default, or, where that has no "
            "such line, what the program takes. Put what you change into a file of your own and "
            "give it with `--configfile`; an unknown key is refused with the nearest valid name. "
            "What runs again after which change: [staleness.md](staleness.md)."
        ),
        "",
    ]
    top = {k: v for k, v in schema["properties"].items() if v.get("type") != "object"}
    lines += _table(schema, top, defaults)
    for name, part in schema["properties"].items():
        if part.get("type") == "object":
            lines += [f"## {name}", "", " ".join(part["description"].split()), ""]
            lines += _table(schema, part["properties"], defaults.get(name, {}))
    lines += ["## Environment variables", "", "| variable | what it does |", "|---|---|"]
    lines += [f"| {names} | {_cell(meaning)} |" for names, meaning in VARIABLES.items()]
    return "\n".join(lines).rstrip() + "\n"


def _table(schema: dict, properties: dict, defaults: dict) -> list[str]:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, part in properties.items():
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].rsplit("/", 1)[1]] | part
        default = f"`{_shown(defaults[key])}`" if key in defaults else ""
        meaning = " ".join(part.get("description", "").split())
        rows.append(f"| `{key}` | {_value(part)} | {default} | {_cell(meaning)} |")
    return [*rows, ""]


def _value(part: dict) -> str:
    if "enum" in part:
        return " · ".join(f"`{_shown(value)}`" for value in part["enum"])
    kinds = part.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    text = " or ".join(WORDS.get(kind, kind) for kind in kinds)
    limits = []
    for rule, sign in (
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ):
        if rule in part:
            limits.append(f"{sign} {part[rule]}")
    return _cell(" ".join([text, ", ".join(limits)]).strip())


def _prose(text: str) -> str:
    return textwrap.fill(text, width=100, break_on_hyphens=False, break_long_words=False)


def _shown(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def staleness() -> str:
    """The edits of tests/workflow/staleness.yaml and the jobs that run after each."""
    data = yaml.safe_load((ROOT / "tests/workflow/staleness.yaml").read_text())
    names = {
        "from_training": "training and what follows",
        "after_gates": "training, both evaluations and what follows",
        "after_index": "recall gate, `ceiling`, training, both evaluations and what follows",
        "after_training": "evaluation after training and what follows",
        "everything": "everything",
    }
    lines = [
        "# What runs again",
        "",
        _prose(
            "Edits of a finished run, and exactly the jobs that the next `snakemake` does: no "
            "more, no fewer. Made by `make docs` from `tests/workflow/staleness.yaml`; "
            "`tests/workflow/test_stale.py` does every one of them on a real run. 'And what "
            "follows' is `compare` and `report`; after training alone the evaluation after it too."
        ),
        "",
        _prose(
            "`glimmer why` says it of your own folder before you run, one line a job, with the "
            "arguments of `snakemake`:"
        ),
        "",
        "```",
        "$ glimmer why --configfile mine.yaml",
        "grpo: config.training.learning_rate 0.0002 → 0.0001",
        "evaluate after: after grpo",
        "…",
        "```",
        "",
        "| edit | jobs |",
        "|---|---|",
    ]
    for case in data["edits"]:
        runs = [names.get(name, f"`{name}`") for name in case["runs"]]
        lines.append(f"| {case['what']} | {', '.join(runs) or 'none'} |")
    lines += [
        "",
        _prose(
            "How it is known: a rule's parameters hold the config sections of its stage, less the "
            "settings that change no result; digests of the code that it imports, parsed, so that "
            "comments, docstrings and formatting do not count; the versions in "
            "envs/workflow.txt of the packages that this code imports. Snakemake keeps them in "
            "`.snakemake/metadata` and compares. Files count by content: a folder and a large "
            "file by the small record "
            "beside them, which holds their sha256."
        ),
        "",
        _prose(
            "Without `.snakemake` nothing is known of how results were made; Snakemake then goes "
            "by times alone and says so. Copy it along, or keep the times (`cp -a`)."
        ),
    ]
    return "\n".join(lines) + "\n"


MESSAGES = "## Every message"


def troubleshooting() -> str:
    """The page as it stands, its list of messages made anew from the code."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    written = page.partition(MESSAGES)[0].rstrip()
    lines = [
        written,
        "",
        MESSAGES,
        "",
        "Made from the code by `make docs`; … stands for a value.",
        "",
    ]
    for folder, found in messages().items():
        lines += [f"### {folder}", ""]
        lines += [f"- {_cell(text)}" for text in found] + [""]
    return "\n".join(lines).rstrip() + "\n"


def messages() -> dict[str, list[str]]:
    """Package -> texts of the errors that its code raises, values replaced by …, sorted.

    An error may be made in one place and raised in another. Beside them: what a check of the config
    yields, a finding of preflight, and what a failed gate says that it means."""
    found: dict[str, set[str]] = {}
    paths = [*(ROOT / "glimmer").rglob("*.py"), *(ROOT / "workflow_scripts").glob("gate_*.py")]
    for path in sorted(paths):
        package = path.relative_to(ROOT).parts[1].removesuffix(".py")
        package = "gates" if package.startswith("gate_") or package == "verdict" else package
        for node in ast.walk(ast.parse(path.read_text())):
            texts = [_message(node, package)]
            if isinstance(node, ast.Call):
                texts += [_text(k.value) for k in node.keywords if k.arg == "meaning"]
            found.setdefault(package, set()).update(text for text in texts if text)
    return {package: sorted(texts) for package, texts in sorted(found.items()) if texts}


def _message(node: ast.AST, package: str) -> str | None:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        if _name(node.exc) == "ValueError" and node.exc.args:
            return _text(node.exc.args[0])
    elif isinstance(node, ast.Call) and _name(node) in OWN and node.args:
        return _text(node.args[0])
    elif isinstance(node, ast.Yield) and package == "config" and node.value is not None:
        return _text(node.value)
    elif isinstance(node, ast.Call) and _name(node) in FINDINGS and len(node.args) > 3:
        what, *_, found, expected, way_out = (_text(value, short=True) for value in node.args)
        return f"{what}: found {found}, expected {expected}. {way_out}"
    return None


def _name(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def _text(value: ast.AST, *, short: bool = False) -> str | None:
    """A literal's text, … for what it fills in; None of another expression, or … if `short`."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        text = value.value
    elif isinstance(value, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "…" for p in value.values)
        text = "".join(str(part) for part in parts)
    elif isinstance(value, ast.BinOp):
        text = "".join(_text(side, short=True) for side in (value.left, value.right))
    else:
        text = "…"
    text = " ".join(text.split())
    return text if short or len(text.strip("… ")) > 10 else None


FINDINGS = {"refuse", "warn", "Finding"}
OWN = {
    "GlimmerError",
    "ConfigError",
    "DataError",
    "UnreadableSave",
    "HubLost",
    "IntegrityError",
    "GateFailed",
    "SearchError",
    "ServiceError",
    "SearchTimeout",
    "SearchRefused",
    "SearchHTTPError",
    "SearchProtocolError",
    "MalformedBody",
    "NotFound",
    "MethodNotAllowed",
    "BodyTooSlow",
    "BodyTooLarge",
    "InvalidRequest",
    "Overloaded",
    "Unauthorized",
    "NotReady",
    "Stopping",
    "InternalError",
}
PAGES = {
    "docs/configuration.md": configuration,
    "docs/staleness.md": staleness,
    "docs/troubleshooting.md": troubleshooting,
}


def main(arguments: list[str]) -> int:
    differing = []
    for name, make in PAGES.items():
        path, text = ROOT / name, make()
        if not path.exists() or path.read_text() != text:
            differing.append(name)
            if "--check" not in arguments:
                path.write_text(text)
    if differing and "--check" in arguments:
        print(f"{', '.join(differing)}: not what `make docs` writes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
