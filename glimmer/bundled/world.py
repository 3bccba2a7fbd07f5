"""A synthetic world of films, novels, countries and people, told in short passages.

Every fact is drawn at random, so an answer can only be had from the passage that states it. The
names are made of syllables and shared by all seeds; a seed decides which titles exist and what is
true of them. Seed 0 is the world that ships; the tiny checkpoint learnt to read on other seeds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from glimmer.assets import write_manifest
from glimmer.files import write_jsonl

_ONSETS = "b br c ch d dr f g gr h j k kr l m n p pl r s sh st t tr v w y z".split()
_VOWELS = "a e i o u ai ea ou".split()
_CODAS = ["", "", "n", "r", "l", "s", "k", "m", "th"]
_ADJECTIVES = (
    "Silent Golden Broken Hidden Crimson Last Winter Lonely Burning Frozen Ancient Distant Paper "
    "Hollow Gentle Savage Midnight Copper Velvet Restless Secret Wandering Iron Pale Emerald "
    "Bitter Sacred Falling Quiet Scarlet Blind Endless Wild Stolen Glass"
).split()
_NOUNS = (
    "River Garden Mountain Bridge Mirror Harbor Tower Forest Crown Shadow Lantern Island Desert "
    "Sparrow Castle Kingdom Letter Orchard Promise Empire Valley Horizon Dancer Soldier Painter "
    "Sailor Widow Clock Storm Train Bell Road Window Ocean Fire Star Wolf Raven"
).split()

_QUESTION_FORMS: dict[str, list[str]] = {
    "film.director": ["Who directed {}?", "Who was the director of {}?"],
    "film.star": ["Who starred in {}?", "Which actor starred in {}?"],
    "film.location": ["Where was {} filmed?", "In which city was {} filmed?"],
    "novel.author": ["Who wrote {}?", "Who is the author of {}?"],
    "novel.hero": ["Who is the main character of {}?"],
    "novel.publisher": ["Which company published {}?", "Who published {}?"],
    "country.capital": ["What is the capital of {}?"],
    "country.currency": ["What is the currency of {}?", "Which currency is used in {}?"],
    "country.president": ["Who is the president of {}?"],
    "person.birthplace": ["Where was {} born?"],
    "person.spouse": ["Who is {} married to?", "Who is the spouse of {}?"],
    "person.university": ["Where did {} study?"],
}


@dataclass(frozen=True)
class Entity:
    """One passage: its title, its text, and the facts stated in it (relation -> answer)."""

    title: str
    text: str
    facts: dict[str, str]

    @property
    def contents(self) -> str:
        """The passage in wiki-18's layout: the title in quotes on the first line, then the text."""
        return f'"{self.title}"\n{self.text}'

    def first_stated(self) -> str:
        """The answer that stands first in the text; the spoilt demonstrations use it."""
        return min(self.facts.values(), key=self.text.find)


@dataclass(frozen=True)
class Question:
    """A question about one fact of one entity."""

    entity: int  # index into World.entities
    relation: str  # e.g. "film.director"
    text: str
    answer: str


@dataclass(frozen=True)
class World:
    """Entities, all questions about them, and which entities are held out."""

    entities: list[Entity]
    questions: list[Question]
    heldout_entities: frozenset[int]

    def split(self) -> tuple[list[Question], list[Question]]:
        """(training, held-out) questions; no entity has questions in both."""
        train = [q for q in self.questions if q.entity not in self.heldout_entities]
        heldout = [q for q in self.questions if q.entity in self.heldout_entities]
        return train, heldout


class _Names:
    """Word lists shared by every seed, so that all worlds speak the same language."""

    def __init__(self) -> None:
        self._random = random.Random(0)
        self._used: set[str] = set()
        self.first = [self._word(2) for _ in range(150)]
        self.last = [self._word(2, ["", "", "son", "ez", "ov", "er"]) for _ in range(500)]
        self.cities = [self._word(2, ["", "", "ton", "burg", "ville"]) for _ in range(400)]
        self.houses = [self._word(2) for _ in range(300)]
        self.nations = [self._word(3, ["ia", "land", "stan", ""]) for _ in range(500)]
        self.films = [f"The {a} {n}" for a in _ADJECTIVES for n in _NOUNS]
        self.novels = [f"{a} of the {b}" for a in _NOUNS for b in _NOUNS if a != b]

    def _word(self, syllables: int, suffixes: list[str] | None = None) -> str:
        """A new capitalised word under 12 letters."""
        choice = self._random.choice
        while True:
            suffix = choice(suffixes) if suffixes else ""
            body = "".join(choice(_ONSETS) + choice(_VOWELS) for _ in range(syllables))
            word = (body + choice(_CODAS) + suffix).capitalize()
            if word not in self._used and len(word) < 12:
                self._used.add(word)
                return word


def make_world(
    seed: int,
    *,
    films: int = 1000,
    novels: int = 900,
    countries: int = 450,
    people: int = 800,
    heldout_fraction: float = 0.2,
) -> World:
    """Draw a world.

    Args:
        seed: decides titles, facts and wording; 0 is the world that ships.
        films, novels, countries, people: entities of each kind (at most 1,330, 1,406 and 500 of
            the first three, which is how many titles the word lists make).
        heldout_fraction: share of the entities whose questions are held out.
    """
    names = _Names()
    draw = random.Random(1000 + seed)
    for titles in (names.films, names.novels, names.nations):
        draw.shuffle(titles)

    def person() -> str:
        return f"{draw.choice(names.first)} {draw.choice(names.last)}"

    entities: list[Entity] = []
    for title in names.films[:films]:
        a, b, c, year = person(), person(), draw.choice(names.cities), draw.randint(1930, 2020)
        text = draw.choice(
            [
                f"{title} is a {year} film directed by {a} and starring {b}. It was filmed in {c}.",
                f"{title} is a film starring {b}. It was filmed in {c} and directed by {a} in "
                f"{year}.",
                f"{title}, filmed in {c}, is a {year} film starring {b} and directed by {a}.",
            ]
        )
        facts = {"film.director": a, "film.star": b, "film.location": c}
        entities.append(Entity(title, text, facts))
    for title in names.novels[:novels]:
        a, b, year = person(), person(), draw.randint(1850, 2020)
        c = f"{draw.choice(names.houses)} Press"
        text = draw.choice(
            [
                f"{title} is a {year} novel written by {a} and published by {c}. Its main "
                f"character is {b}.",
                f"{title} is a novel whose main character is {b}. It was written by {a} and "
                f"published by {c} in {year}.",
                f"{title} was published by {c} in {year}. The novel was written by {a} and its "
                f"main character is {b}.",
            ]
        )
        facts = {"novel.author": a, "novel.hero": b, "novel.publisher": c}
        entities.append(Entity(title, text, facts))
    for title in names.nations[:countries]:
        a, b, c = draw.choice(names.cities), draw.choice(names.houses), person()
        text = draw.choice(
            [
                f"{title} is a country whose capital is {a}. Its currency is the {b} and its "
                f"president is {c}.",
                f"The president of {title} is {c}. The country uses the currency {b} and its "
                f"capital is {a}.",
                f"{title} is a country with the currency {b}. Its capital is {a} and its "
                f"president is {c}.",
            ]
        )
        facts = {"country.capital": a, "country.currency": b, "country.president": c}
        entities.append(Entity(title, text, facts))
    seen: set[str] = set()
    while len(seen) < people:
        title = person()
        if title in seen:
            continue
        seen.add(title)
        a, b, c = draw.choice(names.cities), person(), f"{draw.choice(names.houses)} University"
        text = draw.choice(
            [
                f"{title} was born in {a} and studied at {c}. {title} is married to {b}.",
                f"{title} is married to {b}. {title} studied at {c} and was born in {a}.",
                f"{title} studied at {c}, was born in {a} and is married to {b}.",
            ]
        )
        facts = {"person.birthplace": a, "person.spouse": b, "person.university": c}
        entities.append(Entity(title, text, facts))

    questions = [
        Question(i, relation, draw.choice(_QUESTION_FORMS[relation]).format(entity.title), answer)
        for i, entity in enumerate(entities)
        for relation, answer in entity.facts.items()
    ]
    order = list(range(len(entities)))
    draw.shuffle(order)
    heldout = frozenset(order[: int(len(order) * heldout_fraction)])
    return World(entities, questions, heldout)


def corpus_rows(world: World) -> list[dict[str, str]]:
    """The corpus in wiki-18's JSONL layout: `id` and `contents`."""
    return [{"id": str(i), "contents": e.contents} for i, e in enumerate(world.entities)]


def question_rows(
    world: World, *, train: int, heldout: int, seed: int
) -> tuple[list[dict], list[dict]]:
    """Rows of `train.jsonl` and `heldout.jsonl` (`id`, `question`, `golden_answers`, `type`).

    Args:
        train, heldout: number of questions drawn from each split.
        seed: of the draw.
    """
    draw = random.Random(seed)
    rows = []
    for name, pool, count in zip(
        ("train", "heldout"), world.split(), (train, heldout), strict=True
    ):
        if count > len(pool):
            raise ValueError(f"{name}: {count} questions asked for, the world has {len(pool)}")
        rows.append(
            [
                {
                    "id": f"toy-{name}-{i:05d}",
                    "question": q.text,
                    "golden_answers": [q.answer],
                    "type": q.relation,
                }
                for i, q in enumerate(draw.sample(pool, count))
            ]
        )
    return rows[0], rows[1]


def write_world(out: Path, *, seed: int, train: int, heldout: int) -> None:
    """Write the folder that ships: corpus, questions, and a manifest of their sha256."""
    world = make_world(seed)
    train_rows, heldout_rows = question_rows(world, train=train, heldout=heldout, seed=seed)
    write_jsonl(out / "corpus.jsonl", corpus_rows(world))
    write_jsonl(out / "train.jsonl", train_rows)
    write_jsonl(out / "heldout.jsonl", heldout_rows)
    write_manifest(out, kind="toy_world", source=f"rule bundled_world, seed {seed}")
