"""A table with the Arrow PyCapsule interface, from nothing but ctypes: the empty environment of the tests has no pyarrow.

https://arrow.apache.org/docs/format/CDataInterface.html defines the two structs.
"""

from __future__ import annotations

import ctypes
from typing import Any


class ArrowSchema(ctypes.Structure):
    pass


class ArrowArray(ctypes.Structure):
    pass


RELEASE_SCHEMA = ctypes.CFUNCTYPE(None, ctypes.POINTER(ArrowSchema))
RELEASE_ARRAY = ctypes.CFUNCTYPE(None, ctypes.POINTER(ArrowArray))

ArrowSchema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowSchema))),
    ("dictionary", ctypes.c_void_p),
    ("release", RELEASE_SCHEMA),
    ("private_data", ctypes.c_void_p),
]
ArrowArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowArray))),
    ("dictionary", ctypes.c_void_p),
    ("release", RELEASE_ARRAY),
    ("private_data", ctypes.c_void_p),
]


@RELEASE_SCHEMA
def release_schema(schema: Any) -> None:
    schema.contents.release = RELEASE_SCHEMA()


@RELEASE_ARRAY
def release_array(array: Any) -> None:
    array.contents.release = RELEASE_ARRAY()


def capsule(pointer: Any, name: bytes) -> object:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    made: object = new(ctypes.cast(pointer, ctypes.c_void_p), name, None)
    return made


class ArrowTable:
    """Columns of texts, whole numbers, or lists of texts."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = columns
        # What C reads must live as long as the table.
        self.kept: list[Any] = []

    def keep(self, value: Any) -> Any:
        self.kept.append(value)
        return value

    def bytes_at(self, content: bytes) -> int:
        return ctypes.addressof(self.keep(ctypes.create_string_buffer(content or b"\0", max(len(content), 1))))

    def offsets(self, lengths: list[int]) -> int:
        places = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
        return ctypes.addressof(self.keep((ctypes.c_int32 * len(places))(*places)))

    def make(self, kind: bytes, name: str, length: int, buffers: list[int | None], children: list[Any]) -> Any:
        schemas = self.keep((ctypes.POINTER(ArrowSchema) * max(len(children), 1))(*[ctypes.pointer(s) for s, _ in children]))
        arrays = self.keep((ctypes.POINTER(ArrowArray) * max(len(children), 1))(*[ctypes.pointer(a) for _, a in children]))
        addresses = self.keep((ctypes.c_void_p * len(buffers))(*buffers))
        schema = ArrowSchema(
            self.keep(ctypes.c_char_p(kind)), self.keep(ctypes.c_char_p(name.encode())), None, 2, len(children), schemas,
            None, release_schema, None,
        )  # fmt: skip
        array = ArrowArray(length, 0, 0, len(buffers), len(children), addresses, arrays, None, release_array, None)
        return self.keep((schema, array))

    def column(self, name: str, values: list[Any]) -> Any:
        if isinstance(values[0], list):
            child = self.column("item", [text for value in values for text in value])
            return self.make(b"+l", name, len(values), [None, self.offsets([len(value) for value in values])], [child])
        if isinstance(values[0], int):
            numbers = self.keep((ctypes.c_int64 * len(values))(*values))
            return self.make(b"l", name, len(values), [None, ctypes.addressof(numbers)], [])
        texts = [value.encode() for value in values]
        buffers = [None, self.offsets([len(text) for text in texts]), self.bytes_at(b"".join(texts))]
        return self.make(b"u", name, len(values), buffers, [])

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        children = [self.column(name, values) for name, values in self.columns.items()]
        length = len(next(iter(self.columns.values())))
        schema, array = self.make(b"+s", "", length, [None], children)
        return (capsule(ctypes.pointer(schema), b"arrow_schema"), capsule(ctypes.pointer(array), b"arrow_array"))
