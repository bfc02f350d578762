"""Sanic, whose processes tell each other of themselves by Unix sockets: `sanic_app.py PORT`."""

import sys

from counter import Counter
from sanic import Sanic, json

app = Sanic("app")


@app.before_server_start
async def begin(app, _):
    app.ctx.counter = Counter()


@app.get("/")
async def answer(request):
    return json(app.ctx.counter.next())


if __name__ == "__main__":
    app.run("0.0.0.0", int(sys.argv[1]), workers=1, access_log=False)
