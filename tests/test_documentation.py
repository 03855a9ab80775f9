"""README and docs hold what they say: their commands and Python blocks run, their links, names and options exist."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

import mlxgen
from mlxgen import device
from mlxgen.cli.main import COMMANDS, main

from .support import flax_checkpoints, tensorflow_checkpoints, torch_gpts
from .support.adapters import write_peft
from .support.llmc import write_llmc
from .support.markdown import Page
from .support.models import published, tiny_gpt2
from .support.tensorflow_checkpoints import add_small_files, large, small

ROOT = Path(__file__).parent.parent
PAGES = [
    Page(ROOT / "README.md"),
    Page(ROOT / "CONTRIBUTING.md"),
    Page(ROOT / "weights" / "fairy_tales" / "README.md"),
    *map(Page, sorted((ROOT / "docs").glob("*.md"))),
]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.path.relative_to(ROOT)))

# A command is run if it is mlxgen's or an example's, perhaps with something before a pipe or variables before it.
RUNNABLE = re.compile(r"(\w+=\S+ )*mlxgen |(printf|echo) .*\| mlxgen |python examples/")

# These are not run; their commands and options are still parsed.
NOT_RUN = {
    "-n 20000": "takes minutes",
    "mlxgen bench": "takes minutes, and measures nothing beside other tests",
    "examples/endless.py 20000": "takes minutes",
    "examples/faster.py": "takes minutes",
    "examples/mac_check.py": "takes a minute; tests/examples runs it with smaller models",
    "mlxgen eval": "downloads the data of its tasks; tests/test_lm_eval.py runs it on a local one",
    "mlx.launch": "starts processes that listen on ports; tests/cli/test_jsonl_processes.py runs it",
}

# What the pages get from the hub or have at home: tiny models, in folders of these names, which come before the hub's.
MODELS = ("gpt2", "gpt2-xl", "distilgpt2", "dialogpt-medium", "my-model", "models/my-finetune")

# Options in the text that are those of pip, mlx.launch, an example or lm_eval.
FOREIGN_OPTIONS = {"--hosts", "--hostfile", "--backend", "--over", "--without-pip", "--steps", "--compile", "--quick"}
FOREIGN_OPTIONS |= {"--apply_chat_template", "--batch_size", "--gen_kwargs", "--model_args"}

# Decimal numbers are compared to within this share, and not at all where they are measured.
NUMBER = re.compile(r"-?\d[\d,]*\.\d+(?:e-?\d+)?")
CLOSE = 2e-3
MEASURED = re.compile(r" (ms|tokens/s)")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny stand-ins for the models and the adapter that the pages name, nanoGPT's and minGPT's too."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(MODELS):
        tiny_gpt2(seed, n_embd=64, n_layer=1).write(folder / name)
    write_peft(folder / "my-adapter", tiny_gpt2(0, n_embd=64, n_layer=1))
    shape = {"n_positions": 16, "n_layer": 1, "n_head": 2, "width": 32}
    characters = {character: number for number, character in enumerate("abcdefgh \n")}
    (folder / "characters.json").write_text(json.dumps(characters))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": 2}))
    torch.save(torch_gpts.GPT(len(characters), **shape, nano=False).state_dict(), folder / "model.pt")
    nano = folder / "out-shakespeare-char"
    nano.mkdir()
    (nano / "meta.json").write_text(json.dumps({"stoi": characters}))
    args = {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 16, "bias": True, "vocab_size": len(characters)}
    state = torch_gpts.GPT(len(characters), **shape).state_dict()
    torch.save({"model": state, "model_args": args, "config": {}}, nano / "ckpt.pt")
    write_foreign(folder)
    return folder


def write_foreign(folder: Path) -> None:
    """Checkpoints of other programs, under the names that they give them."""
    for name, kept, model in (("124M", "release", large()), ("checkpoint/run1", "run1", small())):
        shutil.copytree(tensorflow_checkpoints.FOLDER / kept, folder / name)
        add_small_files(folder / name, model)
    flax_checkpoints.write("tied", folder / "flax-model")
    tiny = tiny_gpt2(n_embd=16, n_layer=1)
    weights = {name: torch.tensor(array) for name, array in published(tiny.weights, "transformer.").items()}
    sizes = argparse.Namespace(block_size=64, n_head=4)
    for name in ("log124M", "log", "checkpoint-500"):
        (folder / name).mkdir()
    write_llmc(folder / "log124M" / "model_00001000.bin", tiny)
    torch.save({"model": weights, "config": sizes}, folder / "log" / "model_19072.pt")
    torch.save({"state_dict": weights}, folder / "last.ckpt")
    tiny_gpt2(n_embd=64, n_layer=1).write(folder / "checkpoint-500")


@each_page
def test_commands_and_python_blocks_run(
    page: Page, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From top to bottom, in one folder and one Python namespace for the page."""
    here = tmp_path / "here"
    shutil.copytree(models, here)
    (here / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.setenv("MLXGEN_HOME", str(here / "mlxgen"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("GENERATE", "CHAT", "BATCH"):  # where a page does not say how many
        monkeypatch.setenv(f"MLXGEN_{command}_MAX_TOKENS", "20")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    namespace: dict[str, Any] = {"__name__": page.path.stem}
    for block in page.blocks:
        at = f"{page.path.name}:{block.line}"
        if block.name:
            Path(block.name).write_text(block.text)
        elif block.language == "python":
            exec(compile("\n" * block.line + block.text, str(page.path), "exec"), namespace)
        for command, shown in block.commands:
            check_options(command, at)
            if RUNNABLE.match(command) and not any(part in command for part in NOT_RUN):
                printed = run(command, at)
                if shown is not None and sys.platform == "linux" and device.on_cpu():
                    difference = compare(shown, printed)
                    assert not difference, f"{at}: {command}: {difference}"


def run(command: str, at: str) -> str:
    """What a terminal would show of a command; fails unless it succeeds. A plain one runs in this process."""
    if command.startswith("mlxgen ") and not re.search(r"[|<>]", command):
        done = CliRunner().invoke(main, shlex.split(command, comments=True)[1:], input="")
        assert done.exit_code == 0, f"{at}: {command}: {done.output} {done.exception!r}"
        return done.output
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ended = subprocess.run(["bash", "-c", command], **streams, text=True, timeout=300)
    assert ended.returncode == 0, f"{at}: {command}: {ended.stdout}"
    return ended.stdout


def check_options(command: str, at: str) -> None:
    """Parse the options of mlxgen's command in a line as the command itself would, without running it."""
    words = shlex.split(command, comments=True)
    for place, word in enumerate(words):
        if word == "mlxgen" or word.endswith("/mlxgen"):
            end = next(
                (i for i, word in enumerate(words) if i > place and re.fullmatch(r"[|&;]+|\d?[<>].*", word)), None
            )
            name, *arguments = words[place + 1 : end]
            found = main.get_command(click.Context(main), name)
            assert found, f"{at}: there is no command mlxgen {name}"
            try:
                found.make_context(name, arguments)
            except click.ClickException as error:
                pytest.fail(f"{at}: {command}: {error.format_message()}")
        elif word.startswith("examples/"):
            assert (ROOT / word).is_file(), f"{at}: there is no {word}"


def compare(shown: str, printed: str) -> str:
    """How the output differs from what a page shows of it; "" if it does not.

    White space counts as one space, and "…" stands for any text.
    """
    shown, printed = " ".join(shown.split()), " ".join(printed.split())
    pattern = "".join(
        f"({NUMBER.pattern})" if i % 2 else re.escape(part).replace("…", ".*")
        for i, part in enumerate(re.split(f"({NUMBER.pattern})", shown))
    )
    found = re.fullmatch(pattern, printed)
    if not found:
        return f"the page has\n{shown}\nand the command prints\n{printed}"
    for wanted, number in zip(NUMBER.finditer(shown), found.groups(), strict=True):
        one, two = (float(text.replace(",", "")) for text in (wanted[0], number))
        if abs(one - two) > CLOSE * abs(one) and not MEASURED.match(shown, wanted.end()):
            return f"the page has {one} and the command prints {two}"
    return ""


def test_a_shown_output_is_compared() -> None:
    shown = "loss 2.5000\nat …\ntook 3.1 ms\n"
    assert compare(shown, "loss  2.5001\nat /a/b\ntook 9.7 ms") == ""
    assert "prints 2.6" in compare(shown, "loss 2.6000 at /a took 3.1 ms")
    assert "prints\nlost" in compare(shown, "lost 2.5000 at /a took 3.1 ms")


@each_page
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links:
        path, _, anchor = link.partition("#")
        if "://" not in path:
            target = page.path.parent / path if path else page.path
            assert target.exists(), f"{page.path.name} links to {link}"
            assert not anchor or anchor in Page(target).anchors, f"{page.path.name} links to {link}"


@each_page
def test_names_in_the_text_exist(page: Page) -> None:
    """Commands, options, public names, and files of the project."""
    for code in page.code_spans:
        check_name(code)
    for block in page.blocks:
        for name in re.findall(r"\w+/\w+\.py", block.text if block.language == "text" else ""):
            assert (ROOT / "mlxgen" / name).is_file(), f"{page.path.name}:{block.line}: there is no {name}"


def check_name(code: str) -> None:
    name = re.match(r"mlxgen ([a-z]+)", code)
    assert not name or name[1] in COMMANDS, f"there is no command {code}"
    options = option_names([name[1]] if name else list(COMMANDS)) | {"--help", "--version"} | FOREIGN_OPTIONS
    for option in re.findall(r"(?<![\w-])--[a-z][a-z_-]+", code):
        assert option in options, f"there is no option {option} in {code}"
    public = re.match(r"mlxgen\.(\w+)", code)
    assert not public or public[1] in mlxgen.__all__ or module(public[1]), f"there is no {code}"
    if re.fullmatch(r"(mlxgen|cli|tests|examples|docs)/[\w./-]*|weights/[\w/]+(\.py|/)", code):
        assert (ROOT / code).exists(), f"there is no {code}"


def module(name: str) -> bool:
    """Whether mlxgen has a module, or a room, of that name."""
    return (ROOT / "mlxgen" / name).exists() or (ROOT / "mlxgen" / f"{name}.py").exists()


def option_names(commands: list[str]) -> set[str]:
    found = (main.get_command(click.Context(main), name) for name in commands)
    return {
        name
        for command in found
        if command
        for option in command.params
        for name in (*option.opts, *option.secondary_opts)
    }


def test_a_wrong_name_is_found() -> None:
    for code in ("mlxgen nothing", "--no-such-option", "mlxgen info --seed 1", "mlxgen.nothing", "mlxgen/nothing.py"):
        with pytest.raises(AssertionError, match="there is no"):
            check_name(code)


def test_the_architecture_has_every_module_that_stands_in_no_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    modules = {f"{part}/{file.name}" for part in ("mlxgen", "weights", "cli") for file in (ROOT / part).glob("*.py")}
    assert {name for name in modules - {"weights/__init__.py", "cli/__init__.py"} if f"`{name}`" not in text} == set()


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {(ROOT / link).resolve() for link in PAGES[0].links if "://" not in link}
    assert {page.path for page in PAGES[1:]} <= linked


def test_the_readme_stays_short() -> None:
    assert len(PAGES[0].path.read_text().splitlines()) <= 130
