"""Which Kafka error code stands for each expected failure. This is the one table; lower packages know no
codes."""

from __future__ import annotations

from typing import Final

from millrace.broker.internal_appends import AppendRefused, CommitAwaited, NoSuchPartition
from millrace.broker.network.fetch_sessions import (
    InvalidSessionEpoch,
    SessionNotFound,
    SessionTopicIdsDiffer,
)
from millrace.broker.queues import live_share, share_sessions
from millrace.broker.queues.dead_letters import DeadLetterTopicUnusable
from millrace.broker.queues.persister import StateWriteTimedOut
from millrace.broker.replication.peers import PeerUnreachable
from millrace.broker.replication.replica_sessions import SessionRefused
from millrace.broker.transactions.markers import NotHere
from millrace.broker.transactions.remote_transactions import MarkerRefused, PartitionGone
from millrace.coordinator import errors as coordinator_errors
from millrace.core.errors import MillraceError
from millrace.core.patterns import InvalidPattern
from millrace.groups import errors as group_errors
from millrace.log import errors as log_errors
from millrace.log.batches.validation import InvalidRecords, InvalidRecordTimestamps
from millrace.log.cleaning.worker_messages import JobFailed, WorkerDied, WorkerNotStarted
from millrace.metadata import errors as metadata_errors
from millrace.queues import errors as queue_errors
from millrace.queues.deduplication import IdsNotLoaded
from millrace.queues.delayed.codec import MalformedRecord
from millrace.queues.delayed.index import IndexDamaged
from millrace.queues.delayed.model import DelayedStoreAbsent
from millrace.queues.state import errors as share_state_errors
from millrace.replica.partition import FencedLeaderEpoch, NotEnoughReplicas, NotLeader, UnknownLeaderEpoch
from millrace.security import errors as security_errors
from millrace.security.acls.binding import InvalidAcl
from millrace.security.acls.filters import InvalidAclFilter
from millrace.security.acls.roles import InvalidRole
from millrace.security.audit.auditor import AuditUnavailable
from millrace.security.credentials.first_users import InvalidFirstUsers
from millrace.security.principals import InvalidPrincipal
from millrace.security.quotas.entities import InvalidQuota, UnsupportedQuotaEntity
from millrace.security.tenants import InvalidTenant, TenantHeld, TenantOverLimit
from millrace.transactions import errors as transaction_errors
from millrace.wire.compression import CorruptCompression, DecompressedTooLarge
from millrace.wire.error_codes import ErrorCode
from millrace.wire.errors import MalformedRequest, UnknownVersion
from millrace.wire.record_spans import MalformedBatch

WIRE_ERRORS: Final[dict[type[MillraceError], ErrorCode]] = {
    # Requests.
    MalformedRequest: ErrorCode.INVALID_REQUEST,
    UnknownVersion: ErrorCode.UNSUPPORTED_VERSION,
    SessionNotFound: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    InvalidSessionEpoch: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    SessionTopicIdsDiffer: ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    live_share.ShareFenced: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    share_sessions.ShareSessionNotFound: ErrorCode.SHARE_SESSION_NOT_FOUND,
    share_sessions.InvalidShareSessionEpoch: ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    share_sessions.ShareSessionLimitReached: ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    share_sessions.AcknowledgedTooEarly: ErrorCode.INVALID_REQUEST,
    share_sessions.TooManySharePartitions: ErrorCode.INVALID_REQUEST,
    FencedLeaderEpoch: ErrorCode.FENCED_LEADER_EPOCH,
    UnknownLeaderEpoch: ErrorCode.UNKNOWN_LEADER_EPOCH,
    NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
    # Records. A batch with a sound checksum that makes no sense will make none when it is sent again, so it
    # gets INVALID_RECORD and not CORRUPT_MESSAGE, which clients retry.
    log_errors.CorruptBatch: ErrorCode.CORRUPT_MESSAGE,
    log_errors.UnsupportedBatchFormat: ErrorCode.INVALID_RECORD,
    log_errors.InvalidRecord: ErrorCode.INVALID_RECORD,
    InvalidRecords: ErrorCode.INVALID_RECORD,
    MalformedBatch: ErrorCode.INVALID_RECORD,
    CorruptCompression: ErrorCode.INVALID_RECORD,
    InvalidRecordTimestamps: ErrorCode.INVALID_TIMESTAMP,
    log_errors.InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    # Producers ask who leads, and send the batch again.
    IdsNotLoaded: ErrorCode.LEADER_NOT_AVAILABLE,
    DelayedStoreAbsent: ErrorCode.LEADER_NOT_AVAILABLE,
    log_errors.BatchTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    DecompressedTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    log_errors.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    log_errors.ProducerFenced: ErrorCode.INVALID_PRODUCER_EPOCH,
    # Kafka answers a batch without a transactional id as if its producer may not use that id.
    log_errors.UnverifiedTransaction: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    log_errors.TransactionOpen: ErrorCode.INVALID_TXN_STATE,
    log_errors.CoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    # What this broker appends elsewhere on behalf of a producer.
    NoSuchPartition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    AppendRefused: ErrorCode.NOT_ENOUGH_REPLICAS,
    CommitAwaited: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    # Logs and disks.
    log_errors.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    log_errors.CorruptLog: ErrorCode.CORRUPT_MESSAGE,
    # The client asks for metadata and finds out whether the topic is gone.
    log_errors.LogClosed: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    log_errors.StorageError: ErrorCode.KAFKA_STORAGE_ERROR,
    log_errors.DiskFull: ErrorCode.KAFKA_STORAGE_ERROR,
    log_errors.DiskFailed: ErrorCode.KAFKA_STORAGE_ERROR,
    log_errors.HalfRenamed: ErrorCode.KAFKA_STORAGE_ERROR,
    log_errors.ReadOnlyDisk: ErrorCode.KAFKA_STORAGE_ERROR,
    log_errors.FileMissing: ErrorCode.KAFKA_STORAGE_ERROR,
    log_errors.TooManyOpenFiles: ErrorCode.KAFKA_STORAGE_ERROR,
    log_errors.TooLittleMemory: ErrorCode.KAFKA_STORAGE_ERROR,
    log_errors.LogDirectoryOffline: ErrorCode.KAFKA_STORAGE_ERROR,
    log_errors.TopicIdMismatch: ErrorCode.INCONSISTENT_TOPIC_ID,
    log_errors.NoSuchDirectory: ErrorCode.LOG_DIR_NOT_FOUND,
    log_errors.NameTooLong: ErrorCode.INVALID_TOPIC_EXCEPTION,
    # These end a start; no client is there to see them.
    log_errors.DirectoryLocked: ErrorCode.UNKNOWN_SERVER_ERROR,
    log_errors.DirectoryMismatch: ErrorCode.UNKNOWN_SERVER_ERROR,
    log_errors.DuplicateLog: ErrorCode.UNKNOWN_SERVER_ERROR,
    # These end background work, which is tried again; no request waits for it.
    JobFailed: ErrorCode.UNKNOWN_SERVER_ERROR,
    WorkerDied: ErrorCode.UNKNOWN_SERVER_ERROR,
    WorkerNotStarted: ErrorCode.UNKNOWN_SERVER_ERROR,
    DeadLetterTopicUnusable: ErrorCode.UNKNOWN_SERVER_ERROR,
    IndexDamaged: ErrorCode.UNKNOWN_SERVER_ERROR,
    MalformedRecord: ErrorCode.UNKNOWN_SERVER_ERROR,
    # What a user asked of the cluster and cannot have.
    metadata_errors.InvalidTopicName: ErrorCode.INVALID_TOPIC_EXCEPTION,
    metadata_errors.TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
    metadata_errors.UnknownTopic: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    metadata_errors.UnknownTopicId: ErrorCode.UNKNOWN_TOPIC_ID,
    metadata_errors.TopicDeletionDisabled: ErrorCode.TOPIC_DELETION_DISABLED,
    metadata_errors.InvalidPartitions: ErrorCode.INVALID_PARTITIONS,
    metadata_errors.InvalidReplicationFactor: ErrorCode.INVALID_REPLICATION_FACTOR,
    metadata_errors.InvalidReplicaAssignment: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    metadata_errors.InvalidConfig: ErrorCode.INVALID_CONFIG,
    metadata_errors.SettingNotDynamic: ErrorCode.INVALID_REQUEST,
    metadata_errors.ContradictoryRequest: ErrorCode.INVALID_REQUEST,
    metadata_errors.UnknownBroker: ErrorCode.INVALID_REQUEST,
    metadata_errors.UnknownPartition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    metadata_errors.ElectionNotNeeded: ErrorCode.ELECTION_NOT_NEEDED,
    metadata_errors.PreferredLeaderUnavailable: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    metadata_errors.NoEligibleLeader: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    metadata_errors.NoReassignment: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    metadata_errors.BrokerAlive: ErrorCode.INVALID_REQUEST,
    metadata_errors.NotAMember: ErrorCode.BROKER_ID_NOT_REGISTERED,
    metadata_errors.StaleState: ErrorCode.INVALID_UPDATE_VERSION,
    metadata_errors.IneligibleReplica: ErrorCode.INELIGIBLE_REPLICA,
    # Queues.
    queue_errors.InvalidRecordState: ErrorCode.INVALID_RECORD_STATE,
    queue_errors.InvalidShareRequest: ErrorCode.INVALID_REQUEST,
    # Permissions, quotas, tenants.
    InvalidPrincipal: ErrorCode.INVALID_REQUEST,
    InvalidAcl: ErrorCode.INVALID_REQUEST,
    InvalidAclFilter: ErrorCode.INVALID_REQUEST,
    InvalidRole: ErrorCode.INVALID_REQUEST,
    InvalidQuota: ErrorCode.INVALID_REQUEST,
    UnsupportedQuotaEntity: ErrorCode.UNSUPPORTED_VERSION,
    InvalidTenant: ErrorCode.INVALID_REQUEST,
    TenantOverLimit: ErrorCode.POLICY_VIOLATION,
    # Clients try again, and keep their records until there is room.
    TenantHeld: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    metadata_errors.InvalidSecurityChange: ErrorCode.INVALID_REQUEST,
    metadata_errors.RoleExists: ErrorCode.DUPLICATE_RESOURCE,
    metadata_errors.UnknownRole: ErrorCode.RESOURCE_NOT_FOUND,
    metadata_errors.TenantExists: ErrorCode.DUPLICATE_RESOURCE,
    metadata_errors.UnknownTenant: ErrorCode.RESOURCE_NOT_FOUND,
    metadata_errors.TenantPartitionsExceeded: ErrorCode.POLICY_VIOLATION,
    metadata_errors.UnknownCredential: ErrorCode.RESOURCE_NOT_FOUND,
    metadata_errors.UnknownToken: ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
    # Ids of tokens are made by chance; two of a kind would be our bug.
    metadata_errors.TokenExists: ErrorCode.UNKNOWN_SERVER_ERROR,
    # Groups.
    coordinator_errors.NotCoordinator: ErrorCode.NOT_COORDINATOR,
    coordinator_errors.CoordinatorLoading: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    coordinator_errors.CoordinatorNotAvailable: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    # Kafka tells clients no more than this either; a commit of offsets has a code of its own.
    coordinator_errors.RecordsTooLarge: ErrorCode.UNKNOWN_SERVER_ERROR,
    group_errors.GroupError: ErrorCode.UNKNOWN_SERVER_ERROR,
    group_errors.InvalidGroupId: ErrorCode.INVALID_GROUP_ID,
    group_errors.GroupNotFound: ErrorCode.GROUP_ID_NOT_FOUND,
    group_errors.UnknownMember: ErrorCode.UNKNOWN_MEMBER_ID,
    group_errors.FencedInstance: ErrorCode.FENCED_INSTANCE_ID,
    group_errors.UnreleasedInstance: ErrorCode.UNRELEASED_INSTANCE_ID,
    group_errors.IllegalGeneration: ErrorCode.ILLEGAL_GENERATION,
    group_errors.StaleMemberEpoch: ErrorCode.STALE_MEMBER_EPOCH,
    group_errors.FencedMemberEpoch: ErrorCode.FENCED_MEMBER_EPOCH,
    group_errors.RebalanceInProgress: ErrorCode.REBALANCE_IN_PROGRESS,
    group_errors.InconsistentProtocol: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    group_errors.MemberIdRequired: ErrorCode.MEMBER_ID_REQUIRED,
    group_errors.GroupFull: ErrorCode.GROUP_MAX_SIZE_REACHED,
    group_errors.InvalidSessionTimeout: ErrorCode.INVALID_SESSION_TIMEOUT,
    group_errors.UnsupportedAssignor: ErrorCode.UNSUPPORTED_ASSIGNOR,
    group_errors.InvalidHeartbeat: ErrorCode.INVALID_REQUEST,
    group_errors.InvalidTopology: ErrorCode.STREAMS_INVALID_TOPOLOGY,
    InvalidPattern: ErrorCode.INVALID_REGULAR_EXPRESSION,
    group_errors.GroupNotEmpty: ErrorCode.NON_EMPTY_GROUP,
    group_errors.SubscribedToTopic: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    group_errors.OffsetMetadataTooLarge: ErrorCode.OFFSET_METADATA_TOO_LARGE,
    # Transactions.
    transaction_errors.TransactionError: ErrorCode.UNKNOWN_SERVER_ERROR,
    transaction_errors.InvalidTransactionalId: ErrorCode.INVALID_REQUEST,
    transaction_errors.InvalidTransactionTimeout: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    transaction_errors.UnknownTransactionalId: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    transaction_errors.WrongProducerId: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    transaction_errors.EpochFenced: ErrorCode.PRODUCER_FENCED,
    transaction_errors.TransactionEnding: ErrorCode.CONCURRENT_TRANSACTIONS,
    transaction_errors.InvalidTransactionState: ErrorCode.INVALID_TXN_STATE,
    transaction_errors.PartitionNotInTransaction: ErrorCode.TRANSACTION_ABORTABLE,
    NotHere: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    PartitionGone: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    # The state of share groups.
    share_state_errors.ShareStateError: ErrorCode.UNKNOWN_SERVER_ERROR,
    share_state_errors.StateNotInitialized: ErrorCode.INVALID_REQUEST,
    share_state_errors.InvalidShareState: ErrorCode.INVALID_REQUEST,
    share_state_errors.LeaderEpochFenced: ErrorCode.FENCED_LEADER_EPOCH,
    share_state_errors.StateEpochFenced: ErrorCode.FENCED_STATE_EPOCH,
    share_state_errors.UnknownSharePartition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    StateWriteTimedOut: ErrorCode.REQUEST_TIMED_OUT,
    # Who somebody is.
    security_errors.NotAllowedOnCluster: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    security_errors.UnacceptableCredential: ErrorCode.UNACCEPTABLE_CREDENTIAL,
    security_errors.UnknownScramMechanism: ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    security_errors.CredentialNotFound: ErrorCode.RESOURCE_NOT_FOUND,
    security_errors.DuplicateCredential: ErrorCode.DUPLICATE_RESOURCE,
    security_errors.TokensDisabled: ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
    security_errors.TokenNotFound: ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
    security_errors.TokenOwnerMismatch: ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
    security_errors.TokenRequestNotAllowed: ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    security_errors.TokenAuthorizationFailed: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    security_errors.TokenExpired: ErrorCode.DELEGATION_TOKEN_EXPIRED,
    security_errors.InvalidPrincipalType: ErrorCode.INVALID_PRINCIPAL_TYPE,
    AuditUnavailable: ErrorCode.BROKER_NOT_AVAILABLE,
    # These end a start or a connection; no request is there to be answered.
    security_errors.InvalidMappingRules: ErrorCode.UNKNOWN_SERVER_ERROR,
    security_errors.NoRuleMatches: ErrorCode.UNKNOWN_SERVER_ERROR,
    security_errors.InvalidTlsMaterial: ErrorCode.UNKNOWN_SERVER_ERROR,
    security_errors.InvalidDistinguishedName: ErrorCode.UNKNOWN_SERVER_ERROR,
    security_errors.InvalidJaasConfig: ErrorCode.UNKNOWN_SERVER_ERROR,
    InvalidFirstUsers: ErrorCode.UNKNOWN_SERVER_ERROR,
    security_errors.InvalidKeySet: ErrorCode.UNKNOWN_SERVER_ERROR,
    security_errors.RefusedUrl: ErrorCode.UNKNOWN_SERVER_ERROR,
    # Brokers meet these when they ask each other, and try again.
    PeerUnreachable: ErrorCode.UNKNOWN_SERVER_ERROR,
    SessionRefused: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    MarkerRefused: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    # The metadata store. What was asked for may or may not have happened, which is what a time-out tells.
    metadata_errors.StoreUnavailable: ErrorCode.REQUEST_TIMED_OUT,
    metadata_errors.StoreRefused: ErrorCode.REQUEST_TIMED_OUT,
    metadata_errors.TooManyConflicts: ErrorCode.REQUEST_TIMED_OUT,
    metadata_errors.StoreDamaged: ErrorCode.KAFKA_STORAGE_ERROR,
    metadata_errors.NodeIdInUse: ErrorCode.DUPLICATE_BROKER_REGISTRATION,
    metadata_errors.LeaseExpired: ErrorCode.STALE_BROKER_EPOCH,
    metadata_errors.ClusterMismatch: ErrorCode.INCONSISTENT_CLUSTER_ID,
    # The metadata deals with these itself, or they end a start; reaching a client would be our bug.
    metadata_errors.MetadataError: ErrorCode.UNKNOWN_SERVER_ERROR,
    metadata_errors.NodeIdMismatch: ErrorCode.UNKNOWN_SERVER_ERROR,
    metadata_errors.Conflict: ErrorCode.UNKNOWN_SERVER_ERROR,
    metadata_errors.StoreWentBack: ErrorCode.UNKNOWN_SERVER_ERROR,
    metadata_errors.WatchLost: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def error_code(error: MillraceError) -> ErrorCode:
    """The code that tells a client of this failure."""
    return WIRE_ERRORS.get(type(error), ErrorCode.UNKNOWN_SERVER_ERROR)


def error_message(error: MillraceError) -> str | None:
    """What a client may read about this failure; our own bugs keep their details to the log."""
    code = error_code(error)
    return code.message if code is ErrorCode.UNKNOWN_SERVER_ERROR else str(error)


def record_errors(error: MillraceError) -> tuple[tuple[int, str | None], ...]:
    """Which records of a refused batch are to blame, where that is known."""
    return error.record_errors if isinstance(error, InvalidRecords) else ()
