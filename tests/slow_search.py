"""A search service, within the test's own process, that never answers one query."""

import asyncio

from aiohttp import web


def slow_service(passage) -> web.Application:
    """Answers each request with `passage`; the query "slow" waits for ever."""
    never = asyncio.Event()

    async def handler(request):
        if (await request.json())["queries"] == ["slow"]:
            await never.wait()
        return web.json_response({"result": [[passage]]})

    app = web.Application()
    app.router.add_post("/retrieve", handler)
    return app
