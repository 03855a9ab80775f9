"""`mlxgen info` counts what transformers counts."""

import json
from pathlib import Path

from .running import one_line, run


def test_info_counts_what_transformers_counts(folder: str) -> None:
    import transformers

    reference = transformers.GPT2LMHeadModel.from_pretrained(folder)
    info = json.loads(run("info", folder, "--json").stdout)
    assert info["n_parameters"] == sum(p.numel() for p in reference.parameters())
    assert info["stored_bytes"] == 4 * info["n_parameters"] and info["stored_dtype"] == "F32"
    sizes = {name: info[name] for name in ("n_layer", "n_head", "n_embd", "n_inner", "n_positions")}
    assert sizes == {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_inner": 128, "n_positions": 64}
    assert info["cache_bytes_per_token"] == 2 * 2 * 32 * 4
    assert [end["text"] for end in info["end_tokens"]] == ["<|endoftext|>"]


def test_info_as_text_and_its_failures(folder: str, tmp_path: Path) -> None:
    text = run("info", folder)
    assert text.exit_code == 0 and text.stderr == ""
    assert "layers      2\n" in text.stdout and "end tokens  281 '<|endoftext|>'" in text.stdout
    missing = run("info", str(tmp_path))
    assert missing.exit_code == 1 and one_line(missing.stderr)
    assert all(key in run("info", "--help").stdout for key in json.loads(run("info", folder, "--json").stdout))
