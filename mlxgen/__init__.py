"""GPT-2-family text generation on MLX.

Public names are imported when they are first used, so that ``import mlxgen`` is fast. Import mlxgen before MLX: on
Linux, it has to load an optimized BLAS first (see mlxgen.blas).
"""

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxgen import blas

# In a checkout, weights and cli are beside this folder; in an installed copy they are inside it.
_here = Path(__file__).parent
if not (_here / "weights").is_dir() and (_here.parent / "weights" / "load.py").is_file():
    __path__.append(str(_here.parent))

__version__ = "0.1.0"

blas.install_hook()
# Some GPUs would multiply float32 in TF32, with 10 bits of precision for 23. MLX reads this when it first multiplies.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

if TYPE_CHECKING:
    from mlxgen.errors import ContextError as ContextError
    from mlxgen.errors import MlxgenError as MlxgenError
    from mlxgen.errors import ModelError as ModelError
    from mlxgen.errors import NumericError as NumericError
    from mlxgen.errors import OptionError as OptionError
    from mlxgen.generation.answer import Answer as Answer
    from mlxgen.generation.answer import generate as generate
    from mlxgen.generation.answer import stream as stream
    from mlxgen.generation.batching import BatchGeneration as BatchGeneration
    from mlxgen.generation.batching import Prompt as Prompt
    from mlxgen.generation.batching import batch as batch
    from mlxgen.generation.request import Options as Options
    from mlxgen.generation.request import Request as Request
    from mlxgen.generation.results import Candidate as Candidate
    from mlxgen.generation.results import Generation as Generation
    from mlxgen.generation.results import Step as Step
    from mlxgen.generation.searching import BeamGeneration as BeamGeneration
    from mlxgen.generation.searching import beam_search as beam_search
    from mlxgen.generation.session import Session as Session
    from mlxgen.model import Model as Model
    from mlxgen.model import load as load
    from mlxgen.network.cache import KVCache as KVCache
    from mlxgen.network.cache import RotatingKVCache as RotatingKVCache
    from mlxgen.network.config import GPT2Config as GPT2Config
    from mlxgen.network.decoder import GPT2 as GPT2
    from mlxgen.ranked_choices import Accuracy as Accuracy
    from mlxgen.ranked_choices import RankedChoices as RankedChoices
    from mlxgen.ranked_choices import accuracy as accuracy
    from mlxgen.ranked_choices import rank_choices as rank_choices
    from mlxgen.sampling.samplers import Sampling as Sampling
    from mlxgen.scoring import Score as Score
    from mlxgen.scoring import ScoreTotal as ScoreTotal
    from mlxgen.scoring import score as score
    from mlxgen.scoring import sum_scores as sum_scores
    from mlxgen.tracing.record import Trace as Trace
    from mlxgen.tracing.tracer import trace as trace

# public name -> the module that defines it; the imports above are the same for type checkers
_DEFINED_IN = {
    "Accuracy": "ranked_choices",
    "Answer": "generation.answer",
    "BatchGeneration": "generation.batching",
    "BeamGeneration": "generation.searching",
    "Candidate": "generation.results",
    "ContextError": "errors",
    "GPT2": "network.decoder",
    "GPT2Config": "network.config",
    "Generation": "generation.results",
    "KVCache": "network.cache",
    "MlxgenError": "errors",
    "Model": "model",
    "ModelError": "errors",
    "NumericError": "errors",
    "OptionError": "errors",
    "Options": "generation.request",
    "Prompt": "generation.batching",
    "RankedChoices": "ranked_choices",
    "Request": "generation.request",
    "RotatingKVCache": "network.cache",
    "Sampling": "sampling.samplers",
    "Score": "scoring",
    "ScoreTotal": "scoring",
    "Session": "generation.session",
    "Step": "generation.results",
    "Trace": "tracing.record",
    "accuracy": "ranked_choices",
    "batch": "generation.batching",
    "beam_search": "generation.searching",
    "generate": "generation.answer",
    "load": "model",
    "rank_choices": "ranked_choices",
    "score": "scoring",
    "stream": "generation.answer",
    "sum_scores": "scoring",
    "trace": "tracing.tracer",
}

__all__ = [*_DEFINED_IN, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module 'mlxgen' has no attribute {name!r}")
    if _DEFINED_IN[name] != "errors":
        blas.loaded_library()  # raises OptionError for an invalid MLXGEN_BLAS, at the first use of a name
        importlib.import_module("mlxgen.device")  # and for an invalid MLXGEN_DEVICE
    value = getattr(importlib.import_module(f"mlxgen.{_DEFINED_IN[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
