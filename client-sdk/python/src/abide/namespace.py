"""The namespace of a caller with a scope: what begins each id that it chooses.

`s1` of a caller with the scope `tenant=acme` is stored as `tenant=acme/s1`. Calls accept both; rows, answers and queries have the
stored id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import Abide


async def fetch_namespace(client: Abide) -> str:
    """Returns the namespace of the caller; empty without a scope."""
    if client.namespace is None:
        # The first message of a connection states it, so it precedes every answer.
        await client.sql("SELECT 1")
    return client.namespace or ""


async def find_stored_id(client: Abide, sql: str, requested_id: str) -> str | None:
    """Returns the stored id that a query selects by `:id`; `None` if there is none.

    The id is tried as it is, and then in the namespace of the caller, as the server does.
    """

    async def select(candidate: str) -> str | None:
        found = (await client.sql(sql, {"id": candidate})).first()
        return None if found is None else str(found[0])

    found = await select(requested_id)
    namespace = await fetch_namespace(client)
    if found is not None or requested_id.startswith(namespace):
        return found
    return await select(namespace + requested_id)
