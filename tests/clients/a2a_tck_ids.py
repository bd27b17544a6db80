"""A plugin of pytest for the compatibility kit: every message that the kit sends has an id of its own.

The kit names its messages by what the agent shall do, and sends the same message again when it wants another task. A server that
detects repeated messages by `messageId`, as the specification allows, answers with the task of the first one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tck.transport.grpc_client import GrpcClient
from tck.transport.http_json_client import HttpJsonClient
from tck.transport.jsonrpc_client import JsonRpcClient

numbers = itertools.count(1)


def with_own_id(send: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(client: Any, message: dict[str, Any], **rest: Any) -> Any:
        if "messageId" in message:
            message = {**message, "messageId": f"{message['messageId']}-{next(numbers)}"}
        return send(client, message, **rest)

    return wrapped


for kind in (GrpcClient, HttpJsonClient, JsonRpcClient):
    for name in ("send_message", "send_streaming_message"):
        setattr(kind, name, with_own_id(getattr(kind, name)))
