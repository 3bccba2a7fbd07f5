# What the rules share: validated settings, paths, and what makes a stage stale.

from pathlib import Path

from snakemake.exceptions import WorkflowError

try:
    import glimmer
except ImportError as error:
    raise WorkflowError(
        f"{error}. The library is not installed in this Python: run `make .venv/installed` and use "
        ".venv/bin/snakemake, or `pip install --no-deps -e .`."
    )
from glimmer.assets import source_state
from glimmer.config import curve_steps, section, validate
from glimmer.errors import GlimmerError
from glimmer.files import sha256_file
from glimmer.heldout.samplers import VLLM_DECISIVE
from glimmer.operational import decisive
from glimmer.preflight import check as host_check
from glimmer.preflight.storage import job_mb
from glimmer.provenance import (
    fingerprint,
    imported_packages,
    locked_versions,
    prepare_children,
)

try:
    validate(config)
except GlimmerError as error:
    raise WorkflowError(str(error))

BASE = Path(workflow.basedir)
LOCK = BASE / "envs" / "workflow.txt"
prepare_children(BASE)

R = f"{config['results']}/{config['run']}"
THREADS = config["threads"]
CHECKPOINT = f"{R}/assets/checkpoint"
CORPUS = f"{R}/assets/corpus"
QUESTIONS = f"{R}/assets/questions"
INDEX = f"{R}/retrieval/index"
# Large files count by the record beside them, not by their time.
CORPUS_INPUT = {
    "corpus": ancient(f"{CORPUS}/corpus.jsonl"),
    "corpus_manifest": f"{CORPUS}/manifest.json",
}
SHARDS = [
    f"{R}/retrieval/vectors/shard-{i:05d}-of-{config['embedding']['shards']:05d}"
    for i in range(config["embedding"]["shards"])
]


def corpus_files():
    """Names of the corpus at its source."""
    names = config["corpus"]["filename"]
    return [names] if isinstance(names, str) else names


def training_gpus():
    """Of the engine titan: trainer and generator side by side, or both on the same."""
    degrees = config["titan"]
    trainers = degrees["trainer_fsdp"] * degrees["trainer_tp"]
    generators = degrees["generator_tp"]
    return max(trainers, generators) if degrees["share_gpu"] else trainers + generators


TITAN = config["training"]["engine"] == "titan"
ENGINE_SECTIONS = ["titan"] if TITAN else []
VLLM = config["evaluation"]["engine"] == "vllm"
# Runs in a process of its own, which no import of the rule's script leads to.
ENGINE_MODULES = ["glimmer.training.titan.__main__"] if TITAN else []
SAMPLER_MODULES = ["glimmer.heldout.vllm_server"] if VLLM else []
# The gate's second module runs on the GPU, in a process of its own too.
BITWISE_MODULES = ["glimmer.parity.bitwise", "glimmer.parity.bitwise_gpu"]
GATES = ["recall", "renderer_parity", "model_parity"]
GATES += ["bitwise_parity"] if TITAN else []
# The CPU engine's own gate, where that engine trains or answers.
GATES += [] if TITAN and VLLM else ["logprob_parity"]
# The rules that start the GPU stack: in its own environment, unless titan.python names one.
OWN_STACK = (TITAN or VLLM) and config["titan"]["python"] is None
ENGINE_ENV = f"../envs/{'train' if OWN_STACK else 'workflow'}.yaml"
# A bundled embedding model is a package, whose version counts.
MODEL_PACKAGE = [m.removeprefix("bundled:") for m in [config["embedding"]["model"]]]
GPUS = {
    "embed": int(config["embedding"]["device"].startswith("cuda")),
    "index": int(config["index"]["backend"] == "cagra"),
    "grpo": training_gpus() if TITAN else 0,
    "evaluate": config["titan"]["generator_tp"] if VLLM else 0,
}
GPU_ROOM = 1000
# A folder is known by the small file in it that is written last and holds the sha256 of the others:
# a touched or copied folder is the same one, of whatever size.
CHECKPOINTS = {
    "before": f"{CHECKPOINT}/manifest.json",
    "after": f"{R}/training/final/manifest.json",
}
# Checkpoints on the way that answer the held-out questions too, if asked for.
CURVE_STEPS = curve_steps(config)
CHECKPOINTS |= {
    f"step-{step:06d}": f"{R}/training/steps/step-{step:06d}/manifest.json"
    for step in CURVE_STEPS
}
CURVE = [f"{R}/heldout/curve.json"] if CURVE_STEPS else []


def settings(*names, drop=()):
    """The config sections of a stage: changing another section leaves the stage as it is.

    In the order of the keys: Snakemake compares text, and a user's file changes the order.
    """
    return {
        name: {
            k: v
            for k, v in sorted(decisive(section(config, name)).items())
            if k not in drop
        }
        for name in names
    }


def file_state(path):
    """What a file named in the config holds, as a small value; None if there is none."""
    return sha256_file(path) if path and Path(path).is_file() else None


def code(script, *modules):
    """Fingerprint of a rule's script and the glimmer code behind it, comments left out."""
    try:
        return fingerprint(*modules, **behind(script))
    except GlimmerError as error:
        raise WorkflowError(str(error))


def packages(script, *modules, also=()):
    """Locked versions of what that code imports, and of the distributions in `also`."""
    try:
        imports = imported_packages(*modules, **behind(script))
        return {"packages": locked_versions(LOCK, {*imports, *also})}
    except GlimmerError as error:
        raise WorkflowError(str(error))


def behind(script):
    return {"scripts": [BASE / "workflow_scripts" / script], "root": BASE / "glimmer"}


def more(amount):
    """A resource of which a job that is tried again gets twice, then three times as much."""

    def granted(wildcards, attempt):
        return amount * attempt

    return granted


def job_memory():
    """MB of the jobs that hold the checkpoint, by its config.json where that is known already."""
    source = config["checkpoint"]["source"]
    model = None
    if source in host_check.KNOWN_MODELS or not source.startswith("hub:"):
        try:
            model = host_check.model_config(config["checkpoint"])
        except GlimmerError:
            pass  # fetching says what is wrong
    return job_mb(config, model, host_check.RESOURCES)


def check_host(needed):
    """Refuse this host before anything is made, if `needed` jobs are to train on its GPUs.

    A cluster's jobs run elsewhere: there training looks at its own host first.
    """
    if TITAN and workflow.local_exec and "grpo" in needed:
        fetching = {"checkpoint", "corpus", "questions", "embed"} & needed
        try:
            host_check.require(
                config, out=Path(f"{R}/preflight.json"), ask_hub=bool(fetching)
            )
        except GlimmerError as error:
            raise WorkflowError(str(error))


def index_mem_mb(wildcards, input, attempt):
    """Memory of an HNSW index: N x (4d + 8M) bytes, of which the vectors' files are N x 4d.

    By the smallest usual d, 384, and 1.2 times that, within which the build stays.
    """
    links = 8 * config["index"]["M"] / (4 * 384)
    return attempt * int(1500 + 1.2 * (1 + links) * input.size_mb)


def place(gpu=0, alone=True):
    """Where a job may run: partition, account and GPUs by section `cluster`; on this host, a job that
    expects its GPUs to itself beside no other one that takes any (profiles/default)."""
    chosen = config["cluster"]
    kind = "gpu_partition" if gpu else "partition"
    wanted = {
        "slurm_partition": chosen[kind],
        "slurm_account": chosen["account"],
        "gpu_model": chosen["gpu_model"] if gpu else None,
    }
    if gpu:
        wanted["nodes"] = 1  # a number of GPUs alone, a cluster may find on several
        # A host has GPU_ROOM of it: a shard of the corpus takes one part, all others the whole.
        wanted["gpu_room"] = GPU_ROOM if alone else 1
    return {"gpu": gpu, **{k: v for k, v in wanted.items() if v is not None}}


def compared_runs():
    """report.json of the runs to compare -> its sha256. Not an input: no run is made for this."""
    names = config["compare_runs"]["runs"]
    folder = Path(config["results"])
    if names is None:
        paths = sorted(folder.glob("*/report.json"))
    else:
        paths = [folder / name / "report.json" for name in names]
    return {str(path): file_state(path) for path in paths}


MEMORY = job_memory()
