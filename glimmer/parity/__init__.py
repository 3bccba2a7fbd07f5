"""Stage 7, the gates before training: trainer against sampler, and model against transformers.

Names are resolved on first use, so that a rule's code fingerprint covers only what it uses.
"""

from glimmer.lazy import lazy

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        "check_logprobs": "glimmer.parity.logprobs",
        "check_model": "glimmer.parity.model",
    },
)
