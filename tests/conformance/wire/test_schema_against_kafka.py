"""Our field tables against the schema files in Kafka's client library: names, types, versions, defaults."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.wire import schema
from millrace.wire.api_keys import API_SCHEMAS, ApiKey
from millrace.wire.schema_fields import OUR_TAGS_FROM, ZERO, Field, Message, parse_versions
from millrace.wire.schema_source import element_kind
from tools.kafka_distribution import KafkaUnavailable, locate


@pytest.fixture(scope="module")
def kafka_schemas() -> dict[str, Any]:
    try:
        (jar,) = locate().jars.glob("kafka-clients-*.jar")
    except (KafkaUnavailable, ValueError) as missing:
        pytest.skip(f"no jars of Kafka: {missing}")
    with zipfile.ZipFile(jar) as archive:
        names = [name for name in archive.namelist() if re.fullmatch(r"common/message/\w+\.json", name)]
        documents = [_parse(archive.read(name).decode()) for name in names]
    return {document["name"]: document for document in documents}


@pytest.mark.parametrize("kind", ["Request", "Response"])
def test_every_field_is_as_kafka_describes_it(kafka_schemas: dict[str, Any], kind: Any) -> None:
    differences = []
    for api_key, api in API_SCHEMAS.items():
        document = kafka_schemas[api.name + kind]
        known = range(api.version_min, api.version_max + 1)
        assert document["apiKey"] == api_key
        shared = {struct["name"]: struct["fields"] for struct in document.get("commonStructs", ())}
        cls = schema.message_class(api_key, kind)
        differences += list(_compare(api.name + kind, document["fields"], cls, set(known), shared))
        for version in known:
            flexible = _contains(document["flexibleVersions"], version)
            assert schema.is_flexible(api_key, version) == flexible, (api.name, version)
    assert not differences, "\n".join(differences)


def _compare(
    path: str, described: list[Any], cls: type[Message], versions: set[int], shared: dict[str, Any]
) -> Iterator[str]:
    ours = {field.name: field for field in cls.FIELDS if field.tag is None or field.tag < OUR_TAGS_FROM}
    theirs = {_snake(each["name"]): each for each in described}
    present = {name for name, each in theirs.items() if any(_contains(each["versions"], v) for v in versions)}
    if present != set(ours):
        yield f"{path}: fields {sorted(present ^ set(ours))} are only in one"
    for name in sorted(present & set(ours)):
        each, field = theirs[name], ours[name]
        element = each["type"].removeprefix("[]")
        carried = {version for version in versions if _contains(each["versions"], version)}
        # A shared struct may be used in fewer versions here than elsewhere in the same message.
        if carried != {version for version in versions if field.is_in(version)}:
            yield f"{path}.{name}: versions {each['versions']}"
        if {v for v in carried if _contains(each.get("nullableVersions", ""), v)} != {
            v for v in carried if field.is_nullable_in(v)
        }:
            yield f"{path}.{name}: nullable in {each.get('nullableVersions')}"
        if each.get("tag") != field.tag or each["type"].startswith("[]") != field.kind.startswith("[]"):
            yield f"{path}.{name}: tag or array"
        if _default(each) != field.default:
            yield f"{path}.{name}: default {_default(each)!r}, ours {field.default!r}"
        inner = each.get("fields") or shared.get(element)
        if inner:
            assert field.struct is not None, path
            yield from _compare(f"{path}.{name}", inner, field.struct, carried, shared)
        elif element_kind(field) != element:
            yield f"{path}.{name}: {each['type']}, ours {field.kind}"


def _default(described: dict[str, Any]) -> object:
    text = described.get("default")
    kind = described["type"]
    if text is None:
        return None if kind == "records" else ZERO
    if text == "null":
        return None
    if kind == "string":
        return text or ZERO
    if kind == "bool":
        return str(text).lower() == "true" or ZERO
    return int(str(text), 0) or ZERO


def _contains(versions: str, version: int) -> bool:
    first, last = parse_versions("" if versions == "none" else versions)
    return first <= version <= last


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _parse(text: str) -> Any:
    """JSON with comments, which Kafka's files carry on lines of their own or behind a comma."""
    without = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    return json.loads(re.sub(r"(?<=[\],\"}\s])//[^\"\n]*$", "", without, flags=re.MULTILINE))


def test_the_comparison_sees_a_difference() -> None:
    described = [{"name": "GroupId", "type": "string", "versions": "0+", "default": "x"}]
    cls = schema.message_class(ApiKey.HEARTBEAT, "Request")
    assert isinstance(cls.FIELDS[0], Field)
    found = list(_compare("HeartbeatRequest", described, cls, {0}, {}))
    assert any("default 'x'" in difference for difference in found)
