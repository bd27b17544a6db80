"""The subscriptions of a client across connections: maps frames to subscriptions and tracks where each one resumes.

The rule of the protocol: a subscription at seq s accepts a frame if and only if `from <= s < to`. A frame that ends at or
before s is a duplicate; a frame that begins after s leaves a gap, so the subscription is started again from s.

The answer to `subscribe` with an `after_seq` is a delta too, but it concerns that subscription alone: others may still
expect changes of the same span, so it must not advance them. It is recognised by the subscription that waits for it. If
nothing changed it names no subscription; then it belongs to the first that waits, since answers arrive in order. The same
holds for the delta that follows the snapshot of a past state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from .backoff import Backoff
from .errors import TEMPORARY, AbideError, error_from_problem, get_member
from .shape import Changes, Plan, Shape, read_changes, read_plan, read_shape
from .values import Row, decode_row

_LOG = logging.getLogger("abide")

Send = Callable[[dict[str, Any]], None]
"""Sends a message on the current connection; does nothing without one."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a subscription starts: now, after a seq that the caller has, or with the state as of a seq."""

    after_seq: int | None = None
    as_of: int | None = None


class Consumer(Protocol):
    """The receiver of the events of one subscription, in order and without gaps."""

    def on_snapshot(self, seq: int, shape: Shape, plan: Plan, rows: list[Row], checksum: int | None, history_changed: bool) -> None:
        """Receives the whole result."""

    def on_delta(self, to: int, changes: Changes, checksum: int | None, opening: tuple[Shape, Plan] | None) -> None:
        """Receives the changes up to a seq, with the shape if this answers a resume."""

    def on_progress(self, seq: int) -> None:
        """Learns that nothing changed up to a seq."""

    def on_end(self, error: AbideError) -> None:
        """Learns that the subscription has ended."""


class _State(Enum):
    OFF = "off"
    BEGUN = "begun"
    LIVE = "live"
    LATER = "later"


@dataclass(slots=True, eq=False)
class _Entry:
    query: dict[str, Any]
    consumer: Consumer
    start: Start
    # The consumer has everything up to here.
    seq: int | None
    # The timeline of the last connection on which it was live, or on which the caller chose `seq`.
    timeline: str | None
    state: _State = _State.OFF
    # Each start has a new id, so that frames of an earlier one cannot be mistaken for it.
    name: str = ""
    # Later changes are unknown until a rerun.
    stale: bool = False
    parts: list[Row] = field(default_factory=list)
    backoff: Backoff = field(default_factory=Backoff)
    retry: asyncio.TimerHandle | None = None

    def position(self, received: int | None) -> int | None:
        """Returns the seq up to which it is complete, on a connection that has received everything up to `received`."""
        if self.stale or received is None:
            return self.seq
        return received if self.seq is None else max(self.seq, received)


class Subscriptions:
    """All subscriptions of one client."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._connected = False
        self._all: dict[Consumer, _Entry] = {}
        self._by_name: dict[str, _Entry] = {}
        self._count = 0
        # Starts without an answer, in order. It includes those whose consumer has left: their answers still arrive.
        self._unanswered: dict[str, Start] = {}
        self._received: int | None = None
        self._timeline: str | None = None

    def __len__(self) -> int:
        return len(self._all)

    @property
    def timeline(self) -> str | None:
        """The history of the connection, or of the last one."""
        return self._timeline

    def add(self, consumer: Consumer, query: dict[str, Any], start: Start) -> None:
        """Starts a subscription, now or on the next connection."""
        entry = _Entry(query, consumer, start, start.after_seq, self._timeline)
        self._all[consumer] = entry
        self._begin(entry)

    def restart(self, consumer: Consumer) -> None:
        """Fetches the whole result again: the consumer cannot use what it has."""
        entry = self._all.get(consumer)
        if entry is not None:
            entry.start, entry.seq, entry.stale = Start(), None, False
            self._begin(entry)

    def remove(self, consumer: Consumer) -> None:
        """Ends a subscription whose consumer has left."""
        entry = self._all.pop(consumer, None)
        if entry is not None:
            self._stop(entry)

    def end(self, error: AbideError) -> None:
        """Ends all."""
        entries, self._all = list(self._all.values()), {}
        for entry in entries:
            self._stop(entry)
            entry.consumer.on_end(error)

    def handle_connect(self, timeline: str | None) -> None:
        """Starts all again: this is the first frame of a connection."""
        received, self._received = self._received, None
        self._timeline, self._connected = timeline, True
        self._by_name.clear()
        self._unanswered.clear()
        for entry in list(self._all.values()):
            if entry.state is _State.LIVE:
                entry.seq = entry.position(received)
            entry.state = _State.OFF
            self._begin(entry)

    def handle_disconnect(self) -> None:
        """Notes that the connection is lost; positions are kept for the next one."""
        self._connected = False

    def handle_snapshot(self, frame: dict[str, Any]) -> None:
        """Applies one part of a result."""
        entry = self._by_name.get(frame["id"])
        if entry is None:
            return
        entry.parts.extend(map(decode_row, frame["rows"]))
        if frame.get("more"):
            return
        rows, entry.parts = entry.parts, []
        seq = get_member(frame, "seq", int)
        entry.seq, entry.stale, entry.timeline = seq, False, self._timeline
        name = entry.name
        more_to_come = self._unanswered.get(name, Start()).as_of is not None
        if more_to_come:
            # A past state; the changes since follow as one delta.
            self._unanswered[name] = Start(after_seq=seq)
        else:
            self._mark_live(entry)
        entry.consumer.on_snapshot(
            seq, read_shape(frame), read_plan(frame), rows, _checksum(frame), frame.get("history_changed", False)
        )
        behind = self._received is not None and self._received > seq
        if behind and not more_to_come and entry.name == name:
            self._begin(entry)

    def handle_delta(self, frame: dict[str, Any]) -> None:
        """Applies the changes of one commit in all subscriptions, or the answer to a resume."""
        start = get_member(frame, "from", int)
        to = get_member(frame, "to", int)
        changes: list[dict[str, Any]] = frame.get("changes", [])
        name = self._find_answered_start(start, changes)
        if name is not None:
            entry = self._by_name.get(name)
            self._drop_unanswered(name)
            if entry is not None:
                self._mark_live(entry)
                self._handle_resume(entry, start, to, changes[0] if changes else {})
            # Earlier changes for the other subscriptions arrived before the answer.
            self._advance(to)
            return
        if self._received is None or start > self._received:
            self._close_gap(start)
        received = self._received
        for change in changes:
            entry = self._by_name.get(change["id"])
            if entry is None or entry.state is not _State.LIVE:
                continue
            at = entry.position(received)
            if at is None or not start <= at < to:
                continue
            if change.get("stale"):
                entry.seq, entry.stale = at, True
                continue
            entry.seq = to
            entry.consumer.on_delta(to, read_changes(change), _checksum(change), _opening(change))
        self._advance(to)

    def handle_rerun(self, frame: dict[str, Any]) -> None:
        """Applies the new result of an outdated query, which brings its subscription alone to a seq."""
        to = get_member(frame, "seq", int)
        for change in frame.get("changes", []):
            entry = self._by_name.get(change["id"])
            if entry is None or entry.state is not _State.LIVE or (entry.seq or 0) > to:
                continue
            entry.seq, entry.stale = to, change.get("stale", False)
            entry.consumer.on_delta(to, read_changes(change), _checksum(change), _opening(change))

    def handle_progress(self, seq: int) -> None:
        """Notes that nothing changed for this connection up to a seq."""
        self._advance(seq)
        for entry in list(self._all.values()):
            if entry.state is _State.LIVE and not entry.stale and (entry.seq is None or entry.seq < seq):
                entry.seq = seq
                entry.consumer.on_progress(seq)

    def handle_error(self, frame: dict[str, Any]) -> bool:
        """Handles the refusal or the end of a subscription. Returns `False` if the id is not that of a subscription."""
        name = frame.get("id")
        if not isinstance(name, str) or not name.startswith("q"):
            return False
        error = error_from_problem(frame)
        if error.code != "resync_required":
            # Refusals do not wait for the answers before them.
            self._unanswered.pop(name, None)
        entry = self._by_name.get(name)
        if entry is None:
            return True
        if error.code == "resync_required":
            entry.parts.clear()  # A snapshot follows.
        elif isinstance(error, TEMPORARY):
            if entry.state is _State.LIVE:
                entry.seq = entry.position(self._received)
            self._by_name.pop(name)
            entry.state = _State.LATER
            pause = max(entry.backoff.next(), (error.retry_after_ms or 0) / 1000)
            entry.retry = asyncio.get_running_loop().call_later(pause, self._begin, entry)
        else:
            self._by_name.pop(name)
            self._all.pop(entry.consumer, None)
            entry.state = _State.OFF
            entry.consumer.on_end(error)
        return True

    def _begin(self, entry: _Entry) -> None:
        self._stop(entry)
        if not self._connected:
            return
        self._count += 1
        entry.name = f"q{self._count}"
        start = entry.start if entry.seq is None else Start(after_seq=entry.seq)
        message = {"op": "subscribe", "id": entry.name, **entry.query}
        if start.after_seq is not None:
            message["after_seq"] = start.after_seq
            if entry.timeline is not None:
                message["timeline"] = entry.timeline
        elif start.as_of is not None:
            message["as_of"] = start.as_of
        entry.state, entry.stale = _State.BEGUN, False
        entry.parts.clear()
        self._by_name[entry.name] = entry
        self._unanswered[entry.name] = start
        self._send(message)

    def _stop(self, entry: _Entry) -> None:
        """Ends the current start of a subscription."""
        if entry.retry is not None:
            entry.retry.cancel()
            entry.retry = None
        if entry.state in (_State.BEGUN, _State.LIVE) and self._by_name.pop(entry.name, None) is not None:
            self._send({"op": "unsubscribe", "id": entry.name})
        entry.state = _State.OFF

    def _mark_live(self, entry: _Entry) -> None:
        self._drop_unanswered(entry.name)
        entry.state, entry.timeline = _State.LIVE, self._timeline
        entry.backoff.reset()

    def _drop_unanswered(self, name: str) -> None:
        """Answers arrive in order: those before this one will not arrive any more."""
        if name in self._unanswered:
            for other in list(self._unanswered):
                del self._unanswered[other]
                if other == name:
                    break

    def _find_answered_start(self, start: int, changes: list[dict[str, Any]]) -> str | None:
        """Returns the id of the start that a delta answers; `None` if it is no answer."""
        if len(changes) == 1:
            name = changes[0]["id"]
            return name if name in self._unanswered else None
        if changes:
            return None
        waiting = (name for name, other in self._unanswered.items() if other.after_seq == start)
        return next(waiting, None)

    def _handle_resume(self, entry: _Entry, start: int, to: int, change: dict[str, Any]) -> None:
        at = entry.seq
        missed = self._received is not None and self._received > to
        if at is None or start > at or missed:
            self._begin(entry)
        elif to >= at:
            entry.seq = to
            # Also without changes: it carries the shape of the result.
            entry.consumer.on_delta(to, read_changes(change), _checksum(change), _opening(change))

    def _advance(self, to: int) -> None:
        if self._received is None or to > self._received:
            self._received = to

    def _close_gap(self, start: int) -> None:
        """Starts subscriptions again that miss changes, since a frame begins after the end of the previous one."""
        for entry in list(self._all.values()):
            at = entry.position(self._received)
            if entry.state is _State.LIVE and (at is None or at < start):
                _LOG.warning("the server left a gap before seq %s; a subscription starts again", start)
                entry.seq = at
                self._begin(entry)


def _checksum(message: dict[str, Any]) -> int | None:
    text = message.get("checksum")
    return None if text is None else int(text, 16)


def _opening(change: dict[str, Any]) -> tuple[Shape, Plan] | None:
    return (read_shape(change), read_plan(change)) if "columns" in change else None
