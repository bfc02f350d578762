"""A native process of the baselines: `instance.py NAME GPU WORK SOCKET`.

It is the container of a function, warm: everything is imported, the model is built without weights, and there is no GPU context.
What it is asked for over the socket, a line of JSON each, it has a fork of itself do, an instance with a connection of its own:

    container ◀─ {"fork": NUMBER}
    instance  ─▶ {"instance": NUMBER}   ◀─ {"do": "open" | "load" | "compute" | "forget", "request": K}   ─▶ seconds by stage, answer
"""

import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path

import catalogue
import objects
from fetch import fetch


class Lines:
    """Documents over a socket, a line each."""

    def __init__(self, connection):
        self.connection, self.file = connection, connection.makefile("r")

    @classmethod
    def to(cls, place):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(place)
        return cls(connection)

    def say(self, **document):
        self.connection.sendall((json.dumps(document) + "\n").encode())

    def __iter__(self):
        return (json.loads(line) for line in self.file)


class Stages:
    """Seconds since the last stage's end."""

    def __init__(self):
        self.seconds, self.last = {}, time.perf_counter()

    def end(self, name):
        now = time.perf_counter()
        self.seconds[name], self.last = now - self.last, now


def carry_out(function, row, asked):
    stages = Stages()
    match asked["do"]:
        case "open":
            function.open()
            stages.end("context")
        case "load":
            data = fetch(row["url"], row["bytes"])
            stages.end("fetch")
            function.take_host(data)
            stages.end("copy")
        case "compute":
            answer = function.compute(asked["request"])
            stages.end("compute")
            return {"seconds": stages.seconds, "answer": answer}
        case "forget":
            function.forget()
            stages.end("forget")
    return {"seconds": stages.seconds}


def serve(function, row, lines):
    for asked in lines:
        try:
            lines.say(**carry_out(function, row, asked))
        except Exception:
            lines.say(error=traceback.format_exc()[-2000:])


def end_with(connection):
    """Ends this process when nobody asks any more, whatever it does."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    os._exit(0)


def main():
    name, gpu, work, place = sys.argv[1:]
    row = json.loads(Path(work, f"{name}.json").read_text())
    plan = {tensor: objects.Placed(*words) for tensor, words in row["plan"].items()}
    function = catalogue.build(catalogue.entries(gpu)[name], Path(work, "kernels"), plan)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    lines = Lines.to(place)
    lines.say(container=name)
    for asked in lines:
        if os.fork() == 0:
            lines.file.close()
            lines.connection.close()
            try:
                own = Lines.to(place)
                own.say(instance=asked["fork"])
                threading.Thread(target=end_with, args=(own.connection,), daemon=True).start()
                serve(function, row, own)
            finally:
                os._exit(0)


if __name__ == "__main__":
    main()
