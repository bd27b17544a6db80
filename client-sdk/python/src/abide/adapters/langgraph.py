"""LangGraph checkpoints in Abide.

```python
from abide.adapters.langgraph import AbideSaver

with AbideSaver.open("agents.db") as saver:
    graph = builder.compile(checkpointer=saver)
```

In a coroutine: `AbideSaver(client)` with an `abide.Abide`. A thread is a collection `langgraph/<thread id>` with these entries:

| key | contents |
|---|---|
| `c/<namespace>/<checkpoint id>` | a checkpoint with its metadata, its small values, and the changes of its lists |
| `v/<namespace>/<channel>/<checkpoint id>` | a large value, or the large new items of a list |
| `w/<namespace>/<checkpoint id>/<task id>/<index>` | a write; several of a task have `<first>-<last>` |

`langgraph_entries` has their bytes, and `langgraph_keys` shortens ids. Entries are not replaced, because others refer to
them, except those of writes with a negative index, and a checkpoint that is stored again or deleted.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import logging
import os
import random
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from types import TracebackType
from typing import Any, cast

from ..extras import extra

with extra("langgraph"):
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        DeltaChannelHistory,
        get_checkpoint_id,
        get_checkpoint_metadata,
        writes_sort_key,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol

from .. import sync
from ..client import Abide
from ..errors import ConflictError, LimitExceededError, MalformedEntryError
from .bridge import Bridge
from .collection import Collections, escape, path, put, unescape
from .langgraph_chains import Chains
from .langgraph_copying import copy
from .langgraph_entries import (
    MOST_IN_ENTRY,
    CheckpointEntry,
    Entries,
    Value,
    WriteEntry,
    value_to_json,
    write_checkpoint,
    write_writes,
)
from .langgraph_keys import (
    checkpoint_key,
    entry_key,
    long_id,
    short_id,
    time_after,
    time_at,
    value_key,
    version_count,
    version_prefix,
    writes_prefix,
)
from .langgraph_pruning import Pruning
from .langgraph_serde import AllowedTypes, StrictSerializer
from .langgraph_values import Encoded, Known, Pending, Place, Values
from .untrusted import Budget, decoding
from .writer import Entry, Write

_KIND = "langgraph"

_SMALL_TEXT = 64

# The bytes of all values in the entry of a checkpoint.
_MOST_IN_CHECKPOINT = 16 << 10

_ATTEMPTS = 5

# A checkpoint, its pending writes, and the versions of the entries whose values the caller probably knows.
_LATEST = """WITH head AS (
  SELECT key, data, blob, seq FROM entries
  WHERE collection_id = :c AND key >= :first AND key < :end AND json_extract(data, '$.x') IS NULL ORDER BY key DESC LIMIT 1)
SELECT key, data, blob, seq FROM head
UNION ALL
SELECT e.key, e.data, e.blob, e.seq FROM head, entries AS e
WHERE e.collection_id = :c AND e.key >= 'w' || substr(head.key, 2) || '/' AND e.key < 'w' || substr(head.key, 2) || '0'
UNION ALL
SELECT e.key, NULL, NULL, e.seq FROM json_each(:expected) AS x JOIN entries AS e ON e.collection_id = :c AND e.key = x.value"""

MAX_BYTES = 64 << 20
"""How many bytes the values of one checkpoint may have, unless the saver has another limit."""

_LOG = logging.getLogger("abide")

_KEYS_OF_THREAD = (
    "SELECT key FROM entries WHERE collection_id = :c AND key >= :first AND key < :end AND key > :after"
    " AND json_extract(data, '$.x') IS NULL ORDER BY key LIMIT 10000"
)

_THREADS = "SELECT id FROM collections WHERE kind = :kind AND id > :after ORDER BY id LIMIT 10000"

_OF_RUNS = """SELECT e.collection_id, e.key FROM collections AS c
  JOIN entries AS e ON e.collection_id = c.id AND e.key >= 'c/' AND e.key < 'c0'
WHERE c.kind = :kind AND json_extract(e.data, '$.r') IN (SELECT value FROM json_each(:runs))"""

_ONE = "SELECT key, data, blob, seq FROM entries WHERE collection_id = :c AND key = :key"


class AbideSaver(BaseCheckpointSaver[str]):
    """Stores checkpoints in Abide: each acknowledged checkpoint is on disk, and the storage of a thread grows linearly."""

    def __init__(
        self,
        client: Abide | sync.Abide,
        *,
        serde: SerializerProtocol | None = None,
        allowed_types: AllowedTypes = (),
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Makes a saver over a client. With an `abide.Abide` only the asynchronous methods can be used on its own loop.

        Args:
            client: the client.
            serde: a serializer in place of `StrictSerializer(allowed_types)`. Every caller of the scope can write what it reads.
            allowed_types: own classes of the state that a load makes; of others it returns the data.
            max_bytes: how many bytes the values of one checkpoint may have, without compression.
        """
        super().__init__(serde=StrictSerializer(allowed_types) if serde is None else serde)
        self._bridge = Bridge(client)
        self._collections = Collections.for_client(self._bridge.client, _KIND)
        self._values = Values(self.serde, max_bytes)
        self._chains = Chains(self._bridge.client)

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        allowed_types: AllowedTypes = (),
        max_bytes: int = MAX_BYTES,
    ) -> AbideSaver:
        """Returns a saver over a database file, with its own client. Close it, or use it in `with`."""
        return AbideSaver(sync.Abide.open(path), serde=serde, allowed_types=allowed_types, max_bytes=max_bytes)

    def close(self) -> None:
        """Closes the client of `open`."""
        self._bridge.close()

    def __enter__(self) -> AbideSaver:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> AbideSaver:
        """Returns a clone whose serializer also reads these types."""
        clone = cast(AbideSaver, super().with_allowlist(extra_allowlist))
        if clone is not self:
            clone._values = Values(clone.serde, self._values.max_bytes)
        return clone

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Returns the next version of a channel."""
        return version_prefix(1 + (0 if current is None else version_count(str(current))))

    # Reading.

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns the checkpoint of a configuration, or the latest of its thread."""
        return await self._bridge.arun(self._get_tuple(config))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `aget_tuple`."""
        return self._bridge.run(self._get_tuple(config))

    async def _get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        thread_id = str(config["configurable"]["thread_id"])
        namespace = config["configurable"].get("checkpoint_ns", "")
        collection = await self._collections.stored_id(thread_id)
        checkpoint_id = get_checkpoint_id(config)
        if checkpoint_id:
            return await self._load(collection, thread_id, checkpoint_key(namespace, checkpoint_id), config)
        return await self._load(collection, thread_id, path("c", namespace) + "/", None)

    async def _load(self, collection: str, thread_id: str, key: str, config: RunnableConfig | None) -> CheckpointTuple | None:
        """Returns the checkpoint with a key; the last one if the key is a prefix.

        Raises:
            MalformedEntryError: no saver wrote it.
            LimitExceededError: its values are too large.
        """
        try:
            return await self._load_once(collection, thread_id, key, config)
        except MalformedEntryError:
            # Several statements have read it, and another process may have deleted it in between.
            return await self._load_once(collection, thread_id, key, config)

    async def _load_once(self, collection: str, thread_id: str, key: str, config: RunnableConfig | None) -> CheckpointTuple | None:
        end = key[:-1] + "0" if key.endswith("/") else key + "\0"
        self._values.check_timeline(self._collections.client.timeline)
        expected = json.dumps(self._values.expected(collection, key))
        params = {"c": collection, "first": key, "end": end, "expected": expected}
        rows: builtins.list[tuple[Any, ...]] = (await self._collections.client.sql(_LATEST, params)).cells
        self._values.check_timeline(self._collections.client.timeline)
        if not rows:
            return None
        with decoding(f"the checkpoint {rows[0][0]!r} of {collection!r}"):
            return await self._decode(collection, thread_id, rows, config)

    async def _decode(
        self, collection: str, thread_id: str, rows: builtins.list[tuple[Any, ...]], config: RunnableConfig | None
    ) -> CheckpointTuple:
        """Returns a checkpoint from its entry, its pending writes and its values."""
        entries = Entries(Budget(self._values.max_bytes))
        seqs: dict[str, int] = {}
        for name, data, blob, seq in rows:
            seqs[name] = seq
            if not (data is None and blob is None):
                entries.add(name, data, blob, seq)
        key: str = rows[0][0]
        stored = entries.checkpoint(key)
        _, namespace, short = key.split("/")
        checkpoint_id = long_id(short)
        checkpoint, metadata, inline = self._values.load(stored.kind, stored.head)
        checkpoint["id"] = checkpoint_id
        if type(checkpoint["ts"]) is int:
            checkpoint["ts"] = time_at(checkpoint_id, checkpoint["ts"])
        names = {channel: f"{key}/{channel}" for channel in stored.own} | stored.places
        values: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for channel, name in names.items():
            found = self._values.remembered(collection, f"{namespace}/{channel}", name, seqs.get(entry_key(name), 0))
            if found is None:
                missing[channel] = name
            else:
                [values[unescape(channel)]] = found
        writes = [f"{key}/{name}" for name in stored.writes] + [name for name in entries.stored if name.startswith("w/")]
        await self._chains.complete(collection, entries, [*missing.values(), *writes])
        for channel, name in missing.items():
            values[unescape(channel)] = self._values.decode(collection, f"{namespace}/{channel}", name, entries)
        checkpoint["channel_values"] = {**inline, **values}
        versions = checkpoint["channel_versions"]
        places = {channel: Place(versions.get(unescape(channel)), name) for channel, name in names.items()}
        self._values.remember(collection, key, Known(seqs[key], places))
        return CheckpointTuple(
            config or _config(thread_id, unescape(namespace), checkpoint_id),
            checkpoint,
            metadata,
            _config(thread_id, unescape(namespace), long_id(stored.parent)) if stored.parent else None,
            self._writes(entries, writes),
        )

    def _writes(self, entries: Entries, keys: builtins.list[str]) -> builtins.list[tuple[str, str, Any]]:
        """Returns the pending writes in entries, in the order of their tasks."""
        found: dict[tuple[str, int], tuple[Any, tuple[str, str, Any]]] = {}
        # The first write with an index counts; a special one has been replaced by the latest.
        for key in sorted(keys, key=lambda key: (key.startswith("w/") and entries.stored[key].seq, len(key), key)):
            entry = entries.write(key)
            value = self._values.load(entry.value.kind, entries.raw(key))
            *_, task, index = key.split("/")
            task_id = long_id(task)
            if isinstance(entry.channels, str):
                channels, values, indexes = [entry.channels], [value], [int(index)]
            else:
                channels, values = entry.channels, value
                indexes = entry.indexes or [*range(len(channels))]
            for at, channel, one in zip(indexes, channels, values, strict=True):
                order = writes_sort_key(entry.path, task_id, at)
                found.setdefault((task_id, at), (order, (task_id, channel, one)))
        return [write for _, write in sorted(found.values(), key=itemgetter(0))]

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yields the checkpoints of a thread, or of all threads, the latest first."""
        found = await self._bridge.arun(self._keys(config, before))
        count = 0
        for thread_id, collection, key in found:
            if limit is not None and count >= limit:
                return
            loaded = await self._bridge.arun(self._load_listed(collection, thread_id, key, config))
            if loaded is not None and _matches(loaded.metadata, filter):
                count += 1
                yield loaded

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """See `alist`."""
        count = 0
        for thread_id, collection, key in self._bridge.run(self._keys(config, before)):
            if limit is not None and count >= limit:
                return
            loaded = self._bridge.run(self._load_listed(collection, thread_id, key, config))
            if loaded is not None and _matches(loaded.metadata, filter):
                count += 1
                yield loaded

    async def _load_listed(
        self, collection: str, thread_id: str, key: str, config: RunnableConfig | None
    ) -> CheckpointTuple | None:
        """Returns a checkpoint of a list; `None` if the list is that of all threads, and the checkpoint is malformed."""
        try:
            return await self._load(collection, thread_id, key, None)
        except (MalformedEntryError, LimitExceededError) as exc:
            if config is not None and "thread_id" in config["configurable"]:
                raise
            _LOG.warning("a checkpoint is omitted: %s", exc)
            return None

    async def _keys(self, config: RunnableConfig | None, before: RunnableConfig | None) -> builtins.list[tuple[str, str, str]]:
        """Returns thread, collection and key of checkpoints, the latest first."""
        configurable = config["configurable"] if config else {}
        namespace = configurable.get("checkpoint_ns")
        checkpoint_id = get_checkpoint_id(config) if config else None
        before_id = get_checkpoint_id(before) if before else None
        if "thread_id" in configurable:
            threads = [str(configurable["thread_id"])]
        else:
            threads = await self._thread_ids()
        first = "c/" if namespace is None else path("c", namespace) + "/"
        found: builtins.list[tuple[str, str, str, str]] = []
        for thread_id in threads:
            collection = await self._collections.stored_id(thread_id)
            for key in await self._keys_between(collection, first, first[:-1] + "0"):
                try:
                    key_id = long_id(key.rsplit("/", 1)[1])
                except ValueError:
                    _LOG.warning("the entry %r of %r is not a checkpoint", key, collection)
                    continue
                if checkpoint_id not in (None, "", key_id) or (before_id and key_id >= before_id):
                    continue
                found.append((key_id, thread_id, collection, key))
        found.sort(reverse=True)
        return [(thread_id, collection, key) for _, thread_id, collection, key in found]

    async def _keys_between(self, collection: str, first: str, end: str) -> builtins.list[str]:
        keys: builtins.list[str] = []
        while True:
            params = {"c": collection, "first": first, "end": end, "after": keys[-1] if keys else ""}
            page = await self._collections.client.sql(_KEYS_OF_THREAD, params)
            keys += [row[0] for row in page]
            if len(page) < 10_000:
                return keys

    async def _thread_ids(self) -> builtins.list[str]:
        ids: builtins.list[str] = []
        while True:
            params = {"kind": _KIND, "after": ids[-1] if ids else ""}
            page = await self._collections.client.sql(_THREADS, params)
            ids += [row[0] for row in page]
            if len(page) < 10_000:
                named = [self._collections.parts(stored_id) for stored_id in ids]
                return [parts[0] for parts in named if len(parts) == 1]

    # Writing.

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint, and the new versions of its channels."""
        return await self._bridge.arun(self._put(config, checkpoint, metadata, new_versions))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See `aput`."""
        return self._bridge.run(self._put(config, checkpoint, metadata, new_versions))

    async def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        configurable = config["configurable"]
        thread_id, namespace = str(configurable["thread_id"]), configurable.get("checkpoint_ns", "")
        collection = await self._collections.stored_id(thread_id)
        self._values.check_timeline(self._collections.client.timeline)
        try:
            await self._write_checkpoint(collection, config, checkpoint, metadata, new_versions)
        except ConflictError:
            await self._replace_checkpoint(collection, config, checkpoint, metadata)
        return _config(thread_id, namespace, checkpoint["id"])

    async def _replace_checkpoint(
        self, collection: str, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> None:
        """Stores a checkpoint that exists, or whose ancestors another process has deleted. Its values refer to nothing."""
        key = checkpoint_key(config["configurable"].get("checkpoint_ns", ""), checkpoint["id"])
        for attempt in range(1, _ATTEMPTS + 1):
            self._values.forget(collection)
            entries = Entries(Budget(self._values.max_bytes))
            for row in (await self._collections.client.sql(_ONE, {"c": collection, "key": key})).cells:
                entries.add(*cast(tuple[str, Any, Any, int], row))
            try:
                await self._write_checkpoint(collection, config, checkpoint, metadata, {}, entries)
                return
            except ConflictError:
                if attempt == _ATTEMPTS:
                    raise

    async def _write_checkpoint(
        self,
        collection: str,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        earlier: Entries | None = None,
    ) -> None:
        """Writes a checkpoint in place of `earlier`; without it, the checkpoint should not exist."""
        configurable = config["configurable"]
        key = checkpoint_key(configurable.get("checkpoint_ns", ""), checkpoint["id"])
        parent = configurable.get("checkpoint_id")
        parent_key = checkpoint_key(configurable.get("checkpoint_ns", ""), parent) if parent else None
        if earlier is None:
            draft = self._draft(collection, key, checkpoint, _Draft([], {}), new_versions, parent_key)
        else:
            # Other checkpoints may refer to the values of the earlier one.
            before = earlier.checkpoint(key) if earlier.stored else None
            draft = self._draft(collection, key, checkpoint, _Draft(None, dict(before.own) if before else {}), {}, None)
        all_metadata = get_checkpoint_metadata(config, metadata)
        head: dict[str, Any] = {name: part for name, part in checkpoint.items() if name not in ("channel_values", "id")}
        head["ts"] = time_after(checkpoint["id"], checkpoint["ts"])
        kind, raw = self._values.dump((head, all_metadata, draft.inline))
        others = {name: place.name for name, place in draft.places.items() if entry_key(place.name) != key}
        entry = CheckpointEntry(short_id(parent) if parent else None, kind, raw, others, draft.own)
        seq = 0
        if earlier is not None and earlier.stored:
            seq, entry.writes = earlier.stored[key].seq, earlier.checkpoint(key).writes
        data = {"r": all_metadata["run_id"]} if all_metadata.get("run_id") else None
        checkpoint_put = put(key, data, write_checkpoint(key, entry), expected_seq=seq)
        write = await self._begin(collection, [*draft.puts, checkpoint_put], draft.needs, parent_key)
        if write is not None and draft.encoded is not None:
            self._values.remember_write(collection, draft.encoded, write)
            known = Known(write, draft.places, Pending(entry, checkpoint_put, draft.size, parent_key))
            write.done.add_done_callback(known.mark_ended)
            self._values.remember(collection, key, known)
        try:
            await self._wait_for(write)
        except ConflictError:
            # The answer to an earlier attempt may have been lost.
            stored = (await self._collections.client.sql(_ONE, {"c": collection, "key": key})).cells
            if not stored or stored[0][2] != checkpoint_put["blob"]:
                raise

    def _draft(
        self,
        collection: str,
        key: str,
        checkpoint: Checkpoint,
        draft: _Draft,
        new_versions: ChannelVersions,
        parent: str | None,
    ) -> _Draft:
        """Encodes the values of a checkpoint."""
        namespace, short = key.split("/")[1:]
        known = self._values.known(collection, parent)
        # A checkpoint in place of another one must not change the values that others refer to.
        suffix = f".{random.getrandbits(64):x}" if draft.encoded is None else ""
        for channel, value in checkpoint["channel_values"].items():
            if _is_small(value):
                draft.inline[channel] = value
                continue
            name = escape(channel)
            version = checkpoint["channel_versions"].get(channel)
            if known is not None and parent is not None and channel not in new_versions and version is not None:
                place = known.places.get(name)
                if place is not None and place.version == version:
                    draft.places[name] = place
                    draft.needs[parent] = known.written
                    continue
            one = self._values.encode_channel(collection, f"{namespace}/{name}", f"{key}/{name}", value, draft.encoded)
            size = len(one.value.between)
            if size > MOST_IN_ENTRY or draft.size + size > _MOST_IN_CHECKPOINT or name in draft.own:
                one.name = value_key(key, name, short + suffix)
                draft.puts.append(put(one.name, *value_to_json(one.name, one.value), expected_seq=0))
            else:
                draft.own[name] = one.value
                draft.size += size
            draft.places[name] = Place(version, one.name)
            draft.needs |= one.needs
            if draft.encoded is not None:
                draft.encoded.append(one)
        return draft

    async def _begin(
        self, collection: str, puts: builtins.list[Entry], needs: dict[str, Write | int], parent: str | None
    ) -> Write | None:
        """Begins a write that fits one call. A larger one has ended then."""
        write = self._collections.begin(collection, puts, self._values.needs(collection, needs, parent), is_repeatable=True)
        if write is None:
            await self._collections.write(collection, puts, needs=self._values.needs(collection, needs, None))
        return write

    async def _wait_for(self, write: Write | None) -> None:
        if write is not None:
            # Others may wait for the same write.
            write.done.add_done_callback(_retrieve_exception)
            await asyncio.shield(write.done)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Stores the writes of a task, before the checkpoint that includes them."""
        await self._bridge.arun(self._put_writes(config, writes, task_id, task_path))

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """See `aput_writes`."""
        self._bridge.run(self._put_writes(config, writes, task_id, task_path))

    async def _put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str) -> None:
        configurable = config["configurable"]
        collection = await self._collections.stored_id(str(configurable["thread_id"]))
        checkpoint = checkpoint_key(configurable.get("checkpoint_ns", ""), configurable["checkpoint_id"])
        prefix = writes_prefix(checkpoint) + short_id(task_id)
        if not writes:
            return
        self._values.check_timeline(self._collections.client.timeline)
        try:
            await self._write_writes(collection, checkpoint, prefix, writes, task_path, True)
        except ConflictError:
            self._values.forget(collection)
            await self._write_writes(collection, checkpoint, prefix, writes, task_path, False)

    async def _write_writes(
        self, collection: str, checkpoint: str, prefix: str, writes: Sequence[tuple[str, Any]], task_path: str, refers: bool
    ) -> None:
        puts: builtins.list[Entry] = []
        usual: builtins.list[tuple[int, str, Any]] = []
        for at, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, at)
            if index >= 0:
                usual.append((index, channel, value))
            else:
                # A special write, such as an error, replaces the earlier one; others are written once.
                kind, raw = self._values.dump(value)
                key = f"{prefix}/{index}"
                puts.append(put(key, *write_writes(key, WriteEntry(channel, task_path, Value(raw, kind)))))
        encoded: builtins.list[Encoded] = []
        if usual:
            indexes = [index for index, _, _ in usual]
            channels: Any = [channel for _, channel, _ in usual]
            values: Any = [value for _, _, value in usual]
            key = f"{prefix}/{indexes[0]}"
            if len(usual) == 1:
                [channels], [values] = channels, values
            else:
                key += f"-{indexes[-1]}"
            is_usual = len(usual) == 1 or indexes == builtins.list(range(len(indexes)))
            one = self._values.encode(collection, key, values, [] if refers else None)
            entry = WriteEntry(channels, task_path, one.value, None if is_usual else indexes)
            if refers and not puts:
                name = key.removeprefix(writes_prefix(checkpoint))
                joined = self._write_with_checkpoint(collection, checkpoint, name, entry, one)
                if joined is not None:
                    await self._wait_for(joined)
                    return
            # Others can refer to it, so it is never replaced. An earlier one is a conflict if this one has references.
            only = {"expected_seq": 0} if refers else {"keep": True}
            puts.append({**put(key, *write_writes(key, entry)), **only})
            encoded.append(one)
        write = await self._begin(collection, puts, encoded[0].needs if encoded else {}, checkpoint)
        if write is not None and refers:
            self._values.remember_write(collection, encoded, write)
        await self._wait_for(write)

    def _write_with_checkpoint(self, collection: str, checkpoint: str, name: str, entry: WriteEntry, one: Encoded) -> Write | None:
        """Makes writes a part of the entry of their checkpoint, if it is not sent yet: two entries take more space."""
        known = self._values.known(collection, checkpoint)
        if known is None or known.pending is None or not isinstance(known.written, Write) or known.written.is_sent:
            return None
        pending, write = known.pending, known.written
        size = len(entry.value.between)
        if write.done.done() or name in pending.entry.writes or pending.size + size > _MOST_IN_CHECKPOINT:
            return None
        one.name = f"{checkpoint}/{name}"
        pending.entry.writes[name] = entry
        pending.size += size
        pending.put["blob"] = write_checkpoint(checkpoint, pending.entry)
        write.size += size * 2
        needs = {key: written for key, written in one.needs.items() if written is not write}
        write.needs = [*write.needs, *self._values.needs(collection, needs, pending.parent)]
        self._values.remember_write(collection, [one], write)
        return write

    # Deleting and copying.

    async def adelete_thread(self, thread_id: str) -> None:
        """Deletes a thread."""
        await self._bridge.arun(self._delete_thread(thread_id))

    def delete_thread(self, thread_id: str) -> None:
        """See `adelete_thread`."""
        self._bridge.run(self._delete_thread(thread_id))

    async def _delete_thread(self, thread_id: str) -> None:
        collection = await self._collections.stored_id(str(thread_id))
        self._values.forget(collection)
        await self._collections.delete(collection)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints and writes of these runs."""
        await self._bridge.arun(self._delete_for_runs(run_ids))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See `adelete_for_runs`."""
        self._bridge.run(self._delete_for_runs(run_ids))

    async def _delete_for_runs(self, run_ids: Sequence[str]) -> None:
        params = {"kind": _KIND, "runs": json.dumps(list(run_ids))}
        by_collection: dict[str, set[str]] = {}
        for collection, key in await self._collections.client.sql(_OF_RUNS, params):
            by_collection.setdefault(collection, set()).add(key)
        for collection, keys in by_collection.items():
            await self._remove(collection, keys)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies all checkpoints and writes of a thread to another one."""
        await self._bridge.arun(self._copy_thread(source_thread_id, target_thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See `acopy_thread`."""
        self._bridge.run(self._copy_thread(source_thread_id, target_thread_id))

    async def _copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        source = await self._collections.stored_id(str(source_thread_id))
        target = await self._collections.stored_id(str(target_thread_id))
        self._values.forget(target)
        await copy(self._collections, source, target)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Deletes all checkpoints of threads, or all except the latest of each namespace."""
        await self._bridge.arun(self._prune(thread_ids, strategy))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See `aprune`."""
        self._bridge.run(self._prune(thread_ids, strategy))

    async def _prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"{strategy!r} is not a strategy: keep_latest, delete")
        for thread_id in thread_ids:
            if strategy == "delete":
                await self._delete_thread(thread_id)
                continue
            collection = await self._collections.stored_id(str(thread_id))
            keys = await self._keys_between(collection, "c/", "c0")
            latest = {key.rsplit("/", 1)[0]: key for key in keys}
            kept: set[str] = set()
            for key in latest.values():
                kept |= await self._with_ancestors(collection, str(thread_id), key)
            await self._remove(collection, set(keys) - kept)

    async def _with_ancestors(self, collection: str, thread_id: str, key: str) -> set[str]:
        """Returns a checkpoint, and the ancestors from which its delta channels are rebuilt."""
        kept = {key}
        loaded = await self._load(collection, thread_id, key, None)
        if loaded is None:
            return kept
        waiting = set(loaded.metadata.get("counters_since_delta_snapshot") or ())
        waiting -= loaded.checkpoint["channel_values"].keys()
        while waiting and loaded is not None and loaded.parent_config is not None:
            parent = loaded.parent_config["configurable"]
            key = checkpoint_key(parent["checkpoint_ns"], parent["checkpoint_id"])
            if key in kept:
                break
            kept.add(key)
            loaded = await self._load(collection, thread_id, key, None)
            if loaded is not None:
                waiting -= loaded.checkpoint["channel_values"].keys()
        return kept

    async def _remove(self, collection: str, keys: set[str]) -> None:
        """Deletes checkpoints, with their writes, and the values that no other checkpoint needs."""
        self._values.forget(collection)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await Pruning(self._collections, collection, self._values.max_bytes).remove(keys)
                return
            except ConflictError:
                if attempt == _ATTEMPTS:
                    raise

    # Delta channels.

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        """See `aget_delta_channel_history`."""
        return self._bridge.run(self._delta_history(config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Returns the writes of channels since their nearest stored value, along the ancestors of a checkpoint."""
        return await self._bridge.arun(self._delta_history(config, channels))

    async def _delta_history(self, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        return await _AsyncOnly(self).aget_delta_channel_history(config=config, channels=channels)


class _AsyncOnly(BaseCheckpointSaver[str]):
    """The walk of the base class, over the reads of a saver."""

    def __init__(self, saver: AbideSaver) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._saver._get_tuple(config)


@dataclass(slots=True)
class _Draft:
    """The values of a checkpoint that is written."""

    encoded: list[Encoded] | None
    """The values in this write; `None` if they must not refer to others."""
    own: dict[str, Value]
    """Values in the entry of the checkpoint."""
    inline: dict[str, Any] = field(default_factory=dict)
    """Small values."""
    places: dict[str, Place] = field(default_factory=dict)
    puts: list[Entry] = field(default_factory=list)
    """Entries of large values."""
    needs: dict[str, Write | int] = field(default_factory=dict)
    """Entries that must exist."""
    size: int = 0
    """The bytes of the new values in the entry of the checkpoint."""


def _retrieve_exception(done: asyncio.Future[None]) -> None:
    """Marks the error of a write as seen: its callers may have been cancelled."""
    if not done.cancelled():
        done.exception()


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def _is_small(value: Any) -> bool:
    """Returns `True` if a value is stored in each checkpoint: an entry of its own would take more space."""
    return value is None or type(value) in (bool, int, float) or (type(value) is str and len(value) <= _SMALL_TEXT)


def _matches(metadata: CheckpointMetadata, filter: dict[str, Any] | None) -> bool:
    return not filter or all(name in metadata and metadata.get(name) == value for name, value in filter.items())
