"""Names that other programs give to the options, and misspelt ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Other programs' names -> what to write here.
FOREIGN = {
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "min_new_tokens": "min_tokens",
    "min_length": "min_tokens",
    "temp": "temperature",
    "do_sample": "temperature=0 for greedy text, and a temperature above 0 to sample",
    "greedy": "temperature=0",
    "top_n": "top_k",
    "num_beams": "beams",
    "beam_size": "beams",
    "beam_width": "beams",
    "beams": "beams",
    "n_best": "beams",
    "length_penalty": "beams",
    "early_stopping": "beams",
    "repeat_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "bad_words_ids": "bad_words",
    "banned_words": "bad_words",
    "ban": "bad_words",
    "sequence_bias": "bad_words for sequences of tokens, and logit_bias for single ones",
    "begin_suppress_tokens": "suppress_tokens",
    "top_typical": "typical_p",
    "eos_token_id": "stop",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "stop_token_ids": "stop",
    "stopping_criteria": "stop",
    "random_seed": "seed",
    "generator": "seed",
    "num_return_sequences": "num_samples",
    "num_samples": "num_samples",
    "n": "num_samples",
    "best_of": "num_samples",
    "logits_processor": "logits_processors",
    "output_scores": "logprobs",
    "top_logprobs": "logprobs",
    "streamer": "mlxgen.stream()",
    "stream": "mlxgen.stream()",
    "past_key_values": "mlxgen.Session",
    "prompt_cache": "mlxgen.Session",
    "use_cache": "mlxgen.Session",
    "max_context": "max_kv_size",
    "prefill_step_size": "prefill_chunk",
    "assistant_model": "draft",
    "draft_model": "draft",
    "prompt_lookup_num_tokens": "lookahead",
    "device": "the environment variable MLXGEN_DEVICE",
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of the known names that an unknown name means: the same thing in another program, or misspelt."""
    known, lower = list(known), name.lower().replace("-", "_")
    if lower in known:
        return lower
    if lower in FOREIGN:
        return FOREIGN[lower] if FOREIGN[lower] in known else None
    return next(iter(difflib.get_close_matches(lower, known, n=1)), None)


def way_out(name: str, known: Iterable[str]) -> str:
    """What to write instead of an unknown option: the nearest name, what does the same here, or the list of all."""
    known = list(known)
    if near := nearest(name, known):
        return f"did you mean {near}?"
    ours = FOREIGN.get(name.lower(), "")
    if ours == "num_samples":
        return "did you mean n_best?" if "n_best" in known else "use num_samples of mlxgen.batch()"
    if ours == "beams":
        return "use mlxgen.beam_search()"
    return f"the options are {', '.join(known)}" if not ours or ours.isidentifier() else f"use {ours}"
