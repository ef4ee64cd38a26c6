"""A cluster that keeps what belongs to security in memory, and answers as a real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from millrace.cli import broker_requests
from millrace.cli.main import CLI
from millrace.security.acls.binding import Acl, Operation, PatternType, Permission, ResourceType
from millrace.security.acls.filters import AclFilter
from millrace.security.config_resources import LISTS, MEMBERS, PREFIX, ROLE_TYPE, joined, split
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from tests.unit.cli.fakes import FakeBroker

END_MS = 1_800_000_000_000


class FakeCluster:
    """Behind `connected` of every command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.acls: list[Acl] = []
        self.named: dict[tuple[int, str], dict[str, str]] = {}
        self.users: dict[str, dict[int, Any]] = {}
        self.quotas: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = {}
        self.settings: dict[str, str | None] = {"super.users": "User:root"}
        self.list_version = 1
        self.refused = 0
        self.broker = FakeBroker(
            {
                ApiKey.API_VERSIONS: self._versions,
                ApiKey.DESCRIBE_ACLS: self._describe_acls,
                ApiKey.CREATE_ACLS: self._create_acls,
                ApiKey.DELETE_ACLS: self._delete_acls,
                ApiKey.LIST_CONFIG_RESOURCES: self._list_named,
                ApiKey.DESCRIBE_CONFIGS: self._describe_configs,
                ApiKey.INCREMENTAL_ALTER_CONFIGS: self._alter_configs,
                ApiKey.METADATA: lambda _: SimpleNamespace(brokers=[SimpleNamespace(node_id=7)]),
                ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self._describe_users,
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self._alter_users,
                ApiKey.DESCRIBE_CLIENT_QUOTAS: self._describe_quotas,
                ApiKey.ALTER_CLIENT_QUOTAS: self._alter_quotas,
                ApiKey.CREATE_DELEGATION_TOKEN: self._create_token,
                ApiKey.DESCRIBE_DELEGATION_TOKEN: self._describe_tokens,
                ApiKey.RENEW_DELEGATION_TOKEN: self._token_changed,
                ApiKey.EXPIRE_DELEGATION_TOKEN: self._token_changed,
            }
        )
        monkeypatch.setattr(broker_requests, "connected", self.broker.connected)

    def run(self, *words: str, stdin: str | bytes = "") -> Result:
        return CliRunner().invoke(CLI, list(words), input=stdin)

    def done(self, *words: str, stdin: str | bytes = "") -> str:
        result = self.run(*words, stdin=stdin)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    def failed(self, *words: str, stdin: str | bytes = "") -> str:
        """What a command that fails says."""
        result = self.run(*words, stdin=stdin)
        assert result.exit_code != 0, result.output
        return result.output + ("" if result.exception is None else str(result.exception))

    def json(self, *words: str) -> list[Any]:
        return [orjson.loads(line) for line in self.done(*words, "--json").splitlines()]

    def allow(self, principal: str, operation: Operation, kind: ResourceType, name: str) -> None:
        literal, anywhere = PatternType.LITERAL, "*"
        self.acls.append(Acl(kind, name, literal, principal, anywhere, operation, Permission.ALLOW))

    # Answers.

    def _versions(self, _request: Any) -> Any:
        served = SimpleNamespace(
            api_key=ApiKey.LIST_CONFIG_RESOURCES, min_version=0, max_version=self.list_version
        )
        return SimpleNamespace(api_keys=[served])

    def _describe_acls(self, request: Any) -> Any:
        wanted = AclFilter(
            ResourceType(request.resource_type_filter),
            request.resource_name_filter,
            PatternType(request.pattern_type_filter),
            request.principal_filter,
            request.host_filter,
            Operation(request.operation),
            Permission(request.permission_type),
        )
        resources = [
            SimpleNamespace(
                resource_type=int(acl.resource_type),
                resource_name=acl.name,
                pattern_type=int(acl.pattern),
                acls=[_entry(acl)],
            )
            for acl in self.acls
            if wanted.matches(acl)
        ]
        return SimpleNamespace(error_code=self.refused, error_message=None, resources=resources)

    def _create_acls(self, request: Any) -> Any:
        results = []
        for each in request.creations:
            if self.refused:
                results.append(SimpleNamespace(error_code=self.refused, error_message="not by you"))
                continue
            self.acls.append(
                Acl(
                    ResourceType(each.resource_type),
                    each.resource_name,
                    PatternType(each.resource_pattern_type),
                    each.principal,
                    each.host,
                    Operation(each.operation),
                    Permission(each.permission_type),
                )
            )
            results.append(SimpleNamespace(error_code=0, error_message=None))
        return SimpleNamespace(results=results)

    def _delete_acls(self, request: Any) -> Any:
        results = []
        for each in request.filters:
            doomed = Acl(
                ResourceType(each.resource_type_filter),
                each.resource_name_filter,
                PatternType(each.pattern_type_filter),
                each.principal_filter,
                each.host_filter,
                Operation(each.operation),
                Permission(each.permission_type),
            )
            self.acls.remove(doomed)
            found = _entry(doomed, error_code=0, error_message=None)
            found.resource_type, found.resource_name = int(doomed.resource_type), doomed.name
            found.pattern_type = int(doomed.pattern)
            results.append(SimpleNamespace(error_code=0, error_message=None, matching_acls=[found]))
        return SimpleNamespace(filter_results=results)

    def _list_named(self, request: Any) -> Any:
        (kind,) = request.resource_types
        found = [
            SimpleNamespace(resource_type=each, resource_name=name)
            for each, name in self.named
            if each == kind
        ]
        return SimpleNamespace(error_code=self.refused, config_resources=found)

    def _describe_configs(self, request: Any) -> Any:
        results = []
        for each in request.resources:
            values = (
                self.settings
                if each.resource_type == 4
                else self.named[each.resource_type, each.resource_name]
            )
            configs = [SimpleNamespace(name=name, value=value) for name, value in values.items()]
            results.append(
                SimpleNamespace(
                    error_code=0, error_message=None, resource_name=each.resource_name, configs=configs
                )
            )
        return SimpleNamespace(results=results)

    def _alter_configs(self, request: Any) -> Any:
        (each,) = request.resources
        key = each.resource_type, each.resource_name
        maker = MEMBERS if each.resource_type == ROLE_TYPE else PREFIX
        names = [config.name for config in each.configs]
        code = ErrorCode.INVALID_REQUEST if len(set(names)) < len(names) else 0
        for config in each.configs if not code else ():
            if config.name == maker and config.config_operation == 1:
                del self.named[key]
                continue
            values = self.named.setdefault(key, {})
            match config.config_operation:
                case 0:
                    values[config.name] = config.value
                case 1:
                    values.pop(config.name, None)
                case operation:
                    assert config.name in LISTS
                    present = split(values.get(config.name, ""))
                    given = split(config.value)
                    rest = tuple(name for name in present if name not in given)
                    values[config.name] = joined((*rest, *given) if operation == 2 else rest)
        return SimpleNamespace(
            responses=[SimpleNamespace(error_code=code, error_message="one change for each")]
        )

    def _describe_users(self, request: Any) -> Any:
        wanted = list(self.users) if request.users is None else [each.name for each in request.users]
        results = []
        for name in wanted:
            infos = [
                SimpleNamespace(mechanism=mechanism, iterations=each.iterations)
                for mechanism, each in self.users.get(name, {}).items()
            ]
            code = 0 if name in self.users else int(ErrorCode.RESOURCE_NOT_FOUND)
            results.append(
                SimpleNamespace(user=name, error_code=code, error_message=None, credential_infos=infos)
            )
        return SimpleNamespace(error_code=0, error_message=None, results=results)

    def _alter_users(self, request: Any) -> Any:
        for each in request.upsertions:
            self.users.setdefault(each.name, {})[each.mechanism] = each
        for each in request.deletions:
            del self.users[each.name][each.mechanism]
        self.users = {name: kinds for name, kinds in self.users.items() if kinds}
        result = SimpleNamespace(user="u", error_code=self.refused, error_message=None)
        return SimpleNamespace(results=[result])

    def _describe_quotas(self, request: Any) -> Any:
        wanted = [(each.entity_type, each.match) for each in request.components]
        entries = [
            SimpleNamespace(
                entity=[SimpleNamespace(entity_type=kind, entity_name=name) for kind, name in whom],
                values=[SimpleNamespace(key=key, value=value) for key, value in limits.items()],
            )
            for whom, limits in self.quotas.items()
            if all(part in whom for part in wanted)
        ]
        return SimpleNamespace(error_code=0, error_message=None, entries=entries)

    def _alter_quotas(self, request: Any) -> Any:
        (entry,) = request.entries
        whom = tuple((part.entity_type, part.entity_name) for part in entry.entity)
        limits = self.quotas.setdefault(whom, {})
        for op in entry.ops:
            if op.remove:
                limits.pop(op.key, None)
            else:
                limits[op.key] = op.value
        return SimpleNamespace(
            entries=[SimpleNamespace(error_code=self.refused, error_message="no such key")]
        )

    def _create_token(self, request: Any) -> Any:
        return SimpleNamespace(
            error_code=self.refused,
            principal_type=request.owner_principal_type or "User",
            principal_name=request.owner_principal_name or "me",
            token_id="t-1",
            hmac=b"\1geheim\2",
            expiry_timestamp_ms=END_MS,
            max_timestamp_ms=END_MS,
        )

    def _describe_tokens(self, request: Any) -> Any:
        renewer = SimpleNamespace(principal_type="User", principal_name="bob")
        token = SimpleNamespace(
            token_id="t-1",
            principal_type="User",
            principal_name="me" if request.owners is None else request.owners[0].principal_name,
            renewers=[renewer],
            issue_timestamp=END_MS - 1000,
            expiry_timestamp=END_MS,
            max_timestamp=END_MS,
            hmac=b"\1geheim\2",
        )
        return SimpleNamespace(error_code=self.refused, tokens=[token])

    def _token_changed(self, request: Any) -> Any:
        assert request.hmac == b"\1geheim\2"
        return SimpleNamespace(error_code=self.refused, expiry_timestamp_ms=END_MS)


def _entry(acl: Acl, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
        **more,
    )
