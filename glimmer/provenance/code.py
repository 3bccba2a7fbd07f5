"""Is a stage stale? A fingerprint of the code that it really imports.

It does not change with a comment, a docstring or the formatting, nor with the folder that the
project lies in. Nothing is imported to compute it: sources are parsed.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glimmer.errors import GlimmerError

_ROOT = Path(__file__).resolve().parents[1]
_EVERYTHING = "*"
_DIGITS = 16  # of a sha256 in a fingerprint


def fingerprint(
    *modules: str, scripts: Sequence[Path | str] = (), root: Path | str | None = None
) -> str:
    """The code of some modules and of all that they import from the package, as one text.

    It is `path:digest` of each file, sorted and parted by spaces, so that two of them say which
    files differ (`glimmer why`); whoever only asks whether code changed compares them whole.

    Args:
        modules: full names, such as glimmer.retrieval.embed.
        scripts: files outside the package, such as a rule's script.
        root: the package's folder; that of glimmer if None.

    Raises:
        GlimmerError: there is no such module or script, or a file is not Python.
    """
    parts = code_parts(*modules, scripts=scripts, root=root)
    return " ".join(f"{name}:{part[:_DIGITS]}" for name, part in parts.items())


def imported_packages(
    *modules: str, scripts: Sequence[Path | str] = (), root: Path | str | None = None
) -> set[str]:
    """Top-level names that the code of a fingerprint imports from outside its package."""
    return _walked(modules, scripts, root).external


def prepare_children(folder: Path) -> None:
    """Set the environment of this process' children, where jobs run.

    They import packages from `folder` before any installed ones, so that the code that runs is the
    code of the fingerprints. OpenMP threads that wait sleep instead of spinning: on cores that
    other processes use too, a training step then takes half the time, and alone hardly longer.
    """
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(folder), *(p for p in others if p and p != str(folder))]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def code_parts(
    *modules: str, scripts: Sequence[Path | str] = (), root: Path | str | None = None
) -> dict[str, str]:
    """What `fingerprint` hashes: name of each file -> sha256 of its code, sorted by name.

    The files are the modules given, their packages' `__init__`, everything of the package that
    these import (inside functions too; under `if TYPE_CHECKING` not), modules that they name in a
    string (`importlib.import_module("…")`, `python -m …`), and, by their bytes, the files without
    Python in the folder of each package met, such as templates. Of an `__init__` that resolves
    names on first use (a `__getattr__` and a dict of name -> module) only the names that somebody
    imports count.

    Raises:
        GlimmerError: there is no such module or script, or a file is not Python.
    """
    return dict(sorted(_walked(modules, scripts, root).parts().items()))


def _walked(
    modules: Sequence[str], scripts: Sequence[Path | str], root: Path | str | None
) -> _Walk:
    walk = _Walk(Path(root) if root is not None else _ROOT)
    for name in modules:
        if not walk.add(name):
            raise GlimmerError(
                f"fingerprint: found no module {name!r} under {walk.root}, expected a full name "
                f"such as {walk.package}.errors. Correct the rule that asks for it."
            )
        walk.export(name, _EVERYTHING)
    for script in scripts:
        walk.add_script(Path(script))
    walk.run()
    return walk


@dataclass(frozen=True)
class _Code:
    """What one source file says.

    Attributes:
        digest: sha256 of its parsed code.
        imports: (module or "", level, name or None) of each import.
        mentions: strings that look like a dotted module name.
        lazy: exported name -> module, of an `__init__` that resolves names on first use.
    """

    digest: str
    imports: tuple[tuple[str, int, str | None], ...]
    mentions: frozenset[str]
    lazy: Mapping[str, str] = field(default_factory=dict)


class _Walk:
    """All files of a package that some modules need."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.package = self.root.name
        self.external: set[str] = set()
        self._paths: dict[str, Path] = {}
        self._scripts: dict[str, Path] = {}
        self._waiting: list[tuple[str, Path]] = []

    def find(self, module: str) -> Path | None:
        """Source file of a module of the package; None if it is none."""
        first, *rest = module.split(".")
        if first != self.package or not all(part.isidentifier() for part in rest):
            return None
        path = self.root.joinpath(*rest)
        if (path / "__init__.py").is_file():
            return path / "__init__.py"
        return path.with_suffix(".py") if rest and path.with_suffix(".py").is_file() else None

    def add(self, module: str) -> bool:
        """Take a module and its parent packages; False if the package has no such module."""
        path = self.find(module)
        if path is None:
            return False
        if module not in self._paths:
            self._paths[module] = path
            self._waiting.append((module, path))
            parent = module.rpartition(".")[0]
            if parent:
                self.add(parent)
        return True

    def add_script(self, path: Path) -> None:
        name = f"{path.resolve().parent.name}/{path.name}"
        if name not in self._scripts:
            self._scripts[name] = path
            # A name without dots: its relative imports lead nowhere.
            self._waiting.append(("", path))

    def export(self, package: str, name: str) -> None:
        """Take what `package` resolves on first use of `name`."""
        path = self.find(package)
        if path is None or path.name != "__init__.py":
            return
        for exported, home in _read(path).lazy.items():
            if name in (exported, _EVERYTHING):
                self.add(home) or self.add(f"{package}.{home.lstrip('.')}")

    def run(self) -> None:
        while self._waiting:
            module, path = self._waiting.pop()
            code = _read(path)
            for target, level, name in code.imports:
                self._imported(_absolute(target, level, module, path), name)
            for mention in code.mentions:
                self.add(mention)

    def _imported(self, base: str, name: str | None) -> None:
        if not self.add(base):
            self.external.add(base.split(".")[0])
            return
        if name is None or name == _EVERYTHING:
            # `import glimmer.retrieval` may reach every name of it later.
            self.export(base, _EVERYTHING)
        elif self.add(f"{base}.{name}"):
            # `from glimmer import retrieval` is the module, with all of its names.
            self.export(f"{base}.{name}", _EVERYTHING)
        else:
            self.export(base, name)

    def parts(self) -> dict[str, str]:
        found = {
            path.relative_to(self.root.parent).as_posix(): _read(path).digest
            for path in self._paths.values()
        }
        for name, path in self._scripts.items():
            found[name] = _read(path).digest
        for path in self._paths.values():
            if path.name == "__init__.py":
                for data in _data_files(path.parent):
                    name = data.relative_to(self.root.parent).as_posix()
                    found[name] = hashlib.sha256(data.read_bytes()).hexdigest()
        return found


def _absolute(target: str, level: int, module: str, path: Path) -> str:
    """Full name of an import's module, seen from `module`."""
    if level == 0:
        return target
    parts = module.split(".")
    package = parts if path.name == "__init__.py" else parts[:-1]
    base = package[: len(package) - (level - 1)]
    return ".".join([*base, *([target] if target else [])])


def _data_files(folder: Path) -> Iterator[Path]:
    """Files of a package that are not Python; folders below it count if they are no packages."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir() and not (path / "__init__.py").is_file():
            if not any(path.glob("*.py")):
                yield from _data_files(path)
        elif path.is_file() and path.suffix not in {".py", ".pyc", ".pyi", ".so"}:
            yield path


def _read(path: Path) -> _Code:
    try:
        status = path.stat()
        return _parse(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise GlimmerError(
            f"fingerprint: {path} cannot be read ({error.strerror}), expected a Python file. "
            f"Correct the rule that names it."
        ) from error
    except (SyntaxError, ValueError) as error:
        raise GlimmerError(
            f"fingerprint: {path} is not Python ({error}), expected code that parses. Correct it."
        ) from error


@functools.lru_cache(maxsize=1024)
def _parse(path: Path, mtime_ns: int, size: int) -> _Code:
    """Parse a file; `mtime_ns` and `size` make an edited file another entry of the cache."""
    tree = ast.parse(path.read_bytes(), filename=str(path))
    _Stripper().visit(tree)
    digest = hashlib.sha256(repr(_dump(tree)).encode()).hexdigest()
    lazy = _lazy_exports(tree) if path.name == "__init__.py" else {}
    table = set(lazy.values())
    visitor = _Imports()
    visitor.visit(tree)
    return _Code(digest, tuple(visitor.imports), frozenset(visitor.mentions - table), lazy)


class _Stripper(ast.NodeTransformer):
    """Removes docstrings and other bare strings: they do nothing."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        self.generic_visit(node)
        return node


class _Imports(ast.NodeVisitor):
    """Collects imports and mentioned module names, wherever they stand."""

    def __init__(self) -> None:
        self.imports: list[tuple[str, int, str | None]] = []
        self.mentions: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        self.imports += [(alias.name, 0, None) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.imports += [(node.module or "", node.level, alias.name) for alias in node.names]

    def visit_Constant(self, node: ast.Constant) -> None:
        text = node.value
        if isinstance(text, str) and "." in text and all(p.isidentifier() for p in text.split(".")):
            self.mentions.add(text)

    def visit_If(self, node: ast.If) -> None:
        test = node.test
        name = test.id if isinstance(test, ast.Name) else getattr(test, "attr", None)
        if name == "TYPE_CHECKING":
            # Never executed.
            for statement in node.orelse:
                self.visit(statement)
        else:
            self.generic_visit(node)


def _lazy_exports(tree: ast.Module) -> dict[str, str]:
    """Name -> module of an `__init__` that gets its `__getattr__` from `glimmer.lazy`."""
    for node in tree.body:
        bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        value = getattr(node, "value", None)
        if isinstance(node, ast.Assign) and isinstance(value, ast.Call) and "__getattr__" in bound:
            return ast.literal_eval(value.args[1])
    return {}


def _dump(node: object) -> object:
    """A syntax tree as nested tuples. Empty fields are left out: Python versions differ there."""
    if isinstance(node, ast.AST):
        fields = ((name, _dump(value)) for name, value in ast.iter_fields(node) if name != "kind")
        kept = tuple((name, value) for name, value in fields if value not in (None, ()))
        return (type(node).__name__, *kept)
    if isinstance(node, list):
        return tuple(_dump(item) for item in node)
    return None if node is None else repr(node)
