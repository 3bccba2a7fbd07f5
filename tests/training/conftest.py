import pytest
import torch

TEXT_CONFIG = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "sliding_window": 256,
    "output_multiplier": 1.0,
    "qk_scale_factor": 2.0,
}


@pytest.fixture(scope="session")
def model():
    """A small random Muse Glimmer with sharp outputs; tests must not change it."""
    from glimmer.training.local.model import new_model

    torch.set_num_threads(1)
    model = new_model(TEXT_CONFIG, seed=3)
    with torch.no_grad():
        model.norm.weight.fill_(3.0)
    return model
