"""Locked versions against a folder of advisories, without a network.

`python envs/audit.py --advisories FOLDER envs/workflow.txt` takes a clone of the Python Packaging
Authority's advisory-database (files in OSV's format, https://ossf.github.io/osv-schema/), prints
each locked version that an advisory names, and exits with 1 if there is any. Where the network
allows it, `pip-audit --strict` asks the live database instead.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version


def locked(path: Path) -> dict[str, Version]:
    """Package -> version, of the `name==version` lines of a lock."""
    lines = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", path.read_text(), re.M)
    return {canonicalize_name(name): Version(version) for name, version in lines}


def affects(advisory: dict[str, Any], name: str, version: Version) -> bool:
    """Whether an OSV record names this version: one by one, or within an ECOSYSTEM range."""
    for affected in advisory.get("affected", []):
        if canonicalize_name(affected["package"]["name"]) != name:
            continue
        if version in filter(None, map(_version, affected.get("versions", []))):
            return True
        ranges = (r for r in affected.get("ranges", []) if r["type"] == "ECOSYSTEM")
        if any(_within(r["events"], version) for r in ranges):
            return True
    return False


def _within(events: list[dict[str, str]], version: Version) -> bool:
    """OSV's evaluation: the last event at or before the version decides."""
    told = [(kind, _version(text)) for event in events for kind, text in event.items()]
    hurt = False
    for kind, at in sorted((e for e in told if e[1]), key=lambda event: event[1]):
        if kind == "introduced" and version >= at:
            hurt = True
        elif (kind == "fixed" and version >= at) or (kind == "last_affected" and version > at):
            hurt = False
    return hurt


def _version(text: Any) -> Version | None:
    try:
        return Version(str(text))
    except InvalidVersion:  # of a time before PEP 440; no lock has such a one
        return None


def advisories(folder: Path) -> Iterator[dict[str, Any]]:
    """Every record of the folder that has not been withdrawn."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in sorted(folder.rglob("*.yaml")):
        record = yaml.load(path.read_text("utf-8"), Loader=loader)  # noqa: S506  (a safe loader)
        if isinstance(record, dict) and "affected" in record and not record.get("withdrawn"):
            yield record


def main(arguments: list[str] | None = None) -> int:
    """Print what was found; 1 if anything was, 2 if there was nothing to look in."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--advisories", type=Path, required=True)
    parser.add_argument("locks", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    records = list(advisories(options.advisories))
    if not records:
        print(f"{options.advisories}: found no advisory (*.yaml in OSV's format).", file=sys.stderr)
        return 2
    found = 0
    for lock in options.locks:
        packages = locked(lock)
        for record in records:
            for affected in record["affected"]:
                name = canonicalize_name(affected["package"]["name"])
                if name in packages and affects(record, name, packages[name]):
                    known = ", ".join([record["id"], *record.get("aliases", [])])
                    print(f"{lock}: {name}=={packages[name]}: {known}")
                    found += 1
                    break
        newest = max(str(record.get("modified", "")) for record in records)[:10]
        print(f"{lock}: {len(packages)} packages, {len(records)} advisories, newest of {newest}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
