"""Records as the evaluation writes them, for tests."""

import json


def record(name, outcome="correct", *, f1=None, kind="director", **changes):
    right = outcome == "correct"
    made = {
        "id": name,
        "question": f"Who directed {name}?",
        "golden_answers": ["Ada Lum"],
        "type": kind,
        "outcome": outcome,
        "prediction": "Ada Lum" if right else "Bo Rix",
        "scores": {
            "exact_match": int(right),
            "f1": float(right) if f1 is None else f1,
            "contains": int(right),
        },
        "searches": 1,
        "failed_searches": 0,
        "status": "completed",
        "turns": [{"completion_ids": [1, 2, 3]}],
        "hashes": {"question": f"q-{name}", "settings": "s", "prompt": f"p-{name}"},
    }
    return made | changes


def write(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path
