"""Servers that keep something: what is asked of each is counted."""

import json
import socket
import subprocess
from pathlib import Path

from kinds import Client, Line, Server


class Redis(Server):
    command = "redis-server"
    more = ()

    def words(self):
        return [self.program(), "--port", self.port, "--dir", self.place, "--bind", "127.0.0.1", *self.more]


class RedisThatWritesAll(Redis):
    """It appends each change to a file, and forks to save all of it each second."""

    more = ("--appendonly", "yes", "--save", "1", "1", "--io-threads", "3")


class Memcached(Server):
    command = "memcached"

    def words(self):
        return [self.program(), "-u", "root", "-l", "127.0.0.1", "-p", self.port, "-t", "3"]

    def begin(self):
        with Line(self.port) as line:
            if line.say("add n 0 0 1\r\n0") not in ("STORED", "NOT_STORED"):
                raise OSError("nothing was stored")

    def ask(self, line):
        return int(line.say("incr n 1"))


class Etcd(Server):
    command = "etcd"

    def words(self):
        own = f"http://127.0.0.1:{self.port}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            peers = f"http://127.0.0.1:{free.getsockname()[1]}"
        return [
            self.program(),
            "--data-dir",
            self.place / "data",
            "--listen-client-urls",
            own,
            "--advertise-client-urls",
            own,
            "--listen-peer-urls",
            peers,
        ]

    def ask(self, line):
        body = b'{"key":"YQ==","value":"YQ=="}'
        answer = line.get(b"POST /v3/kv/put HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        return int(json.loads(answer)["header"]["revision"])


class Postgres(Server):
    """It does not run as root."""

    command = "postgres"
    USER = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")

    @classmethod
    def program(cls):
        return max(map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")), default=None)

    def words(self):
        for above in [self.place, *self.place.parents[:-2]]:
            above.chmod(0o777)
        initdb = [Path(self.program()).with_name("initdb"), "-D", self.place / "data", "-A", "trust", "-E", "UTF8", "--locale=C"]
        subprocess.run([*self.USER, *initdb], check=True, stdout=subprocess.DEVNULL)
        return [*self.USER, self.program(), "-D", self.place / "data", "-p", self.port, "-k", self.place]

    def connect(port):
        return Client("psql", "-h", "127.0.0.1", "-p", port, "-U", "postgres", "-qAt", "postgres")

    def begin(self):
        subprocess.run(
            ["psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-qc", "create table if not exists c as select 0 as n", "postgres"],
            check=True,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, line):
        return line.say("update c set n = n + 1 returning n")


class MariaDB(Server):
    command = "mariadbd"

    def words(self):
        made = ["mariadb-install-db", "--user=root", f"--datadir={self.place}/data", "--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        places = [f"--datadir={self.place}/data", f"--socket={self.place}/socket", f"--pid-file={self.place}/pid"]
        return [self.program(), "--no-defaults", "--user=root", *places, f"--port={self.port}", "--bind-address=127.0.0.1"]

    def connect(port):
        return Client("mariadb", "--no-defaults", "-h", "127.0.0.1", "-P", port, "-uroot", "-NBqn", "mysql")

    def begin(self):
        question = "create table if not exists c as select 0 as n"
        words = ["mariadb", "--no-defaults", "-h", "127.0.0.1", "-P", str(self.port), "-uroot", "-e", question, "mysql"]
        subprocess.run(words, check=True, stderr=subprocess.DEVNULL)

    def ask(self, line):
        return line.say("update c set n = last_insert_id(n + 1); select last_insert_id()")


class Mosquitto(Server):
    """A broker of MQTT, which counts nothing: it is asked whether it is there."""

    command = "mosquitto"
    CONNECT = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00"

    def connect(port):
        line = Line(port)
        line.socket.sendall(Mosquitto.CONNECT)
        if line.file.read(4)[:1] != b"\x20":
            raise OSError("the broker wants nobody")
        return line

    def words(self):
        (self.place / "configuration").write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\nuser root\n")
        return [self.program(), "-c", self.place / "configuration"]

    def ask(self, line):
        line.socket.sendall(b"\xc0\x00")
        if line.file.read(2) != b"\xd0\x00":
            raise OSError("no answer to a ping")
