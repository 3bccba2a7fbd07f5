"""The released tokenizer, rebuilt from the vocabulary that the package `llama-models` carries.

Muse Glimmer's tokenizer is Llama 4's with its special tokens renamed and the o200k split pattern.
The package is optional: nothing in the pipeline needs it.
"""

from __future__ import annotations

import base64
import importlib.util
from pathlib import Path
from typing import Any

from glimmer.errors import ConfigError
from glimmer.renderer.codec import O200K_SPLIT

SPECIALS = {
    "<|begin_of_text|>": 200000,
    "<|end_of_text|>": 200001,
    "<|eom|>": 200007,
    "<|eot|>": 200008,
    "<|start|>": 200022,
    "<|message|>": 200023,
    "<|video|>": 200091,
    "<|patch|>": 200092,
}


def released_tokenizer(vocabulary: Path | None = None) -> Any:
    """transformers' fast tokenizer with the released checkpoint's ids; takes seconds to build.

    Args:
        vocabulary: Llama 4's `tokenizer.model`; None takes the installed `llama-models`'.

    Raises:
        ConfigError: the package is not installed, or has no such file.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    path = vocabulary or _installed_vocabulary()
    lines = path.read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    letters = bytes_to_unicode()

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    core = Tokenizer(
        BPE(
            {spelled(token): rank for token, rank in ranks.items()},
            [(spelled(left), spelled(right)) for left, right in _merges(ranks)],
            fuse_unk=False,
            ignore_merges=True,  # a piece that is a token of the vocabulary is that token
        )
    )
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(O200K_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    names = {number: name for name, number in SPECIALS.items()}
    core.add_special_tokens(
        [
            AddedToken(names.get(number, f"<|reserved_{number}|>"), normalized=False, special=True)
            for number in range(len(ranks), max(names) + 1)
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core)


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """All ways to make a token of two others, in the order in which a byte-pair encoder takes them:
    by the token's rank, then by the parts'."""
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        parts = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in parts if pair[0] in ranks and pair[1] in ranks]
        merges += sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return merges


def _installed_vocabulary() -> Path:
    spec = importlib.util.find_spec("llama_models")
    folders = spec.submodule_search_locations if spec is not None else ()
    for folder in folders or ():
        found = next(Path(folder).rglob("llama4/tokenizer.model"), None)
        if found is not None:
            return found
    raise ConfigError(
        "the released tokenizer needs the vocabulary in the package `llama-models` (0.3.0), which "
        "is not installed. `pip install --no-deps llama-models` brings it."
    )
