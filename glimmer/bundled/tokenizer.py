"""The tiny checkpoint's tokenizer: byte-level BPE with Muse Glimmer's special tokens and split.

Enters: an iterator of texts. Leaves: `tokenizer.json` and `tokenizer_config.json`, as transformers
reads them. The split pattern is o200k's, the released tokenizer's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from glimmer.files import write_json, write_text
from glimmer.renderer.codec import O200K_SPLIT

SPECIAL_TOKENS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start|>",
    "<|message|>",
    "<|eot|>",
    "<|eom|>",
    "<|patch|>",
    "<|video|>",
]


def train_tokenizer(texts: Iterable[str], *, vocab_size: int):
    """A `tokenizers.Tokenizer` of exactly `vocab_size` ids, the special tokens first."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(O200K_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    found = tokenizer.get_vocab_size()
    if found != vocab_size:
        raise ValueError(f"the texts give {found} tokens, {vocab_size} were asked for")
    return tokenizer


def save_tokenizer(tokenizer, folder: Path, *, chat_template: str, max_length: int) -> None:
    """Write the three files that transformers' AutoTokenizer reads."""
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True) + "\n")
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|end_of_text|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": max_length,
        },
    )
    write_text(folder / "chat_template.jinja", chat_template)
