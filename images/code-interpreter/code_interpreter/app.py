"""The HTTP API: what comes in is checked here, and what a cell says goes out line by line."""

import asyncio
import json
import logging

from aiohttp import web

from .contexts import Contexts, Refused

# A cell, with data in it: 64 MiB.
BODY_MAX_BYTES = 64 << 20
# A line goes out at least this often, so that nothing between client and server takes the connection for dead.
KEEPALIVE_SECONDS = 5
CONTEXTS = web.AppKey("contexts", Contexts)
logger = logging.getLogger(__name__)


def make_app(home):
    """The application. Its default Python kernel is started in the background; `/health` says when it is there."""
    app = web.Application(client_max_size=BODY_MAX_BYTES, middlewares=[refusals])
    app[CONTEXTS] = Contexts(home)
    app.cleanup_ctx.append(kernels)
    app.router.add_get("/health", health)
    app.router.add_post("/execute", execute)
    app.router.add_get("/contexts", list_contexts)
    app.router.add_post("/contexts", create_context)
    app.router.add_delete("/contexts/{id}", delete_context)
    app.router.add_post("/contexts/{id}/restart", restart_context)
    app.router.add_post("/contexts/{id}/interrupt", interrupt_context)
    return app


async def kernels(app):
    """The kernels live as long as the application."""
    contexts = app[CONTEXTS]
    starting = asyncio.create_task(contexts.start_default())
    yield
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await contexts.close()


@web.middleware
async def refusals(request, handler):
    """Clients read the text of an answer that refuses."""
    try:
        return await handler(request)
    except Refused as refused:
        return web.Response(status=refused.status, text=str(refused))


async def health(request):
    contexts = request.app[CONTEXTS]
    if contexts.problem is not None:
        raise Refused(500, contexts.problem)
    return web.Response(text="OK") if contexts.ready else web.Response(status=503, text="the kernel is starting")


async def execute(request):
    body = await fields(request, code=str, context_id=str, language=str, env_vars=dict)
    if body["code"] is None:
        raise Refused(400, "'code' is missing")
    if body["context_id"] is not None and body["language"] is not None:
        raise Refused(400, "Only one of context_id or language can be provided")
    contexts = request.app[CONTEXTS]
    if body["context_id"] is not None:
        context = contexts.get(body["context_id"])
    else:
        context = await contexts.of_language(body["language"])
    cell = await context.begin(body["code"], variables(body["env_vars"]))
    try:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-cache"})
        await response.prepare(request)
        async for event in with_keepalives(cell):
            # ASCII: clients that decode chunk by chunk never see half a character.
            await response.write(json.dumps(event).encode() + b"\n")
        await response.write_eof()
        return response
    finally:
        # Without effect on a cell that has ended.
        cell.abandon()


async def with_keepalives(cell):
    """The events of a cell up to its end; something is said when it is silent for long."""
    while True:
        try:
            event = await asyncio.wait_for(cell.next(), KEEPALIVE_SECONDS)
        except asyncio.TimeoutError:
            event = {"type": "keepalive"}
        yield event
        if event["type"] in ("end_of_execution", "unexpected_end_of_execution"):
            return


async def list_contexts(request):
    return web.json_response([context.view() for context in request.app[CONTEXTS].all()])


async def create_context(request):
    body = await fields(request, language=str, cwd=str)
    context = await request.app[CONTEXTS].create(body["language"], body["cwd"])
    return web.json_response(context.view())


async def delete_context(request):
    await request.app[CONTEXTS].remove(request.match_info["id"])
    return web.Response(status=204)


async def restart_context(request):
    await request.app[CONTEXTS].get(request.match_info["id"]).restart()
    return web.Response(status=204)


async def interrupt_context(request):
    """Interrupts the cell that runs, if one does; who reads it hears what it says of that."""
    await request.app[CONTEXTS].get(request.match_info["id"]).interrupt()
    return web.Response(status=204)


async def fields(request, **types):
    """The named fields of a JSON object. What is absent is None, as null is."""
    try:
        body = await request.json() if request.can_read_body else {}
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Refused(400, f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused(400, "the body is no JSON object")
    for name, kind in types.items():
        if body.get(name) is not None and not isinstance(body[name], kind):
            raise Refused(400, f"'{name}' is not of the type {kind.__name__}")
    return {name: body.get(name) for name in types}


def variables(given):
    """Variables of the environment as they were given."""
    for name, value in (given or {}).items():
        if not name or "=" in name or "\0" in name or not isinstance(value, str) or "\0" in value:
            raise Refused(400, f"env_vars: {name!r} is no name or has no text as value")
    return given or {}
