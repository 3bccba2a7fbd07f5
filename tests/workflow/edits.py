"""Does the edits of staleness.yaml to one finished run; prints which jobs would run after each.

Runs in the folder of a run: `python edits.py staleness.yaml`. Every edit is undone before
the next one, contents and times.
"""

import json
import os
import random
import sys
from pathlib import Path

import yaml

from glimmer.provenance.why import stale_jobs, why

ARGUMENTS = ["--configfile", "mine.yaml"]


class Undo:
    """Remembers files before they are edited."""

    def __init__(self) -> None:
        self._files: list[tuple[Path, bytes, os.stat_result]] = []
        self._moved: list[tuple[Path, Path]] = []

    def edit(self, path: Path, text: str) -> None:
        self.keep(path)
        path.write_text(text)

    def keep(self, path: Path) -> None:
        self._files.append((path, path.read_bytes(), path.stat()))

    def delete(self, path: Path) -> None:
        away = path.with_name(f".{path.name}.away")
        path.rename(away)
        self._moved.append((away, path))

    def now(self) -> None:
        for away, path in self._moved:
            away.rename(path)
        for path, data, status in reversed(self._files):
            path.write_bytes(data)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def do(edit: dict, undo: Undo) -> None:
    if "config" in edit:
        path = Path("mine.yaml")
        settings = yaml.safe_load(path.read_text())
        for key, value in edit["config"].items():
            if isinstance(value, dict):
                settings[key] = {**settings.get(key, {}), **value}
            else:
                settings[key] = value
        undo.edit(path, yaml.safe_dump(settings))
    for name, (old, new) in edit.get("replace", {}).items():
        text = Path(name).read_text()
        assert old in text, f"{name} has no {old!r}"
        undo.edit(Path(name), text.replace(old, new, 1))
    for name, text in edit.get("append", {}).items():
        undo.edit(Path(name), Path(name).read_text() + "\n" + text)
    for name in edit.get("delete", []):
        undo.delete(Path(name))
    for pattern in edit.get("touch", []):
        files = [path for path in Path().glob(pattern) if path.is_file()]
        assert files, pattern
        random.Random(0).shuffle(files)
        for later, path in enumerate(files):
            undo.keep(path)
            os.utime(path, (path.stat().st_mtime + 100 + later,) * 2)


def main(table: Path) -> None:
    assert not (stale := why(ARGUMENTS)), f"the run is not finished: {stale}"
    found = {}
    for case in yaml.safe_load(table.read_text())["edits"]:
        if "folder" not in case["edit"]:
            undo = Undo()
            try:
                do(case["edit"], undo)
                found[case["what"]] = stale_jobs(ARGUMENTS)
            finally:
                undo.now()
    assert not (stale := why(ARGUMENTS)), f"an edit was not undone: {stale}"
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
