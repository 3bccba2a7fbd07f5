"""A report's inputs for tests, and its page as a parser sees it."""

from __future__ import annotations

import copy
import random
from html.parser import HTMLParser
from pathlib import Path

from glimmer.files import write_json, write_jsonl
from glimmer.heldout import compare, write_report

HOSTILE = (
    "</script><script>document.title='pwned'</script><!-- "
    "<img src=x onerror=\"document.title='pwned'\"> 'single' \"double\" & 🦊 مرحبا\u202e\u2028"
)
CONFIG = {
    "run": "test",
    "results": "results",
    "threads": 2,
    "checkpoint": {"source": "bundled:tiny_glimmer", "revision": None, "sha256": {}},
    "training": {"steps": 50, "learning_rate": 2.0e-4, "control": "none", "seed": 0},
    "evaluation": {"questions": 400, "seed": 0},
    "report": {"title": "Search-R1 on Muse Glimmer", "resamples": 300, "seed": 0},
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROVENANCE = {
    "glimmer": "0.1.0",
    "commit": COMMIT,
    "dirty": False,
    "changed": 0,
    "lock": {"name": "workflow.txt", "sha256": "ab" * 32},
    "python": "3.11.2",
    "packages": {"torch": "2.9.0", "vllm": None},
    "seeds": {"evaluation": 0, "report": 0, "training": 0},
    "files": {"corpus": {"sha256": "cd" * 32, "bytes": 123456}},
    "machine": {
        "platform": "Linux 6.1 x86_64",
        "libc": "glibc 2.36",
        "cpu": "Some CPU",
        "cores": 2,
        "memory_bytes": 8 * 2**30,
        "gpus": [],
    },
}


def passage(rng, answer):
    k = rng.randrange(50)
    text = f"The Glass Crown is film number {k}. It was filmed in {answer} and elsewhere. " * 3
    return {"id": f"p{k}{answer}", "title": f"Film {k}", "text": text, "score": rng.random()}


def record(i, right, rng, *, outcome=None, searched=True):
    answer = f"Staidrus{i % 7}"
    outcome = outcome or ("correct" if right else "wrong")
    said = answer if right else "Mokruth"
    turns = []
    if searched:
        turns.append(
            {
                "prompt_ids": [1, 2],
                "completion_ids": list(range(90001, 90010)),
                "logprobs": [-0.123456] * 9,
                "text": "<raw/>",
                "reasoning": "I should look this up.",
                "content": None,
                "tool_calls": [
                    {"name": "search", "arguments": {"query": f"film {i}"}, "status": "ok"}
                ],
                "tool_results": [
                    {
                        "query": f"film {i}",
                        "passages": [passage(rng, answer) for _ in range(3)],
                        "error": None,
                    }
                ],
            }
        )
    turns.append(
        {
            "prompt_ids": [3],
            "completion_ids": [90020] * 4,
            "logprobs": [-0.123456] * 4,
            "text": said,
            "reasoning": None,
            "content": said,
            "tool_calls": [],
            "tool_results": [],
        }
    )
    return {
        "id": f"q{i:04d}",
        "question": f"In which city was film {i} shot?",
        "golden_answers": [answer],
        "type": ("film.location", "novel.author", "person.birthplace", None)[i % 4],
        "outcome": outcome,
        "prediction": None if outcome in ("no_answer", "truncated") else said,
        "scores": {"exact_match": int(right), "f1": float(right), "contains": int(right)},
        "searches": int(searched),
        "failed_searches": 0,
        "status": "completed",
        "turns": turns,
        "hashes": {"question": f"h{i}", "settings": "s", "prompt": "p"},
    }


def _point(step, correct, **paired):
    rate = {"exact_match": correct / 200, "ci95": [0.25, 0.75]}
    return {"step": step, "questions": 200, "correct": correct} | rate | paired


_PAIRED = {
    "difference": {"mean": 0.1, "ci95": [0.02, 0.18]},
    "gained": 30,
    "lost": 10,
    "mcnemar_p": 0.0022,
    "holm_p": 0.0044,
}
# `curve.json` of a run with one checkpoint on the way.
CURVE = {"points": [_point(0, 80), _point(20, 100, **_PAIRED), _point(50, 130, **_PAIRED)]}


class Case:
    """The inputs of a report in a folder; tests change them before `write`."""

    def __init__(self, folder: Path, *, questions=200, gained=60, lost=10, both=70):
        rng = random.Random(0)
        self.folder = folder
        self.before, self.after = [], []
        for i in range(questions):
            k = i * 37 % questions
            was = k < both + lost
            became = k < both or both + lost <= k < both + lost + gained
            bad = (None, "no_answer", "truncated", "turn_limit", None)
            self.before.append(
                record(i, was, rng, outcome=None if was else bad[i % 5], searched=i % 3 > 0)
            )
            self.after.append(record(i, became, rng, outcome=None if became else bad[i % 3 % 2]))
        self.metrics = [
            {
                "step": step,
                "time": 1.7e9 + step,
                "reward": 0.4 + 0.01 * step,
                "exact_match": 0.4 + 0.008 * step + 0.05 * rng.random(),
                "searches": 0.6 + 0.01 * step,
                "turns": 1.6 + 0.01 * step,
                "response_tokens": 30.0 - 0.1 * step + rng.random(),
                "group_zero_std_frac": rng.random(),
                "grad_norm": 1 + rng.random(),
                "entropy": 1.2 - 0.02 * step,
                "loss": 0.1 * (rng.random() - 0.5),
                "logprob_diff_max": 1e-6 * rng.random(),
                "tokens_per_s": 1500 + 100 * rng.random(),
                "failed_searches": 0.0,
            }
            for step in range(1, 51)
        ]
        self.gates = {
            "recall": {
                "gate": "recall",
                "passed": True,
                "measured": {
                    "recall": 0.99612345,
                    "recall_by_ef_search": {"16": 0.9, "128": 0.99612345},
                    "smallest_ef_search": None,
                },
                "threshold": {"min_recall": 0.98},
                "measured_on": {"queries": 400, "index_sha256": "ef" * 32},
                "details": [{"query": "a film", "recall": 0.333}],
            },
            "model_parity": {
                "gate": "model_parity",
                "passed": False,
                "measured": {"transformers_vs_engine": 1.234567e-3, "sequences": 1234},
                "threshold": {"max_logit_diff": 1e-4},
                "measured_on": {"dtype": "float32"},
                "details": [],
            },
        }
        # Two further passes over the first 40 questions; every 20th changes in one of them.
        self.repeats = {
            name: [
                {
                    "id": row["id"],
                    "pass": number,
                    "outcome": row["outcome"],
                    "prediction": row["prediction"],
                    "scores": row["scores"]
                    | (
                        {"exact_match": 1 - row["scores"]["exact_match"]}
                        if k % 20 == number
                        else {}
                    ),
                    "same_tokens": k % 20 != number,
                }
                for number in (1, 2)
                for k, row in enumerate(rows[:40])
            ]
            for name, rows in (("before", self.before), ("after", self.after))
        }
        self.leakage = {
            "train": 2400,
            "heldout": questions,
            "settings": {"ngram": 3, "min_overlap": 0.8, "min_similarity": 0.95},
            "counts": {"exact": 0, "normalised": 0, "ngram": 2, "embedding": 0, "any": 2},
            "same_answer": {"exact": 0, "normalised": 0, "ngram": 1, "embedding": 0, "any": 1},
            "found": [
                {
                    "id": self.before[i]["id"],
                    "kind": "ngram",
                    "score": 0.9,
                    "same_answer": i == 1,
                    "train_id": f"t{i}",
                    "question": self.before[i]["question"],
                    "train_question": f"In which city was film {i + 50} shot?",
                }
                for i in (0, 1)
            ],
        }
        self.timings = {
            name: [
                {"id": row["id"], "seconds": 1 + k / 10, "search_seconds": 0.25, "tokens": 13}
                for k, row in enumerate(rows)
            ]
            for name, rows in (("before", self.before), ("after", self.after))
        }
        self.curve = None
        self.config = copy.deepcopy(CONFIG)
        self.defaults = copy.deepcopy(CONFIG)
        self.provenance = copy.deepcopy(PROVENANCE)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "benchmarks").mkdir()
        head = "s\th:m:s\tmax_rss\tmean_load\n"
        (folder / "benchmarks/grpo.tsv").write_text(f"{head}3661.5\t1:01:01\t2048.4\t150\n")
        (folder / "benchmarks/index.tsv").write_text(f"{head}2.25\t0:00:02\t-\t90\n")

    def write(self, name="report.html") -> str:
        f = self.folder
        write_jsonl(f / "before.jsonl", self.before)
        write_jsonl(f / "after.jsonl", self.after)
        write_jsonl(f / "metrics.jsonl", self.metrics)
        for gate, verdict in self.gates.items():
            write_json(f / f"{gate}.json", verdict)
        for when, rows in self.repeats.items():
            write_jsonl(f / f"{when}.repeats.jsonl", rows)
        for when, rows in self.timings.items():
            write_jsonl(f / f"{when}.timings.jsonl", rows)
        write_json(f / "leakage.json", self.leakage)
        paired = self.paired()
        write_report(
            f / name,
            paired=paired,
            before=f / "before.jsonl",
            after=f / "after.jsonl",
            metrics=f / "metrics.jsonl",
            gates={gate: f / f"{gate}.json" for gate in self.gates},
            provenance=self.provenance,
            config=self.config,
            defaults=self.defaults,
            benchmarks=f / "benchmarks",
            json_out=f / "report.json",
            markdown_out=f / "report.md",
            piece=lambda token: f" t{token}",
            curve=self.curve,
            timings=(f / "before.timings.jsonl", f / "after.timings.jsonl"),
        )
        return (f / name).read_text(encoding="utf-8")

    def paired(self) -> dict:
        """The verdict of the files that `write` has written."""
        f = self.folder
        return compare(
            f / "before.jsonl",
            f / "after.jsonl",
            seed=0,
            resamples=300,
            repeats=(f / "before.repeats.jsonl", f / "after.repeats.jsonl"),
            leakage=f / "leakage.json",
        )


class Page(HTMLParser):
    """Elements, attributes and text of a page, as a browser's parser splits them."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text, self.scripts = [], [], [], {}
        self._script = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag == "script":
            self._script = dict(attrs).get("id") or "code"
            assert self._script not in self.scripts
            self.scripts[self._script] = ""

    def handle_endtag(self, tag):
        if tag == "script":
            self._script = None

    def handle_data(self, data):
        if self._script:
            self.scripts[self._script] += data
        else:
            self.text.append(data)
