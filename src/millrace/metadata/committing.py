"""The image of the metadata as this broker has it: follows the store, and commits what is decided on it.

It decides a command on the present image, commits the change with its compares, and decides again when
somebody else was faster. `service` knows which commands there are.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from millrace.core.background import Background
from millrace.metadata import records
from millrace.metadata.batching import Batch, Step, decide_all, in_transactions
from millrace.metadata.commands import Command, Policy
from millrace.metadata.errors import (
    Conflict,
    MetadataError,
    StoreRefused,
    StoreUnavailable,
    StoreWentBack,
    TooManyConflicts,
    WatchLost,
)
from millrace.metadata.fold import fold, image_of
from millrace.metadata.image import EMPTY, Image
from millrace.metadata.leadership import PartitionUpdate
from millrace.metadata.store import Compare, Snapshot, Store

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 20
"""How often one command races against other writers. Each lost race means that somebody else went on."""
RETRY_MS: Final = 100
RETRY_MS_MAX: Final = 5_000
OPEN_MS_MAX: Final = 30_000
"""How long a broker waits for its store when it starts."""
CATCH_UP_MS_MAX: Final = 30_000
"""How long a change that is in the store may take to come back through the watch."""

COMMITS_AT_ONCE: Final = 16
"""So many transactions are under way when many partitions change: the store writes waiting ones together."""

T = TypeVar("T")
ImageCallback = Callable[[Image, Image], None]


@dataclass(slots=True)
class _Done:
    """What became of transactions that were under way side by side."""

    revision: int = 0
    partitions: int = 0
    lost: int = 0
    is_failed: bool = False


class CommittedImage:
    """Constructing it starts nothing; `begin` loads the image and follows the store until `close`."""

    def __init__(
        self,
        store: Store,
        *,
        policy: Callable[[], Policy],
        chance: random.Random,
    ) -> None:
        self.image: Image = EMPTY
        self._wait_until_applied: Callable[[int], Awaitable[None]] = _at_once
        self._store = store
        self._policy = policy
        self._chance = chance
        self._callbacks: list[ImageCallback] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._follower: asyncio.Task[None] | None = None

    async def begin(self, background: Background) -> None:
        """Open the store, load the image, and follow the store in the background."""
        self._replace_image(image_of(await self._open_store()))
        # A broker that hears nothing of the cluster would act on an old image, so a failure here is fatal.
        self._follower = background.keep(
            "metadata-follow",
            self._follow,
            fatal=(StoreWentBack,),
            give_up=lambda error: background.cannot_go_on("metadata-follow", error),
        )

    async def _open_store(self) -> Snapshot:
        """Open the store and load what it holds. Brokers may start together with the store, or before it, so
        this gives it time to come up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OPEN_MS_MAX / 1000
        while True:
            try:
                await self._store.open()
                return await self._store.load()
            except StoreRefused as refused:
                if refused.status not in ("UNAVAILABLE", "DEADLINE_EXCEEDED") or loop.time() >= deadline:
                    raise
                log.warning("the metadata store does not answer yet, and the broker tries again: %s", refused)
            await asyncio.sleep(self._chance.uniform(0.5, 1.0))

    async def close(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
        await self._store.close()

    def subscribe(self, callback: ImageCallback) -> Callable[[], None]:
        """Call back with (old, new) after every change, on the loop, before commands return. Returns a
        function that ends this.

        The callback must neither block nor raise."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def applied_by(self, wait_until_applied: Callable[[int], Awaitable[None]]) -> None:
        """Let local commands wait, from now on, until this broker has made their revision so."""
        self._wait_until_applied = wait_until_applied

    # Committing.

    async def submit(
        self,
        commands: Sequence[Command],
        outcome_of: Callable[[int, Image, Image], T],
        *,
        validate_only: bool = False,
        is_local: bool = True,
    ) -> list[T | MetadataError]:
        """Decide and commit commands, and wait until the image has them; with `is_local` also until this
        broker has made that image so."""
        outcomes: list[T | MetadataError] = []
        revision = 0
        attempts = 0
        while len(outcomes) < len(commands):
            image = self.image
            batch = decide_all(
                image,
                commands,
                self._policy(),
                first=len(outcomes),
                operations_max=self._store.operations_max,
                outcome_of=outcome_of,
            )
            if not validate_only:
                try:
                    revision = max(revision, await self._commit(batch))
                except Conflict as conflict:
                    attempts += 1
                    if attempts >= ATTEMPTS_MAX:
                        raise TooManyConflicts(f"{conflict} ({attempts} attempts)") from conflict
                    await self.wait_for_revision(image.revision + 1)
                    continue
            outcomes += batch.outcomes
        await self.wait_for_revision(revision)
        if is_local and revision:
            await self._wait_until_applied(revision)
        return outcomes

    async def update(
        self, plan: Callable[[Image], list[PartitionUpdate]], controller_revision: int = 0
    ) -> int:
        """Write what the plan wants, many partitions in each transaction and many transactions at once; plan
        again where somebody else was faster. Returns how many partitions changed.

        The transactions are independent of each other: every partition's change stands for itself."""
        guards: tuple[Compare, ...] = ()
        if controller_revision:
            guards = (Compare(records.CONTROLLER_KEY, controller_revision),)
        count = attempts = 0
        while True:
            image = self.image
            if controller_revision and image.controller_revision != controller_revision:
                # Another controller is in office, and sees to the rest.
                return count
            updates = plan(image)
            if not updates:
                return count
            done = _Done()
            # Steps are encoded while others are under way: neither store nor broker waits for the other.
            steps = in_transactions(updates, guards, operations_max=self._store.operations_max)
            for outcome in await asyncio.gather(
                *(self._commit_each(steps, done) for _ in range(COMMITS_AT_ONCE)), return_exceptions=True
            ):
                if isinstance(outcome, BaseException):
                    raise outcome
            count += done.partitions
            revision = done.revision
            if done.lost:
                attempts += 1
                if attempts >= ATTEMPTS_MAX:
                    raise TooManyConflicts(f"{done.lost} changes of partitions ({attempts} attempts)")
                revision = max(revision, image.revision + 1)
            await self.wait_for_revision(revision)

    async def _commit_each(self, steps: Iterator[Step], done: _Done) -> None:
        """Commit one transaction after the other, as long as some are left and none has failed."""
        for step in steps:
            if done.is_failed:
                return
            try:
                revision = await self._store.commit(compares=step.compares, puts=step.puts)
            except Conflict:
                done.lost += 1
            except MetadataError:
                done.is_failed = True
                raise
            else:
                done.revision = max(done.revision, revision)
                done.partitions += len(step.puts)

    async def _commit(self, batch: Batch[T]) -> int:
        revision = begun_at = 0
        for step in batch.steps:
            compares = step.compares
            if step.begun_as:
                compares = (*compares, Compare(step.begun_as, begun_at))
            revision = await self._store.commit(compares=compares, puts=step.puts, deletes=step.deletes)
            begun_at = begun_at or revision
        return revision

    async def wait_for_revision(self, revision: int) -> None:
        """Return when the image has come to this revision. Raises StoreUnavailable when that takes too
        long."""
        if self.image.revision >= revision:
            return
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, arrived))
        try:
            async with asyncio.timeout(CATCH_UP_MS_MAX / 1000):
                await arrived
        except TimeoutError:
            raise StoreUnavailable(f"the change of revision {revision} did not come back in time") from None
        finally:
            self._waiting = [entry for entry in self._waiting if entry[1] is not arrived]

    # Following.

    async def _follow(self) -> None:
        """Fold what the store reports, reload what was missed, and outlive any outage of the store."""
        delay_ms = RETRY_MS
        while True:
            try:
                async for change in self._store.watch(self.image.revision):
                    delay_ms = RETRY_MS
                    self._replace_image(fold(self.image, change))
            except WatchLost as lost:
                log.warning("the broker loads the metadata again: %s", lost)
                await self._reload()
            except StoreUnavailable as error:
                log.warning(
                    "the metadata store does not answer, and the broker tries again in %d ms: %s",
                    delay_ms,
                    error,
                )
                await asyncio.sleep(delay_ms * self._chance.uniform(0.5, 1.0) / 1000)
                delay_ms = min(2 * delay_ms, RETRY_MS_MAX)

    async def _reload(self) -> None:
        try:
            snapshot = await self._store.load()
        except StoreUnavailable:
            # The next watch fails in the same way, and then waits.
            return
        if snapshot.revision < self.image.revision:
            raise StoreWentBack(seen=self.image.revision, found=snapshot.revision)
        self._replace_image(image_of(snapshot))

    def _replace_image(self, image: Image) -> None:
        old = self.image
        if image.revision < old.revision:
            raise StoreWentBack(seen=old.revision, found=image.revision)
        self.image = image
        failure: Exception | None = None
        for callback in list(self._callbacks):
            try:
                callback(old, image)
            except Exception as error:  # noqa: BLE001 - raised below, when everybody knows the image
                failure = failure or error
        for revision, arrived in self._waiting:
            if revision <= image.revision and not arrived.done():
                arrived.set_result(None)
        if failure is not None:
            raise failure


async def _at_once(_revision: int) -> None:
    """Stands in while no reconciler makes images so: there is nothing to wait for."""
