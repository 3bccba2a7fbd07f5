"""Deliberate one-line faults of the renderer: does the suite notice each?

    python benchmarks/renderer_mutations.py [NUMBER ...]

Each fault is made in a temporary copy of the project, on which `tests/renderer` then runs until its
first failure. Prints a table; exit status 1 if a fault survives or its line is not there once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Not the tests that start processes: they are slow and look at loading alone.
TESTS = ["tests/renderer", "--ignore=tests/renderer/test_spawn.py"]

# (module, line as it is, line with a fault)
FAULTS = [
    ("text", 'out += "<|patch|>"', 'out += "<|video|>"'),
    ("text", "json.dumps(value, ensure_ascii=False)", "json.dumps(value)"),
    ("text", 'found = call_function(call, index, position)[0]',
     'return call_function(call, index, position)[0]'),
    ("text", 'return "true" if value else "false"', "return str(value)"),
    ("text", 'end = "<|eot|>" if last and not goes_on else "<|eom|>"',
     'end = "<|eot|>" if last else "<|eom|>"'),
    ("text", 'end_turn = recipient == "user"', "end_turn = True"),
    ("text", 'function_of(tool)["name"].split(".")[0]', 'function_of(tool)["name"]'),
    ("text", '"reasoning strength" in text.lower()', '"reasoning strength" in text'),
    ("muse_glimmer", "opener = everything and (open_run or bool(out))",
     "opener = everything and bool(out)"),
    ("muse_glimmer", "run[bisect_right(ends, start)]", "run[bisect_right(ends, start - 1)]"),
    ("muse_glimmer", '[*sampled, self._specials["eot"]]', "sampled"),
    ("muse_glimmer", 'return [self._specials["eot"], self._specials["end_of_text"]]',
     'return [self._specials["eot"], self._specials["eom"]]'),
    ("muse_glimmer", "or any(_named_elsewhere(message) for message in new_messages)", ""),
    ("muse_glimmer", "self._types if tools is None else types_of(tools)", "types_of(tools or [])"),
    ("muse_glimmer", 'or any(role not in ("user", "tool") for role in roles)',
     'or any(role not in ("user", "tool", "system") for role in roles)'),
    ("parse", "if kind is None or kind in (specials.eot, specials.end_of_text):",
     "if kind is None or kind == specials.eot:"),
    ("parse", 'complete = channel.recipient != "self" or channel.closed', "complete = True"),
    ("parse", 'content="\\n".join(text for text in answer if text)', 'content="".join(answer)'),
    ("parse", "starts.append(at + max(head + begun - 1, 0))", "starts.append(at)"),
    ("typed", 'if not kinds or "string" in kinds:', "if not kinds:"),
    ("typed", "parse_constant=_refuse, ", ""),
    ("atem", "return closer < 0 or text.find(_OPEN_BLOCK, at, closer) >= 0", "return True"),
    ("typed", 'raise ValueError(f"{text} is out of range")', "return value"),
    ("atem", "if closer is None or following is not None:", "if closer is None:"),
    ("atem", "return function, {parameter: text[at:closer]}",
     "return name, {parameter: text[at:closer]}"),
    ("config", 'implied = "all" if self.retain_reasoning_in_history else "tool_cycle"',
     'implied = "all"'),
    ("codec", r'(?=[^\s/])', r'(?=[^\s])'),
    ("codec", 'if not self.by_words or "<|" in text:', "if not self.by_words:"),
    ("codec", 'r"|[0-9]{1,3}|', 'r"|[0-9]+|'),
    ("codec", '.decode("utf-8", "replace")', '.decode("utf-8", "ignore")'),
    ("codec", "core.normalizer is not None or ", ""),
    ("codec", 'and steps[0]["pattern"] == {"Regex": O200K_SPLIT}', ""),
    ("parse", 'decode.sizes(tokens) if "\\ufffd" not in text else None', "decode.sizes(tokens)"),
    ("parse", "before = offset + len(channel.skipped)", "before = offset"),
    ("parity", '"passed": not failed', '"passed": True'),
    ("parity", "_first_difference(ids, wanted) if ids != wanted else None", "None"),
    ("parity", 'known = golden.tokenizer_sha256 == measured_on["tokenizer_sha256"]',
     "known = False"),
    ("load", "if settings[key] is not None", ""),
    ("atem", "elif schemas and name not in schemas:", "elif False:"),
    ("atem", "return space if space == function and space in schemas", "return space if False"),
    ("atem", "twice |= param in values", "pass"),
    ("parse", "and not _addressed(channel, calls[0], schemas)", "and False"),
    ("typed", 'value = int(value)', "pass"),
    ("typed", 'json.dumps(value, ensure_ascii=False).encode()', "pass"),
    ("bridged", "mask += getattr(self._new, name)", "mask += [mask[0]] * 9"),
]  # fmt: skip


def survives(project: Path, module: str, old: str, new: str) -> tuple[str, str]:
    """(verdict, first failing test) of one fault in a copy of the project."""
    path = project / "glimmer" / "renderer" / f"{module}.py"
    source = path.read_text("utf-8")
    if source.count(old) != 1:
        return "line not there once", f"{source.count(old)} times"
    path.write_text(source.replace(old, new), "utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-n", "0", "-p", "no:cacheprovider", *TESTS],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
    finally:
        path.write_text(source, "utf-8")
    failed = re.search(r"^(?:FAILED|ERROR) \S*/(\S+?)(?:\[|\s|$)", done.stdout, re.MULTILINE)
    if done.returncode == 0:
        return "SURVIVES", ""
    if done.returncode != 1:
        return "no run", f"pytest ends with {done.returncode}"
    return "caught", failed[1] if failed else "?"


def main() -> int:
    chosen = {int(text) for text in sys.argv[1:]} or set(range(1, len(FAULTS) + 1))
    good = True
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        skip = shutil.ignore_patterns("__pycache__")
        for name in ("glimmer", "tests/renderer", "resources/tiny_glimmer", "config", "envs"):
            shutil.copytree(ROOT / name, project / name, ignore=skip)
        shutil.copy(ROOT / "pyproject.toml", project)
        (project / "tests" / "__init__.py").touch()
        for number, (module, old, new) in enumerate(FAULTS, start=1):
            if number not in chosen:
                continue
            verdict, where = survives(project, module, old, new)
            good &= verdict == "caught"
            shown = new.strip() or f"without {old.strip()}"
            print(f"{number:>2}  {verdict:<10} {module:<13} {shown:<80} {where}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
