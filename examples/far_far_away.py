"""Forty greedy tokens after "Far far away", from the same files: one call of mlxgen, and a loop with transformers.

    python examples/far_far_away.py [FOLDER]

With transformers one writes the loop oneself and passes `past_key_values` along. That half runs only if torch and
transformers are installed.
"""

import argparse
import importlib.util
import sys
import textwrap
import warnings
from importlib.resources import files

import mlxgen

PROMPT, MAX_TOKENS = "Far far away", 40


def with_transformers(folder: str) -> list[int]:
    """Process the prompt once, then each new token on its own; `past_key_values` is the cache."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    warnings.simplefilter("ignore", FutureWarning)  # newer releases call it `cache`
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids, past, tokens = tokenizer(PROMPT, return_tensors="pt").input_ids, None, []
    with torch.no_grad():
        for _ in range(MAX_TOKENS):
            out = model(ids, past_key_values=past, use_cache=True)
            past = out.past_key_values
            ids = out.logits[:, -1].argmax(-1, keepdim=True)  # greedy: [1, 1]
            tokens.append(int(ids))
            if int(ids) == model.config.eos_token_id:
                break
    return tokens


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
bundled = str(files("mlxgen.weights") / "fairy_tales")
parser.add_argument("folder", nargs="?", default=bundled, help="a model folder (default: the bundled model)")
folder = parser.parse_args().folder
generation = mlxgen.generate(mlxgen.load(folder), PROMPT, max_tokens=MAX_TOKENS, temperature=0)
print(textwrap.fill(PROMPT + generation.text, 100))
print(len(generation.tokens), "tokens, ended by", generation.finish_reason)

if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
    same = with_transformers(folder) == generation.tokens
    print("transformers:", "the same tokens" if same else "other tokens")
else:
    print("transformers: not run, because torch or transformers is not installed", file=sys.stderr)

# Prints:
#   Far far away, and when he had gone a little way he came to a great forest, and he saw a little old
#   woman sitting in the forest, and said, "I am a man, and I will
#   40 tokens, ended by length
#   transformers: the same tokens
