"""The generated modules are what the generator writes, and agree with the tables beside them."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import subprocess
import sys
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from millrace.wire import schema
from millrace.wire.api_keys import API_SCHEMAS, DATA_SCHEMAS, ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.schema_decoder import compile_decoder
from millrace.wire.schema_encoder import compile_encoder
from tools.generate_messages import WIRE, generate


def test_generated_files_are_what_the_generator_writes() -> None:
    expected = generate()
    present = {f"messages/{path.name}" for path in (WIRE / "messages").glob("*.py")}
    # From Kafka's own schema files, by a generator and a test of its own.
    of_records = ("group", "share_group", "share_state", "streams_group", "transaction")
    present -= {f"messages/{name}_records.py" for name in of_records}

    assert present == {path for path in expected if path.startswith("messages/")}
    stale = [path for path, text in expected.items() if (WIRE / path).read_text() != text]
    assert not stale, "run tools/generate_messages.py"


def test_every_error_code_of_the_protocol_is_there() -> None:
    ours = {code.name: (int(code), code.retriable) for code in ErrorCode}
    assert ours == {code.name.upper(): (int(code), code.retriable) for code in KioErrorCode}
    assert all(code.message for code in ErrorCode if code is not ErrorCode.NONE)
    assert ErrorCode(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_every_api_has_a_key_of_its_own_name() -> None:
    assert {int(key): key.name.lower() for key in ApiKey} == {
        key: api.module for key, api in API_SCHEMAS.items()
    }


@pytest.mark.parametrize("kind", ["Request", "Response"])
def test_a_message_of_defaults_survives_every_version(kind: Any) -> None:
    # What a version does not carry must come back as the default that the class gives.
    for api_key, api in API_SCHEMAS.items():
        cls = schema.message_class(api_key, kind)
        for version in range(api.version_min, api.version_max + 1):
            flexible = schema.is_flexible(api_key, version)
            encode = compile_encoder(cls, version, flexible=flexible)
            decode = compile_decoder(cls, version, flexible=flexible)
            # A nullable array may be null by default before the version that allows null.
            message = _without_forbidden_nulls(cls(), version)
            assert decode(encode(message)) == message, (cls, version)


def test_data_structures_have_codecs_too() -> None:
    for name, data in DATA_SCHEMAS.items():
        module = importlib.import_module(f"millrace.wire.messages.{data.module}")
        cls = getattr(module, name)
        for version in range(data.version_min, data.version_max + 1):
            message = _without_forbidden_nulls(cls(), version)
            assert schema.data_decoder(cls, version)(schema.data_encoder(cls, version)(message)) == message


def test_defaults_are_never_shared_between_messages() -> None:
    decode = schema.response_decoder(ApiKey.METADATA, 0)
    wire = schema.response_encoder(ApiKey.METADATA, 0)(schema.message_class(ApiKey.METADATA, "Response")())
    first, second = decode(wire), decode(wire)
    for field in dataclasses.fields(first):
        value = getattr(first, field.name)
        if isinstance(value, list):
            assert value is not getattr(second, field.name)
    assert copy.deepcopy(first) == second


def test_importing_the_registry_loads_no_message_module() -> None:
    # Ninety modules of dataclasses would cost start-up time and memory before the first request.
    script = "import sys, millrace.wire.schema; print([m for m in sys.modules if '.wire.messages.' in m])"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def _without_forbidden_nulls(message: Any, version: int) -> Any:
    for field in message.FIELDS:
        if (
            field.is_in(version)
            and getattr(message, field.name) is None
            and not field.is_nullable_in(version)
        ):
            setattr(message, field.name, [] if field.kind.startswith("[]") else "")
    return message
