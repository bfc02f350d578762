"""FastAPI under uvicorn, with uvloop and httptools: `fastapi_app.py PORT`."""

import sys
from contextlib import asynccontextmanager

import uvicorn
from counter import Counter
from fastapi import FastAPI


@asynccontextmanager
async def lifespan(app):
    app.state.counter = Counter()
    yield


app = FastAPI(lifespan=lifespan)


@app.get("/")
def answer():
    return app.state.counter.next()


if __name__ == "__main__":
    uvicorn.run(app, host="0.0.0.0", port=int(sys.argv[1]), log_level="warning", loop="uvloop", http="httptools")
