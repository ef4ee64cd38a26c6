"""Settings of groups that a broker decides, and that a single group may be given within bounds."""

from __future__ import annotations

from millrace.metadata.config_definitions.model import ConfigType, Range, Setting, Synonym, UpdateMode


def with_bounds(
    kind: str,
    what: str,
    doc: str,
    default: int,
    low: int,
    high: int,
    allowed: Range,
    *,
    deviates: str = "",
    update: UpdateMode = UpdateMode.READ_ONLY,
) -> tuple[Setting, ...]:
    """A broker's value, and the least and the greatest one that a group of a kind may be given."""
    return (
        Setting(
            name=f"group.{kind}.{what}",
            type=ConfigType.INT,
            default=default,
            doc=doc,
            valid=allowed,
            update=update,
        ),
        *(
            Setting(
                name=f"group.{kind}.{bound}.{what}",
                type=ConfigType.INT,
                default=value,
                doc=f"The {word} that a group may be given as {kind}.{what}.",
                valid=allowed,
                deviates=deviates,
            )
            for bound, word, value in (("min", "least", low), ("max", "most", high))
        ),
    )


def like_broker(kind: str, what: str, doc: str, default: int, allowed: Range) -> Setting:
    """What a group of a kind may be given instead of its broker's value."""
    return Setting(
        name=f"{kind}.{what}",
        type=ConfigType.INT,
        default=default,
        doc=doc,
        valid=allowed,
        synonyms=(Synonym(f"group.{kind}.{what}"),),
    )
