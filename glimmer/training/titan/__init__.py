"""The GPU engine: TitanRL's controller, trainer and vLLM generator, from a Search-R1 recipe.

`launch` is what the workflow calls: it starts `python -m glimmer.training.titan` in the GPU stack's
interpreter (`titan.python`) with a job file and watches it. Everything else here runs in that
process or in those that Monarch spawns from it; only they import torchtitan's actors and vllm.
"""

from __future__ import annotations

CHECKPOINT_FOLDER = "checkpoint"  # of TitanRL's saves, in the run's work folder
