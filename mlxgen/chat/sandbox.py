"""The sandbox that chat templates run in: jinja2's, with a budget, so that no template can hang or fill the memory.

Each pass of a loop, call, filter, operation and output costs something, and so does every character and item that it
makes. What could be large is estimated before it is made. Work is counted rather than timed, so that a template works
on every machine or on none. Comparisons and slices are not counted: they are bounded by the sizes of what was made,
and the clock, which is looked at whenever something is counted, ends them. A single operation cannot be interrupted.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from types import GeneratorType
from typing import Any, TypeVar

import jinja2
from jinja2 import nodes
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MOST_SOURCE = 100_000  # characters of a template; published ones have up to about 30,000
MOST_SIZE = 1_000_000  # characters and items of one value
BUDGET = 10_000_000  # characters and items of all values made while writing one text
PASS = 20  # what each pass, call and operation costs besides
MOST_BITS = 10_000  # of a whole number
SECONDS = 2
OF_INPUT = 4, 100  # how much larger the two limits are for each character of the conversation

# Their results can be as large as the product of what they are given.
MULTIPLYING = {"batch", "center", "expandtabs", "format", "format_map", "indent", "join", "ljust", "replace", "rjust"}
MULTIPLYING |= {"slice", "to_bytes", "tojson", "translate", "truncate", "wordwrap", "zfill"}
QUADRATIC = {"striptags", "urlize"}  # slow, and of no use outside HTML: left out
WIDE_FORMAT = re.compile(r"[0-9]{6}|\*|\{[^{}]*\{")  # a large width, or one that is an argument
V = TypeVar("V")


class TooMuchWork(jinja2.TemplateRuntimeError):
    """The budget is spent."""


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one template at a time. `write` renders it within the budget."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols],
            optimized=False,
            finalize=self._made,
        )
        del self.globals["lipsum"]
        filters = {name: self._counted(name, filter) for name, filter in self.filters.items() if name not in QUADRATIC}
        self.filters = filters | {"passes of": self._passes, "joined": self._joined, "made": self._made}
        self.concat = self._joined  # type: ignore[method-assign]  # of blocks, macros and the whole
        self._refill(0)

    def add_filter(self, name: str, filter: Callable[..., Any]) -> None:
        self.filters[name] = self._counted(name, filter)

    def from_source(self, source: str) -> jinja2.Template:
        """Compile a template. Raises jinja2's errors, and what Python's compiler raises for nesting too deep."""
        if len(source) > MOST_SOURCE:
            raise jinja2.TemplateSyntaxError(f"longer than {MOST_SOURCE:,} characters", 1)
        tree = _Counting().visit(self.parse(source))
        tree.set_environment(self)
        return self.from_string(tree)

    def write(self, template: jinja2.Template, **variables: Any) -> str:
        """What the template writes with these variables. Raises TooMuchWork, and whatever the template raises."""
        self._refill(_size(variables, BUDGET))
        return self._joined(template.generate(**variables))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        own = getattr(obj, "__self__", None)
        self._check(getattr(obj, "__name__", ""), [own, *args, *kwargs.values()])
        return self._made(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            times = abs(right) if operator == "**" else 2
            if left.bit_length() * times > MOST_BITS or right.bit_length() > MOST_BITS:
                raise TooMuchWork("it makes a number that is too large")
        elif operator == "*":
            self._check("*", [left, right], multiplies=True)
        elif operator == "%" and isinstance(left, str):
            self._check("format", [left, right])
        return self._made(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            functools.update_wrapper(wrapped, value)
            wrapped.__self__ = value.__self__  # type: ignore[attr-defined]  # which `call` looks at
        return wrapped

    def _refill(self, given: int) -> None:
        self._most, self._left = MOST_SIZE + OF_INPUT[0] * given, BUDGET + OF_INPUT[1] * given
        self._deadline = time.monotonic() + SECONDS

    def _spend(self, size: int) -> None:
        self._left -= PASS + size
        if self._left < 0 or time.monotonic() > self._deadline:
            raise TooMuchWork("it takes too much work")

    def _estimate(self, size: int) -> None:
        if size > self._most:
            raise TooMuchWork("it makes a value that is too large")

    def _check(self, name: str, values: list[Any], *, multiplies: bool = False) -> None:
        """Raise TooMuchWork before an operation whose result could be too large, or that is given too much."""
        multiplies = multiplies or name in MULTIPLYING
        product = 1
        for value in values:
            size = abs(value) if multiplies and isinstance(value, int) else _size(value, self._most)
            self._estimate(size)
            product *= max(1, size)
        if multiplies:
            self._estimate(product)
        if name in ("format", "format_map") and isinstance(values[0], str) and WIDE_FORMAT.search(values[0]):
            raise TooMuchWork("it formats a value too widely")

    def _made(self, value: V) -> V:
        """Count a new value."""
        if isinstance(value, GeneratorType):
            return self._passes(value)  # type: ignore[return-value]  # a generator too
        size = _size(value, self._most)
        self._estimate(size)
        self._spend(size)
        return value

    def _passes(self, items: Iterable[V]) -> Iterator[V]:
        """Count the items as they are asked for."""
        for item in items:
            self._spend(0)
            yield item

    def _joined(self, pieces: Iterable[Any]) -> str:
        """The pieces as one text, as `~` and the end of a block make it."""
        texts, total = [], 0
        for piece in pieces:
            total += _size(piece, self._most)
            self._estimate(total)
            self._spend(0)
            texts.append(str(piece))
        return self._made("".join(texts))

    def _counted(self, name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
        first = 1 if hasattr(filter, "jinja_pass_arg") else 0  # before it comes jinja2's own argument

        @functools.wraps(filter)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if name in MULTIPLYING:
                args = tuple(list(arg) if isinstance(arg, GeneratorType) else arg for arg in args)
            self._check(name, [*args[first:], *kwargs.values()])
            return self._made(filter(*args, **kwargs))

        return counted


class _Counting(NodeTransformer):
    """Makes a template count what jinja2 has no hook for: passes of loops, `~`, and lists and dicts in its source."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through("passes of", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through("joined", nodes.List(node.nodes, lineno=node.lineno))

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _through("made", node)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _through("made", node) if node.ctx == "load" else node


def _through(filter: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, filter, [], [], None, None, lineno=node.lineno)


def _size(value: Any, most: int) -> int:
    """How many characters and items a value has, with all that is in it; it is not counted far beyond `most`."""
    total, waiting = 0, [value]
    while waiting and total <= most:
        one = waiting.pop()
        if isinstance(one, str | bytes):
            total += len(one)
        elif isinstance(one, int):
            total += 1 + one.bit_length() // 8
        elif isinstance(one, range | KeysView | ValuesView | ItemsView):
            total += len(one)
        elif isinstance(one, list | tuple | set | frozenset):
            total += len(one)
            waiting += one if len(one) <= most else ()
        elif isinstance(one, dict):
            total += 2 * len(one)
            waiting += [*one, *one.values()]
        elif isinstance(one, Namespace):
            total += 1
            waiting.append(next(iter(object.__getattribute__(one, "__dict__").values())))
        else:
            total += 1
    return total
