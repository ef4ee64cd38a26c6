"""Produce: append each partition's records, then answer when they are as safe as the request demands.

Nearly all requests are for one partition. Those take a short way: what a producer's requests begin with is
recognised (`network/recognition.py`), and the batch is appended and answered with few steps: staged with
others of the same turn of the loop, at once, or when it is committed. The rest is for
`several_partitions.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millrace.broker.handlers.produce.answers import ProduceAnswer
from millrace.broker.handlers.produce.refused_batches import code_behind_refused
from millrace.broker.handlers.produce.several_partitions import VALID_ACKS, produce_to_several
from millrace.broker.handlers.produce.staging import STAGED_BYTES_MAX
from millrace.broker.network.checks import on_cluster, on_topic, on_transactional_id
from millrace.broker.network.dispatch import Api
from millrace.broker.network.lookout import SMALL_BATCH_BYTES
from millrace.core.errors import MillraceError
from millrace.metadata.topic_names import INTERNAL_TOPICS
from millrace.security.acls.binding import Operation, ResourceType
from millrace.wire.api_keys import ApiKey
from millrace.wire.produce_codec import (
    PartitionResult,
    TopicRecords,
    decode_request,
    shape_size,
    sole_records,
)

if TYPE_CHECKING:
    from millrace.replica.partition import Partition


def produce(request: ProduceAnswer) -> None:
    """Runs to the end of the appends without a pause, so that the order of requests is the order in the
    log."""
    connection, buffer, body = request.connection, request.buffer, request.body
    now_ms = connection.services.clock.wall_ms()
    records_at = body + connection.shape_size
    known = connection.recognised[request.route].get(bytes(buffer[body:records_at]))
    if known is not None:
        partition, request.topic_id, request.timeout_ms, request.acks = known
        records = sole_records(buffer, records_at, request.stop)
        if records is not None and partition.has_enough_replicas and not partition.log.prepares_batches:
            _append_one(request, partition, records, now_ms)
            return
    transactional_id, request.acks, request.timeout_ms, topics = decode_request(
        buffer, body, request.stop, request.route.version
    )
    if transactional_id is None and len(topics) == 1 and len(topics[0][2]) == 1:
        sole = _sole_partition(request, topics[0])
        if sole is not None:
            _append_one(request, *sole, now_ms)
            return
    produce_to_several(request, transactional_id, topics, now_ms)


def _sole_partition(request: ProduceAnswer, topic: TopicRecords) -> tuple[Partition, memoryview] | None:
    """The partition of a request that names one, and its records; None if it cannot take the short way.

    The next request of this kind is recognised by its first bytes."""
    connection, route = request.connection, request.route
    name, topic_id, ((index, records),) = topic
    partitions = connection.services.partitions
    by_index = partitions.by_name.get(name) if topic_id is None else partitions.by_id.get(topic_id)
    partition = None if by_index is None else by_index.get(index)
    if (
        partition is None
        or records is None
        or not request.acks
        or request.acks not in VALID_ACKS
        or partition.topic in INTERNAL_TOPICS
        or not partition.has_enough_replicas
        or partition.log.prepares_batches
        or not connection.decisions.shows(Operation.WRITE, ResourceType.TOPIC, partition.topic)
        or connection.services.storage_refusal(partition.topic) is not None
    ):
        return None
    request.topic_id = topic_id
    size = shape_size(request.buffer, request.body, request.stop, len(records), route.version)
    if size:
        connection.shape_size = size
        shape = bytes(request.buffer[request.body : request.body + size])
        meaning = (partition, topic_id, request.timeout_ms, request.acks)
        connection.recognised.remember(route, shape, meaning)
    return partition, records


def _append_one(request: ProduceAnswer, partition: Partition, records: memoryview, now_ms: int) -> None:
    """One partition, acknowledged: if all goes well the answer is made in one step."""
    connection, log = request.connection, partition.log
    services = connection.services
    request.partition = partition
    partition.stats.produces += 1
    if connection.refused_batches is not None:
        code = code_behind_refused(connection, request.place, partition, records)
        if code is not None:
            partition.stats.produces_failed += 1
            request.conclude(PartitionResult(partition.index, code))
            return
    staging = services.staging
    batching = staging.batching
    if (
        partition.leads_alone
        and len(records) <= STAGED_BYTES_MAX
        and not log.commits_on_flush
        and (batching.is_worthwhile or batching.is_time_to_try())
    ):
        staging.append(request, partition, records, now_ms)
        return
    try:
        appended = partition.append(records, now_ms)
    except MillraceError as error:
        partition.stats.produces_failed += 1
        request.refuse(error, records)
        return
    if connection.is_last_frame:
        # Whoever waited for these records gets them before their producer's answer is even made.
        services.wakeups.answer_first()
    if log.high_watermark > appended.last_offset or (request.acks == 1 and not log.commits_on_flush):
        request.succeed(appended.base_offset, appended.log_append_time_ms)
        if len(records) <= SMALL_BATCH_BYTES and partition.leads_alone:
            services.lookout.expect_more(connection.loop)
        return
    request.await_commit(appended)
    if len(records) <= SMALL_BATCH_BYTES:
        # The fetches of its followers come next.
        services.lookout.expect_more(connection.loop)


# Versions 0 to 2 carried message formats that no longer exist; librdkafka wants to see them in ApiVersions
# before it compresses, and never uses them.
PRODUCE: Final = Api(
    ApiKey.PRODUCE,
    versions=(3, 13),
    handle=produce,
    checks=(
        on_transactional_id(Operation.WRITE, "transactional batches"),
        on_topic(Operation.WRITE),
        on_cluster(Operation.CLUSTER_ACTION, "brokers, instead of the others"),
    ),
    direct=True,
    advertised_from=0,
    request_type=ProduceAnswer,
)
