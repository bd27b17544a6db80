"""Sessions of the Google ADK in Abide.

```python
from abide.adapters.google_adk import AbideSessionService

runner = Runner(app_name="app", agent=agent, session_service=AbideSessionService(client))
```

A session is the collection `google-adk/<app>/<user>/<session>`: the entry `session` has its state and when this
changed, and `e/…` its events in the order of the log. State with the prefixes `app:` and `user:` is in the collections
`google-adk-state/<app>` and `google-adk-state/<app>/<user>`.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from ..extras import extra

with extra("google-adk"):
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events.event import Event
    from google.adk.sessions import BaseSessionService, Session
    from google.adk.sessions._session_util import extract_json_safe_state_delta
    from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
    from google.adk.sessions.state import State

from .. import sync
from ..client import Abide
from ..errors import ConflictError, LeaseLostError
from .bridge import Bridge
from .cache import copy_json
from .collection import Collections, escape, put
from .models import Prototype
from .untrusted import decoding

_KIND = "google-adk"
_STATE_KIND = "google-adk-state"
_HEAD = "session"

# The last row has the time of the last event.
_RECENT = """SELECT collection_id, key, data FROM entries WHERE collection_id = :c AND key = 'session'
UNION ALL SELECT * FROM (
  SELECT collection_id, key, data FROM entries
  WHERE collection_id = :c AND key >= 'e/' AND key < 'e0' AND json_extract(data, '$.timestamp') >= :since
  ORDER BY key DESC LIMIT :limit)
UNION ALL SELECT collection_id, key, data FROM entries WHERE collection_id IN (SELECT value FROM json_each(:others))
UNION ALL SELECT * FROM (
  SELECT NULL, NULL, json_extract(data, '$.timestamp') FROM entries
  WHERE collection_id = :c AND key >= 'e/' AND key < 'e0' ORDER BY key DESC LIMIT 1)"""
_ENTRIES = "SELECT collection_id, data FROM entries WHERE collection_id IN (SELECT value FROM json_each(:c)) ORDER BY key"
_ENTRY = "SELECT data, seq FROM entries WHERE collection_id = :c AND key = :key"
_SESSIONS = """SELECT c.id, e.data, (
  SELECT json_extract(last.data, '$.timestamp') FROM entries AS last
  WHERE last.collection_id = c.id AND last.key >= 'e/' AND last.key < 'e0' ORDER BY last.key DESC LIMIT 1) AS updated
FROM collections AS c JOIN entries AS e ON e.collection_id = c.id AND e.key = 'session'
WHERE c.kind = :kind AND c.id >= :first AND c.id < :end"""
_ALL_EVENTS = 100_000

_LOG = logging.getLogger("abide")

# Of an event with its fields, measured.
_BYTES_OF_AN_EVENT = 6_500


class AbideSessionService(BaseSessionService):
    """Stores ADK sessions in Abide: an event and its changes of the state of the session are one transaction."""

    def __init__(self, client: Abide | sync.Abide) -> None:
        """Makes a service over a client."""
        self._bridge = Bridge(client)
        self._sessions = Collections.for_client(self._bridge.client, _KIND, _decode, _BYTES_OF_AN_EVENT)
        self._states = Collections.for_client(self._bridge.client, _STATE_KIND)

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Creates a session.

        Raises:
            AlreadyExistsError: there is one with this id.
        """
        return await self._bridge.arun(self._create(app_name, user_id, state, session_id))

    async def _create(self, app_name: str, user_id: str, state: dict[str, Any] | None, session_id: str | None) -> Session:
        name = (session_id or "").strip() or str(uuid.uuid4())
        parts = extract_json_safe_state_delta(state or {})
        now = time.time()
        collection = await self._sessions.stored_id(app_name, user_id, name)
        try:
            head = {"state": parts["session"], "updated": now}
            await self._sessions.write(collection, [put(_HEAD, head, expected_seq=0)])
        except ConflictError as exc:
            raise AlreadyExistsError(f"Session with id {name} already exists.") from exc
        await self._change_shared(app_name, user_id, parts)
        merged = {**parts["session"], **await self._shared(app_name, user_id)}
        return Session(app_name=app_name, user_id=user_id, id=name, state=merged, events=[], last_update_time=now)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Returns a session with its events, or with some of the latest."""
        return await self._bridge.arun(self._get(app_name, user_id, session_id.strip(), config))

    async def _get(self, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None) -> Session | None:
        collection = await self._sessions.stored_id(app_name, user_id, session_id)
        owners = [await self._states.stored_id(app_name), await self._states.stored_id(app_name, user_id)]
        limit = _ALL_EVENTS if config is None or config.num_recent_events is None else config.num_recent_events
        since = (config.after_timestamp if config else None) or 0.0
        if (limit < _ALL_EVENTS or since) and not self._sessions.cache.has(collection):
            return await self._get_recent(collection, owners, (app_name, user_id, session_id), since, limit)
        read = await self._sessions.cache.read(collection, owners)
        head = read.entries.get(_HEAD)
        if head is None:
            return None
        found: list[Prototype] = [entry.value for key, entry in read.entries.items() if key.startswith("e/")]
        events = [event for event in found if event.value.timestamp >= since] if since else found
        return Session(
            app_name=app_name,
            user_id=user_id,
            id=session_id,
            state={**copy_json(head.value["state"]), **_shared(owners, read.others)},
            events=[event.copy() for event in (events[-limit:] if limit else [])],
            last_update_time=found[-1].value.timestamp if found else head.value["updated"],
        )

    async def _get_recent(
        self, collection: str, owners: list[str], name: tuple[str, str, str], since: float, limit: int
    ) -> Session | None:
        """Returns a session with some of its events, without a read of the others."""
        params = {"c": collection, "since": since, "limit": limit, "others": json.dumps(owners)}
        head: Any = None
        updated: float | None = None
        events: list[Event] = []
        others: list[tuple[str, Any]] = []
        rows: list[tuple[Any, ...]] = (await self._bridge.client.sql(_RECENT, params)).cells
        with decoding(f"an entry of {collection!r}"):
            for found, key, data in rows:
                if found is None:
                    updated = data
                elif found != collection:
                    others.append((found, json.loads(data)))
                else:
                    value = _decode(key, data)
                    if key == _HEAD:
                        head = value
                    else:
                        events.append(value.value)
        if head is None:
            return None
        return Session(
            app_name=name[0],
            user_id=name[1],
            id=name[2],
            state={**head["state"], **_shared(owners, others)},
            events=events[::-1],
            last_update_time=head["updated"] if updated is None else updated,
        )

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Returns the sessions of a user or of all users, without events, the latest last."""
        return await self._bridge.arun(self._list(app_name, user_id))

    async def _list(self, app_name: str, user_id: str | None) -> ListSessionsResponse:
        first = await self._sessions.stored_id(app_name, *([] if user_id is None else [user_id])) + "/"
        params = {"kind": _KIND, "first": first, "end": first[:-1] + "0"}
        sessions = []
        shared: dict[str, dict[str, Any]] = {}
        for row in await self._bridge.client.sql(_SESSIONS, params):
            try:
                _, owner, name = self._sessions.parts(row.id)
                head = _decode(_HEAD, row.data)
            except ValueError as exc:
                _LOG.warning("the collection %r is not a session: %s", row.id, exc)
                continue
            if owner not in shared:
                shared[owner] = await self._shared(app_name, owner)
            state = {**head["state"], **copy_json(shared[owner])}
            updated = row.updated if isinstance(row.updated, (int, float)) else head["updated"]
            sessions.append(Session(app_name=app_name, user_id=owner, id=name, state=state, last_update_time=updated))
        sessions.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=sessions)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Deletes a session and its events."""
        collection = await self._bridge.arun(self._sessions.stored_id(app_name, user_id, session_id.strip()))
        await self._bridge.arun(self._sessions.delete(collection))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Returns the state of a user, without the prefix `user:`."""
        return await self._bridge.arun(self._state(app_name, user_id))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Appends an event, and applies its changes of the state.

        Raises:
            SessionNotFoundError: the session does not exist.
        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        await self._bridge.arun(self._append(session, event))
        session.last_update_time = event.timestamp
        return self._commit_event_to_session(session, event)

    async def _append(self, session: Session, event: Event) -> None:
        collection = await self._sessions.stored_id(session.app_name, session.user_id, session.id)
        parts = extract_json_safe_state_delta(event.actions.state_delta if event.actions else {})
        cached = self._sessions.cache.peek(collection, _HEAD)
        head, seq = (None, 0) if cached is None else (cached.value, cached.seq)
        while True:
            if head is None:
                head, seq = await self._head(collection)
            if head is None:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            puts = [put("e/", _dump(event), append=True)]
            changed = {"state": {**head["state"], **parts["session"]}, "updated": event.timestamp}
            try:
                if not parts["session"]:
                    await self._sessions.write(collection, puts, needs=[(_HEAD, seq)])
                else:
                    puts.append(put(_HEAD, changed, expected_seq=seq))
                    done = await self._sessions.write(collection, puts)
                    self._sessions.cache.update(collection, _HEAD, done.seq, json.dumps(changed))
                break
            except LeaseLostError:
                raise
            except ConflictError:
                head = None  # Another event came first; its changes of the state are kept.
        await self._change_shared(session.app_name, session.user_id, parts)

    async def _head(self, collection: str) -> tuple[dict[str, Any] | None, int]:
        row = (await self._bridge.client.sql(_ENTRY, {"c": collection, "key": _HEAD})).first()
        return (None, 0) if row is None else (json.loads(row.data), row.seq)

    async def _shared(self, app_name: str, user_id: str) -> dict[str, Any]:
        """Returns the state of the app and of the user, with their prefixes."""
        owners = [await self._states.stored_id(app_name), await self._states.stored_id(app_name, user_id)]
        rows = (await self._bridge.client.sql(_ENTRIES, {"c": json.dumps(owners)})).cells
        return _shared(owners, [(str(owner), json.loads(str(data))) for owner, data in rows])

    async def _state(self, *owner: str) -> dict[str, Any]:
        rows = await self._bridge.client.sql(_ENTRIES, {"c": json.dumps([await self._states.stored_id(*owner)])})
        return dict(_pairs(json.loads(row.data) for row in rows))

    async def _change_shared(self, app_name: str, user_id: str, parts: dict[str, dict[str, Any]]) -> None:
        for owner, state in (((app_name,), parts["app"]), ((app_name, user_id), parts["user"])):
            if state:
                puts = [put(escape(key) or "_", [key, value]) for key, value in state.items()]
                await self._states.write(await self._states.stored_id(*owner), puts)


def _shared(owners: list[str], entries: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the state of the app and of the user, with their prefixes, from entries of their collections."""
    found: dict[str, Any] = {}
    for owner, prefix in zip(owners, (State.APP_PREFIX, State.USER_PREFIX), strict=True):
        found |= {prefix + key: value for key, value in _pairs(entry for by, entry in entries if by == owner)}
    return found


def _pairs(entries: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yields names and values of state. A malformed entry is omitted: it would end all sessions of the app."""
    for entry in entries:
        if type(entry) is list and len(entry) == 2 and type(entry[0]) is str:
            yield entry[0], entry[1]
        else:
            _LOG.warning("an entry of a state is malformed")


def _decode(key: str, data: str) -> Any:
    if key.startswith("e/"):
        return Prototype(Event.model_validate_json(data))
    value = json.loads(data)
    if key == _HEAD and not (
        type(value) is dict and type(value.get("state")) is dict and isinstance(value.get("updated"), (int, float))
    ):
        raise ValueError("it has no state or no time")
    return value


def _dump(event: Event) -> dict[str, Any]:
    """Encodes an event as JSON, without empty fields."""
    document: dict[str, Any] = json.loads(event.model_dump_json(exclude_none=True))
    for name in ("actions", "node_info"):
        document[name] = {field: value for field, value in document.get(name, {}).items() if value not in ({}, "")}
    return {name: value for name, value in document.items() if value or name not in ("actions", "node_info", "invocation_id")}
