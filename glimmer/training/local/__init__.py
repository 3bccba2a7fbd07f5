"""The CPU engine: torchtitan's Muse Glimmer, a batched sampler and a GRPO trainer in one process."""
