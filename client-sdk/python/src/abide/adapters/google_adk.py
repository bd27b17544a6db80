"""Sessions of the Google ADK in Abide.

```python
from abide.adapters.google_adk import AbideSessionService

runner = Runner(app_name="app", agent=agent, session_service=AbideSessionService(client))
```

A session is the collection `google-adk/<app>/<user>/<session>`: the entry `session` has its state and its last update, and
`e/…` its events in order. State with the prefixes `app:` and `user:` is in the collections `google-adk-state/<app>` and
`google-adk-state/<app>/<user>`.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions._session_util import extract_json_safe_state_delta
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from google.adk.sessions.state import State

from .. import sync
from ..client import Abide
from ..errors import Conflict
from .bridge import Bridge
from .collection import Collections, escape, put

_KIND = "google-adk"
_STATE_KIND = "google-adk-state"
_HEAD = "session"

_EVENTS = """SELECT key, data FROM entries
WHERE collection_id = :c AND key >= 'e/' AND key < 'e0' AND json_extract(data, '$.timestamp') >= :since
ORDER BY key DESC LIMIT :limit"""
_ENTRIES = "SELECT key, data FROM entries WHERE collection_id = :c ORDER BY key"
_ENTRY = "SELECT data, seq FROM entries WHERE collection_id = :c AND key = :key"
_SESSIONS = """SELECT e.collection_id AS id, e.data FROM collections AS c
JOIN entries AS e ON e.collection_id = c.id AND e.key = 'session'
WHERE c.kind = :kind AND c.id >= :first AND c.id < :end"""
_ALL_EVENTS = 100_000


class AbideSessionService(BaseSessionService):
    """Stores ADK sessions in Abide: an event and its changes of the state of the session are one transaction."""

    def __init__(self, client: Abide | sync.Abide) -> None:
        """A service over a client."""
        self._bridge = Bridge(client)
        self._sessions = Collections.of(self._bridge.client, _KIND)
        self._states = Collections.of(self._bridge.client, _STATE_KIND)
        self._last = 0

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
        except Conflict as why:
            raise AlreadyExistsError(f"Session with id {name} already exists.") from why
        await self._change_shared(app_name, user_id, parts)
        merged = {**parts["session"], **await self._shared(app_name, user_id)}
        return Session(app_name=app_name, user_id=user_id, id=name, state=merged, events=[], last_update_time=now)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """A session with its events, or with some of the latest."""
        return await self._bridge.arun(self._get(app_name, user_id, session_id.strip(), config))

    async def _get(self, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None) -> Session | None:
        collection = await self._sessions.stored_id(app_name, user_id, session_id)
        head, _ = await self._head(collection)
        if head is None:
            return None
        limit = _ALL_EVENTS if config is None or config.num_recent_events is None else config.num_recent_events
        since = (config.after_timestamp if config else None) or 0.0
        params = {"c": collection, "since": since, "limit": limit}
        rows = await self._bridge.client.sql(_EVENTS, params) if limit else []
        return Session(
            app_name=app_name,
            user_id=user_id,
            id=session_id,
            state={**head["state"], **await self._shared(app_name, user_id)},
            events=[Event.model_validate_json(row.data) for row in reversed(list(rows))],
            last_update_time=head["updated"],
        )

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """The sessions of a user or of all users, without events, the latest last."""
        return await self._bridge.arun(self._list(app_name, user_id))

    async def _list(self, app_name: str, user_id: str | None) -> ListSessionsResponse:
        first = await self._sessions.stored_id(app_name, *([] if user_id is None else [user_id])) + "/"
        params = {"kind": _KIND, "first": first, "end": first[:-1] + "0"}
        sessions = []
        for row in await self._bridge.client.sql(_SESSIONS, params):
            _, owner, name = self._sessions.parts(row.id)
            head = json.loads(row.data)
            state = {**head["state"], **await self._shared(app_name, owner)}
            sessions.append(Session(app_name=app_name, user_id=owner, id=name, state=state, last_update_time=head["updated"]))
        sessions.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=sessions)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Deletes a session and its events."""
        collection = await self._bridge.arun(self._sessions.stored_id(app_name, user_id, session_id.strip()))
        await self._bridge.arun(self._sessions.delete(collection))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The state of a user, without the prefix `user:`."""
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
        self._last = max(self._last + 1, time.time_ns() // 1000)
        key = f"e/{self._last:016x}/{escape(event.id)}"
        data = json.loads(event.model_dump_json(exclude_none=True))
        while True:
            head, seq = await self._head(collection)
            if head is None:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            state = {**head["state"], **parts["session"]}
            puts = [
                put(key, data),
                put(_HEAD, {"state": state, "updated": event.timestamp}, expected_seq=seq),
            ]
            try:
                await self._sessions.write(collection, puts)
                break
            except Conflict:
                continue  # Another event came first; its changes of the state are kept.
        await self._change_shared(session.app_name, session.user_id, parts)

    async def _head(self, collection: str) -> tuple[dict[str, Any] | None, int]:
        row = (await self._bridge.client.sql(_ENTRY, {"c": collection, "key": _HEAD})).first()
        return (None, 0) if row is None else (json.loads(row.data), row.seq)

    async def _shared(self, app_name: str, user_id: str) -> dict[str, Any]:
        """The state of the app and of the user, with their prefixes."""
        app, user = await self._state(app_name), await self._state(app_name, user_id)
        return {State.APP_PREFIX + key: value for key, value in app.items()} | {
            State.USER_PREFIX + key: value for key, value in user.items()
        }

    async def _state(self, *owner: str) -> dict[str, Any]:
        rows = await self._bridge.client.sql(_ENTRIES, {"c": await self._states.stored_id(*owner)})
        return dict(json.loads(row.data) for row in rows)

    async def _change_shared(self, app_name: str, user_id: str, parts: dict[str, dict[str, Any]]) -> None:
        for owner, state in (((app_name,), parts["app"]), ((app_name, user_id), parts["user"])):
            if state:
                puts = [put(escape(key) or "_", [key, value]) for key, value in state.items()]
                await self._states.write(await self._states.stored_id(*owner), puts)
