"""Codecs by API key and version, compiled on first use: one class for each message, whatever its version."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Final, Literal

from millrace.wire.api_keys import API_SCHEMAS, DATA_SCHEMAS, ApiSchema
from millrace.wire.errors import UnknownVersion
from millrace.wire.schema_decoder import Decoder, compile_decoder
from millrace.wire.schema_encoder import Encoder, compile_encoder
from millrace.wire.schema_fields import Message
from millrace.wire.schema_folding import fold_request, unfold_response

_API_VERSIONS: Final = 18


@cache
def request_decoder(api_key: int, version: int) -> Decoder:
    """decode(buffer, position=0, end=None) -> request; raises MalformedRequest for anything odd."""
    cls, flexible = _message(api_key, version, "Request")
    # The decoder lets bytes behind the request pass, as Kafka does: librdkafka leaves three behind a Metadata
    # request for all topics.
    return fold_request(cls, version, compile_decoder(cls, version, flexible=flexible, exact=False))


@cache
def response_encoder(api_key: int, version: int) -> Encoder:
    """encode(response) -> the body without header; raises ValueError naming a field that does not fit."""
    cls, flexible = _message(api_key, version, "Response")
    return unfold_response(cls, version, compile_encoder(cls, version, flexible=flexible))


@cache
def request_encoder(api_key: int, version: int) -> Encoder:
    """For our own outgoing connections: the fields of exactly this version, nothing folded."""
    cls, flexible = _message(api_key, version, "Request")
    return compile_encoder(cls, version, flexible=flexible)


@cache
def response_decoder(api_key: int, version: int) -> Decoder:
    """For our own outgoing connections, with the same bounds as for requests."""
    cls, flexible = _message(api_key, version, "Response")
    return compile_decoder(cls, version, flexible=flexible)


@cache
def data_decoder(cls: type[Message], version: int) -> Decoder:
    """For structures inside bytes fields and records, such as ConsumerProtocolSubscription."""
    return compile_decoder(cls, version, flexible=_is_flexible_data(cls, version))


@cache
def data_encoder(cls: type[Message], version: int) -> Encoder:
    return compile_encoder(cls, version, flexible=_is_flexible_data(cls, version))


def is_known(api_key: int) -> bool:
    return api_key in API_SCHEMAS


def api_name(api_key: int) -> str:
    """Kafka's name of the API, such as "DescribeConfigs"."""
    return _api(api_key, 0).name


def versions(api_key: int) -> tuple[int, int]:
    """The first and last version that the schema describes; what is served may be less."""
    api = _api(api_key, 0)
    return (api.version_min, api.version_max)


def is_flexible(api_key: int, version: int) -> bool:
    """Whether lengths are compact and structs end in tagged fields; asked of unknown newer versions too."""
    first = _api(api_key, version).flexible_from
    return first is not None and version >= first


def request_header_version(api_key: int, version: int) -> int:
    return 2 if is_flexible(api_key, version) else 1


def response_header_version(api_key: int, version: int) -> int:
    # A client that asks which versions exist cannot know yet how the answer's header looks.
    if api_key == _API_VERSIONS:
        return 0
    return 1 if is_flexible(api_key, version) else 0


def message_class(api_key: int, kind: Literal["Request", "Response"]) -> type[Message]:
    api = _api(api_key, 0)
    module = importlib.import_module(f"millrace.wire.messages.{api.module}")
    cls: type[Message] = getattr(module, api.name + kind)
    return cls


def _message(api_key: int, version: int, kind: Literal["Request", "Response"]) -> tuple[type[Message], bool]:
    api = _api(api_key, version)
    if not api.version_min <= version <= api.version_max:
        raise UnknownVersion(api.name, version, known=(api.version_min, api.version_max))
    return message_class(api_key, kind), is_flexible(api_key, version)


def _is_flexible_data(cls: type[Message], version: int) -> bool:
    data = DATA_SCHEMAS[cls.__name__]
    if not data.version_min <= version <= data.version_max:
        raise UnknownVersion(data.name, version, known=(data.version_min, data.version_max))
    return data.flexible_from is not None and version >= data.flexible_from


def _api(api_key: int, version: int) -> ApiSchema:
    api = API_SCHEMAS.get(api_key)
    if api is None:
        raise UnknownVersion(f"API {api_key}", version, known=None)
    return api
