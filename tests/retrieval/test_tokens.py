"""Tokenising ahead: the ids of transformers, by processes that end with the one who asks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from glimmer.errors import DataError, GlimmerError
from glimmer.retrieval.passages import scan_corpus
from glimmer.retrieval.tokens import TokeniserPool, Tokens, _send


@pytest.mark.parametrize("workers", [0, 2])
def test_ids_are_those_of_transformers(world, encoder, workers):
    offsets = scan_corpus(world.corpus).offsets
    texts = ["passage: " + row["contents"] for row in world.rows]
    expected = encoder._model.tokenizer(
        texts, truncation=True, max_length=encoder.identity.max_length
    )["input_ids"]
    with TokeniserPool(world.corpus, encoder.tokeniser, prefix="passage: ", workers=workers) as p:
        parts = [p.submit(a, offsets[a : min(a + 70, 300) + 1]) for a in range(0, 300, 70)]
        tokens = Tokens.joined([part.result() for part in parts])
    assert tokens.lengths.tolist() == [len(ids) for ids in expected]
    found = [ids.tolist() for ids in np.split(tokens.ids, tokens.starts[1:])]
    assert found == expected
    assert tokens.truncated == 1  # row 7


@pytest.mark.parametrize("workers", [0, 1])
def test_a_line_that_is_no_passage_is_named_and_costs_no_worker(encoder, corpus_of, workers):
    good = b'{"id": "0", "contents": "a b c d e f g"}\n'
    corpus = corpus_of(good * 2 + b"not json, but long enough for one\n" + good)
    offsets = scan_corpus(corpus).offsets
    with TokeniserPool(corpus, encoder.tokeniser, workers=workers) as pool:
        with pytest.raises(DataError, match="line 3: found b'not json"):
            pool.submit(0, offsets).result()
        assert len(pool.submit(3, offsets[3:]).result()) == 1


def test_a_worker_that_was_killed_is_an_error_for_all_that_is_asked(world, encoder):
    offsets = scan_corpus(world.corpus).offsets
    with TokeniserPool(world.corpus, encoder.tokeniser, workers=1) as pool:
        pool.submit(0, offsets).result()
        os.kill(pool._processes[0].pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(GlimmerError, match="ended with status -9"):
                pool.submit(0, offsets).result()


def test_a_worker_ends_with_its_input(world, encoder):
    """As when the process that started it is killed: nothing waits for ever."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "glimmer.retrieval.tokens"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    setup = {"tokenizer": encoder.tokeniser.definition, "max_length": 8, "prefix": ""}
    _send(worker.stdin, json.dumps(setup | {"corpus": str(world.corpus)}).encode())
    worker.stdin.close()
    assert worker.wait(60) == 0 and worker.stdout.read() == b""
    worker.stdout.close()


def test_a_worker_loads_no_torch():
    code = (
        "import sys, glimmer.retrieval.tokens;"
        "assert not {'torch', 'faiss', 'transformers'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tokens_of_nothing(encoder):
    tokens = encoder.tokeniser([])
    assert len(tokens) == 0 and tokens.ids.dtype == tokens.lengths.dtype == np.int32
