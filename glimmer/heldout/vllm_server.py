"""`python -m glimmer.heldout.vllm_server ARGS`, by the GPU stack's own Python: vLLM's stock server
of the OpenAI protocol with these arguments, which ends with whoever started it."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    from glimmer.processes import end_with_parent

    end_with_parent()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
