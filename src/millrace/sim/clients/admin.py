"""An administrator: creates and deletes topics, and tries again until it is so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.sim.clients.client import Client
from millrace.sim.clients.connection import Unanswered
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

CREATE_VERSION: Final = 7
DELETE_VERSION: Final = 6


async def create_topic(
    client: Client,
    name: str,
    *,
    partitions: int,
    replicas: int = 1,
    configs: Mapping[str, str] | None = None,
) -> None:
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replicas,
                configs=[CreatableTopicConfig(name=key, value=text) for key, text in (configs or {}).items()],
            )
        ],
        timeout_ms=10_000,
    )
    while True:
        try:
            response: CreateTopicsResponse = await client.ask_anybody(
                ApiKey.CREATE_TOPICS, CREATE_VERSION, request
            )
        except Unanswered:
            await client.pause()
            continue
        (result,) = response.topics
        if result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return
        await client.pause()


async def delete_topic(client: Client, name: str) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000)
    while True:
        try:
            response: DeleteTopicsResponse = await client.ask_anybody(
                ApiKey.DELETE_TOPICS, DELETE_VERSION, request
            )
        except Unanswered:
            await client.pause()
            continue
        (result,) = response.responses
        if result.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            return
        await client.pause()
