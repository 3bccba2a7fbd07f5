"""The CPU engine: torchtitan's Muse Glimmer, a batched sampler, GRPO in one process."""
