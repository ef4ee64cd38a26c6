"""Write docs/protocol-support.md from the one list of APIs, `millrace.broker.handlers.APIS`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from millrace.broker.handlers import APIS
from millrace.wire.api_keys import API_SCHEMAS

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "protocol-support.md"

INTRODUCTION: Final = """\
<!-- Written by `make docs` from millrace.broker.handlers.APIS; do not edit. -->
# Protocol support

Millrace speaks the Apache Kafka wire protocol as of Kafka 4.3. This page lists every API of that protocol:
first those that Millrace serves, with their versions, then those that it does not serve, with the reason.
A broker also says itself what it serves, in its answer to ApiVersions; the dispatch table, that answer and
this page come from the same list.

Millrace refuses a request for any other API or version as Kafka does: it ends the connection. Only
ApiVersions of an unknown version gets an answer, which names the versions that are served.
"""

# Deviations that a client can notice, by API key.
NOTES: Final[dict[int, str]] = {
    0: "versions below 3 carry the record formats from before Kafka 0.11: ApiVersions names them for clients "
    "that look for them, but the broker refuses them, as in Kafka 4. No client may write to internal topics; "
    "Kafka lets those that call themselves `__admin_client`",
    1: "with sessions, topic ids and leader epochs, and replicas in the reader's rack where that is set up",
    2: "also by time, and with the special timestamps -1 to -5; nothing is tiered, so -5 finds nothing",
    3: "an auto-created topic is described at once; Kafka first answers UNKNOWN_TOPIC_OR_PARTITION",
    10: "groups, transactional ids and share partitions. The first request creates "
    "the internal topic, with fewer replicas than configured while there are fewer brokers",
    11: "a draw between protocols goes to what the oldest member prefers; in Kafka it goes to any of them",
    18: "an unknown version gets the version 0 answer with UNSUPPORTED_VERSION",
    21: "waits for all replicas that are alive, and refuses for a compacted topic without `delete`, both as "
    "in Kafka",
    22: "version 6, which keeps a prepared transaction for two-phase commit, is not stable in Kafka 4.3 and "
    "not served",
    26: "the markers are written before the answer leaves, where this broker leads all partitions: the next "
    "transaction never has to wait for them",
    32: "topics, brokers, loggers and consumer groups; client metrics have no settings here",
    33: "unknown names are refused for brokers too, where Kafka takes them",
    44: "unknown names are refused for brokers too, where Kafka takes them",
    43: "also for a single broker, which leads everything as it should",
    45: "every broker takes what is meant for the controller",
    55: "answered from the metadata store: the controller is the leader, its epoch the store's revision when "
    "it took office, the store's revision the high watermark, and all brokers of the cluster are voters",
    60: "every broker takes what is meant for the controller",
    64: "a broker that runs is not removed: it would register again at once",
    68: "a pattern is matched before the first answer, and again as soon as topics change; Kafka does it "
    "later. Both assignors prefer members in a rack that has the partition, where that costs neither "
    "balance nor moves",
    88: "missing internal topics are created before the answer, so a member that joins need not wait for its "
    "next heartbeat; and an empty group takes a new topology, which Kafka refuses until the group is deleted",
    91: "a group with members may be moved, too, while it is paused (`share.delivery.pause`); in Kafka never",
}

# Why an API is left out, by API key; all keys of one family share their reason.
REASONS: Final[tuple[tuple[str, tuple[int, ...]], ...]] = (
    ("the metadata store takes the place of Kafka's controller quorum", (52, 53, 54, 57, 59, 80, 81, 82)),
    ("only Kafka's own brokers and controllers send it to each other", (56, 58, 62, 63, 67, 70, 73)),
    ("Millrace collects no telemetry of clients; Kafka has it off by default", (71, 72)),
)
OTHER_REASON: Final = "not served"


def render() -> str:
    served = {int(api.key): api for api in APIS}
    lines = [
        INTRODUCTION,
        "## Served",
        "",
        "| key | API | versions | who may: needed permissions | remarks |",
        "|---:|---|---|---|---|",
    ]
    for key in sorted(served):
        remark = NOTES.get(key, "")
        versions = _versions(*served[key].versions)
        checks = "; ".join(str(check) for check in served[key].checks) or "everybody"
        lines.append(f"| {key} | {API_SCHEMAS[key].name} | {versions} | {checks} | {remark} |")
    reasons = {key: reason for reason, keys in REASONS for key in keys}
    lines += ["", "## Not served", "", "| key | API | why |", "|---:|---|---|"]
    for key in sorted(API_SCHEMAS.keys() - served.keys()):
        lines.append(f"| {key} | {API_SCHEMAS[key].name} | {reasons.get(key, OTHER_REASON)} |")
    return "\n".join(lines) + "\n"


def _versions(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
