"""The namespace of a caller with a scope: what begins each id that it chooses.

`s1` of a caller with the scope `tenant=acme` is stored as `tenant=acme/s1`. Calls accept both; rows, answers and queries have the
stored id.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

from .errors import Conflict, Denied, ProtocolError

if TYPE_CHECKING:
    from .client import Abide

_KEPT = "namespace"
_NAMESPACE = re.compile(r"(?:[A-Za-z0-9_%.=,-]+/)?")
"""All other characters of a namespace are escaped."""


async def stored_id(client: Abide, chosen: str) -> str:
    """The stored id of something whose id the caller chose."""
    namespace = await _namespace_of(client)
    return chosen if chosen.startswith(namespace) else namespace + chosen


async def find_row(client: Abide, sql: str, given: str) -> Any:
    """The row of a query by `:id`, for an id as it is stored or as the caller chose it; `None` if there is none."""
    # The server looks in this order, too.
    found = (await client.sql(sql, {"id": given})).first()
    if found is None:
        stored = await stored_id(client, given)
        if stored != given:
            found = (await client.sql(sql, {"id": stored})).first()
    return found


async def _namespace_of(client: Abide) -> str:
    """The namespace of the caller; empty without a scope, and for a role that cannot create sessions."""
    await client.start()
    # The scope of an identity can be changed, which ends its connections.
    reconnects = client.reconnects
    known: tuple[int, str] | None = client.kept.get(_KEPT)
    if known is None or known[0] != reconnects:
        known = client.kept[_KEPT] = reconnects, await _ask(client)
    return known[1]


async def _ask(client: Abide) -> str:
    """A batch that creates a session twice is refused, writes nothing, and its refusal names the stored id."""
    chosen = str(uuid.uuid4())
    create = ("create_session", {"agent": "namespace", "id": chosen})
    try:
        await client.batch([create, create])
    except Denied:
        return ""
    except Conflict as why:
        before, found, _ = why.detail.partition(chosen)
        namespace = before.rpartition(" ")[2]
        if found and _NAMESPACE.fullmatch(namespace):
            return namespace
        raise ProtocolError("the refusal of a session that exists does not name its id") from why
    raise ProtocolError("a session was created twice")
