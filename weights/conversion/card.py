"""The model card: where a model comes from, how it was converted, and its licence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxgen import __version__
from mlxgen.weights.conversion.output_format import HF, MLX
from mlxgen.weights.files.model_folder import LICENCE_FILES
from mlxgen.weights.sources.checkpoint import Checkpoint

GENERATE = '    mlxgen generate -m PATH "Once upon a time"\n'
#: For each kind of folder: the library it is for, and commands that use it.
PROGRAMS = {
    MLX: ("MLX", f'{GENERATE}    mlx_lm.generate --model PATH --prompt "Once upon a time"\n'),
    HF: ("transformers", f'{GENERATE}    transformers.AutoModelForCausalLM.from_pretrained("PATH")\n'),
}

KEPT = ("license", "license_name", "license_link", "language", "datasets", "base_model")


def model_card(checkpoint: Checkpoint, name: str, changes: Sequence[str], to: str = MLX) -> str:
    """The text of README.md. changes: what the conversion did, in sentences. to: for which programs the folder is."""
    meta = card_header(checkpoint)
    kept = {key: meta[key] for key in KEPT if meta.get(key)}
    library, uses = PROGRAMS[to]
    entries = {
        **kept,
        "library_name": library.lower(),
        "pipeline_tag": "text-generation",
        "tags": [library.lower(), "gpt2"],
    }
    origin = checkpoint.path.name or str(checkpoint.path.resolve().name)
    if checkpoint.repo is not None:
        entries["base_model"] = checkpoint.repo
        origin = f"[{checkpoint.repo}](https://huggingface.co/{checkpoint.repo}), revision `{checkpoint.commit}`"
    licence = kept.get("license_name") or kept.get("license") or "not stated by the source"
    steps = "\n".join(f"- {sentence}" for sentence in changes)
    # JSON values are valid YAML.
    front = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in entries.items())
    return f"""---
{front}---

# {name}

A GPT-2 for {library}, converted from {origin} ({checkpoint.kind}) by mlxgen {__version__}.

{steps}

Licence: {licence}.

{uses}"""


def licence_files(folder: Path) -> list[Path]:
    return [folder / name for name in LICENCE_FILES if (folder / name).is_file()]


def card_header(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The header of a checkpoint's card, README.md's YAML; {} if there is none, or none that can be read."""
    if checkpoint.card is not None:
        return checkpoint.card
    path = checkpoint.folder / "README.md"
    if not path.is_file():
        return {}
    from huggingface_hub import metadata_load

    try:
        meta = metadata_load(path)
        json.dumps(meta)  # YAML has dates, which JSON does not
    except Exception:  # any error in a stranger's YAML: a card without a licence is no reason to fail
        return {}
    return meta if isinstance(meta, dict) else {}
