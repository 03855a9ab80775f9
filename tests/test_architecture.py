"""The house: which module may import which, and what each may contain.

The pictures below are the rule. A module, or the room (sub-package) that it is in, stands on a floor. It may import
what is on the floors below it and what is in its own room, but nothing above it and nothing behind a wall `|` on its
floor. A part's own `__init__`, where the public names are, is the roof. Between the parts imports go
cli -> weights -> mlxgen.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

import mlxgen
import mlxgen.weights

from .support.imports import COMPUTED, Graph, Import, breaches, circle, find_modules, floors, graph, read_imports
from .support.processes import fresh

ROOT = Path(__file__).parent.parent

HOUSE = {
    "mlxgen": """
                        __main__
                         lm_eval
                  chat    |    tracing
                     ranked_choices
                     continuations
                        scoring
                       generation
                         model
              network | sampling | text
                 cpu_exp | cpu_operations
                        device
                         blas
                       reading
  atomic_file | json_file | dtypes safetensors_header | forked_process
              installation | lfs_pointer regular_file
                         errors
    """,
    "mlxgen.weights": """
                conversion | metal_speed
                  load | local_models
                       adapters
                        sources
                          hub
                       parameters
                        layouts
                      tensor_names
                         files
    """,
    "mlxgen.cli": """
                          main
                        commands
                      score_table
                  chat | jsonl | bench
        options progress trace_view compare_view
   completion settings output prompt terminal_console
                      wrap
    """,
}
PARTS = list(HOUSE)  # each may import those before it

# The two ways up, each inside a function: `mlxgen.load` opens a checkpoint, `python -m mlxgen` runs the terminal.
DOORS = {("mlxgen.model", "mlxgen.weights"), ("mlxgen.__main__", "mlxgen.cli.main")}

# What computes on the CPU alone, or differs there, may stand here.
CPU_CODE = {"mlxgen.blas", "mlxgen.cpu_exp", "mlxgen.cpu_operations", "mlxgen.device", "mlxgen.network.cpu_kernels"}

# Modules that import by a name made at run time: public names and subcommands, at their first use.
LAZY = {"mlxgen", "mlxgen.weights", "mlxgen.cli.main"}

MOST_LINES = 320

with (ROOT / "pyproject.toml").open("rb") as file:
    PACKAGES: dict[str, str] = tomllib.load(file)["tool"]["setuptools"]["package-dir"]
MODULES = find_modules(ROOT, PACKAGES)
IMPORTS = read_imports(MODULES)
GRAPH = graph(IMPORTS, MODULES)


def part_of(module: str) -> str:
    return max((part for part in PARTS if f"{module}.".startswith(f"{part}.")), key=len)


def within(part: str) -> Graph:
    """The imports of a part's modules by each other."""
    members = {name for name in MODULES if part_of(name) == part}
    return {name: GRAPH[name] & members for name in members}


def without_doors(graph: Graph) -> Graph:
    return {by: {of for of in modules if (by, of) not in DOORS} for by, modules in graph.items()}


# Imports


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = circle(without_doors(GRAPH))
    assert not found, " -> ".join(found)


@pytest.mark.parametrize("part", PARTS)
def test_inside_each_part_imports_go_from_a_higher_floor_to_a_lower_one(part: str) -> None:
    found = breaches(within(part), part, HOUSE[part])
    assert not found, "\n".join(found)


def test_the_pictures_show_nothing_that_is_not_there() -> None:
    for part, picture in HOUSE.items():
        drawn = {name for rooms in floors(picture) for room in rooms for name in room}
        assert drawn - {name.removeprefix(f"{part}.").split(".")[0] for name in within(part)} == set()


def test_imports_go_from_the_terminal_to_the_weights_to_the_runtime() -> None:
    upward = [
        one for one in IMPORTS if one.of in MODULES and PARTS.index(part_of(one.by)) < PARTS.index(part_of(one.of))
    ]
    assert {(one.by, one.of) for one in upward} == DOORS
    assert all(one.in_function for one in upward)


def loaded_by(part: str) -> list[str]:
    """The modules that are there once a new process has imported every module of a part."""
    names = [name for name in MODULES if part_of(name) == part]
    script = f"import importlib, json, sys\nfor name in {names}: importlib.import_module(name)"
    loaded = fresh(f"{script}\nprint(json.dumps(sorted(sys.modules)))", cwd=ROOT)
    assert set(names) <= set(loaded)
    return list(loaded)


def test_the_runtime_runs_without_the_other_two_parts() -> None:
    assert [name for name in loaded_by("mlxgen") if name.startswith(("mlxgen.weights", "mlxgen.cli"))] == []


def test_the_weights_run_without_the_terminal() -> None:
    assert [name for name in loaded_by("mlxgen.weights") if name.startswith("mlxgen.cli") or name == "click"] == []


def test_only_lazy_names_are_imported_by_a_name_made_at_run_time() -> None:
    assert {one.by for one in IMPORTS if one.of == COMPUTED} == LAZY


def test_nothing_is_imported_before_the_blas_but_the_standard_library() -> None:
    """`import mlxgen` installs the hook that loads the BLAS. What it reads until then must not import MLX, anywhere."""
    at_once = [one for one in IMPORTS if not one.in_function and not one.for_types]
    first, waiting = set(), ["mlxgen", "mlxgen.__main__"]
    while waiting:
        name = waiting.pop()
        first.add(name)
        waiting += [one.of for one in at_once if one.by == name and one.of in MODULES and one.of not in first]
    assert "mlxgen.blas" in first
    others = {(one.by, one.of) for one in IMPORTS if one.by in first and one.of not in (*MODULES, COMPUTED)}
    assert [pair for pair in others if pair[1].split(".")[0] not in sys.stdlib_module_names] == []


def test_examples_import_mlxgen_before_anything_that_imports_mlx() -> None:
    for file in (ROOT / "examples").glob("*.py"):
        names = [one.of.split(".")[0] for one in read_imports({file.stem: file}) if not one.for_types]
        mlx = [at for at, name in enumerate(names) if name in ("mlx", "mlx_lm")]
        ours = [at for at, name in enumerate(names) if name == "mlxgen"]
        assert not mlx or (ours and ours[0] < mlx[0]), file.name


# What stands in a module


def test_what_computes_on_the_cpu_alone_stands_in_three_modules() -> None:
    """float64, most of linear algebra and the CPU's stream do not exist on Metal; ctypes loads the CPU's BLAS."""
    cpu_alone = re.compile(r"\bmx\.(cpu\b|float64|linalg)|DeviceType\.cpu|\bctypes\b")
    found = {name for name, file in MODULES.items() if cpu_alone.search(file.read_text())}
    # MLX gathers arrays from several machines on the CPU's stream alone.
    assert found - CPU_CODE == {"mlxgen.cli.jsonl.process_group"}


def test_the_runtime_asks_for_the_device_in_three_modules() -> None:
    """Elsewhere it takes one way through the code on both devices."""
    asks = {name for name, file in MODULES.items() if "on_cpu()" in file.read_text() and part_of(name) == "mlxgen"}
    assert asks - CPU_CODE == set()


def test_no_module_has_the_name_of_a_public_function() -> None:
    """Importing such a module would hide the function. A command is named after the function that it runs."""
    runtime, weights = set(mlxgen.__all__), set(mlxgen.weights.__all__)
    public = {"mlxgen": runtime, "mlxgen.weights": weights, "mlxgen.cli": runtime | weights}
    named = {name for name in MODULES if name.split(".")[-1] in public[part_of(name)]}
    assert {name for name in named if not name.startswith("mlxgen.cli.commands.")} == set()


def test_every_room_says_what_it_is_for_and_has_nothing_else_in_its_init() -> None:
    for name, file in MODULES.items():
        if file.name == "__init__.py":
            tree = ast.parse(file.read_text())
            assert ast.get_docstring(tree), name
            assert name in LAZY or len(tree.body) == 1, name


@pytest.mark.parametrize("part", ["mlxgen", "mlxgen.weights"])
def test_types_and_run_time_have_the_same_public_names_from_the_same_modules(part: str) -> None:
    package = sys.modules[part]
    for_types = {
        alias.asname or alias.name: node.module
        for block in ast.walk(ast.parse(MODULES[part].read_text()))
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert for_types == {name: f"{part}.{module}" for name, module in package._DEFINED_IN.items()}
    assert set(package.__all__) - {"__version__"} == set(for_types)


def test_no_source_file_is_longer_than_is_read_in_one_go() -> None:
    sources = [*MODULES.values(), *(ROOT / "examples").glob("*.py")]
    sources += [file for file in (ROOT / "mlxgen").rglob("*") if file.suffix in (".js", ".css", ".html")]
    lines = {str(file.relative_to(ROOT)): file.read_text().count("\n") for file in sources}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


# The checks themselves, on a house that breaks the rules


@pytest.fixture
def crooked(tmp_path: Path) -> dict[str, Path]:
    sources = {
        "__init__.py": "from crooked.attic import lamp",
        "cellar.py": "def stairs():\n    from crooked import attic",
        "attic/__init__.py": "",
        "attic/lamp.py": "import crooked.attic.wick\nfrom crooked.hall import door, window",
        "attic/wick.py": "if TYPE_CHECKING:\n    from crooked.attic.lamp import light",
        "hall/door.py": "import numpy.linalg\nimport importlib\nimportlib.import_module('crooked.garden')",
        "hall/window.py": "from crooked.hall.door import key\nfrom importlib import import_module\nimport_module(key)",
        "garden.py": "from crooked.cellar import wine",
    }
    for name, text in sources.items():
        (tmp_path / "house" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "house" / name).write_text(text)
    return find_modules(tmp_path, {"crooked": "house"})


def test_imports_are_found_wherever_they_stand(crooked: dict[str, Path]) -> None:
    imports = read_imports(crooked)
    assert Import("crooked.cellar", "crooked.attic", in_function=True) in imports
    assert Import("crooked.attic.wick", "crooked.attic.lamp", for_types=True) in imports
    assert Import("crooked.hall.door", "numpy.linalg") in imports
    assert [one.by for one in imports if one.of == COMPUTED] == ["crooked.hall.window"]
    found = graph(imports, crooked)
    assert found["crooked"] == {"crooked.attic.lamp"}
    assert found["crooked.attic.lamp"] == {"crooked.attic.wick", "crooked.hall.door", "crooked.hall.window"}
    assert found["crooked.hall.door"] == {"crooked.garden"}


def test_a_circle_is_found_and_named(crooked: dict[str, Path]) -> None:
    found = graph(read_imports(crooked), crooked)
    assert set(circle(found)) == {"crooked.attic.lamp", "crooked.attic.wick"}
    found["crooked.attic.wick"].clear()
    assert circle(found) == []
    found["crooked.garden"].add("crooked.attic.lamp")
    assert len(circle(found)) == 4  # lamp, door, garden, lamp


def test_ways_up_and_through_walls_are_found(crooked: dict[str, Path]) -> None:
    picture = """
        attic
        hall | garden
        cellar
    """
    assert breaches(graph(read_imports(crooked), crooked), "crooked", picture) == [
        "crooked.cellar imports crooked.attic, which is above it",
        "crooked.hall.door imports crooked.garden, which is beside it",
    ]
    one_room = picture.replace("|", "")
    assert len(breaches(graph(read_imports(crooked), crooked), "crooked", one_room)) == 1
    with pytest.raises(AssertionError, match="no garden"):
        breaches(graph(read_imports(crooked), crooked), "crooked", picture.replace("| garden", ""))
