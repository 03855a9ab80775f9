"""What a panic in Rust writes stays hidden; everything else that goes to standard error comes out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlxgen.text.panic_lines import without_panic_lines

from ..support.models import byte_tokenizer


def test_a_panicking_tokenizer_is_one_error_and_nothing_else(tmp_path: Path) -> None:
    entries = json.loads(byte_tokenizer().to_str())
    entries["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "////////"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(entries))
    script = (
        "import sys; from pathlib import Path; from mlxgen.text.tokenizer import load_tokenizer\n"
        "from mlxgen.errors import ModelError\n"
        "try: load_tokenizer(Path(sys.argv[1]))\n"
        "except ModelError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.stderr == "" and "tokenizer.json" in done.stdout and done.stdout.count("\n") == 1


def test_other_output_comes_out_and_the_descriptor_is_put_back(capfd: pytest.CaptureFixture[str]) -> None:
    with without_panic_lines():
        os.write(2, b"from the body\n")
    with pytest.raises(ValueError, match="no panic"), without_panic_lines():
        os.write(2, b"before an error\n")
        raise ValueError("no panic")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "from the body\nbefore an error\nafter\n"
