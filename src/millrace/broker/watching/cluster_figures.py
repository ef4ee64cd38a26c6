"""Figures about the cluster as this broker sees it, for /metrics."""

from __future__ import annotations

from millrace.core.ids import NodeId
from millrace.metadata.image import NO_LEADER, Image


def cluster_figures(image: Image, node_id: NodeId) -> dict[str, tuple[str, float]]:
    """Gauges by name with their descriptions; none for a broker that is alone."""
    if not image.members:
        return {}
    led = leaderless = out_of_sync = moving = 0
    for topic in image.topics.values():
        for state in topic.partitions:
            if state.leader == node_id:
                led += 1
                out_of_sync += len(state.isr) < len(state.replicas)
                moving += bool(state.adding or state.removing)
            leaderless += state.leader == NO_LEADER
    return {
        "millrace_cluster_brokers": ("Brokers that run and are registered.", len(image.brokers)),
        "millrace_cluster_members_down": ("Brokers of the cluster that are not there.", len(image.fenced)),
        "millrace_cluster_controller": (
            "1 on the broker that is the controller.",
            int(image.controller_id == node_id),
        ),
        "millrace_cluster_partitions_leaderless": ("Partitions that nobody leads.", leaderless),
        "millrace_partitions_led": ("Partitions that this broker leads.", led),
        "millrace_partitions_under_replicated": (
            "Partitions led by this broker with replicas that are not in sync.",
            out_of_sync,
        ),
        "millrace_partitions_reassigning": (
            "Partitions led by this broker that move to other brokers.",
            moving,
        ),
    }
