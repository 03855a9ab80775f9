"""Text without end: constant memory, and no position past the table, as examples/endless.py prints it."""

import os
import re
import subprocess
import sys
from pathlib import Path

from ..support.models import letter_tokenizer, tiny_gpt2

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "endless.py"


def test_memory_stays_and_no_position_past_the_table_is_read(tmp_path):
    folder = tiny_gpt2(tokenizer=letter_tokenizer(), n_embd=256).write(tmp_path / "m")
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # the model is too small to share out
    command = [sys.executable, str(EXAMPLE), "600", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, env=one_thread)
    assert ran.returncode == 0, ran.stderr
    assert "Highest position read: 63, of a table of 64" in ran.stdout
    assert int(ran.stdout.splitlines()[20].split()[-1]) == 1 + (600 + len("Once upon a time") - 64 - 2) // 32
    change = re.search(r"Peak memory, end against 60 tokens: (\S+) %", ran.stdout)
    assert change is not None and abs(float(change[1])) <= 2
