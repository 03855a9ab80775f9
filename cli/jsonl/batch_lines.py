"""`mlxgen batch`: the answers to a file with one prompt per line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from mlxgen.cli.jsonl.input_file import InputFile, InputLine
from mlxgen.cli.jsonl.run import LineResult, ProcessLines, run_lines
from mlxgen.cli.options import open_model
from mlxgen.cli.settings import LINE_SETTINGS
from mlxgen.errors import MlxgenError, OptionError, check_whole
from mlxgen.generation.batching import Failure, Prompt, outcomes

if TYPE_CHECKING:
    from mlxgen.generation.batching import BatchGeneration
    from mlxgen.generation.request import Options, Request
    from mlxgen.model import Model

LINE_KEYS = ("prompt", "id", *LINE_SETTINGS, "num_samples", "metadata")
RESULT_KEYS = frozenset({"tokens", "sample"})


def answer_file(source: str, request: Request, given: Mapping[str, Any]) -> None:
    """Answer each line. Raises MlxgenError at the end if a line failed.

    request: what applies to a line unless it says otherwise. given: the options of `mlxgen batch`.
    """
    options: Options = {**request.options, "seed": given["seed"]}  # a line without a seed gets a fresh one

    def prepare() -> ProcessLines:
        model = open_model(given)
        return lambda lines, ordered: _answer_lines(model, lines, ordered, options, given)

    run_lines(
        InputFile(source, given["form"], text_key="prompt"),
        given["output"],
        prepare,
        overwrite=given["overwrite"],
        quiet=given["quiet"],
        result_keys=[RESULT_KEYS],
        options={
            **{name: value for name, value in options.items() if name in given},
            "model": given["model"],
            "revision": given["revision"],
            "adapter": given["adapter"],
            "dtype": given["dtype"],
            "with_logprobs": given["logprobs"],
        },
    )


def _answer_lines(
    model: Model, lines: Iterable[InputLine], ordered: bool, options: Options, given: Mapping[str, Any]
) -> Iterator[LineResult]:
    """The answers to the lines and their failures, in order or as they complete."""
    asked: list[InputLine] = []
    left: list[int] = []  # how many answers each of them still gets
    finished = 0

    def prompts() -> Iterator[Prompt | MlxgenError]:
        nonlocal finished
        for line in lines:
            try:
                prompt = _prompt(line, given["num_samples"])
            except MlxgenError as error:
                asked.append(line)
                left.append(1)
                yield error
                continue
            if count := (prompt.num_samples or 1) - len(prompt.skip):
                asked.append(line)
                left.append(count)
                yield prompt
            else:
                finished += 1

    for found in outcomes(model, prompts(), batch_size=given["batch_size"], ordered=ordered, **options):
        line = asked[found.index]
        left[found.index] -= left[found.index] if isinstance(found, Failure) and found.sample is None else 1
        finished += left[found.index] == 0
        if isinstance(found, Failure):
            yield LineResult(line, {}, found.error, finished=finished)
        else:
            greedy = line.entries.get("temperature", options["temperature"]) == 0
            entries = _entries(found, line, greedy=greedy, logprobs=given["logprobs"])
            yield LineResult(line, entries, tokens=len(found.tokens), finished=finished)


def _prompt(line: InputLine, num_samples: int) -> Prompt:
    """The prompt of a line with its own options. Raises the line's error, or OptionError."""
    entries = line.checked_entries(LINE_KEYS)
    if "prompt" not in entries:
        raise OptionError("prompt is missing")
    count = entries.get("num_samples", num_samples)
    check_whole("num_samples", count, 1)
    done = frozenset(sample for sample in line.done if sample < count)
    options = cast("Options", {name: entries[name] for name in LINE_SETTINGS if name in entries})
    return Prompt(entries["prompt"], num_samples=count, skip=done, **options)


def _entries(answer: BatchGeneration, line: InputLine, *, greedy: bool, logprobs: bool) -> dict[str, Any]:
    entries: dict[str, Any] = {
        "sample": answer.sample,
        "prompt": answer.prompt,
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": answer.finish_reason,
        "seed": None if greedy else answer.seed,
        "prompt_tokens": len(answer.prompt_tokens),
        "generated_tokens": len(answer.tokens),
    }
    if logprobs:
        entries["logprobs"] = answer.logprobs
    if "metadata" in line.entries:
        entries["metadata"] = line.entries["metadata"]
    return entries
