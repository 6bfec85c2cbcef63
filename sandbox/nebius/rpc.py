"""The wire: each call passes one gate (faults, bearer token, request id), then a plain function answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

import grpc
from nebius.base.protos.direct import Message
from nebius.base.protos.dynamic import REGISTRY

from sandbox.cloud.faults import ApiFaults
from sandbox.nebius.errors import ApiError, resource_conflict, unauthenticated, unavailable, unimplemented

Headers = Mapping[str, str]
Method = Callable[[Any, Headers], Message]
Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[[Any, Context], Awaitable[Message]]

#: Says that an answer is not from Nebius, wherever it is met.
DOUBLE = ("x-sandbox-double", "nebius")
EXCHANGE = "TokenExchangeService/Exchange"
#: Whose token a sandbox starts with.
ACCOUNT = "serviceaccount-e00sandbox"
#: The header in which the gate tells the methods whose token a call came with.
CALLER = "x-sandbox-caller"


class Gate:
    """What stands before every method."""

    def __init__(self, faults: ApiFaults, token: str) -> None:
        self._faults = faults
        self._accounts = {token: ACCOUNT}

    def issue(self, account: str) -> str:
        """One more token that is let in."""
        token = f"sandbox-{uuid4()}"
        self._accounts[token] = account
        return token

    def guard(self, call: str, method: Method | None) -> Behaviour:
        """``method`` behind the gate; None is a method that the double lacks."""

        async def behaviour(request: Any, context: Context) -> Message:
            request_id = str(uuid4())
            own = (DOUBLE, ("x-request-id", request_id))
            effect = self._faults.strike("nebius", call)
            if effect == "hang":
                await asyncio.Event().wait()
            await context.send_initial_metadata(own)
            context.set_trailing_metadata(own)
            try:
                if effect == "error":
                    raise unavailable(call, request_id)
                headers = _headers(context)
                if call != EXCHANGE:
                    headers = {**headers, CALLER: self._authenticate(headers)}
                if effect == "conflict":
                    raise resource_conflict("sandbox", _resource(request), "a fault of the sandbox")
                if method is None:
                    raise unimplemented(call)
                answer = method(request, headers)
                if effect == "lost":
                    raise unavailable(call, request_id)
                return answer
            except ApiError as error:
                details = ("grpc-status-details-bin", error.status().SerializeToString())
                await context.abort(error.code, error.message, (*own, details))

        return behaviour

    def _authenticate(self, headers: Headers) -> str:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise unauthenticated("the call has no bearer token in its authorization header")
        if token not in self._accounts:
            raise unauthenticated("the bearer token is not one that this sandbox has given out")
        return self._accounts[token]


def service(name: str, methods: Mapping[str, Method], gate: Gate) -> grpc.GenericRpcHandler:
    """All methods of a service of the SDK's registry; the SDK has no servicers to inherit from."""
    short = name.rpartition(".")[2]
    handlers = {}
    for declared in REGISTRY.service_descriptor(name).methods:
        handlers[declared.name] = grpc.unary_unary_rpc_method_handler(
            gate.guard(f"{short}/{declared.name}", methods.get(declared.name)),
            request_deserializer=REGISTRY.message_class(declared.input_type.full_name).FromString,
            response_serializer=_serialised,
        )
    unknown = methods.keys() - handlers.keys()
    if unknown:
        raise LookupError(f"{name} has no {', '.join(sorted(unknown))}")
    return grpc.method_handlers_generic_handler(name, handlers)


class Rest(grpc.GenericRpcHandler):
    """Every service that the double does not have at all."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        path, _, method = handler_call_details.method.rpartition("/")
        call = f"{path.rpartition('.')[2].lstrip('/')}/{method}"
        return grpc.unary_unary_rpc_method_handler(self._gate.guard(call, None))


def _serialised(message: Message) -> bytes:
    return message.SerializeToString()


def _headers(context: Context) -> Headers:
    metadata = context.invocation_metadata() or ()
    return {str(key).lower(): value for key, value in metadata if isinstance(value, str)}


def _resource(request: Any) -> str:
    metadata = getattr(request, "metadata", None)
    found = getattr(request, "id", "") or getattr(metadata, "id", "")
    return str(found)
