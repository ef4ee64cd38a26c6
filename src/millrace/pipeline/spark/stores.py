"""Object stores by URL: what Spark needs for the store of a scheme, and how pyarrow reaches the same one.

Spark goes through Hadoop's file systems, which are jars of their own. The data source's reader of archives
works in plain Python processes and goes through pyarrow; both take the same names for the same settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.client.errors import InvalidOption
from millrace.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

STORE_OPTIONS: Final = (
    "fs.s3a.endpoint",
    "fs.s3a.endpoint.region",
    "fs.s3a.access.key",
    "fs.s3a.secret.key",
    "fs.s3a.session.token",
)
"""Options of the data source that name a store, as Hadoop spells them."""

_S3_SCHEMES: Final = ("s3", "s3a")
_S3_JAR: Final = "hadoop-aws"
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
# A store that is not Amazon's takes any region, but signing needs one.
_ANY_REGION: Final = "us-east-1"
_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):")
_ENDPOINT: Final = re.compile(r"(?:(?P<scheme>https?)://)?(?P<address>[^/\s]+)/?")


class StoreUnavailable(PipelineError):
    """Spark has no file system for a URL; the message says which jar to add."""


@dataclass(frozen=True, slots=True)
class Connector:
    """The jar that gives Hadoop the file system of a scheme. We neither bring nor test these."""

    jar: str
    package: str
    settings: str


_CONNECTORS: Final = {
    "gs": Connector(
        "gcs-connector",
        "com.google.cloud.bigdataoss:gcs-connector:4.0.9",
        "spark.hadoop.fs.gs.impl=com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    ),
    "abfs": Connector(
        "hadoop-azure",
        "org.apache.hadoop:hadoop-azure:{hadoop}",
        "spark.hadoop.fs.azure.account.key.ACCOUNT.dfs.core.windows.net=KEY",
    ),
}
_CONNECTORS["abfss"] = _CONNECTORS["abfs"]


def scheme_of(location: str) -> str | None:
    """The scheme of a URL; None for a folder."""
    match = _SCHEME.match(location.strip())
    return None if match is None else match["scheme"].lower()


def needs_s3_jars(locations: Iterable[str], brought: str, shipped: Iterable[str]) -> bool:
    """Whether one of the places is in S3 and nobody has brought its file system yet."""
    return any(scheme_of(each) in _S3_SCHEMES for each in locations) and not _has(_S3_JAR, brought, shipped)


def require_connectors(
    locations: Iterable[str], brought: str, shipped: Iterable[str], hadoop_version: str
) -> None:
    """Raise for a place whose file system is a jar that neither Spark has nor the user brings."""
    shipped = list(shipped)
    for location in locations:
        scheme = scheme_of(location) or ""
        connector = _CONNECTORS.get(scheme)
        if connector is not None and not _has(connector.jar, brought, shipped):
            package = connector.package.format(hadoop=hadoop_version)
            raise StoreUnavailable(
                f"{location}: Spark has no file system for {scheme}: URLs. Add one, and its credentials, by"
                f" --spark-conf spark.jars.packages={package} --spark-conf {connector.settings}"
            )


def spark_defaults() -> dict[str, str]:
    # The reader that Hadoop 3.5 uses by default keeps an entry for every object it has ever read
    # (HADOOP-20058), and an archive may run for months.
    return {"spark.hadoop.fs.s3a.input.stream.type": "classic"}


def s3_settings(endpoint: str | None) -> dict[str, str]:
    """Spark's settings for an S3 that is not Amazon's; none where no endpoint is named."""
    if endpoint is None:
        return {}
    scheme, address = _endpoint(endpoint)
    return {
        "spark.hadoop.fs.s3a.endpoint": f"{scheme}://{address}",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": str(scheme == "https").lower(),
        # Few such servers have a name for each bucket.
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.endpoint.region": _variable(_REGION_VARIABLES) or _ANY_REGION,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAccess:
    """How a Python process reaches S3. What is not given comes from the environment, as everywhere."""

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None

    def open_s3(self, place: str) -> tuple[FileSystem, str]:
        """The file system of `BUCKET/PATH`, and that path inside it."""
        from pyarrow.fs import S3FileSystem, resolve_s3_region

        endpoint = self.endpoint or _variable(_ENDPOINT_VARIABLES)
        region = self.region or _variable(_REGION_VARIABLES)
        keys = {
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "session_token": self.session_token,
        }
        if endpoint is None:
            return S3FileSystem(region=region or resolve_s3_region(place.partition("/")[0]), **keys), place
        scheme, address = _endpoint(endpoint)
        store = S3FileSystem(endpoint_override=address, scheme=scheme, region=region or _ANY_REGION, **keys)
        return store, place


FROM_ENVIRONMENT: Final = StoreAccess()


def read_store_access(values: Mapping[str, str]) -> StoreAccess:
    """The data source's options about a store, by lower-case names."""
    access, secret = values.get("fs.s3a.access.key"), values.get("fs.s3a.secret.key")
    if (access is None) != (secret is None):
        raise InvalidOption("fs.s3a.access.key and fs.s3a.secret.key go together: one is missing")
    endpoint = values.get("fs.s3a.endpoint")
    if endpoint is not None:
        _endpoint(endpoint)
    return StoreAccess(
        endpoint=endpoint,
        region=values.get("fs.s3a.endpoint.region"),
        access_key=access,
        secret_key=secret,
        session_token=values.get("fs.s3a.session.token"),
    )


def _has(jar: str, brought: str, shipped: Iterable[str]) -> bool:
    return jar in brought or any(name.startswith(f"{jar}-") for name in shipped)


def _endpoint(text: str) -> tuple[str, str]:
    """Scheme and address; https where none is named, as in Hadoop."""
    match = _ENDPOINT.fullmatch(text.strip())
    if match is None:
        raise InvalidOption(f"{text!r} is no endpoint of a store: must be such as http://127.0.0.1:9000")
    return match["scheme"] or "https", match["address"]


def _variable(names: Iterable[str]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
