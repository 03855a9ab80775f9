"""The options that several commands share, and the models and requests that they describe."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from mlxgen.cli.completion import complete_file, complete_folder, complete_model
from mlxgen.cli.output import say
from mlxgen.cli.settings import SETTINGS, F
from mlxgen.dtypes import WEIGHT_TYPES

if TYPE_CHECKING:
    from mlxgen.generation.beam_options import BeamOptions
    from mlxgen.generation.request import Request
    from mlxgen.model import Model

model_option = click.option(
    "-m",
    "--model",
    default="fairy-tales",
    envvar="MLXGEN_MODEL",
    show_default=True,
    metavar="MODEL",
    shell_complete=complete_model,
    help="A folder, a hub id (owner/name), an alias such as gpt2, or the bundled fairy-tales.",
)
revision_option = click.option("--revision", metavar="REF", help="Branch, tag or commit of a model on the hub.")
dtype_option = click.option(
    "--dtype",
    type=click.Choice([dtype.name for dtype in WEIGHT_TYPES]),
    help="Type to compute in.  [default: on a GPU the type of the weights, on the CPU float32]",
)
ids_option = click.option(
    "--ids", metavar="IDS", help='The prompt as token ids, such as "464 3290"; "-" reads them from standard input.'
)
adapter_option = click.option(
    "--adapter",
    metavar="FOLDER",
    shell_complete=complete_folder,
    help="An adapter of PEFT or mlx-lm (LoRA, DoRA) to merge into the model: a folder or a hub id.",
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors to standard error.")


def model_options(function: F) -> F:
    """Add which model to open, and how. See `open_model`."""
    return model_option(adapter_option(revision_option(dtype_option(function))))


def generation_options(function: F) -> F:
    """Add every option of `SETTINGS`: how much to generate, by which rules, with which cache. See `check_request`."""
    for setting in reversed(SETTINGS):
        function = setting.declare(function)
    return function


def guess_options(function: F) -> F:
    """Add the two ways to get several tokens from one pass through the network. See `open_draft`."""
    lookahead = click.option(
        "--lookahead",
        is_flag=True,
        help="Guess tokens from the text so far and check several at once: faster where text repeats itself.",
    )
    draft = click.option(
        "--draft",
        metavar="MODEL",
        shell_complete=complete_model,
        help="Guess tokens with a smaller model of the same vocabulary, such as distilgpt2 for gpt2-xl.",
    )
    return lookahead(draft(function))


def beam_options(function: F) -> F:
    """Add beam search. See `check_beams`."""
    beams = click.option(
        "--beams",
        type=click.IntRange(min=1),
        metavar="N",
        help="Search for the most probable text with N beams instead of sampling; --num-samples prints the best ones.",
    )
    penalty = click.option(
        "--length-penalty",
        type=float,
        default=1.0,
        show_default=True,
        metavar="X",
        help="With --beams, divide log-probabilities by length^X: above 0 favours long texts, below 0 short ones.",
    )
    stopping = click.option(
        "--early-stopping",
        type=click.Choice(["off", "on", "never"]),
        default="off",
        show_default=True,
        help="With --beams, end the search: on, as soon as N texts are finished; off, when a better one is unlikely;"
        " never, when none is possible.",
    )
    return beams(penalty(stopping(function)))


def file_options(function: F) -> F:
    """Add where the results for the lines of a file go, and whether they are resumed. See `jsonl.run`."""
    output = click.option(
        "-o",
        "--output",
        default="-",
        metavar="OUT",
        shell_complete=complete_file,
        help='File for the results of many lines, or "-" for standard output.  [default: -]',
    )
    overwrite = click.option("--overwrite", is_flag=True, help="Start over instead of resuming from what OUT holds.")
    return output(overwrite(function))


def output_options(function: F) -> F:
    as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of text.")
    stats = click.option(
        "--stats/--no-stats",
        default=None,
        help="Print statistics and hints to standard error.  [default: only on a terminal]",
    )
    return as_json(stats(quiet_option(function)))


def open_model(given: Mapping[str, Any]) -> Model:
    """The model of `model_options`. --quiet switches off the hub's progress bars."""
    import mlxgen

    if given.get("quiet"):
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
    with warnings_as_lines(given.get("quiet", False)):
        return mlxgen.load(
            given["model"], revision=given["revision"], dtype=given["dtype"], adapter=given.get("adapter")
        )


def open_second_model(given: Mapping[str, Any], name: str) -> Model:
    """Another model than that of `model_options`, whose --revision and --adapter are not for it."""
    return open_model({**given, "model": name, "revision": None, "adapter": None})


@contextmanager
def warnings_as_lines(quiet: bool = False) -> Iterator[None]:
    """Print each ModelWarning as one line to standard error."""
    from mlxgen.errors import ModelWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if quiet else "always", ModelWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, ModelWarning):
                say(f"Warning: {message}")
            else:
                usual(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]  # it takes the same arguments
        yield


def open_draft(given: Mapping[str, Any], request: Request, model: Model) -> Request:
    """The request with the model of --draft, if given. Raises OptionError for a different vocabulary."""
    if not given["draft"]:
        return request
    from mlxgen.generation.draft import check_vocabulary

    draft = open_second_model(given, given["draft"])
    check_vocabulary(model, draft)
    return replace(request, draft=draft)


def check_request(ctx: click.Context, given: Mapping[str, Any]) -> Request:
    """The request that `generation_options` describe. Raises OptionError, before any model is opened.

    It has no prompt and no draft yet.
    """
    from mlxgen.generation.request import Options, check_options

    if given.get("lookahead") and given.get("draft"):
        raise click.UsageError("--lookahead and --draft are two ways to guess; give one of them", ctx)
    options = {name: value for name, value in given.items() if name in Options.__annotations__ and name != "draft"}
    options["logit_bias"] = dict(given["logit_bias"]) or None
    options["temperature"] = _temperature(ctx, given["temperature"], given["greedy"])
    return check_options(**cast("Options", options))


def check_beams(ctx: click.Context, given: Mapping[str, Any]) -> tuple[Request, BeamOptions] | None:
    """The request and the search that `beam_options` describe; None without --beams. Raises OptionError.

    Options that a search cannot have are refused on the command line, and have no effect from the environment.
    """
    from mlxgen.generation.beam_options import SHARED, BeamOptions, check_shared
    from mlxgen.generation.request import Options

    asked = {name for name in given if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if given["beams"] is None:
        if alone := asked & {"length_penalty", "early_stopping"}:
            raise click.UsageError(f"--{min(alone).replace('_', '-')} needs --beams", ctx)
        return None
    if given["num_samples"] > given["beams"]:
        raise click.UsageError(f"--num-samples must be at most --beams ({given['beams']})", ctx)
    early_stopping = {"off": False, "on": True}.get(given["early_stopping"], given["early_stopping"])
    options = {
        name: given[name] for name in given if name in SHARED or (name in Options.__annotations__ and name in asked)
    }
    options["logit_bias"] = dict(given["logit_bias"]) or None
    return check_shared(**options), BeamOptions(
        given["beams"], given["num_samples"], given["length_penalty"], early_stopping
    )


def _temperature(ctx: click.Context, temperature: float, greedy: bool) -> float:
    """0 with --greedy, unless --temperature is on the command line and --greedy is from the environment."""
    if not greedy or temperature == 0:
        return temperature
    asked = {name: ctx.get_parameter_source(name) for name in ("greedy", "temperature")}
    if asked["temperature"] is ParameterSource.COMMANDLINE:
        if asked["greedy"] is ParameterSource.COMMANDLINE:
            raise click.UsageError("--greedy is --temperature 0; give one of them", ctx)
        return temperature
    return 0.0
