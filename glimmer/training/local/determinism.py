"""Thread count and determinism of torch on a CPU."""

from __future__ import annotations

import torch


def use_threads(threads: int) -> None:
    """Use exactly `threads` threads and deterministic kernels in this process.

    The same thread count gives the same bits; another one may sum in another order.
    """
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
