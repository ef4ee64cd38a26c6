"""What a pipeline needs from Spark before it starts: Delta, object stores, and the drivers of databases."""

from __future__ import annotations

from millrace.pipeline.declared.language.model import (
    ArchiveSource,
    FileSource,
    JdbcSink,
    JdbcSource,
    Pipeline,
    TableSink,
)
from millrace.pipeline.declared.run.drivers import driver_of


def needs_delta(pipeline: Pipeline) -> bool:
    return any(
        isinstance(part, ArchiveSource)
        or (isinstance(part, FileSource | TableSink) and part.format == "delta")
        for part in (*pipeline.sources.values(), *pipeline.sinks.values())
    )


def locations_of(pipeline: Pipeline) -> list[str]:
    """All folders and URLs that the pipeline reads or writes."""
    parts = (*pipeline.sources.values(), *pipeline.sinks.values())
    places = [part.path for part in parts if isinstance(part, ArchiveSource | FileSource | TableSink)]
    return places if pipeline.checkpoint is None else [*places, pipeline.checkpoint]


def packages_of(pipeline: Pipeline) -> list[str]:
    """The packages that the pipeline names, and drivers for its databases unless it names those too."""
    packages = list(pipeline.packages)
    for part in (*pipeline.sources.values(), *pipeline.sinks.values()):
        driver = driver_of(part.url) if isinstance(part, JdbcSource | JdbcSink) else None
        if driver is not None and not any(driver.artifact in package for package in packages):
            packages.append(driver.package)
    return list(dict.fromkeys(packages))
