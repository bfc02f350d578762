"""A Flask application, for gunicorn and for waitress."""

import os

from counter import Counter
from flask import Flask

app, made = Flask(__name__), []


@app.get("/")
def answer():
    # In the process that serves, which gunicorn forks.
    if not made:
        made.append(Counter())
    return made[0].next() | {"process": os.getpid()}
