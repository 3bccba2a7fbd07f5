"""How to make a result again and how to cite it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml


def difference(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `config` that `defaults` does not have or has otherwise, nested alike."""
    changed: dict[str, Any] = {}
    for key, value in config.items():
        default = defaults.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            if inner := difference(value, default):
                changed[key] = inner
        elif key not in defaults or value != default:
            changed[key] = value
    # A plain copy: YAML's safe writer refuses subclasses of dict.
    return json.loads(json.dumps(changed, default=str))


def recipe(
    record: Mapping[str, Any], config: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """{"commands": [str], "run.yaml": its text or None, "warnings": [str]} that make the same
    result again from a clone.

    Args:
        record: of `glimmer.provenance.collect`.
        config, defaults: the run's whole config, and config/config.yaml.
    """
    commit, warnings = record.get("commit"), []
    commands = [f"git checkout {commit}"] if commit else []
    overlay = difference(config, defaults)
    text = yaml.safe_dump(overlay, sort_keys=False, allow_unicode=True) if overlay else None
    if text:
        commands += ["make .venv/installed", ".venv/bin/snakemake --configfile run.yaml"]
    else:
        commands.append("make run")
    if not commit:
        warnings.append("The commit is unknown: the code was in no git clone.")
    if record.get("dirty"):
        warnings.append(
            f"{record.get('changed')} files differed from the commit or were not in it: the "
            "commands above may give another result."
        )
    return {"commands": commands, "run.yaml": text, "warnings": warnings}


def citation(title: str, run: str, record: Mapping[str, Any]) -> str:
    """A BibTeX entry that names the code and the record files of this result."""
    files = record.get("files") or {}
    hashes = [
        f"{name} {files[name]['sha256'][:16]}" for name in ("before", "after") if name in files
    ]
    note = [f"glimmer {record.get('glimmer')}", f"commit {record.get('commit') or 'unknown'}"]
    note += [f"record files (sha256) {', '.join(hashes)}"] if hashes else []
    fields = {"title": f"{{{_bibtex(title)}}}", "note": _bibtex("; ".join(note))}
    body = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
    return f"@misc{{glimmer-{_bibtex(run)},\n{body}}}"


def _bibtex(text: str) -> str:
    """Text without what BibTeX would take for markup."""
    return "".join(c for c in " ".join(str(text).split()) if c not in '{}\\%#$~^"<>')
