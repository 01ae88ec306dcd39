"""What KEDA speaks with an external scaler, https://keda.sh/docs/latest/concepts/external-scalers/, as a table.

The classes of the messages are made from it when this is imported: a wire format is names, numbers and types, so there
is no generated code to keep, and no compiler to install. KEDA's optional `StreamMetricSpec` is left out: our metric is
always the same, and gRPC itself answers UNIMPLEMENTED, as KEDA expects.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"

TEXT, WHOLE, REAL, FLAG = "string", "int64", "double", "bool"
TEXTS_BY_NAME = "map<string, string>"
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "ScaledObjectRef": {"name": (1, TEXT), "namespace": (2, TEXT), "scalerMetadata": (3, TEXTS_BY_NAME)},
    "IsActiveResponse": {"result": (1, FLAG)},
    "MetricSpec": {"metricName": (1, TEXT), "targetSize": (2, WHOLE), "targetSizeFloat": (3, REAL)},
    "GetMetricSpecResponse": {"metricSpecs": (1, "repeated MetricSpec")},
    "GetMetricsRequest": {"scaledObjectRef": (1, "ScaledObjectRef"), "metricName": (2, TEXT)},
    "MetricValue": {"metricName": (1, TEXT), "metricValue": (2, WHOLE), "metricValueFloat": (3, REAL)},
    "GetMetricsResponse": {"metricValues": (1, "repeated MetricValue")},
}
"""Number and type of each field of each message."""
METHODS: dict[str, tuple[str, str, bool]] = {
    "IsActive": ("ScaledObjectRef", "IsActiveResponse", False),
    "StreamIsActive": ("ScaledObjectRef", "IsActiveResponse", True),
    "GetMetricSpec": ("ScaledObjectRef", "GetMetricSpecResponse", False),
    "GetMetrics": ("GetMetricsRequest", "GetMetricsResponse", False),
}
"""Request, response, and whether responses are streamed."""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {TEXT: _Field.TYPE_STRING, WHOLE: _Field.TYPE_INT64, REAL: _Field.TYPE_DOUBLE, FLAG: _Field.TYPE_BOOL}


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=f"{PACKAGE}.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            repeated, inner = "repeated " in kind or kind == TEXTS_BY_NAME, kind.removeprefix("repeated ")
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            made = message.field.add(name=field, number=number, label=label)
            if kind in _SCALARS:
                made.type = _SCALARS[kind]
                continue
            made.type = _Field.TYPE_MESSAGE
            if kind == TEXTS_BY_NAME:
                inner = f"{name}.{field[0].upper()}{field[1:]}Entry"
                entry = message.nested_type.add(name=inner.rpartition(".")[2])
                entry.options.map_entry = True
                for number_inside, part in ((1, "key"), (2, "value")):
                    entry.field.add(
                        name=part, number=number_inside, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING
                    )
            made.type_name = f".{PACKAGE}.{inner}"
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())
CLASSES: dict[str, Any] = {
    name: message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES
}
"""The class of each message."""
