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
BESIDE = {("errors", "types"), ("metrics", "backend"), ("config", "backend")}
HOMES = {
    "pyfuse3": {"fuse"},
    "prometheus_client": {"metrics"},
    "matplotlib": {"lab.figures"},
    "storagecache_backends": set(),
}
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
    package = ("storagecache", *path.relative_to(ROOT / "storagecache").parts[:-1])
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
    for name in imports_of(path):
        for package, homes in HOMES.items():
            if name.split(".")[0] == package:
                assert module in homes, f"{module} imports {package}"
        if not name.startswith("storagecache."):
            continue
        target = name.split(".")[1]
        if target in ("__version__", top):
            continue
        if top == "lab":
            assert target in LAB_MAY_IMPORT, f"lab imports {target}"
        elif top == "testing":
            assert target in {"backend", "errors", "types"}
        elif target == "lab":
            assert top == "compare", f"{module} imports lab"
        elif top not in ANYBODY:
            assert top in RANK, f"{top} has no place in LAYERS"
            assert RANK[target] < RANK[top] or (top, target) in BESIDE, f"{module} imports {target}"


def test_backends_import_the_public_side_only() -> None:
    allowed = {"backend", "errors", "types", "sizes", "_core"}
    for path in (ROOT / "backends").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("storagecache."):
                assert (node.module or "").split(".")[1] in allowed, f"{path.name}: {node.module}"


RUST = sorted((ROOT / "storagecache/core/src").rglob("*.rs"))


@pytest.mark.parametrize("path", RUST, ids=lambda path: path.name)
def test_rust_uses(path: Path) -> None:
    parts = path.relative_to(ROOT / "storagecache/core/src").with_suffix("").parts
    own = RUST_RANK[parts[0]]
    text = path.read_text().split("#[cfg(test)]")[0]
    for used in re.findall(r"crate::(\w+)", text):
        assert RUST_RANK[used] < own or used == parts[0], f"{path.name} uses {used}"
    assert ("pyo3" in text) <= (parts[0] in ("python", "lib"))


def test_the_checks_found_something() -> None:
    assert len(PYTHON) > 20
    assert len(RUST) > 10
