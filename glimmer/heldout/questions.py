"""Which held-out questions are asked: chosen once, stored as a file of the run, asked both times.

In: a question file. Out: the chosen ones in the same layout (`glimmer.assets.questions`), in the
order of the source file. Both evaluations read that file and nothing else, so they cannot drift
apart as an iterator that is continued would.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from glimmer.assets import Question, read_questions
from glimmer.errors import ConfigError, DataError
from glimmer.files import write_jsonl
from glimmer.logs import get_logger

logger = get_logger(__name__)


def write_chosen(
    path: Path,
    out: Path,
    *,
    count: int | None,
    seed: int,
    ids: Path | None = None,
    datasets: Sequence[str] | None = None,
) -> list[Question]:
    """Choose questions of the file `path` and write them to `out`; arguments as `choose`."""
    wanted = None if ids is None else read_ids(ids)
    chosen = choose(
        read_questions(path), count=count, seed=seed, ids=wanted, datasets=datasets, label=str(path)
    )
    write_jsonl(out, (question.row() for question in chosen))
    logger.info("%d questions chosen of %s", len(chosen), path)
    return chosen


def choose(
    questions: Sequence[Question],
    *,
    count: int | None,
    seed: int,
    ids: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    label: str = "the question file",
) -> list[Question]:
    """The questions to ask, in the order of `questions`.

    Args:
        questions: all there are.
        count: how many of each data set, by a seeded draw without repeats; None takes all.
        ids: only these; None: any.
        datasets: only questions of these data sets; None: any.
        label: how messages name the source.

    Raises:
        ConfigError: an id or a data set that is not there, or fewer questions than `count`. Of
            several data sets one with fewer gives all that it has.
    """
    found = list(questions)
    if datasets is not None:
        known = sorted({q.dataset for q in questions if q.dataset})
        if absent := [name for name in datasets if name not in known]:
            raise ConfigError(
                f"evaluation.datasets: found {', '.join(absent)}, expected some of "
                f"{', '.join(known) or 'none'}, which {label} holds. Correct the name."
            )
        found = [q for q in found if q.dataset in datasets]
    if ids is not None:
        have = {q.id for q in found}
        if absent := [name for name in ids if name not in have]:
            raise ConfigError(
                f"evaluation.ids: {len(absent)} of {len(ids)} ids are not in {label}, the first is "
                f"{absent[0]!r}. Correct the list, or evaluation.datasets."
            )
        wanted = set(ids)
        found = [q for q in found if q.id in wanted]
    groups: dict[str, list[int]] = {}
    for place, question in enumerate(found):
        groups.setdefault(question.dataset or "", []).append(place)
    places: list[int] = []
    for name, members in sorted(groups.items()):
        if count is None:
            places += members
            continue
        if count > len(members) and len(groups) == 1:
            raise ConfigError(
                f"evaluation.questions: {count} asked for, {label} has {len(members)}. Lower it."
            )
        if count > len(members):
            logger.info("%s has %d questions, fewer than %d: all", name, len(members), count)
        drawn = random.Random(seed).sample(range(len(members)), min(count, len(members)))
        places += [members[k] for k in drawn]
    return [found[place] for place in sorted(places)]


def read_ids(path: Path) -> list[str]:
    """One id a line.

    Raises:
        ConfigError: no such file.
        DataError: it is empty, or an id stands twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"evaluation.ids: {path} cannot be read ({error}), expected a text file with one "
            "question id a line. Correct the path."
        ) from error
    ids = [line.strip() for line in lines if line.strip()]
    if not ids:
        raise DataError(f"{path}: found no id, expected one question id a line. Correct the file.")
    name, count = Counter(ids).most_common(1)[0]
    if count > 1:
        raise DataError(
            f"{path}: found the id {name!r} {count} times, expected each once. Remove the others."
        )
    return ids
