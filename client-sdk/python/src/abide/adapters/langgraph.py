"""LangGraph checkpoints in Abide.

```python
from abide.adapters.langgraph import AbideSaver

with AbideSaver.open("agents.db") as saver:
    graph = builder.compile(checkpointer=saver)
```

In a coroutine: `AbideSaver(client)` with an `abide.Abide`. A thread is a collection `langgraph/<thread id>` with these entries:

| key | data | blob |
|---|---|---|
| `c/<namespace>/<checkpoint id>` | parent, keys of values, run id | the checkpoint without values, its metadata, and small values |
| `v/<namespace>/<channel>/<version>` | see `langgraph_values` | the value, or the new items of a list |
| `w/<namespace>/<checkpoint id>/<task id>/<index>` | channel, task path | a pending write |
"""

from __future__ import annotations

import builtins
import json
import os
import random
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

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
from ..errors import Conflict
from .bridge import Bridge
from .collection import Collections, path, put, unescape
from .langgraph_values import Encoded, Stored, Values, pack, unpack

_KIND = "langgraph"

# A version of a channel is a count, and a random part that distinguishes the branches of a thread.
_COUNT_DIGITS = 12

_SMALL_TEXT = 64

_LATEST = """WITH head AS (
  SELECT key, data, blob FROM entries WHERE collection_id = :c AND key >= :first AND key < :end ORDER BY key DESC LIMIT 1)
SELECT key, data, blob FROM head
UNION ALL
SELECT e.key, e.data, e.blob FROM head, entries AS e
WHERE e.collection_id = :c AND e.key >= 'w' || substr(head.key, 2) || '/' AND e.key < 'w' || substr(head.key, 2) || '0'"""

# The entries of some keys, and of their bases.
_CHAINS = """WITH RECURSIVE chain(key, data, blob, seq) AS (
  SELECT e.key, e.data, e.blob, e.seq FROM json_each(:keys) AS k
    JOIN entries AS e ON e.collection_id = :c AND e.key = k.value
  UNION
  SELECT e.key, e.data, e.blob, e.seq FROM chain
    JOIN entries AS e ON e.collection_id = :c AND e.key = json_extract(chain.data, '$.b'))
SELECT key, data, blob, seq FROM chain"""

_KEYS_OF_THREAD = (
    "SELECT key FROM entries WHERE collection_id = :c AND key >= :first AND key < :end AND key > :after ORDER BY key LIMIT 10000"
)

_THREADS = "SELECT id FROM collections WHERE kind = :kind AND id > :after ORDER BY id LIMIT 10000"

_OF_RUNS = """SELECT e.collection_id, e.key FROM collections AS c
  JOIN entries AS e ON e.collection_id = c.id AND e.key >= 'c/' AND e.key < 'c0'
WHERE c.kind = :kind AND json_extract(e.data, '$.r') IN (SELECT value FROM json_each(:runs))"""

_ALL = "SELECT key, data, blob FROM entries WHERE collection_id = :c AND key > :after ORDER BY key LIMIT 500"


class AbideSaver(BaseCheckpointSaver[str]):
    """Stores checkpoints in Abide: each acknowledged checkpoint is on disk, and the storage of a thread grows linearly."""

    def __init__(self, client: Abide | sync.Abide, *, serde: SerializerProtocol | None = None) -> None:
        """A saver over a client. With an `abide.Abide` only the asynchronous methods can be used on its own loop."""
        super().__init__(serde=serde)
        self._bridge = Bridge(client)
        self._collections = Collections.of(self._bridge.client, _KIND)
        self._values = Values(self.serde)

    @staticmethod
    def open(path: str | os.PathLike[str], *, serde: SerializerProtocol | None = None) -> AbideSaver:
        """A saver over a database file, with its own client. Close it, or use it in `with`."""
        return AbideSaver(sync.Abide.open(path), serde=serde)

    def close(self) -> None:
        """Closes the client of `open`."""
        self._bridge.close()

    def __enter__(self) -> AbideSaver:
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> AbideSaver:
        """A clone whose serializer also reads these types."""
        clone = cast(AbideSaver, super().with_allowlist(extra_allowlist))
        if clone is not self:
            clone._values = Values(clone.serde)
        return clone

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The next version of a channel."""
        count = 0 if current is None else int(str(current).split(".", 1)[0])
        return f"{count + 1:0{_COUNT_DIGITS}}.{random.getrandbits(32):08x}"

    # Reading.

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint of a configuration, or the latest of its thread."""
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
            return await self._load(collection, thread_id, path("c", namespace, checkpoint_id), config)
        return await self._load(collection, thread_id, path("c", namespace) + "/", None)

    async def _load(self, collection: str, thread_id: str, key: str, config: RunnableConfig | None) -> CheckpointTuple | None:
        """The checkpoint with a key; the last one if the key is a prefix."""
        end = key[:-1] + "0" if key.endswith("/") else key + "\0"
        params = {"c": collection, "first": key, "end": end}
        rows = (await self._collections.client.sql(_LATEST, params)).cells
        if not rows:
            return None
        head_key, data, blob = rows[0]
        head = json.loads(str(data))
        checkpoint, metadata, inline = unpack(self.serde, head["t"], cast(bytes, blob))
        values = {**inline, **await self._load_values(collection, head["v"])}
        checkpoint["channel_values"] = values
        _, namespace, checkpoint_id = map(unescape, str(head_key).split("/"))
        writes = sorted((_Write.read(self.serde, *row) for row in rows[1:]), key=lambda write: write.order)
        return CheckpointTuple(
            config or _config(thread_id, namespace, checkpoint_id),
            checkpoint,
            metadata,
            _config(thread_id, namespace, head["p"]) if head["p"] else None,
            [(write.task_id, write.channel, write.value) for write in writes],
        )

    async def _load_values(self, collection: str, keys: dict[str, str]) -> dict[str, Any]:
        """The values of channels, by the keys of their entries."""
        values: dict[str, Any] = {}
        missing: builtins.list[str] = []
        for channel, key in keys.items():
            known = self._values.known(collection, channel, key)
            if known is None:
                missing.append(key)
            else:
                values[channel] = known
        if missing:
            chains = await self._chains(collection, missing)
            for channel, key in keys.items():
                if channel not in values and key in chains:
                    values[channel] = self._values.decode(collection, channel, key, chains)
        return values

    async def _chains(self, collection: str, keys: builtins.list[str]) -> dict[str, Stored]:
        rows = await self._collections.client.sql(_CHAINS, {"c": collection, "keys": json.dumps(keys)})
        return {key: Stored(json.loads(data or "{}"), blob or b"", seq) for key, data, blob, seq in rows}

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """The checkpoints of a thread, or of all threads, the latest first."""
        found = await self._bridge.arun(self._keys(config, before))
        count = 0
        for thread_id, collection, key in found:
            if limit is not None and count >= limit:
                return
            loaded = await self._bridge.arun(self._load(collection, thread_id, key, None))
            if loaded is not None and _has(loaded.metadata, filter):
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
            loaded = self._bridge.run(self._load(collection, thread_id, key, None))
            if loaded is not None and _has(loaded.metadata, filter):
                count += 1
                yield loaded

    async def _keys(self, config: RunnableConfig | None, before: RunnableConfig | None) -> builtins.list[tuple[str, str, str]]:
        """Thread, collection and key of checkpoints, the latest first."""
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
                key_id = unescape(key.rsplit("/", 1)[1])
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
        await self._collections.stored_id("")
        ids: builtins.list[str] = []
        while True:
            params = {"kind": _KIND, "after": ids[-1] if ids else ""}
            page = await self._collections.client.sql(_THREADS, params)
            ids += [row[0] for row in page]
            if len(page) < 10_000:
                return [self._collections.parts(stored_id)[0] for stored_id in ids]

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
        try:
            await self._write_checkpoint(collection, config, checkpoint, metadata, new_versions)
        except Conflict:
            # A version that this process remembers has been deleted: the values are stored whole.
            self._values.forget(collection)
            await self._write_checkpoint(collection, config, checkpoint, metadata, new_versions)
        return _config(thread_id, namespace, checkpoint["id"])

    async def _write_checkpoint(
        self,
        collection: str,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> None:
        namespace = config["configurable"].get("checkpoint_ns", "")
        inline: dict[str, Any] = {}
        keys: dict[str, str] = {}
        encoded: list[Encoded] = []
        for channel, value in checkpoint["channel_values"].items():
            if _is_small(value):
                inline[channel] = value
                continue
            # A value without a version belongs to this checkpoint alone.
            version = checkpoint["channel_versions"].get(channel, checkpoint["id"])
            keys[channel] = key = path("v", namespace, channel, _version_text(version))
            if channel in new_versions or channel not in checkpoint["channel_versions"]:
                encoded.append(self._values.encode(collection, channel, key, value))
        all_metadata = get_checkpoint_metadata(config, metadata)
        stripped = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        kind, blob = pack(self.serde, (stripped, all_metadata, inline))
        data = {"p": config["configurable"].get("checkpoint_id"), "t": kind, "v": keys}
        if all_metadata.get("run_id"):
            data["r"] = all_metadata["run_id"]
        puts = [put(one.key, one.stored.data, one.stored.blob) for one in encoded]
        # Assertions: what a list refers to exists and is unchanged.
        puts += [put(one.base.key, keep=True, expected_seq=one.base.seq) for one in encoded if one.base is not None]
        puts.append(put(path("c", namespace, checkpoint["id"]), data, blob))
        seq = (await self._collections.write(collection, puts)).seq
        for one in encoded:
            self._values.written(collection, one, seq)

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
        namespace, checkpoint_id = configurable.get("checkpoint_ns", ""), configurable["checkpoint_id"]
        puts = []
        for at, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, at)
            kind, blob = pack(self.serde, value)
            data = {"c": channel, "t": kind} | ({"p": task_path} if task_path else {})
            key = path("w", namespace, checkpoint_id, task_id, str(index))
            # A special write, such as an error, replaces the earlier one; others are written once.
            puts.append(put(key, data, blob, keep=index >= 0))
        if puts:
            await self._collections.write(collection, puts)

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
        for collection, gone in by_collection.items():
            kept: set[str] = set(await self._keys_between(collection, "c/", "c0")) - gone
            await self._retain(collection, kept)

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
        pages: builtins.list[builtins.list[dict[str, Any]]] = []
        after = ""
        while True:
            rows = (await self._collections.client.sql(_ALL, {"c": source, "after": after})).cells
            if not rows:
                break
            after = str(rows[-1][0])
            pages.append([put(str(key), json.loads(str(data)), cast(bytes, blob)) for key, data, blob in rows])
        # Checkpoints are the first keys, and are written after the values that they refer to.
        for page in reversed(pages):
            await self._collections.write(target, list(reversed(page)))

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
            latest: dict[str, str] = {}
            for key in await self._keys_between(collection, "c/", "c0"):
                latest[key.rsplit("/", 1)[0]] = key
            kept: set[str] = set()
            for key in latest.values():
                kept |= await self._with_ancestors(collection, str(thread_id), key)
            await self._retain(collection, kept)

    async def _with_ancestors(self, collection: str, thread_id: str, key: str) -> set[str]:
        """A checkpoint, and the ancestors from which its delta channels are rebuilt."""
        kept = {key}
        loaded = await self._load(collection, thread_id, key, None)
        if loaded is None:
            return kept
        waiting = set(loaded.metadata.get("counters_since_delta_snapshot") or ())
        waiting -= loaded.checkpoint["channel_values"].keys()
        while waiting and loaded is not None and loaded.parent_config is not None:
            parent = loaded.parent_config["configurable"]
            key = path("c", parent["checkpoint_ns"], parent["checkpoint_id"])
            if key in kept:
                break
            kept.add(key)
            loaded = await self._load(collection, thread_id, key, None)
            if loaded is not None:
                waiting -= loaded.checkpoint["channel_values"].keys()
        return kept

    async def _retain(self, collection: str, kept: set[str]) -> None:
        """Deletes all checkpoints except these, with their writes, and the values that no checkpoint needs."""
        heads = await self._chains(collection, sorted(kept))
        values = {key for head in heads.values() for key in head.data["v"].values()}
        values |= set(await self._chains(collection, sorted(values)))
        prefixes = {"w" + key[1:] for key in kept}
        gone = [key for key in await self._keys_between(collection, "c/", "c0") if key not in kept]
        gone += [key for key in await self._keys_between(collection, "w/", "w0") if key.rsplit("/", 2)[0] not in prefixes]
        gone += [key for key in await self._keys_between(collection, "v/", "v0") if key not in values]
        self._values.forget(collection)
        await self._collections.write(collection, [], gone)

    # Delta channels.

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        """See `aget_delta_channel_history`."""
        return self._bridge.run(self._delta_history(config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The writes of channels since their nearest stored value, along the ancestors of a checkpoint."""
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


class _Write:
    """A pending write."""

    __slots__ = ("channel", "order", "task_id", "value")

    def __init__(self, task_id: str, channel: str, value: Any, order: tuple[str, str, int]) -> None:
        self.task_id = task_id
        self.channel = channel
        self.value = value
        self.order = order

    @staticmethod
    def read(serde: SerializerProtocol, key: Any, data: Any, blob: Any) -> _Write:
        """The write in an entry."""
        *_, task_id, index = map(unescape, key.split("/"))
        said = json.loads(data)
        order = writes_sort_key(said.get("p", ""), task_id, int(index))
        return _Write(task_id, said["c"], unpack(serde, said["t"], blob), order)


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def _is_small(value: Any) -> bool:
    """Whether a value is stored in each checkpoint: an entry of its own would take more space."""
    return value is None or type(value) in (bool, int, float) or (type(value) is str and len(value) <= _SMALL_TEXT)


def _version_text(version: str | int | float) -> str:
    return version if isinstance(version, str) else f"{version:0{_COUNT_DIGITS}}"


def _has(metadata: CheckpointMetadata, filter: dict[str, Any] | None) -> bool:
    return not filter or all(name in metadata and metadata.get(name) == value for name, value in filter.items())
