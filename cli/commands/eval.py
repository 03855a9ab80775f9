"""`mlxgen eval`: lm-evaluation-harness with one of our models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from mlxgen.cli.options import model_options

HARNESS_NAME = "mlxgen"  # under which lm-evaluation-harness knows this package
CONFIG = ("--config", "-C")  # its options for a file that says everything


@click.command(context_settings={"ignore_unknown_options": True}, no_args_is_help=True)
@model_options
@click.argument("arguments", metavar="[LM_EVAL OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
def eval(arguments: tuple[str, ...], **given: Any) -> None:
    """Run benchmarks with lm-evaluation-harness.

    All other options are those of its command lm_eval: --tasks, --num_fewshot, --limit, --output_path and so on;
    `lm_eval run --help` lists them. For example: mlxgen eval -m gpt2 --tasks lambada_openai --limit 100

    --batch_size is auto unless given. --model_args can have max_length (positions to use), max_gen_toks (tokens to
    generate where a task does not say) and stride (how far the windows of a long text move; by default a whole
    context, as in the harness).

    A command for the harness, with --model mlxgen and --model_args model=gpt2, means the same here.
    """
    from mlxgen.lm_eval import run_command
    from mlxgen.weights import resolve

    if given["model"] != HARNESS_NAME:
        resolve(given["model"], given["revision"])  # before the harness reads its list of tasks, which takes long
    run_command(for_harness(arguments, given))


def for_harness(arguments: Sequence[str], model: Mapping[str, Any]) -> list[str]:
    """The arguments for lm_eval: the model, then those given, which may say otherwise.

    model: the options of `model_options`.
    """
    given = list(arguments[1:] if list(arguments[:1]) == ["run"] else arguments)
    if any(word.partition("=")[0] in CONFIG for word in given):
        return ["run", *given]
    model_args = {name: value for name, value in model.items() if value is not None}
    if model_args.get("model") == HARNESS_NAME:
        del model_args["model"]  # it is in --model_args
    # As JSON, because a folder's name may have a comma. The harness merges several --model_args.
    ahead = ["--model", HARNESS_NAME, "--batch_size", "auto", "--model_args", json.dumps(model_args)]
    return ["run", *ahead, *given]
