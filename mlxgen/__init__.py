"""GPT-2-family text generation on MLX.

Names are imported when they are first used, so that ``import mlxgen`` stays cheap. It has to come before any
import of MLX: an optimised BLAS must be in the process first (see mlxgen.backend).
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mlxgen import backend

# In a checkout the other two parts stand beside this folder. An installed copy has them inside.
_here = Path(__file__).parent
if not (_here / "weights").is_dir() and (_here.parent / "weights" / "load.py").is_file():
    __path__.append(str(_here.parent))

__version__ = "0.1.0"

backend.prepare_blas()

if TYPE_CHECKING:
    from mlxgen.batch import BatchGeneration, Request, batch
    from mlxgen.cache import KVCache, RotatingKVCache
    from mlxgen.config import GPT2Config
    from mlxgen.decoder import GPT2
    from mlxgen.errors import ContextError, MlxgenError, ModelError, NumericError, OptionError
    from mlxgen.generate import Generation, generate, stream
    from mlxgen.loop import Candidate, Step
    from mlxgen.model import Model, load
    from mlxgen.samplers import Sampling
    from mlxgen.score import Score, score
    from mlxgen.session import Session
    from mlxgen.trace import trace
    from mlxgen.trace_record import Trace

__all__ = [
    "GPT2",
    "BatchGeneration",
    "Candidate",
    "ContextError",
    "GPT2Config",
    "Generation",
    "KVCache",
    "MlxgenError",
    "Model",
    "ModelError",
    "NumericError",
    "OptionError",
    "Request",
    "RotatingKVCache",
    "Sampling",
    "Score",
    "Session",
    "Step",
    "Trace",
    "__version__",
    "batch",
    "generate",
    "load",
    "score",
    "stream",
    "trace",
]

# public name -> the module that defines it
_HOME = {
    "GPT2": "decoder",
    "BatchGeneration": "batch",
    "Candidate": "loop",
    "ContextError": "errors",
    "GPT2Config": "config",
    "Generation": "generate",
    "KVCache": "cache",
    "MlxgenError": "errors",
    "Model": "model",
    "ModelError": "errors",
    "NumericError": "errors",
    "OptionError": "errors",
    "Request": "batch",
    "RotatingKVCache": "cache",
    "Sampling": "samplers",
    "Score": "score",
    "Session": "session",
    "Step": "loop",
    "batch": "batch",
    "Trace": "trace_record",
    "generate": "generate",
    "load": "model",
    "score": "score",
    "stream": "generate",
    "trace": "trace",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mlxgen' has no attribute {name!r}")
    if _HOME[name] != "errors":
        backend.blas()  # a wrong MLXGEN_BLAS is told here, at the first real use
    value = getattr(importlib.import_module(f"mlxgen.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps ``mlxgen.generate`` the function: importing the module of that name would hide it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
