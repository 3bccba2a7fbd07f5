"""Which checkpoints the gates measure whole; light, since preflight's arithmetic asks it too."""

LARGEST = 2_000_000_000
"""Parameters of a checkpoint that a gate measures whole."""
LAYERS = 4
"""First layers that it measures of a larger one."""
