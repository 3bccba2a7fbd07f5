"""Stage 7, the gates before training: trainer against sampler, and model against transformers."""

from glimmer.parity.logprobs import check_logprobs
from glimmer.parity.model import check_model

__all__ = ["check_logprobs", "check_model"]
