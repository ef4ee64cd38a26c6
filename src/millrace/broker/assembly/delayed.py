"""Delayed messages: their store, and the deliveries from the partitions of it that this broker has."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.coordinators import Coordinators
from millrace.broker.assembly.ground import Ground
from millrace.broker.queues.delayed.delivery import DeliveryParts
from millrace.broker.queues.delayed.service import DelayedDelivery
from millrace.broker.queues.delayed.store import DelayedMessages
from millrace.broker.replication.local_replicas import LocalReplicas
from millrace.coordinator.internal_topic import InternalTopic
from millrace.metadata.service import Metadata
from millrace.metadata.topic_names import DELAYED_TOPIC
from millrace.queues.delayed.lateness import DelayedFigures
from millrace.replica.partitions import Partitions


@dataclass(frozen=True, slots=True)
class Delayed:
    """The two sides of delayed messages: in and out."""

    store: DelayedMessages
    delivery: DelayedDelivery


def start_delayed(
    ground: Ground,
    metadata: Metadata,
    partitions: Partitions,
    replicas: LocalReplicas,
    coordinators: Coordinators,
) -> Delayed:
    """Take messages in, and deliver from the partitions of the store that this broker leads, from now on."""
    config, surroundings, background = ground.config, ground.surroundings, ground.background
    topic = InternalTopic(DELAYED_TOPIC, metadata, part_settings.delayed_topic(config.now))
    topic.start(background)
    store = DelayedMessages(
        topic,
        coordinators.appends,
        clock=surroundings.clock,
        start_task=background.starter("store-delayed"),
    )
    parts = DeliveryParts(
        metadata=metadata,
        appends=coordinators.appends,
        clock=surroundings.clock,
        next_producer_id=coordinators.producer_ids.next,
        figures=DelayedFigures(),
        rate_max=lambda: part_settings.delayed_rate_max(config.now),
    )
    delivery = DelayedDelivery(partitions, surroundings.volume, parts, background)
    replicas.subscribe(delivery.partition_changed)
    delivery.start()
    return Delayed(store, delivery)
