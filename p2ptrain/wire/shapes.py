"""How one core value becomes one protobuf message and back: a table of fields, the same for both directions.

    SPAN = Shape(Span, pb.Span, check=in_order, first=Whole(), last=Whole())
    SPAN.write(Span(0, 3))                  # -> pb.Span(first=0, last=3)
    SPAN.read(pb.Span(last=3), Reading())   # -> Span(0, 3)

Each ``Shape`` adds its field's name to a ``Refused`` on the way out, so that the error reads
``Begin.parts[3].fixed.digest: ...``. Decides nothing about messages as a whole (see ``translate``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

from google.protobuf.message import Message as ProtoMessage

from p2ptrain.wire.fields import Field, Reading
from p2ptrain.wire.runs import Refused


class Shape(Field):
    """A core class and its protobuf twin, field by field in the class's own order.

    ``made`` is called with the values in order; ``tuple`` stands for a plain pair. ``check`` sees the whole value.
    """

    presence = True

    def __init__(
        self, made: type, proto: Callable[..., ProtoMessage], check: Callable[[Any], None] | None = None, **table: Field
    ) -> None:
        named = [f.name for f in fields(made)] if is_dataclass(made) else list(getattr(made, "_fields", table))
        if named != list(table):
            raise TypeError(f"{made.__name__} has the fields {named}, its translation {list(table)}")
        self.made, self.proto, self._whole = made, proto, check
        self._rows = list(table.items())
        # A field that only checks is not called twice for it: (name, its check or None, the field).
        self._writers = [
            (name, row.check if type(row).write is Field.write else None, row) for name, row in table.items()
        ]
        self._readers = [
            (name, row.check if type(row).read is Field.read else None, row) for name, row in table.items()
        ]
        getter = attrgetter(*table)
        self._values: Callable[[Any], tuple[Any, ...]] = tuple
        if made is not tuple:
            self._values = getter if len(table) > 1 else lambda value: (getter(value),)
        self._build: Callable[[list[Any]], Any] = tuple if made is tuple else lambda values: made(*values)

    def check(self, value: Any, strict: bool = False) -> None:
        self._check_class(value)
        name = ""
        try:
            for (name, row), item in zip(self._rows, self._values(value), strict=True):  # noqa: B007
                row.check(item, strict)
        except Refused as refused:
            refused.path.insert(0, name)
            raise
        if self._whole is not None:
            self._whole(value)

    def write(self, value: Any) -> ProtoMessage:
        self._check_class(value)
        wired: dict[str, Any] = {}
        name = ""
        try:
            for (name, check, row), item in zip(self._writers, self._values(value), strict=True):
                if check is not None:
                    check(item)
                    wired[name] = item
                else:
                    wired[name] = row.write(item)
        except Refused as refused:
            refused.path.insert(0, name)
            raise
        if self._whole is not None:
            self._whole(value)
        return self.proto(**wired)

    def read(self, wired: Any, reading: Reading) -> Any:
        values: list[Any] = []
        strict = reading.strict
        name = ""
        try:
            for name, check, row in self._readers:
                if check is not None:
                    item = getattr(wired, name)
                    check(item, strict)
                    values.append(item)
                elif row.presence and not wired.HasField(name):
                    values.append(row.absent())
                else:
                    values.append(row.read(getattr(wired, name), reading))
        except Refused as refused:
            refused.path.insert(0, name)
            raise
        value = self._build(values)
        if self._whole is not None:
            self._whole(value)
        return value

    def _check_class(self, value: Any) -> None:
        fits = isinstance(value, self.made)
        if not fits or (self.made is tuple and len(value) != len(self._rows)):
            raise Refused(f"must be a {self.made.__name__} of {len(self._rows)} fields", value)


class Maybe(Field):
    """A shape or None."""

    presence = True

    def __init__(self, inner: Field) -> None:
        self.inner = inner

    def check(self, value: Any, strict: bool = False) -> None:
        if value is not None:
            self.inner.check(value, strict)

    def write(self, value: Any) -> Any:
        return None if value is None else self.inner.write(value)

    def read(self, wired: Any, reading: Reading) -> Any:
        return self.inner.read(wired, reading)

    def absent(self) -> None:
        return None


class Many(Field):
    """A tuple of at most ``limit`` equal fields."""

    def __init__(self, inner: Field, limit: int) -> None:
        self.inner, self.limit = inner, limit

    def check(self, value: Any, strict: bool = False) -> None:
        self._each(value, lambda item: self.inner.check(item, strict))

    def write(self, value: Any) -> Any:
        return self._each(value, self.inner.write)

    def read(self, wired: Any, reading: Reading) -> Any:
        read = self.inner.read
        return tuple(self._each(wired, lambda item: read(item, reading)))

    def _each(self, items: Any, act: Callable[[Any], Any]) -> list[Any]:
        if isinstance(items, (str, bytes)) or not hasattr(items, "__len__"):
            raise Refused("must be a tuple", items)
        if len(items) > self.limit:
            raise Refused(f"has {len(items)} entries, the limit is {self.limit}")
        done: list[Any] = []
        try:
            for item in items:
                done.append(act(item))
        except Refused as refused:
            refused.path.insert(0, f"[{len(done)}]")
            raise
        return done
