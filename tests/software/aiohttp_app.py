"""aiohttp's server: `aiohttp_app.py PORT`."""

import asyncio
import sys

from aiohttp import web
from counter import Counter


async def answer(request):
    return web.json_response(await asyncio.to_thread(request.app["counter"].next))


app = web.Application()
app["counter"] = Counter()
app.router.add_get("/", answer)
web.run_app(app, host="0.0.0.0", port=int(sys.argv[1]), print=None)
