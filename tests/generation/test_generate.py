"""Text in, text out: prompts, stop texts, and the record of an answer."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen.errors import ContextError, OptionError
from mlxgen.generation.answer import generate, stream
from mlxgen.generation.batching import outcomes
from mlxgen.generation.request import sample_seeds
from mlxgen.model import Model

from ..support import oracles
from ..support.models import END, our_tokenizer, tiny_gpt2

GREEDY = {"temperature": 0, "ignore_eos": True}


def scripted(model, tokens):
    """A processor that makes greedy choose these tokens, one after another."""
    script = list(tokens)

    def say(context, logits):
        at = len(context) - say.start
        wanted = mx.arange(logits.shape[-1]) == script[min(at, len(script) - 1)]
        return mx.where(wanted, 100.0, mx.maximum(logits, -50.0))

    say.start = 0
    return say


def answer(model, text, *, prompt="Far", end=False, way=generate, **options):
    """What is made of an answer whose tokens spell `text` and then, if wanted, the end token."""
    script = model.tokenizer.encode(text) + ([*model.end_tokens] if end else [])
    say = scripted(model, script)
    say.start = len(model.tokenizer.encode(prompt))
    options = {"max_tokens": len(script), "temperature": 0, "logits_processors": [say], **options}
    return way(model, prompt, **options)


def test_the_plain_transformers_loop_gives_the_same_tokens(tmp_path):
    """ "Far far away", 40 tokens, greedy, stop at the end token; once it comes and once it does not."""
    tiny = tiny_gpt2(seed=21)
    theirs, prompt = tiny.torch(), tiny.tokenizer.encode("Far far away").ids
    never = oracles.torch_greedy(theirs, prompt, 40)
    end = next(token for token in never[10:] if token not in never[:10])
    for eos in (end, tiny.entries["eos_token_id"]):
        folder = tiny_gpt2(seed=21, eos_token_id=eos).write(tmp_path / str(eos))
        ours = mlxgen.load(str(folder))
        got = generate(ours, "Far far away", max_tokens=40, temperature=0)
        ends = sorted(ours.end_tokens)
        expected = oracles.torch_greedy(theirs, prompt, 40, end=eos)
        first_end = min((expected.index(token) + 1 for token in ends if token in expected), default=40)
        assert got.tokens == expected[:first_end]
        assert got.finish_reason == ("stop" if got.tokens[-1] in ends else "length")
    assert got.prompt_tokens == prompt


def test_the_text_is_the_decoded_tokens_without_the_prompt(model):
    got = generate(model, "Once the king", max_tokens=30, seed=4, ignore_eos=True, logit_bias={281: -float("inf")})
    whole = model.tokenizer.decode(got.prompt_tokens + got.tokens)
    assert whole == "Once the king" + got.text


def test_a_prompt_of_ids_is_the_same_as_its_text(model):
    ids = model.tokenizer.encode("Far far away")
    from_text = generate(model, "Far far away", max_tokens=6, seed=2)
    from_ids = generate(model, ids, max_tokens=6, seed=2)
    from_array = generate(model, tuple(ids), max_tokens=6, seed=2)
    assert from_text.tokens == from_ids.tokens == from_array.tokens
    assert from_text.prompt == "Far far away"
    assert from_ids.prompt == ids == from_ids.prompt_tokens == from_text.prompt_tokens


@pytest.mark.parametrize("empty", ["", [], ()])
def test_the_empty_prompt_starts_from_the_end_token(model, empty):
    start = model.config.bos_token_id
    got = generate(model, empty, max_tokens=5, **GREEDY)
    assert got.prompt_tokens == [start]
    assert got.tokens == generate(model, [start], max_tokens=5, **GREEDY).tokens
    assert [step.token for step in stream(model, max_tokens=5, **GREEDY)] == got.tokens


def test_an_empty_prompt_without_any_start_token_is_an_error(build_model):
    model = build_model(bos_token_id=None, eos_token_id=None)
    assert generate(model, "", max_tokens=1).prompt_tokens == [model.tokenizer.bos_token_id]
    letters = our_tokenizer(
        tokenizers.Tokenizer(tokenizers.models.BPE({chr(0x4E00 + at): at for at in range(282)}, []))
    )
    model = Model(model.name, model.config, model.decoder, letters, frozenset())
    with pytest.raises(OptionError, match="prompt is empty"):
        generate(model, "")
    model = Model(model.name, model.config, model.decoder, letters, frozenset({9, 12}))
    assert generate(model, "", max_tokens=1).prompt_tokens == [9]


def test_a_prompt_longer_than_the_table_is_told_with_both_lengths_and_the_way_out(model):
    with pytest.raises(ContextError, match=r"65 tokens.*64 positions.*overflow=\"slide\"") as caught:
        stream(model, [1] * 65)
    assert "\n" not in str(caught.value)
    assert len(generate(model, [1] * 65, overflow="slide", max_tokens=3, **GREEDY).tokens) == 3


@pytest.mark.parametrize("prompt", [[-1], [282], [1.5], ["a"], [True], [None]])
def test_ids_that_are_none_are_refused(model, prompt):
    with pytest.raises(OptionError, match="outside the vocabulary"):
        generate(model, prompt)


@pytest.mark.parametrize("prompt", [3, None, 2.5, b"bytes"])
def test_prompts_that_are_none_are_refused(model, prompt):
    with pytest.raises(OptionError, match="prompt"):
        generate(model, prompt)


def test_ids_may_come_from_numpy_and_mlx(model):
    expected = generate(model, [5, 6, 7], max_tokens=4, **GREEDY).tokens
    for prompt in (np.array([5, 6, 7]), mx.array([5, 6, 7]), list(np.array([5, 6, 7])), range(5, 8)):
        got = generate(model, prompt, max_tokens=4, **GREEDY)
        assert got.tokens == expected
        assert got.prompt == got.prompt_tokens == [5, 6, 7]


@pytest.mark.parametrize("way", ["generate", "stream"])
@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("the frog and the king", " and", "the frog"),
        ("the frog and the king", "g and t", "the fro"),  # begins and ends inside tokens
        ("the frog and the king", ["xyz", "king", "frog"], "the "),
        ("the frog", "the", ""),
        ("a a a b", "a b", "a a "),
        ("aab", "ab", "a"),
        ("the end.", "absent", "the end."),
        ("the fro", "frog", "the fro"),  # only a beginning of it
        ("caf\u00e9 au lait", "\u00e9", "caf"),
        ("\U0001f438\U0001f451!", "\U0001f451", "\U0001f438"),
        ("line\n\nnext", "\n\n", "line"),
    ],
)
def test_no_character_of_a_stop_text_is_shown(model, text, stop, shown, way):
    if way == "stream":
        steps = list(answer(model, text, stop=stop, way=stream))
        got, reason = "".join(step.text for step in steps), steps[-1].finish_reason
        assert all(step.finish_reason is None for step in steps[:-1])
    else:
        result = answer(model, text, stop=stop)
        got, reason = result.text, result.finish_reason
    assert got == shown
    hit = any(one in text for one in ([stop] if isinstance(stop, str) else stop))
    assert reason == ("stop" if hit else "length")


@settings(max_examples=60)
@given(st.text("ab é", max_size=10), st.lists(st.text("ab é", min_size=1, max_size=4), max_size=3))
def test_the_shown_text_ends_where_the_first_stop_text_is_complete(model, text, stops):
    steps = list(answer(model, text + ".", stop=stops, way=stream))
    found = [(text + ".").find(stop) for stop in stops]
    ends = [(at + len(stop), at) for at, stop in zip(found, stops, strict=True) if at >= 0]
    expected = (text + ".")[: min(ends)[1]] if ends else text + "."
    assert "".join(step.text for step in steps) == expected
    assert (steps[-1].finish_reason == "stop") == bool(ends)
    for step in steps:  # and never in between
        assert expected.startswith("".join(s.text for s in steps[: step.index + 1]))


def test_text_held_back_for_a_stop_text_comes_out_with_the_end_token(model):
    for way in (generate, stream):
        got = answer(model, "the fro", stop="frog", end=True, way=way)
        text = got.text if way is generate else "".join(step.text for step in got)
        assert text == "the fro"


def test_half_a_character_is_held_back_until_it_is_whole_or_the_answer_ends(model):
    tokens = model.tokenizer.encode("\U0001f438")
    assert len(tokens) == 4
    texts = [step.text for step in answer(model, "\U0001f438", way=stream)]
    assert texts == ["", "", "", "\U0001f438"]
    cut = list(answer(model, "\U0001f438", way=stream, max_tokens=3))
    assert "".join(step.text for step in cut) == model.tokenizer.decode(tokens[:3])


def test_the_end_token_is_counted_but_not_shown(model):
    got = answer(model, "the frog", end=True)
    assert got.text == "the frog"
    assert got.tokens[-1] in model.end_tokens
    assert got.finish_reason == "stop"
    kept = answer(model, "the frog", end=True, ignore_eos=True)
    assert kept.text == "the frog" + END
    assert kept.finish_reason == "length"


def test_a_prompt_may_spell_out_the_end_token(model):
    (end,) = model.end_tokens
    assert generate(model, "Far" + END, max_tokens=1, seed=0).prompt_tokens[-1] == end


def test_the_record_of_an_answer(model):
    got = generate(model, "Far far away", max_tokens=7, logprobs=2, ignore_eos=True)
    assert len(got.tokens) == len(got.logprobs) == len(got.candidates) == 7
    assert got.finish_reason == "length"
    assert 0 <= got.seed < 2**32
    assert got.prompt_seconds > 0
    assert got.generation_seconds > 0
    assert got.prompt_tps == pytest.approx(len(got.prompt_tokens) / got.prompt_seconds)
    assert got.generation_tps == pytest.approx(6 / got.generation_seconds)
    assert got.peak_memory > 0
    assert generate(model, "Far far away", max_tokens=7, seed=got.seed, ignore_eos=True).tokens == got.tokens
    assert generate(model, "Far", max_tokens=1).candidates == []


def test_a_fresh_seed_each_time(model):
    assert len({generate(model, "Far", max_tokens=1).seed for _ in range(4)}) > 1


def test_streaming_works_as_it_goes(model):
    """The first step comes before the last is computed: an endless answer can be left."""
    steps = stream(model, "Far", max_tokens=10**9, overflow="slide", **GREEDY)
    assert iter(steps) is steps
    assert [next(steps).index for _ in range(3)] == [0, 1, 2]
    steps.close()


def test_memory_of_an_endless_answer_does_not_grow(build_model):
    model = build_model(n_positions=16)
    generate(model, "Far", max_tokens=40, overflow="slide", **GREEDY)
    before = mx.get_active_memory()
    generate(model, "Far", max_tokens=40, overflow="slide", **GREEDY)
    assert mx.get_active_memory() <= before + 4096


def test_options_given_are_not_changed(model):
    options = {"max_tokens": 2, "stop": ["x"], "temperature": 0.5}
    copy = dict(options)
    generate(model, "Far", **options)
    assert options == copy


def test_a_text_far_too_long_is_refused_without_being_tokenized(model, monkeypatch):
    text = "the king " * 100_000
    monkeypatch.setattr(type(model.tokenizer), "encode", lambda *_: pytest.fail("tokenized"))
    session = mlxgen.Session(model)
    for use in (lambda: mlxgen.generate(model, text), lambda: session.extend(text), lambda: session.generate(text)):
        with pytest.raises(ContextError, match=r"at least [\d,]+ tokens, more than the model's 64 positions"):
            use()


def test_a_long_text_still_slides(model):
    text = "the king " * 2000
    expected = mlxgen.generate(model, text, max_tokens=3, temperature=0, overflow="slide").tokens
    assert mlxgen.Session(model, overflow="slide").generate(text, max_tokens=3, temperature=0).tokens == expected


def test_the_number_of_samples_is_bounded(model):
    with pytest.raises(OptionError, match="num_samples must be at most 100,000"):
        sample_seeds(1, 200_000_000)
    failed, answered = outcomes(model, [mlxgen.Prompt("a", num_samples=200_000_000), "b"], max_tokens=1, ordered=True)
    assert "at most 100,000" in str(failed.error) and answered.tokens
