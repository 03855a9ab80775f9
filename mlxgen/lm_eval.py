"""mlxgen as a model of lm-evaluation-harness, under the name `mlxgen`.

The harness has no hook by which an installed package could offer a model. `mlxgen eval` therefore imports this module
and then runs the harness's own command. In Python, import it before `lm_eval.simple_evaluate(model="mlxgen", ...)`.

What a request means follows the harness's own `hf` model (lm_eval/models/huggingface.py), so that the numbers can be
compared: how texts are split into tokens, which tokens are left out of a prompt that is too long, and where a
generation ends.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from mlxgen.chat.templates import Message, choose_template
from mlxgen.continuations import Pair, score_continuations
from mlxgen.errors import MlxgenError, OptionError, check_whole
from mlxgen.generation.batching import Failure, Prompt, outcomes
from mlxgen.generation.option_names import nearest
from mlxgen.generation.request import Options, check_options
from mlxgen.installation import install_command
from mlxgen.model import Model, load, start_tokens
from mlxgen.scoring import checked_stride, score

PACKAGE = "lm-eval>=0.4.13"

try:
    import lm_eval.models  # noqa: F401  (registers the harness's own models; it does so only while there is none)
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows
    from tqdm import tqdm
except ImportError as error:
    raise MlxgenError(
        f"lm-evaluation-harness cannot be imported ({error}); install it: `{install_command(PACKAGE)}`"
    ) from None

DEFAULT_DEVICE = "cuda:0"  # what the harness says where the user says nothing
OF_HF = {"pretrained": "model", "path": "model", "peft": "adapter"}  # what the arguments of `hf` are here
MODEL_ARGS = ("model", "revision", "dtype", "adapter", "batch_size", "max_length", "max_gen_toks", "stride")
# Generation arguments of tasks that say how transformers should do what mlxgen does anyway, or that only repeat what is
# the case: the value that may be ignored.
IDLE = {"num_beams": (1,), "use_cache": (True, False), "num_return_sequences": (1,), "do_sample": (True, False)}


@register_model("mlxgen")
class MlxgenLM(TemplateLM):
    """A model for lm-evaluation-harness.

    model: its name, as for mlxgen.load(), or a loaded one. revision, dtype, adapter: as there. batch_size: how many
    texts are processed at a time; "auto" for as many as are useful. max_length: positions to use, by default the
    model's whole table. max_gen_toks: how many tokens are generated where a task does not say. stride: how far the
    windows of a long text in a rolling task move, as in mlxgen.score(); by default the harness's own windows are used,
    which move by a whole table. Raises OptionError for an unknown or invalid argument.
    """

    def __init__(
        self,
        model: str | Model = "fairy-tales",
        *,
        revision: str | None = None,
        dtype: str | None = None,
        adapter: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        stride: int | None = None,
        device: str | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown:
            name = min(unknown)
            near = OF_HF.get(name) or nearest(name, MODEL_ARGS)
            hint = f"did you mean {near}?" if near else f"they are {', '.join(MODEL_ARGS)}"
            raise OptionError(f"unknown model argument {name!r}; {hint}")
        if device not in (None, DEFAULT_DEVICE):
            raise OptionError("the device of mlxgen is chosen by MLXGEN_DEVICE (cpu or gpu); leave --device out")
        limit = _rows(max_batch_size)
        self.batch_size = _rows(batch_size) or limit
        check_whole("max_gen_toks", max_gen_toks, 1)
        self.max_gen_toks = max_gen_toks
        if not isinstance(model, Model):
            model = load(str(model), revision=revision, dtype=dtype, adapter=adapter)
        self.model = model
        table = self.model.config.n_positions
        check_whole("max_length", table if max_length is None else max_length, 2, table)
        self.max_length = max_length or table
        checked_stride(self.model, stride)
        self.stride = stride
        self.tokenizer = self.model.tokenizer

    # Tokens

    @property
    def eot_token_id(self) -> int:
        """The model's end token, or its start token if it has none."""
        end = self.tokenizer.eos_token_id
        return min(self.model.end_tokens, default=self.prefix_token_id) if end is None else end

    @property
    def prefix_token_id(self) -> int:
        """What a text without a context is conditioned on."""
        known = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        found = next((token for token in known if token is not None), None)
        return start_tokens(self.model)[-1] if found is None else found

    @property
    def tokenizer_name(self) -> str:
        """For the harness's cache of requests."""
        return (self.model.source or self.model.name).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Tokenize a text, with the tokens that the tokenizer itself puts first unless add_special_tokens is False."""
        ids = self.tokenizer.encode(string)
        return ids if add_special_tokens is False else self.tokenizer.with_start(ids)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text. Without add_generation_prompt, the last message is left open to be continued."""
        if not self.tokenizer.chat_template:
            raise OptionError(f"{self.model.name} has no chat template; leave --apply_chat_template out")
        text = choose_template(self.model, "model").write(cast(list[Message], chat_history), add_generation_prompt)
        if add_generation_prompt:
            return text
        last = chat_history[-1]["content"].lstrip()
        written = last if last in text else last.rstrip()  # a template may remove spaces
        return text[: text.rindex(written) + len(written)]

    # Requests

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        found: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        scored = self._scored([(context, text) for _, context, text in requests])
        for number, answer in _with_bar(scored, len(requests), "Log-likelihoods", disable_tqdm):
            found[number] = answer
            self.cache_hook.add_partial("loglikelihood", requests[number][0], answer)
        return found

    def _scored(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, tuple[float, bool]]]:
        found = score_continuations(self.model, pairs, batch_size=self.batch_size, max_length=self.max_length)
        return ((number, (one.logprob, one.greedy)) for number, one in found)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each whole text, in windows if it is longer than the context."""
        texts = [request.args[0] for request in requests]
        rows = [self.tok_encode(text) for text in texts]
        totals = (self._windows if self.stride is None else self._strides)(rows, disable_tqdm)
        for text, total in zip(texts, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
        return totals

    def _windows(self, rows: Sequence[list[int]], disable_tqdm: bool) -> list[float]:
        """Windows as the harness makes them: each begins where the last one ended, and the last one is full."""
        pairs: list[tuple[list[int], list[int]]] = []
        owners: list[int] = []
        for number, ids in enumerate(rows):
            for read, predicted in get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1):
                pairs.append((read[: len(read) - len(predicted) + 1], predicted))
                owners.append(number)
        logprobs: list[list[float]] = [[] for _ in rows]
        for at, (logprob, _) in _with_bar(self._scored(pairs), len(pairs), "Windows", disable_tqdm):
            logprobs[owners[at]].append(logprob)
        return [math.fsum(found) for found in logprobs]

    def _strides(self, rows: Sequence[list[int]], disable_tqdm: bool) -> list[float]:
        """Windows as mlxgen.score() makes them, over the whole table."""
        context = [self.prefix_token_id]
        found = (score(self.model, ids, context=context, stride=self.stride).total if ids else 0.0 for ids in rows)
        return list(_with_bar(found, len(rows), "Texts", disable_tqdm))

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue each context up to one of the request's stop texts, greedily unless the request samples."""
        asked = [request.args[:2] for request in requests]
        prompts = [self._prompt(context, arguments) for context, arguments in asked]
        order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number].prompt))
        texts = [""] * len(prompts)
        answers = outcomes(self.model, [prompts[number] for number in order], batch_size=self.batch_size)
        for answer in _with_bar(answers, len(prompts), "Generations", disable_tqdm):
            if isinstance(answer, Failure):
                raise answer.error
            number = order[answer.index]
            texts[number] = answer.text
            self.cache_hook.add_partial("generate_until", asked[number], answer.text)
        return texts

    def _prompt(self, context: str, arguments: Mapping[str, Any]) -> Prompt:
        """A request for mlxgen: the newest tokens of the context that leave room for the answer, and the options."""
        given = normalize_gen_kwargs(dict(arguments), self.max_gen_toks)
        max_tokens, until = given.pop("max_gen_toks"), given.pop("until")
        check_whole("max_gen_toks", max_tokens, 1)
        if (room := self.max_length - max_tokens) < 1:
            raise OptionError(
                f"max_gen_toks must be less than the {self.max_length:,} positions of the model, not {max_tokens:,};"
                " give a smaller one with --gen_kwargs"
            )
        ids = self.tok_encode(context) or [self.prefix_token_id]
        options = {name: value for name, value in given.items() if value is not None and not _idle(name, value)}
        if not given.get("do_sample"):
            options |= {"temperature": 0.0, "seed": 0}
        elif "seed" not in options:
            options["seed"] = random.getrandbits(32)  # the harness sets Python's seed, by its --seed
        options |= {"max_tokens": max_tokens, "stop": [text for text in until if text]}
        # No rule applies that the task does not ask for.
        checked = cast(Options, {"temperature": 1.0, "top_k": None} | options)
        check_options(**checked)
        return Prompt(ids[-room:], **checked)

    def get_model_info(self) -> dict[str, Any]:
        """For the harness's record of a run."""
        return {
            "model_num_parameters": self.model.config.n_parameters,
            "model_dtype": str(self.model.decoder.compute_dtype).removeprefix("mlx.core."),
            "model_source": self.model.source or self.model.name,
            "model_adapter": self.model.adapter or None,
        }


def run_command(arguments: Sequence[str]) -> None:
    """The harness's command `lm_eval ARGUMENTS`, which knows the model `mlxgen` too."""
    from lm_eval.__main__ import cli_evaluate

    before, sys.argv = sys.argv, ["lm_eval", *arguments]
    try:
        cli_evaluate()
    finally:
        sys.argv = before


def _rows(size: int | str | None) -> int | None:
    """A batch size; None for "auto"."""
    if size is None or str(size).partition(":")[0] == "auto":
        return None
    try:
        rows = int(size)
    except ValueError:
        raise OptionError(f"batch_size must be a whole number or auto, not {size!r}") from None
    check_whole("batch_size", rows, 1)
    return rows


def _idle(name: str, value: Any) -> bool:
    off = (name == "top_k" and value == 0) or (name == "repetition_penalty" and value == 1)
    return off or (name in IDLE and value in IDLE[name])


def _with_bar(found: Iterator[Any], total: int, label: str, disable: bool) -> Iterator[Any]:
    return iter(tqdm(found, total=total, desc=label, disable=disable))
