"""llama.cpp itself opens the GGUF files that are written: the same tokens of a text, and the same greedy answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mlxgen
from mlxgen.weights import convert

from ...support.vocabularies import TEXTS

pytest.importorskip("xllamacpp")  # llama.cpp's server as a library; it has no wheel for some machines

PROMPTS = ["Once upon a time", "The king had a daughter"]

# In a process of its own: the server's threads end with it. Its log goes to standard output.
ASK = """
import json, os, sys
from urllib.request import Request, urlopen
import xllamacpp
file, texts, prompts, answers = sys.argv[1], *map(json.loads, sys.argv[2:4]), sys.argv[4]
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.warmup = file, 512, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # several would wait by spinning
server = xllamacpp.Server(params)

def ask(path, **body):
    request = Request(server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urlopen(request))["tokens"]

found = {
    "ids": [ask("/tokenize", content=text, add_special=False, parse_special=True) for text in texts],
    "answers": [
        ask("/completion", prompt=prompt, n_predict=16, temperature=0, return_tokens=True) for prompt in prompts
    ],
}
with open(answers, "w") as out:
    json.dump(found, out)
os._exit(0)
"""


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"quantize": 8}], ids=str)
def test_llama_cpp_reads_the_same_texts_and_chooses_the_same_tokens(tmp_path: Path, options: dict[str, Any]) -> None:
    file = convert("fairy-tales", tmp_path / "tales.gguf", to="gguf", **options).folder
    asked = [str(file), json.dumps(TEXTS), json.dumps(PROMPTS), str(tmp_path / "answers.json")]
    done = subprocess.run([sys.executable, "-c", ASK, *asked], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    theirs = json.loads((tmp_path / "answers.json").read_text())
    ours = mlxgen.load(str(convert(file, tmp_path / "back").folder))
    assert [ours.tokenizer.encode(text) for text in TEXTS] == theirs["ids"]
    answers = [mlxgen.generate(ours, prompt, max_tokens=16, temperature=0).tokens for prompt in PROMPTS]
    assert answers == theirs["answers"]
