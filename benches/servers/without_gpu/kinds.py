"""What servers have in common: how they begin, and how they are asked for something over a connection that stays."""

import os
import shutil
import socket
import subprocess

PATIENCE = 60
HELLO = b"hello\n"


class Line:
    """A connection that stays, over which one is asked after the other."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.file = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()

    def say(self, text):
        self.socket.sendall(text.encode() + b"\r\n")
        return self.file.readline().decode().strip()

    def get(self, request):
        self.socket.sendall(request)
        status, length = self.file.readline(), 0
        if b" 200 " not in status:
            raise OSError(f"{status} in place of an answer")
        while header := self.file.readline().strip():
            name, value = header.split(b":", 1)
            length = int(value) if name.lower() == b"content-length" else length
        return self.file.read(length)


class Client:
    """A program that asks a database, a line for each question."""

    def __init__(self, *words):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen([*map(str, words)], text=True, **pipes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(PATIENCE)

    def say(self, question):
        self.process.stdin.write(question + ";\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer.isdigit():
            raise OSError(f"{answer!r} in place of a number")
        return int(answer)


class Server:
    """One that counts its requests answers with their number."""

    connect = Line
    clients = 3

    def __init__(self, place, port):
        self.place, self.port = place, port

    @classmethod
    def program(cls):
        return shutil.which(cls.command, path=os.environ["PATH"] + ":/usr/sbin")

    @classmethod
    def version(cls):
        # Whose package the program is of.
        owner = subprocess.run(["dpkg", "-S", os.path.realpath(cls.program())], capture_output=True, text=True, check=False).stdout.split(":")[0]
        shown = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", owner], capture_output=True, text=True, check=False).stdout
        return shown.split(":")[-1].split("-")[0].split("+")[0]

    def begin(self):
        """Once it listens."""

    def ask(self, line):
        return int(line.say("INCR n")[1:])


class Web(Server):
    """One that gives a file, and counts nothing."""

    def ask(self, line):
        if line.get(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n") != HELLO:
            raise OSError("another file")

    def root(self):
        (self.place / "html").mkdir(exist_ok=True)
        (self.place / "html/x").write_bytes(HELLO)
        return self.place / "html"

    def configure(self, text):
        (self.place / "configuration").write_text(text)
        return self.place / "configuration"
