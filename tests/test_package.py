"""What is installed, under which names, and what importing it costs."""

import importlib
import importlib.metadata
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import mlxgen

from .support.processes import fresh

ROOT = Path(__file__).parent.parent
HEAVY = ("transformers", "mlx_lm", "torch", "numpy", "huggingface_hub", "tokenizers", "mlx.core", "rich")


def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def test_every_public_name_is_there() -> None:
    for name in mlxgen.__all__:
        assert getattr(mlxgen, name) is not None
    assert set(mlxgen.__all__) <= set(dir(mlxgen))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mlxgen.nothing  # noqa: B018


def test_the_import_is_light() -> None:
    names = f"[name for name in {HEAVY!r} if name in sys.modules]"
    script = f"import json, sys, mlxgen, mlxgen.cli, mlxgen.weights\nprint(json.dumps({names}))"
    assert fresh(script, cwd=ROOT) == []


@pytest.mark.parametrize(("given", "found"), [(None, "0"), ("1", "1")])
def test_float32_is_computed_in_float32_unless_the_user_allows_tf32(
    monkeypatch: pytest.MonkeyPatch, given: str | None, found: str
) -> None:
    """MLX reads the variable at its first product, after mlxgen was imported."""
    monkeypatch.delenv("MLX_ENABLE_TF32", raising=False)
    if given:
        monkeypatch.setenv("MLX_ENABLE_TF32", given)
    assert fresh("import json, mlxgen, os\nprint(json.dumps(os.environ['MLX_ENABLE_TF32']))", cwd=ROOT) == found


def test_generating_on_the_cpu_imports_no_numpy() -> None:
    script = (
        "import json, os, sys\nos.environ['MLXGEN_DEVICE'] = 'cpu'\nimport mlxgen\n"
        "mlxgen.generate(mlxgen.load(), 'Once', max_tokens=2)\nprint(json.dumps('numpy' in sys.modules))"
    )
    assert fresh(script) is False


def test_the_runtime_never_imports_other_peoples_runtimes() -> None:
    script = (
        "import json, sys, mlxgen\nfor name in mlxgen.__all__: getattr(mlxgen, name)\n"
        "print(json.dumps([m for m in ('transformers', 'mlx_lm', 'torch') if m in sys.modules]))"
    )
    assert fresh(script, cwd=ROOT) == []


def test_the_three_folders_are_one_namespace(tmp_path: Path) -> None:
    script = (
        "import importlib.util, json, mlxgen.cli.main, mlxgen.weights\n"
        "print(json.dumps([bool(importlib.util.find_spec(name)) for name in ('weights', 'cli')]))"
    )
    assert fresh(script, cwd=tmp_path) == [False, False], "nothing of ours is a top-level module"


def test_a_wheel_holds_the_three_folders_and_nothing_beside_them() -> None:
    tool = project()["tool"]["setuptools"]
    named = set(tool["packages"])
    there = set()
    for top, folder in tool["package-dir"].items():
        for file in (ROOT / folder).rglob("*.py"):
            there.add(".".join([top, *file.parent.relative_to(ROOT / folder).parts]))
            assert (file.parent / "__init__.py").is_file()
    assert named == there, "pyproject.toml names every package, and no other"


def test_the_version_is_one_and_the_changelog_has_it() -> None:
    assert importlib.metadata.version("mlxgen") == mlxgen.__version__
    assert f"## {mlxgen.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_command_and_the_types_are_declared() -> None:
    entry = importlib.metadata.distribution("mlxgen").entry_points
    assert [(e.name, e.value) for e in entry] == [("mlxgen", "mlxgen.__main__:start")]
    assert (Path(mlxgen.__file__).parent / "py.typed").is_file()


def test_what_is_imported_is_declared() -> None:
    """Every top-level import in the sources is the standard library, the project, or a named dependency."""
    import ast

    tables = project()["project"]
    extras = tables["optional-dependencies"]
    named = tables["dependencies"] + extras["torch"] + extras["plot"] + extras["eval"]
    known = {line.split(">")[0].split("=")[0].split("[")[0].replace("-", "_") for line in named}
    # mlx-lm brings transformers, lm-eval tqdm: they do not work without. ctranslate2 is compared with if it is there.
    known |= {"mlxgen", "transformers", "tqdm", "ctranslate2", *sys.stdlib_module_names}
    for folder in ("mlxgen", "weights", "cli"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom):
                    assert node.level == 0, f"{file}: a relative import"
                    modules = [node.module or ""]
                for module in modules:
                    assert module.partition(".")[0] in known, f"{file.name} imports {module}"
