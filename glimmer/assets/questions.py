"""Questions: JSONL, one question a line, for training and held out.

    {"id": "train-0", "question": "Who ...?", "golden_answers": ["..."], "type": "film.director",
     "dataset": "hotpotqa", "hops": 2}

`type`, `dataset` and `hops` may be absent; other keys are passed over. A held-out question must not
occur in training, unless it is asked to be kept and counted (`questions.overlap`).
"""

from __future__ import annotations

import unicodedata
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glimmer.assets.lines import read_objects, shortened, text_field
from glimmer.errors import DataError

LAYOUT = '{"id": "0", "question": "Who ...?", "golden_answers": ["..."], "type": null}.'
_ARTICLES = frozenset({"a", "an", "the"})


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        id: as in the file.
        question: its text.
        golden_answers: at least one; any of them counts as right.
        type: relation or kind asked for, for the report's breakdown.
        dataset: which of several sets in one file it belongs to.
        hops: passages that must be brought together to answer it.
    """

    id: str
    question: str
    golden_answers: list[str]
    type: str | None = None
    dataset: str | None = None
    hops: int | None = None

    def row(self) -> dict[str, Any]:
        """As a line of a question file; what is unknown is left out."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class QuestionStats:
    """What the two question files hold.

    Attributes:
        train: number of training questions.
        heldout: number of held-out questions.
        types: held-out questions of each type.
        overlap: held-out questions that are also in the training set.
    """

    train: int
    heldout: int
    types: dict[str, int]
    overlap: int = 0


def normalize_question(text: str) -> str:
    """A question's words: Unicode NFKC, case folded, without punctuation and English articles."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    spaced = "".join(c if c.isalnum() or c.isspace() else " " for c in folded)
    return " ".join(word for word in spaced.split() if word not in _ARTICLES)


def read_questions(path: Path | str, *, label: str | None = None) -> list[Question]:
    """The questions of a file, in its order.

    Args:
        path: a JSONL file.
        label: how messages name the file; its path if None.

    Raises:
        DataError: the file is missing or empty, or a line is not JSON, lacks an id or a question,
            has no answer, or repeats an id. The message names file and line.
    """
    label = label or str(path)
    line_of: dict[str, int] = {}
    questions = []
    for number, value in read_objects(Path(path), label):
        where = f"{label}, line {number}"
        identity = text_field(value, "id", where, LAYOUT)
        if identity in line_of:
            raise DataError(
                f"{where}: found the id {identity!r}, which line {line_of[identity]} has too; "
                f"expected each id once. Rename or remove one of the two questions."
            )
        line_of[identity] = number
        for key in ("type", "dataset"):
            if value.get(key) is not None and not isinstance(value[key], str):
                raise DataError(
                    f"{where}: found {key!r}: {shortened(value[key])}, expected a text or null. "
                    f"The layout is {LAYOUT}"
                )
        hops = value.get("hops")
        if hops is not None and (not isinstance(hops, int) or isinstance(hops, bool) or hops < 1):
            raise DataError(
                f"{where}: found 'hops': {shortened(hops)}, expected a whole number from 1 or "
                f"null. The layout is {LAYOUT}"
            )
        text = text_field(value, "question", where, LAYOUT)
        questions.append(
            Question(
                identity,
                text,
                _answers(value, where),
                value.get("type"),
                value.get("dataset"),
                hops,
            )
        )
    return questions


def validate_questions(
    train: Path | str,
    heldout: Path | str,
    *,
    labels: tuple[str, str] | None = None,
    overlap: str = "refuse",
) -> QuestionStats:
    """Read both files and make sure that no held-out question occurs in training.

    Args:
        train: JSONL file of the training questions.
        heldout: JSONL file of the held-out questions.
        labels: how messages name the two files; their paths if None.
        overlap: "refuse", or "keep" to count such questions only.

    Raises:
        DataError: as `read_questions`; or a held-out question is also in the training set, word
            for word or after `normalize_question`; the message names the ids of both.
    """
    train_label, heldout_label = labels or (str(train), str(heldout))
    exact: dict[str, str] = {}
    normalized: dict[str, str] = {}
    train_questions = read_questions(train, label=train_label)
    for question in train_questions:
        exact.setdefault(question.question, question.id)
        normalized.setdefault(normalize_question(question.question), question.id)
    heldout_questions = read_questions(heldout, label=heldout_label)
    leaked = []
    types: dict[str, int] = {}
    for question in heldout_questions:
        types[question.type or ""] = types.get(question.type or "", 0) + 1
        if question.question in exact:
            leaked.append((question.id, exact[question.question], "word for word"))
            continue
        key = normalize_question(question.question)
        # A question of symbols alone has no words to compare.
        if key and key in normalized:
            leaked.append((question.id, normalized[key], "but for case and punctuation"))
    if leaked and overlap == "refuse":
        shown = ", ".join(f"{h!r} is {t!r} ({how})" for h, t, how in leaked[:10])
        more = f" and {len(leaked) - 10} more" if len(leaked) > 10 else ""
        raise DataError(
            f"{heldout_label}: found {len(leaked)} held-out questions that are also in "
            f"{train_label}: {shown}{more}; expected none. Remove them from one of the two "
            "files; or set questions.overlap to keep, which counts them and reports the result "
            "without them too."
        )
    return QuestionStats(
        len(train_questions), len(heldout_questions), dict(sorted(types.items())), len(leaked)
    )


def _answers(value: dict[str, Any], where: str) -> list[str]:
    found = value.get("golden_answers")
    if "golden_answers" not in value:
        raise DataError(
            f"{where}: found the keys {sorted(value)}, expected 'golden_answers' among them. "
            f"The layout is {LAYOUT}"
        )
    if not isinstance(found, list) or not found:
        raise DataError(
            f"{where}: found 'golden_answers': {shortened(found)}, expected a list of at least "
            f"one answer. Add the answer, or remove the question."
        )
    for answer in found:
        text_field({"golden_answers": answer}, "golden_answers", where, LAYOUT)
    return list(found)
