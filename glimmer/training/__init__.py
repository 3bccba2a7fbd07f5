"""Stage 8: recipe -> checkpoints and metrics, by the `local` engine (CPU) or `titan` (GPU)."""
