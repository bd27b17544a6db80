"""LangGraph checkpoints in Abide.

```python
from abide.adapters.langgraph import AbideSaver

with AbideSaver.open("agents.db") as saver:
    graph = builder.compile(checkpointer=saver)
```

In a coroutine: `AbideSaver(client)` with an `abide.Abide`. A thread is a collection `langgraph/<thread id>` with these entries:

| key | data | blob |
|---|---|---|
| `c/<namespace>/<checkpoint id>` | parent, versions, run id | the checkpoint without values, its metadata, and small values |
| `v/<namespace>/<channel>/<version>` | see `langgraph_values` | the value, or the new items of a list |
| `w/<namespace>/<checkpoint id>/<task id>/<index>` | channel, task path | a write; several of a task have `<first>-<last>` |

Entries `v/…` and those of `w/…` whose index is not negative are never replaced, because others refer to them.
`langgraph_keys` shortens ids.
"""

from __future__ import annotations

import builtins
import json
import logging
import os
import random
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
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
from ..errors import Conflict, LimitExceeded, MalformedEntry
from .bridge import Bridge
from .collection import Collections, escape, path, put, unescape
from .langgraph_chains import Chains, description
from .langgraph_keys import (
    checkpoint_key,
    long_id,
    short_id,
    value_key,
    version_count,
    version_prefix,
    writes_prefix,
)
from .langgraph_serde import AllowedTypes, StrictSerializer
from .langgraph_values import Encoded, Stored, Values
from .untrusted import Budget, decoding
from .writer import Entry, Write

_KIND = "langgraph"

# How LangGraph begins the path of a usual task; the name of its node follows.
_PATH_OF_NODE = "~__pregel_pull, "

_SMALL_TEXT = 64

# A checkpoint, its pending writes, and its values, without the blobs of those that the caller knows.
_LATEST = """WITH head AS (
  SELECT key, data, blob, seq FROM entries WHERE collection_id = :c AND key >= :first AND key < :end ORDER BY key DESC LIMIT 1)
SELECT key, data, blob, seq FROM head
UNION ALL
SELECT e.key, e.data, e.blob, e.seq FROM head, entries AS e
WHERE e.collection_id = :c AND e.key >= 'w' || substr(head.key, 2) || '/' AND e.key < 'w' || substr(head.key, 2) || '0'
UNION ALL
SELECT e.key, e.data, iif(e.seq IN (SELECT value FROM json_each(:known)), NULL, e.blob), e.seq
FROM head, json_each(head.data, '$.v') AS v
JOIN entries AS e ON e.collection_id = :c AND e.key = :values || v.key || '/' || v.value"""

MAX_BYTES = 64 << 20
"""How many bytes the values of one checkpoint may have, unless the saver has another limit."""

_LOG = logging.getLogger("abide")

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

    def __init__(
        self,
        client: Abide | sync.Abide,
        *,
        serde: SerializerProtocol | None = None,
        allowed_types: AllowedTypes = (),
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """A saver over a client. With an `abide.Abide` only the asynchronous methods can be used on its own loop.

        Args:
            client: the client.
            serde: a serializer in place of `StrictSerializer(allowed_types)`. Every caller of the scope can write what it reads.
            allowed_types: own classes of the state that a load makes; of others it returns the data.
            max_bytes: how many bytes the values of one checkpoint may have, without compression.
        """
        super().__init__(serde=StrictSerializer(allowed_types) if serde is None else serde)
        self._bridge = Bridge(client)
        self._collections = Collections.of(self._bridge.client, _KIND)
        self._values = Values(self.serde, max_bytes)
        self._chains = Chains(self._bridge.client, max_bytes)

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        allowed_types: AllowedTypes = (),
        max_bytes: int = MAX_BYTES,
    ) -> AbideSaver:
        """A saver over a database file, with its own client. Close it, or use it in `with`."""
        return AbideSaver(sync.Abide.open(path), serde=serde, allowed_types=allowed_types, max_bytes=max_bytes)

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
            clone._values = Values(clone.serde, self._values.max_bytes)
        return clone

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The next version of a channel."""
        count = 0 if current is None else version_count(str(current))
        branch = urlsafe_b64encode(random.getrandbits(32).to_bytes(4, "big"))[:6].decode()
        return f"{version_prefix(count + 1)}.{branch}"

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
            return await self._load(collection, thread_id, checkpoint_key(namespace, checkpoint_id), config)
        return await self._load(collection, thread_id, path("c", namespace) + "/", None)

    async def _load(self, collection: str, thread_id: str, key: str, config: RunnableConfig | None) -> CheckpointTuple | None:
        """The checkpoint with a key; the last one if the key is a prefix.

        Raises:
            MalformedEntry: it is none that a saver wrote.
            LimitExceeded: its values are too large.
        """
        try:
            return await self._load_once(collection, thread_id, key, config)
        except MalformedEntry:
            # Several statements have read it, and another process may have deleted it in between.
            return await self._load_once(collection, thread_id, key, config)

    async def _load_once(self, collection: str, thread_id: str, key: str, config: RunnableConfig | None) -> CheckpointTuple | None:
        end = key[:-1] + "0" if key.endswith("/") else key + "\0"
        self._values.begin(self._collections.client.timeline)
        known = json.dumps(self._values.known(collection))
        params = {"c": collection, "first": key, "end": end, "known": known, "values": f"v/{key.split('/', 2)[1]}/"}
        rows: builtins.list[tuple[Any, ...]] = (await self._collections.client.sql(_LATEST, params)).cells
        self._values.begin(self._collections.client.timeline)
        if not rows:
            return None
        with decoding(f"the checkpoint {rows[0][0]!r} of {collection!r}"):
            return await self._decode(collection, thread_id, rows, config)

    async def _decode(
        self, collection: str, thread_id: str, rows: builtins.list[tuple[Any, ...]], config: RunnableConfig | None
    ) -> CheckpointTuple:
        """A checkpoint from its entry, its pending writes and its values."""
        budget = Budget(self._values.max_bytes)
        head_key, data, blob, _ = rows[0]
        head = json.loads(data)
        checkpoint, metadata, inline = self._values.unpack(head, blob or b"", budget)
        stored = {name: Stored(description(data), blob, seq) for name, data, blob, seq in rows[1:]}
        keys = _value_keys(head_key, head)
        values = self._remembered(collection, keys, stored)
        # Entries that are not here, or refer to others.
        missing = [name for channel, name in keys.items() if channel not in values and not _is_whole(stored.get(name))]
        missing += [name for name in stored if name.startswith("w/") and not _is_whole(stored[name])]
        if missing:
            stored.update(await self._chains.read(collection, missing))
        for channel, name in keys.items():
            if channel not in values and name in stored:
                values[channel] = self._values.decode(collection, name.rsplit("/", 1)[0], name, stored, budget)
        namespace, checkpoint_id = unescape(head_key.split("/")[1]), long_id(head_key.split("/")[2])
        checkpoint["id"] = checkpoint_id
        checkpoint["channel_values"] = {**inline, **values}
        return CheckpointTuple(
            config or _config(thread_id, namespace, checkpoint_id),
            checkpoint,
            metadata,
            _config(thread_id, namespace, long_id(head["p"])) if head["p"] else None,
            self._writes(stored, [name for name, *_ in rows[1:] if name.startswith("w/")], budget),
        )

    def _remembered(self, collection: str, keys: dict[str, str], stored: dict[str, Stored]) -> dict[str, Any]:
        """The values of channels that this process knows."""
        values: dict[str, Any] = {}
        for channel, key in keys.items():
            if key in stored:
                known = self._values.remembered(collection, key.rsplit("/", 1)[0], key, stored[key].seq)
                if known is not None:
                    [values[channel]] = known
        return values

    def _writes(self, stored: dict[str, Stored], keys: builtins.list[str], budget: Budget) -> builtins.list[tuple[str, str, Any]]:
        """The pending writes in entries, in the order of their tasks."""
        found: dict[tuple[str, int], tuple[Any, tuple[str, str, Any]]] = {}
        # The first write with an index counts; a special one has been replaced by the latest.
        for key in sorted(keys, key=lambda key: (stored[key].seq, len(key), key)):
            data = stored[key].data
            value = self._values.decode_write(key, stored, budget)
            *_, task, index = key.split("/")
            task_id = long_id(task)
            many = isinstance(data["c"], builtins.list)
            indexes = data.get("i") or (range(len(data["c"])) if many else [int(index)])
            for at, channel, one in zip(indexes, data["c"] if many else [data["c"]], value if many else [value], strict=True):
                order = writes_sort_key(_task_path(data), task_id, at)
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
        """The checkpoints of a thread, or of all threads, the latest first."""
        found = await self._bridge.arun(self._keys(config, before))
        count = 0
        for thread_id, collection, key in found:
            if limit is not None and count >= limit:
                return
            loaded = await self._bridge.arun(self._load_listed(collection, thread_id, key, config))
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
            loaded = self._bridge.run(self._load_listed(collection, thread_id, key, config))
            if loaded is not None and _has(loaded.metadata, filter):
                count += 1
                yield loaded

    async def _load_listed(
        self, collection: str, thread_id: str, key: str, config: RunnableConfig | None
    ) -> CheckpointTuple | None:
        """A checkpoint of a list. In that of all threads a malformed one is left out, so that it hides no other thread."""
        try:
            return await self._load(collection, thread_id, key, None)
        except (MalformedEntry, LimitExceeded) as why:
            if config is not None and "thread_id" in config["configurable"]:
                raise
            _LOG.warning("a checkpoint is left out: %s", why)
            return None

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
                try:
                    key_id = long_id(key.rsplit("/", 1)[1])
                except ValueError:
                    _LOG.warning("the entry %r of %r is no checkpoint", key, collection)
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
        self._values.begin(self._collections.client.timeline)
        try:
            await self._write_checkpoint(collection, config, checkpoint, metadata, new_versions)
        except Conflict:
            # A version that this process remembers has been deleted, or this one exists: the values refer to nothing.
            self._values.forget(collection)
            await self._write_checkpoint(collection, config, checkpoint, metadata, new_versions, refers=False)
        return _config(thread_id, namespace, checkpoint["id"])

    async def _write_checkpoint(
        self,
        collection: str,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        *,
        refers: bool = True,
    ) -> None:
        namespace = config["configurable"].get("checkpoint_ns", "")
        key = checkpoint_key(namespace, checkpoint["id"])
        parent = config["configurable"].get("checkpoint_id")
        inline: dict[str, Any] = {}
        versions: dict[str, str] = {}
        encoded: builtins.list[Encoded] = []
        puts: builtins.list[Entry] = []
        for channel, value in checkpoint["channel_values"].items():
            if _is_small(value):
                inline[channel] = value
                continue
            version = checkpoint["channel_versions"].get(channel)
            name = escape(channel)
            # A value without a version belongs to this checkpoint alone, and is replaced with it.
            versions[name] = short_id(checkpoint["id"]) if version is None else escape(_version_text(version))
            value_name = value_key(key, name, versions[name])
            if version is None:
                puts.append(put(value_name, *self._values.pack(value)))
            elif channel in new_versions:
                folder = value_name.rsplit("/", 1)[0]
                encoded.append(self._values.encode_channel(collection, folder, value_name, value, encoded if refers else None))
        all_metadata = get_checkpoint_metadata(config, metadata)
        stripped = {name: value for name, value in checkpoint.items() if name not in ("channel_values", "id")}
        packed, blob = self._values.pack((stripped, all_metadata, inline))
        data = {**packed, "p": parent and short_id(parent), "v": versions}
        if all_metadata.get("run_id"):
            data["r"] = all_metadata["run_id"]
        puts = [_put_new(one, one.data, refers) for one in encoded] + puts
        puts.append(put(key, data, blob))
        write = self._begin(collection, puts, encoded, checkpoint_key(namespace, parent) if parent else None, refers)
        if write is not None and refers:
            self._values.wrote_checkpoint(collection, key, list(_value_keys(key, data).values()), write)
        await self._end(write, collection, puts, encoded)

    def _begin(
        self,
        collection: str,
        puts: builtins.list[Entry],
        encoded: builtins.list[Encoded],
        parent: str | None,
        refers: bool,
    ) -> Write | None:
        """Begins a write that fits one call, and remembers the values in it if they are new."""
        write = self._collections.begin(collection, puts, self._values.needs(collection, encoded, parent))
        if write is not None and refers:
            self._values.wrote(collection, encoded, write)
        return write

    async def _end(self, write: Write | None, collection: str, puts: builtins.list[Entry], encoded: builtins.list[Encoded]) -> None:
        if write is None:
            await self._collections.write(collection, puts, needs=self._values.needs(collection, encoded, None))
        else:
            await write.done

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
        self._values.begin(self._collections.client.timeline)
        try:
            puts, encoded = self._encode_writes(collection, prefix, writes, task_path, True)
            await self._end(self._begin(collection, puts, encoded, checkpoint, True), collection, puts, encoded)
        except Conflict:
            self._values.forget(collection)
            puts, encoded = self._encode_writes(collection, prefix, writes, task_path, False)
            await self._end(self._begin(collection, puts, encoded, checkpoint, False), collection, puts, encoded)

    def _encode_writes(
        self, collection: str, prefix: str, writes: Sequence[tuple[str, Any]], task_path: str, refers: bool
    ) -> tuple[builtins.list[Entry], builtins.list[Encoded]]:
        said = _path_description(task_path)
        puts: builtins.list[Entry] = []
        usual: builtins.list[tuple[int, str, Any]] = []
        for at, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, at)
            if index >= 0:
                usual.append((index, channel, value))
            else:
                # A special write, such as an error, replaces the earlier one; others are written once.
                data, blob = self._values.pack(value)
                puts.append(put(f"{prefix}/{index}", {**data, "c": channel, **said}, blob))
        if not usual:
            return puts, []
        indexes = [index for index, _, _ in usual]
        channels: Any = [channel for _, channel, _ in usual]
        values: Any = [value for _, _, value in usual]
        key = f"{prefix}/{indexes[0]}"
        if len(usual) == 1:
            [channels], [values] = channels, values
        else:
            key += f"-{indexes[-1]}"
            if indexes != builtins.list(range(len(indexes))):
                said = {**said, "i": indexes}
        encoded = self._values.encode(collection, key, values, [] if refers else None)
        puts.append(_put_new(encoded, {**encoded.data, "c": channels, **said}, refers))
        return puts, [encoded]

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
            key = checkpoint_key(parent["checkpoint_ns"], parent["checkpoint_id"])
            if key in kept:
                break
            kept.add(key)
            loaded = await self._load(collection, thread_id, key, None)
            if loaded is not None:
                waiting -= loaded.checkpoint["channel_values"].keys()
        return kept

    async def _retain(self, collection: str, kept: set[str]) -> None:
        """Deletes all checkpoints except these, with their writes, and the values that no checkpoint needs."""
        heads = await self._chains.heads(collection, sorted(kept))
        prefixes = {"w" + key[1:] for key in kept}
        writes = await self._keys_between(collection, "w/", "w0")
        needed = {value for key, head in heads.items() for value in _value_keys(key, head).values()}
        needed |= {key for key in writes if key.rsplit("/", 2)[0] in prefixes}
        references = await self._chains.references_of_thread(collection)
        waiting = builtins.list(needed)
        while waiting:
            base, root, _ = references.get(waiting.pop(), (None, None, 0))
            new = {name for name in (base, root) if name is not None} - needed
            needed |= new
            waiting += new
        gone = [key for key in await self._keys_between(collection, "c/", "c0") if key not in kept]
        gone += [key for key in writes if key not in needed]
        gone += [key for key in await self._keys_between(collection, "v/", "v0") if key not in needed]
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


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def _is_small(value: Any) -> bool:
    """Whether a value is stored in each checkpoint: an entry of its own would take more space."""
    return value is None or type(value) in (bool, int, float) or (type(value) is str and len(value) <= _SMALL_TEXT)


def _value_keys(key: str, data: Mapping[str, Any]) -> dict[str, str]:
    """The keys of the values of a checkpoint, by channel."""
    return {unescape(channel): value_key(key, channel, version) for channel, version in data["v"].items()}


def _put_new(encoded: Encoded, data: dict[str, Any], refers: bool) -> Entry:
    """An entry that others can refer to, so it is never replaced. An earlier one is a conflict if this one has references."""
    blob = None if "f" in data and not encoded.blob else encoded.blob
    return put(encoded.key, data, blob, expected_seq=0) if refers else put(encoded.key, data, blob, keep=True)


def _is_whole(stored: Stored | None) -> bool:
    """Whether an entry is here, and its value needs no other."""
    return stored is not None and stored.blob is not None and not ("b" in stored.data or "f" in stored.data)


def _version_text(version: str | int | float) -> str:
    return version if isinstance(version, str) else f"{version:09}"


def _path_description(task_path: str) -> dict[str, Any]:
    """The path of a task in the JSON of a write."""
    if task_path.startswith(_PATH_OF_NODE):
        return {"q": task_path.removeprefix(_PATH_OF_NODE)}
    return {"p": task_path} if task_path else {}


def _task_path(data: Mapping[str, Any]) -> str:
    """The inverse of `_path_description`."""
    return _PATH_OF_NODE + str(data["q"]) if "q" in data else data.get("p", "")


def _has(metadata: CheckpointMetadata, filter: dict[str, Any] | None) -> bool:
    return not filter or all(name in metadata and metadata.get(name) == value for name, value in filter.items())
