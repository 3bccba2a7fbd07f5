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
from glimmer.config import section, validate
from glimmer.errors import GlimmerError
from glimmer.operational import decisive
from glimmer.provenance import fingerprint, prepare_children

try:
    validate(config)
except GlimmerError as error:
    raise WorkflowError(str(error))

prepare_children(Path(workflow.basedir))

R = f"{config['results']}/{config['run']}"
THREADS = config["threads"]
CHECKPOINT = f"{R}/assets/checkpoint"
CORPUS = f"{R}/assets/corpus"
QUESTIONS = f"{R}/assets/questions"
INDEX = f"{R}/retrieval/index"
SHARDS = [
    f"{R}/retrieval/vectors/shard-{i:05d}-of-{config['embedding']['shards']:05d}"
    for i in range(config["embedding"]["shards"])
]
TITAN = config["training"]["engine"] == "titan"
ENGINE_SECTIONS = ["titan"] if TITAN else []
# Runs in a process of its own, which no import of the rule's script leads to.
ENGINE_MODULES = ["glimmer.training.titan.__main__"] if TITAN else []
GATES = ["recall", "renderer_parity", "logprob_parity", "model_parity"]
CHECKPOINTS = {"before": CHECKPOINT, "after": f"{R}/training/final"}


def settings(*names, drop=()):
    """The config sections of a stage: changing another section leaves the stage as it is."""
    return {
        name: {
            k: v for k, v in decisive(section(config, name)).items() if k not in drop
        }
        for name in names
    }


def code(script, *modules):
    """Fingerprint of a rule's script and the glimmer code behind it, comments left out."""
    try:
        return fingerprint(
            *modules, scripts=[Path(workflow.basedir) / "workflow_scripts" / script]
        )
    except GlimmerError as error:
        raise WorkflowError(str(error))


def index_mem_mb(wildcards, input):
    """Memory of an HNSW index: N x (4d + 8M) bytes, of which the vectors' files are N x 4d."""
    links = 8 * config["index"]["M"] / (4 * 384)
    return int(1500 + (2 + links) * input.size_mb)
