"""Every name that one of our modules imports from another is there, also where it is imported late.

Late imports keep starts short; a renamed class would otherwise be found in the middle of a run.
"""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [*ROOT.glob("glimmer/**/*.py"), *ROOT.glob("workflow_scripts/*.py")]
# What runs in the GPU stack's interpreter imports vllm and monarch.
GPU = importlib.util.find_spec("vllm") is None and {
    f"glimmer.training.titan.{name}" for name in ("actors", "controller", "recipe")
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("glimmer"):
            yield node.module, [alias.name for alias in node.names]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imported_names_exist(path):
    for module, names in imports(path):
        if GPU and module in GPU:
            continue
        found = importlib.import_module(module)
        for name in names:
            if not hasattr(found, name):
                importlib.import_module(f"{module}.{name}")
