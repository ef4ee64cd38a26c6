"""Every API in every version: our codecs and kio's agree on each byte.

Few examples each, to be done in a minute; MILLRACE_WIRE_PROFILE=thorough takes many more.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.wire.schema_decoder import compile_decoder
from millrace.wire.schema_encoder import compile_encoder
from tests.conformance.wire.kio_oracle import Entity, all_entities, kio_bytes, kio_read, messages, to_kio

UNHURRIED = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
settings.register_profile("wire-quick", UNHURRIED, max_examples=6, derandomize=True)
settings.register_profile("wire-thorough", UNHURRIED, max_examples=400)
PROFILE = settings.get_profile("wire-" + os.environ.get("MILLRACE_WIRE_PROFILE", "quick"))


@pytest.mark.parametrize("entity", list(all_entities()), ids=lambda entity: entity.label)
def test_our_codecs_and_kios_agree_on_every_byte(entity: Entity) -> None:
    cls, kio_class, version = entity.our_class(), entity.kio_class(), entity.version
    encode = compile_encoder(cls, version, flexible=entity.is_flexible)
    decode = compile_decoder(cls, version, flexible=entity.is_flexible)

    @PROFILE
    @given(messages(cls, kio_class, version), st.sampled_from((bytes, bytearray, memoryview)))
    def check(message: Any, buffer_type: Any) -> None:
        expected = to_kio(message, kio_class, version)
        wire = kio_bytes(expected)
        assert encode(message) == wire
        assert decode(buffer_type(b"head" + wire), 4) == message
        assert decode(buffer_type(b"head" + wire + b"next"), 4, len(wire) + 4) == message
        assert kio_read(kio_class, encode(message)) == expected

    check()
