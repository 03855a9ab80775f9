"""A trace in a notebook cell: its page."""

from __future__ import annotations

import html

from mlxgen.tracing.page import page
from mlxgen.tracing.record import Trace

HEIGHT = 760  # pixels


class NotebookTrace(Trace):
    """A Trace that a notebook shows as its page."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """The page in a frame. Its script runs with an origin of its own, so it cannot touch the notebook."""
        style = f"width: 100%; height: {HEIGHT}px; border: 0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page(self))}"></iframe>'
