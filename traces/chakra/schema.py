"""Messages of Chakra execution traces: what we use of MLCommons' schema/protobuf/et_def.proto.

A file holds one GlobalMetadata and then Nodes, each after its length as a varint. Fields that are
not named here (inputs, outputs, storage) are kept by protobuf when it reads, and never needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import chain
from typing import Any, BinaryIO, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto

from schedules.input_error import InputError

PACKAGE = "ChakraProtoMsg"
NODE_TYPES = ("INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV",
              "COMM_COLL", "STORAGE", "BATCH", "CHECKPOINT")  # fmt: skip
COLLECTIVES = ("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all",
               "reduce_scatter", "reduce_scatter_block", "barrier")  # fmt: skip
"""Names of collectives, in the order of CollectiveCommType's numbers."""

_VALUES = {
    "double": 3, "float": 5, "int32": 7, "int64": 9, "uint32": 11, "uint64": 13, "sint32": 15,
    "sint64": 17, "fixed32": 19, "fixed64": 21, "sfixed32": 23, "sfixed64": 25, "bool": 27,
    "string": 29, "bytes": 31,
}  # fmt: skip
_FIELD = descriptor_pb2.FieldDescriptorProto


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="traincast/et_def.proto", package=PACKAGE, syntax="proto3"
    )
    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    _add(attribute, "name", 1, "string")
    _add(attribute, "doc_string", 2, "string")
    for kind, number in _VALUES.items():
        _add(attribute, f"{kind}_val", number, kind).oneof_index = 0
        values = f"{kind.capitalize()}List"
        _add(file.message_type.add(name=values), "values", 1, kind, repeated=True)
        _add(attribute, f"{kind}_list", number + 1, values).oneof_index = 0
    metadata = file.message_type.add(name="GlobalMetadata")
    _add(metadata, "version", 1, "string")
    _add(metadata, "attr", 2, "AttributeProto", repeated=True)
    node = file.message_type.add(name="Node")
    for name, number, kind in (("id", 1, "uint64"), ("name", 2, "string"), ("type", 3, "int32")):
        _add(node, name, number, kind)  # an enum is an int32 on the wire
    _add(node, "ctrl_deps", 4, "uint64", repeated=True)
    _add(node, "data_deps", 5, "uint64", repeated=True)
    _add(node, "start_time_micros", 6, "uint64")
    _add(node, "duration_micros", 7, "uint64")
    _add(node, "attr", 10, "AttributeProto", repeated=True)
    return file


def _add(
    message: descriptor_pb2.DescriptorProto,
    name: str,
    number: int,
    kind: str,
    repeated: bool = False,
) -> descriptor_pb2.FieldDescriptorProto:
    label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if kind in _VALUES:
        field.type = getattr(_FIELD, f"TYPE_{kind.upper()}")
    else:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    return field


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())
Node: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.Node"))
GlobalMetadata: Any = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName(f"{PACKAGE}.GlobalMetadata")
)


def set_attributes(message: Any, **values: float | str | bool | Sequence[float]) -> None:
    """Add attributes, each of the type that its value has."""
    for name, value in values.items():
        attribute = message.attr.add(name=name)
        if isinstance(value, bool):
            attribute.bool_val = value
        elif isinstance(value, int):
            attribute.int64_val = value
        elif isinstance(value, float):
            attribute.double_val = value
        elif isinstance(value, str):
            attribute.string_val = value
        elif any(isinstance(one, float) for one in value):
            attribute.double_list.values.extend(value)
        else:
            attribute.int64_list.values.extend(value)


def attributes(message: Any) -> dict[str, Any]:
    """Return all attributes by name; lists as lists."""
    out = {}
    for attribute in message.attr:
        kind = attribute.WhichOneof("value")
        if kind is not None:
            value = getattr(attribute, kind)
            out[attribute.name] = list(value.values) if kind.endswith("_list") else value
    return out


def write_messages(file: BinaryIO, metadata: Any, nodes: Iterator[Any]) -> None:
    """Write a whole file."""
    for message in chain([metadata], nodes):
        proto.serialize_length_prefixed(message, cast(BytesIO, file))  # any file will do


def read_nodes(file: BinaryIO) -> Iterator[Any]:
    """Yield the nodes of a file. Raises InputError or protobuf's error for a broken one."""
    if _next(GlobalMetadata, file) is None:
        raise InputError("it is empty")
    while (node := _next(Node, file)) is not None:
        yield node


def _next(of: Any, file: BinaryIO) -> Any:
    try:
        return proto.parse_length_prefixed(of, cast(BytesIO, file))
    except (OverflowError, MemoryError, ValueError) as error:  # the length is one that none has
        raise InputError(f"it is damaged: {error}") from error
