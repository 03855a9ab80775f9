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
    "num_beams": "temperature=0, as there is no beam search",
    "repeat_penalty": "repetition_penalty",
    "bad_words_ids": "logit_bias={token: -inf}",
    "eos_token_id": "stop",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "stop_token_ids": "stop",
    "stopping_criteria": "stop",
    "random_seed": "seed",
    "generator": "seed",
    "num_return_sequences": "num_samples of mlxgen.batch()",
    "num_samples": "num_samples of mlxgen.batch()",
    "n": "num_samples of mlxgen.batch()",
    "best_of": "num_samples of mlxgen.batch()",
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


def way_out(name: str, known: Iterable[str]) -> str:
    """What to write instead of an unknown option: the same under our name, the nearest name, or the list of all."""
    known = list(known)
    lower = name.lower().replace("-", "_")
    if lower in known:
        return f"write {lower}"
    ours = FOREIGN.get(lower, "")
    if ours and (ours in known or not ours.isidentifier()):
        return f"use {ours}"
    near = [] if ours else difflib.get_close_matches(lower, known, n=1)
    return f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
