"""Which module imports which: read from the sources, without running them."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

COMPUTED = "?"  # imported by a name that is made at run time

Graph = dict[str, set[str]]  # module -> the modules that it imports


@dataclass(frozen=True)
class Import:
    """One import: by whom, of what, and where it stands."""

    by: str
    of: str
    in_function: bool = False
    for_types: bool = False  # under `if TYPE_CHECKING:`


def find_modules(root: Path, packages: Mapping[str, str]) -> dict[str, Path]:
    """Dotted name -> file, for every module below the folders. packages: top-level name -> its folder below root."""
    found = {}
    for top, folder in packages.items():
        for file in sorted((root / folder).rglob("*.py")):
            parts = file.relative_to(root / folder).with_suffix("").parts
            found[".".join([top, *(part for part in parts if part != "__init__")])] = file
    return found


def read_imports(modules: Mapping[str, Path]) -> list[Import]:
    """Every import of every module, also in functions and under TYPE_CHECKING.

    `from a import b` is of a.b where that is a module. Other packages are named as they stand ("mlx.core").
    """
    return [
        found
        for name, file in modules.items()
        for found in _imports(name, ast.parse(file.read_text()), modules, in_function=False, for_types=False)
    ]


def _imports(
    name: str, tree: ast.AST, modules: Mapping[str, Path], in_function: bool, for_types: bool
) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        for of in _named(node, modules):
            yield Import(name, of, in_function, for_types)
        yield from _imports(
            name,
            node,
            modules,
            in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda),
            for_types or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)),
        )


def _named(node: ast.AST, modules: Mapping[str, Path]) -> list[str]:
    """What this statement or call imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module, "a relative import"
        below = [f"{node.module}.{alias.name}" for alias in node.names]
        return sorted({name if name in modules else node.module for name in below})
    if isinstance(node, ast.Call):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in ("import_module", "__import__"):
            return [str(node.args[0].value) if isinstance(node.args[0], ast.Constant) else COMPUTED]
    return []


def graph(imports: list[Import], modules: Mapping[str, Path]) -> Graph:
    """The imports of modules by modules."""
    found: Graph = {name: set() for name in modules}
    for one in imports:
        if one.of in modules:
            found[one.by].add(one.of)
    return found


def circle(graph: Graph) -> list[str]:
    """A circle of imports: its modules in order, the first one again at the end. Empty where there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


def floors(picture: str) -> list[list[set[str]]]:
    """The picture of a house, from the ground up: on each floor its rooms, `|` between them, each with its names."""
    lines = [line for line in picture.splitlines() if line.strip()]
    return [[set(re.findall(r"\w+", room)) for room in line.split("|")] for line in reversed(lines)]


def breaches(graph: Graph, top: str, picture: str) -> list[str]:
    """The imports inside the package `top` that go up, or through a wall between two rooms of a floor.

    graph: the modules of `top` alone. Each of them, or the sub-package that it is in, is a name of the picture; `top`
    itself is the roof, which may import all.
    """
    place = {}
    for height, rooms in enumerate(floors(picture)):
        for number, names in enumerate(rooms):
            place.update(dict.fromkeys(names, (height, number)))

    def place_of(name: str) -> tuple[int, int]:
        if name == top:
            return len(floors(picture)), 0
        inside = name.removeprefix(f"{top}.").split(".")[0]
        assert inside in place, f"{name}: the picture has no {inside}; draw it on the floor where it belongs"
        return place[inside]

    found = []
    for by, modules in graph.items():
        for of in modules:
            here, there = place_of(by), place_of(of)
            if here != there and here[0] <= there[0]:
                found.append(f"{by} imports {of}, which is {'above' if here[0] < there[0] else 'beside'} it")
    return sorted(found)
