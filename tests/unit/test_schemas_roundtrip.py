"""Any event that can be built survives the wire: decode(encode(event)) is the event, and encodes to the same bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.support.any_event import EVENTS
from tidegate.events.envelope import decode, encode
from tidegate.events.topics import BY_MODEL
from tidegate.events.wire import Wire
from tools.schemas import json_schema

VALIDATORS = {t.event_type.split(".")[1]: Draft202012Validator(json_schema(t)) for t in BY_MODEL.values()}


@pytest.mark.parametrize("kind", EVENTS)
@settings(max_examples=60)
@given(data=st.data())
def test_every_event_survives_the_wire(kind: str, data: st.DataObject) -> None:
    """Whatever a writer can build, a reader reads back equal, writes again byte for byte, and the schema accepts."""
    event: Wire = data.draw(EVENTS[kind])
    written = encode(event, key=b"k" if kind == "dead-letter" else None)
    read = decode(type(event), written.value, written.headers, written.key)
    assert read == event
    again = encode(read, key=written.key)
    assert (again.value, again.headers, again.key) == (written.value, written.headers, written.key)
    VALIDATORS[kind].validate(json.loads(written.value))
