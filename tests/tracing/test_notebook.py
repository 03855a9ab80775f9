"""A trace in a notebook cell: the page, in a frame that cannot reach the notebook."""

from __future__ import annotations

from html.parser import HTMLParser

import mlxgen
from mlxgen.model import Model
from mlxgen.tracing.page import page


class Elements(HTMLParser):
    """The elements of some HTML with their attributes, as a browser reads them, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_cell_holds_the_page_in_a_frame_of_its_own_origin(model: Model) -> None:
    trace = mlxgen.trace(model, """Far " '></iframe><script>parent.alert(1)</script> away""", 3, seed=1)
    assert isinstance(trace, mlxgen.Trace)
    read = Elements(trace._repr_html_())  # type: ignore[attr-defined]  # what notebooks look for
    ((tag, attributes),) = read.found
    assert tag == "iframe" and read.text == ""
    assert attributes["srcdoc"] == page(trace)
    assert attributes["sandbox"] == "allow-scripts"  # without allow-same-origin, srcdoc has an origin of its own
