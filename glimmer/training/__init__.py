"""Stage 8: recipe -> checkpoints and metrics. `train` is the entry; `local` is the CPU engine.

Names are resolved on first use, so that a rule's code fingerprint covers only what it uses.
"""

from glimmer.lazy import lazy

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        "train": "glimmer.training.run",
    },
)
