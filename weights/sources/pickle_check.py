"""A pickle followed opcode by opcode, before anything in it is built.

A few bytes can ask for gigabytes (a huge memo index), for hours (the hash of a tuple that contains itself twice, many
times over) or for more stack than there is (deep nesting). Files that PyTorch and pickle write never do. So each value
is replaced by its size and depth, and what no writer would write is refused. Nothing is imported, called or allocated.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

DAMAGED = "damaged"
MOST_OPCODES = 500_000
MOST_BYTES = 64 << 20
MOST_NESTED = 100
MOST_HASHED = 1_000_000  # values that all keys consist of, each counted as often as it is reached
MOST_CLASSES = 20  # of records
#: Modules whose classes PyTorch knows, or refuses.
KNOWN_MODULES = ("torch", "numpy", "collections", "builtins", "__builtin__", "copyreg", "copy_reg", "_codecs")

ATOMS = {  # opcodes that push one plain value
    "NONE",
    "NEWTRUE",
    "NEWFALSE",
    "INT",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG",
    "LONG1",
    "LONG4",
    "FLOAT",
    "BINFLOAT",
    "STRING",
    "BINSTRING",
    "SHORT_BINSTRING",
    "BINBYTES",
    "SHORT_BINBYTES",
    "BINBYTES8",
    "UNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE",
    "BINUNICODE8",
}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
REBUILD = ("torch._utils _rebuild_tensor", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3")
ITEM_BYTES = {
    f"torch {name}Storage": size
    for size, names in {
        1: ("Untyped", "Byte", "Char", "Bool"),
        2: ("Half", "BFloat16", "Short"),
        4: ("Float", "Int"),
        8: ("Double", "Long", "ComplexFloat"),
        16: ("ComplexDouble",),
    }.items()
    for name in names
}


class PickleRefused(Exception):
    """A pickle that is damaged or a trap; says which."""


@dataclass(slots=True)
class Value:
    """What stands for a value. content: an atom, a tuple's Values, a class's name, or None for anything else."""

    content: Any = None
    depth: int = 0
    size: int = 1  # values in it, one that is reached twice counted twice
    items: int | None = None  # of a storage


@dataclass(slots=True)
class Checked:
    """What a pickle says. storages: bytes that each of PyTorch's storages must have, by key.

    classes: the names of those whose objects are made without arguments, and then get their fields: data that needs no
    code of theirs. A class that is called anywhere is not among them.
    """

    end: int  # where the pickle ends
    storages: dict[str, int] = field(default_factory=dict)
    classes: frozenset[str] = frozenset()


def check_pickle(stream: IO[bytes]) -> Checked:
    """Follow the pickle that begins at the stream's position. Raises PickleRefused."""
    machine = _Machine()
    begin = stream.tell()
    try:
        for count, (opcode, argument, position) in enumerate(pickletools.genops(stream)):
            if count >= MOST_OPCODES or (position or 0) - begin > MOST_BYTES:
                raise PickleRefused("too long for weights or a vocabulary")
            machine.run(opcode.name, argument, count)
    except (AssertionError, LookupError, TypeError, ValueError, OverflowError, AttributeError):
        raise PickleRefused(DAMAGED) from None
    return Checked(stream.tell(), machine.storages, machine.plain_classes())


class _Machine:
    """The stack and memo of a pickle, with Values in place of values. None marks a place on the stack."""

    def __init__(self) -> None:
        self.stack: list[Value | None] = []
        self.memo: dict[int, Value] = {}
        self.storages: dict[str, int] = {}
        self._hashed = 0
        self._made: set[str] = set()  # names of classes whose objects are made without arguments
        self._called: set[str] = set()  # names of everything that is called in another way

    def plain_classes(self) -> frozenset[str]:
        names = {name.replace(" ", ".") for name in self._made - self._called}
        found = {name for name in names if name.partition(".")[0] not in KNOWN_MODULES}
        return frozenset(found if len(found) <= MOST_CLASSES else ())

    def run(self, name: str, argument: Any, count: int) -> None:
        if name in ATOMS:
            self.stack.append(Value(argument))
        elif name in TUPLES:
            self._push_tuple(self._pop(TUPLES[name]))
        elif "PUT" in name or name == "MEMOIZE":
            at = len(self.memo) if name == "MEMOIZE" else int(argument)
            if at > count:  # writers number what they keep one after another
                raise PickleRefused("its memo has an index that no writer gives")
            self.memo[at] = self._top()
        elif "GET" in name:
            self.stack.append(self.memo[int(argument)])
        elif name not in ("PROTO", "FRAME", "STOP"):
            act = OPCODES.get(name)
            if act is None:
                raise PickleRefused(f"has the opcode {name}, which neither pickle nor PyTorch writes")
            act(self, argument)

    def mark(self, _: Any) -> None:
        self.stack.append(None)

    def empty(self, _: Any) -> None:
        self.stack.append(Value())

    def tuple_from_mark(self, _: Any) -> None:
        self._push_tuple(self._pop_to_mark())

    def list_from_mark(self, _: Any) -> None:
        items = self._pop_to_mark()
        self.stack.append(Value())
        self._add(items)

    def dict_from_mark(self, _: Any) -> None:
        items = self._pop_to_mark()
        self.stack.append(Value())
        self._add(items, keys=items[::2])

    def frozenset_from_mark(self, _: Any) -> None:
        items = self._pop_to_mark()
        self._hash(items)
        self._push_tuple(items)

    def append(self, _: Any) -> None:
        self._add(self._pop(1))

    def appends(self, _: Any) -> None:
        self._add(self._pop_to_mark())

    def add_items(self, _: Any) -> None:
        items = self._pop_to_mark()
        self._add(items, keys=items)

    def set_item(self, _: Any) -> None:
        items = self._pop(2)
        self._add(items, keys=items[:1])

    def set_items(self, _: Any) -> None:
        items = self._pop_to_mark()
        self._add(items, keys=items[::2])

    def pop(self, _: Any) -> None:
        self.stack.pop()

    def pop_mark(self, _: Any) -> None:
        self._pop_to_mark()

    def name(self, argument: Any) -> None:
        self.stack.append(Value(str(argument)))

    def name_from_stack(self, _: Any) -> None:
        module, qualified = self._pop(2)
        self.stack.append(Value(f"{module.content} {qualified.content}"))

    def call(self, _: Any) -> None:
        function, arguments = self._pop(2)
        self._called.add(str(function.content))
        self._push_result(function, arguments)

    def make(self, _: Any) -> None:
        kind, arguments = self._pop(2)
        (self._called if arguments.content != () else self._made).add(str(kind.content))
        self._push_result(kind, arguments)

    def _push_result(self, function: Value, arguments: Value) -> None:
        if function.content in REBUILD:
            _check_tensor(arguments)
        self._push_tuple([arguments])
        self._top().content = None

    def build(self, _: Any) -> None:
        self._add(self._pop(1))

    def storage(self, _: Any) -> None:
        (identity,) = self._pop(1)
        if not isinstance(identity.content, tuple) or len(identity.content) < 5:
            raise PickleRefused(DAMAGED)
        _, kind, key, _, items = (part.content for part in identity.content[:5])
        if type(items) is not int or items < 0 or not isinstance(key, str):
            raise PickleRefused(DAMAGED)
        self.storages[key] = max(self.storages.get(key, 0), items * ITEM_BYTES.get(kind, 1))
        self.stack.append(Value(items=items))

    def _top(self) -> Value:
        top = self.stack[-1]
        assert top is not None
        return top

    def _pop(self, count: int) -> list[Value]:
        found = self.stack[len(self.stack) - count :] if count <= len(self.stack) else [None]
        del self.stack[len(self.stack) - count :]
        values = [value for value in found if value is not None]
        assert len(values) == count
        return values

    def _pop_to_mark(self) -> list[Value]:
        items: list[Value] = []
        while (value := self.stack.pop()) is not None:
            items.append(value)
        return items[::-1]

    def _push_tuple(self, items: list[Value]) -> None:
        whole = Value(tuple(items))
        self.stack.append(whole)
        self._add(items, into=whole)

    def _add(self, items: list[Value], *, keys: list[Value] | None = None, into: Value | None = None) -> None:
        whole = into or self._top()
        self._hash(keys or [])
        for item in items:
            whole.depth = max(whole.depth, item.depth + 1)
            whole.size = min(whole.size + item.size, MOST_HASHED + 1)  # one that holds itself doubles each time
        if whole.depth > MOST_NESTED:
            raise PickleRefused("nested too deeply")

    def _hash(self, keys: list[Value]) -> None:
        self._hashed += sum(key.size for key in keys)
        if self._hashed > MOST_HASHED:
            raise PickleRefused("has keys that take too long to compare")


def _check_tensor(arguments: Value) -> None:
    """Refuse a tensor that reaches past its storage, or has more numbers than that."""
    storage, offset, size, stride = arguments.content[:4]
    if storage.items is None:
        return  # PyTorch says what is wrong
    sizes, strides = ([part.content for part in axes.content] for axes in (size, stride))
    numbers = [offset.content, *sizes, *strides]
    if len(sizes) != len(strides) or not all(type(number) is int and number >= 0 for number in numbers):
        raise PickleRefused(DAMAGED)
    n_items = 1
    last = offset.content
    for length, step in zip(sizes, strides, strict=True):
        n_items *= length
        last += (length - 1) * step
    if n_items and (last >= storage.items or n_items > storage.items):
        raise PickleRefused(f"has a tensor of {n_items:,} numbers on a storage of {storage.items:,}")


Act = Callable[[_Machine, Any], None]
OPCODES: dict[str, Act] = {
    "MARK": _Machine.mark,
    "EMPTY_LIST": _Machine.empty,
    "EMPTY_DICT": _Machine.empty,
    "EMPTY_SET": _Machine.empty,
    "TUPLE": _Machine.tuple_from_mark,
    "LIST": _Machine.list_from_mark,
    "DICT": _Machine.dict_from_mark,
    "FROZENSET": _Machine.frozenset_from_mark,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "ADDITEMS": _Machine.add_items,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.pop_mark,
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.name_from_stack,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.make,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.storage,
}
