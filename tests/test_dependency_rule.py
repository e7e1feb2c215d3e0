"""Imports go one way: each module may import only what stands to its left."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = (
    {"types", "errors", "sizes"},
    {"_core"},
    {"backend", "config", "metrics"},
    {"tiers"},
    {"cache"},
    {"writeback", "readahead"},
    {"vfs"},
    {"fuse", "control"},
    {"mount"},
    {"daemon"},
    {"compare"},
    {"cli"},
    {"__main__"},
)
ANYBODY = {"__init__"}
RANK = {name: number for number, layer in enumerate(LAYERS) for name in layer}
# within a layer, who may import whom
BESIDE = {("metrics", "backend")}
HOMES = {
    "pyfuse3": {"fuse"},
    "prometheus_client": {"metrics"},
    "matplotlib": {"lab.figures"},
    "storagecache_backends": set(),
}
OUTSIDE_THE_ROW = {"lab", "testing"}  # each has a rule of its own below
BACKENDS_MAY_IMPORT = {"backend", "errors", "types", "sizes", "_core"}
LAB_MAY_IMPORT = {"types", "errors", "sizes", "_core", "backend", "config", "control"}
RUST_RANK = {
    "types": 0,
    "error": 0,
    "table": 1,
    "policy": 1,
    "store": 1,
    "device": 1,
    "partition": 2,
    "repartition": 3,
    "cache": 4,
    "pages": 5,
    "python": 6,
    "lib": 7,
}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT / "storagecache").with_suffix("").parts
    return ".".join(parts)


def imports_of(path: Path) -> list[str]:
    """Absolute names of everything a module imports."""
    parts = path.relative_to(ROOT).parts[:-1]
    package = ("storagecache_backends", *parts[1:]) if parts[0] == "backends" else parts
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            stem = ".".join(filter(None, (base, node.module)))
            found.extend(f"{stem}.{alias.name}" for alias in node.names)
    return found


PYTHON = sorted((ROOT / "storagecache").rglob("*.py"))


@pytest.mark.parametrize("path", PYTHON, ids=module_of)
def test_python_imports(path: Path) -> None:
    module = module_of(path)
    top = module.split(".")[0]
    assert top in RANK.keys() | OUTSIDE_THE_ROW | ANYBODY, f"{top} has no place in LAYERS"
    for name in imports_of(path):
        for package, homes in HOMES.items():
            if name.split(".")[0] == package:
                assert module in homes, f"{module} imports {package}"
        if not name.startswith("storagecache."):
            continue
        target = name.split(".")[1]
        if target in ("__version__", top):
            continue
        assert target in RANK.keys() | OUTSIDE_THE_ROW, f"{target} has no place in LAYERS"
        if top == "lab":
            assert target in LAB_MAY_IMPORT, f"lab imports {target}"
        elif top == "testing":
            assert target in {"backend", "errors", "types"}
        elif target == "lab":
            assert top == "compare", f"{module} imports lab"
        elif top not in ANYBODY:
            assert RANK[target] < RANK[top] or (top, target) in BESIDE, f"{module} imports {target}"


BACKENDS = sorted((ROOT / "backends").rglob("*.py"))


@pytest.mark.parametrize("path", BACKENDS, ids=lambda path: path.stem)
def test_backends_import_the_public_side_only(path: Path) -> None:
    for name in imports_of(path):
        package, _, rest = name.partition(".")
        assert package not in HOMES or package == "storagecache_backends", f"imports {name}"
        if package == "storagecache":
            assert rest.split(".")[0] in BACKENDS_MAY_IMPORT, f"imports {name}"


RUST = sorted((ROOT / "storagecache/core/src").rglob("*.rs"))


def rust_uses(text: str) -> set[str]:
    """Modules of the crate that a source names: `crate::a`, `crate::{a, b::{c, d}}`."""
    text = re.sub(r"//[^\n]*", "", text.split("#[cfg(test)]", maxsplit=1)[0])
    found = set(re.findall(r"\bcrate::(\w+)", text))
    for group in re.finditer(r"\bcrate::\{", text):
        depth, start = 1, group.end()
        for position in range(group.end(), len(text)):
            char = text[position]
            depth += (char == "{") - (char == "}")
            if depth == 0 or (depth == 1 and char == ","):
                item = re.match(r"\s*(\w+)", text[start:position])
                if item is not None:
                    found.add(item[1])
                start = position + 1
            if depth == 0:
                break
    return found


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("use crate::types::Page; // crate::no", {"types"}),
        ("use crate::{policy::{Lru, Clock}, store, table::Table};", {"policy", "store", "table"}),
        (
            "crate::{\n    cache,\n    pages,\n}\n#[cfg(test)] use crate::python;",
            {"cache", "pages"},
        ),
    ],
)
def test_rust_uses_are_found(text: str, uses: set[str]) -> None:
    assert rust_uses(text) == uses


@pytest.mark.parametrize("path", RUST, ids=lambda path: path.name)
def test_rust_imports(path: Path) -> None:
    top = path.relative_to(ROOT / "storagecache/core/src").with_suffix("").parts[0]
    assert top in RUST_RANK, f"{top} has no place in RUST_RANK"
    text = path.read_text()
    for used in rust_uses(text):
        assert used in RUST_RANK, f"{used} has no place in RUST_RANK"
        assert RUST_RANK[used] < RUST_RANK[top] or used == top, f"{path.name} uses {used}"
    assert top == "python" or "pyo3" not in text, f"{path.name} knows pyo3"


def test_the_checks_found_something() -> None:
    assert len(PYTHON) > 20
    assert len(RUST) > 10
    assert len(BACKENDS) > 5
