"""Stage 8: recipe -> checkpoints and metrics. `train` is the entry; `local` is the CPU engine."""

from glimmer.training.run import train

__all__ = ["train"]
