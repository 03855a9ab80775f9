"""What a prompt may be, and the start tokens that a tokenizer puts before one, in every way to use a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tokenizers
import torch

import mlxgen
from mlxgen.chat.conversation import Conversation
from mlxgen.chat.templates import choose_template
from mlxgen.errors import OptionError
from mlxgen.generation.request import check_options

from .support.models import END, tiny_gpt2

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 4}
TEXT = "Far away"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer puts the end token before and behind a text."""
    folder = tiny_gpt2().write(tmp_path_factory.mktemp("models") / "starts")
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{END} $A {END}", special_tokens=[(END, library.token_to_id(END))]
    )
    library.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def starting(folder: Path) -> mlxgen.Model:
    return mlxgen.load(str(folder))


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[int]:
    """The ids that transformers and mlx-lm read, without the end token behind them."""
    import transformers
    from mlx_lm.tokenizer_utils import load

    theirs = transformers.AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]
    assert theirs == load(folder).encode(TEXT)
    assert theirs[0] == theirs[-1] == tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(END)
    return list(theirs[:-1])


def test_every_way_to_generate_begins_with_the_start_token(starting: mlxgen.Model, expected: list[int]) -> None:
    assert mlxgen.generate(starting, TEXT, **GREEDY).prompt_tokens == expected
    answers = [mlxgen.stream(starting, TEXT, **GREEDY).finish(), *mlxgen.batch(starting, [TEXT], **GREEDY)]
    answers.append(mlxgen.generate(starting, expected, **GREEDY))  # ids are taken as they are
    assert [answer.prompt_tokens for answer in answers] == [expected] * 3
    assert len({answer.text for answer in answers}) == 1
    traced = mlxgen.trace(starting, TEXT, 1, temperature=0, ignore_eos=True)
    assert [token.id for token in traced.prompt_tokens] == expected
    assert mlxgen.generate(starting, "", **GREEDY).prompt_tokens == expected[:1]


def test_in_a_session_only_the_beginning_gets_it(starting: mlxgen.Model, expected: list[int]) -> None:
    plain = starting.tokenizer.encode(TEXT)
    session = mlxgen.Session(starting)
    first = session.generate(TEXT, **GREEDY)
    second = session.generate(TEXT, **GREEDY)
    assert session.tokens == [*expected, *first.tokens, *plain, *second.tokens]
    session = mlxgen.Session(starting)
    session.extend(TEXT)
    session.extend(TEXT)
    assert session.tokens == [*expected, *plain]
    session.reset_to(TEXT)
    assert session.tokens == expected


def test_a_score_s_context_begins_with_it(starting: mlxgen.Model, expected: list[int]) -> None:
    start, plain = expected[0], starting.tokenizer.encode(TEXT)
    after = mlxgen.score(starting, " the king", context=TEXT)
    assert after.logprobs == mlxgen.score(starting, " the king", context=[start, *plain]).logprobs
    alone = mlxgen.score(starting, TEXT)
    assert (alone.tokens, alone.logprobs) == (plain, mlxgen.score(starting, plain, context=[start]).logprobs)
    assert mlxgen.score(starting, TEXT, bos=False).logprobs[0] is None
    without = mlxgen.score(starting, " the king", context=TEXT, bos=False)
    assert without.logprobs == mlxgen.score(starting, " the king", context=plain).logprobs


def test_a_conversation_begins_with_it_unless_its_template_writes_it(
    starting: mlxgen.Model, expected: list[int]
) -> None:
    def tokens(template: str, *, system: str = "") -> list[int]:
        talk = Conversation(
            mlxgen.Session(starting),
            choose_template(starting, template),
            system=system,
            request=check_options(**GREEDY),
        )
        list(talk.say(TEXT))
        first = list(talk.session.tokens)
        talk.undo()
        list(talk.say(TEXT))
        assert talk.session.tokens == first
        talk.system = ""
        list(talk.say("the king"))
        assert talk.session.tokens.count(expected[0]) == 1
        return first

    assert tokens("story")[: len(expected)] == expected
    assert tokens("plain", system="Tales.")[0] == expected[0]


def test_a_chat_template_says_itself_where_the_start_token_is(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "model").mkdir()
    for file in folder.iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model" / "chat_template.jinja").write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    model = mlxgen.load(str(tmp_path / "model"))
    talk = Conversation(mlxgen.Session(model), choose_template(model), request=check_options(**GREEDY))
    list(talk.say(TEXT))
    plain = model.tokenizer.encode(f"<{TEXT}>")
    assert talk.session.tokens[: len(plain)] == plain


ROW = [5, 6, 7]


@pytest.mark.parametrize(
    "prompt",
    [
        ROW,
        tuple(ROW),
        np.array(ROW),
        mx.array(ROW),
        torch.tensor(ROW),
        {"input_ids": ROW},
        {"input_ids": [ROW], "attention_mask": [[1, 1, 1]]},
        {"input_ids": np.array([ROW])},
        {"input_ids": torch.tensor([ROW])},
        {"input_ids": mx.array(ROW)},
    ],
    ids=repr,
)
def test_one_row_of_ids_is_a_prompt(model: mlxgen.Model, prompt: Any) -> None:
    assert mlxgen.generate(model, prompt, **GREEDY).prompt_tokens == ROW


def test_what_a_tokenizer_of_transformers_returns_is_a_prompt(folder: Path, starting: mlxgen.Model) -> None:
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for options in ({}, {"return_tensors": "np"}, {"return_tensors": "pt"}):
        encoded = theirs(TEXT, add_special_tokens=False, **options)
        assert mlxgen.generate(starting, encoded, **GREEDY).prompt_tokens == theirs.encode(TEXT)[1:-1]


@pytest.mark.parametrize(
    "prompt",
    [[ROW], [ROW, ROW], np.array([ROW]), torch.tensor([ROW, ROW]), mx.array([ROW]), {"input_ids": [ROW, ROW]}],
    ids=repr,
)
def test_several_rows_are_not_one_prompt(model: mlxgen.Model, prompt: Any) -> None:
    with pytest.raises(OptionError, match=r"one list of token ids.* rows.*mlxgen\.batch\(\)"):
        mlxgen.generate(model, prompt)


def test_another_mapping_is_no_prompt(model: mlxgen.Model) -> None:
    with pytest.raises(OptionError, match="input_ids"):
        mlxgen.generate(model, {"ids": ROW})  # type: ignore[arg-type]
