"""Servers of Debian 12, each as its packages start it: how it begins, and how it is asked for something."""

import contextlib
import json
import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path

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


class Server:
    """One that counts its requests answers with their number."""

    connect = Line

    def __init__(self, place, port):
        self.place, self.port = place, port

    @classmethod
    def program(cls):
        return shutil.which(cls.command, path=os.environ["PATH"] + ":/usr/sbin")

    def begin(self):
        """Once it listens."""

    def ask(self, line):
        return int(line.say("INCR n")[1:])


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


class Nginx(Web):
    command = "nginx"

    def words(self):
        temporary = "".join(f"{kind}_temp_path {self.place}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        written = self.configure(
            f"daemon off; worker_processes 2; pid {self.place}/pid; user root; events {{}}"
            f"http {{ access_log off; {temporary} server {{ listen 127.0.0.1:{self.port}; root {self.root()}; keepalive_requests 100000000; }} }}"
        )
        return [self.program(), "-c", written, "-e", self.place / "errors"]


class Apache(Web):
    command = "apache2"

    def words(self):
        load = "".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n" for name in ("mpm_event", "authz_core", "mime"))
        written = self.configure(
            f"ServerRoot {self.place}\nServerName localhost\n{load}TypesConfig /etc/mime.types\nDefaultRuntimeDir {self.place}\n"
            f"PidFile {self.place}/pid\nErrorLog {self.place}/errors\nListen 127.0.0.1:{self.port}\nMaxKeepAliveRequests 0\n"
            f"DocumentRoot {self.root()}\n<Directory {self.root()}>\nRequire all granted\n</Directory>\n"
        )
        return [self.program(), "-f", written, "-DFOREGROUND"]


class HAProxy(Web):
    command = "haproxy"

    def words(self):
        written = self.configure(
            "global\n nbthread 2\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 5s\n"
            f'frontend f\n bind 127.0.0.1:{self.port}\n http-request return status 200 content-type text/plain string "hello\\n"\n'
        )
        return [self.program(), "-W", "-db", "-f", written]


class Varnish(Web):
    command = "varnishd"

    def words(self):
        written = self.configure(
            "vcl 4.1;\nbackend default none;\nsub vcl_recv { return (synth(200)); }\n"
            'sub vcl_synth { synthetic("hello" + {"\n"}); set resp.http.Content-Length = "6"; return (deliver); }\n'
        )
        return [self.program(), "-F", "-a", f"127.0.0.1:{self.port}", "-f", written, "-n", self.place / "work", "-j", "none"]


class Php(Web):
    """Each request has a connection of its own."""

    command = "php"

    @contextlib.contextmanager
    def connect(port):
        yield port

    def words(self):
        return ["env", "PHP_CLI_SERVER_WORKERS=3", self.program(), "-S", f"127.0.0.1:{self.port}", "-t", self.root()]

    def ask(self, port):
        with Line(port) as line:
            super().ask(line)


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


class Postgres(Server):
    """It does not run as root, and CRIU needs leave of its own for other users' processes: it is told that it runs as another."""

    command = "postgres"
    SHIM = '#include <stdlib.h>\nint geteuid(void) { return atoi(getenv("SHOWN_USER")); }\nint getuid(void) { return geteuid(); }\n'

    @classmethod
    def program(cls):
        return max(map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")), default=None)

    def words(self):
        shim, user = self.place / "shim.so", pwd.getpwnam("postgres").pw_uid
        subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, "-xc", "-"], input=self.SHIM, text=True, check=True)
        for above in [self.place, *self.place.parents[:-2]]:
            above.chmod(0o777)
        own = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        initdb = [Path(self.program()).with_name("initdb"), "-D", self.place / "data", "-A", "trust", "-E", "UTF8", "--locale=C"]
        subprocess.run([*own, *initdb], check=True, stdout=subprocess.DEVNULL)
        return ["env", f"LD_PRELOAD={shim}", f"SHOWN_USER={user}", self.program(), "-D", self.place / "data", "-p", self.port, "-k", self.place]

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


class Erlang(Server):
    command = "erl"
    SOURCE = """-module(counter).
-export([start/1]).
start([Port]) ->
    {ok, Listener} = gen_tcp:listen(list_to_integer(Port), [binary, {packet, line}, {active, false}, {ip, {127, 0, 0, 1}}]),
    Counter = spawn(fun() -> count(0) end), accept(Listener, Counter).
count(N) -> receive {From, next} -> From ! {number, N + 1}, count(N + 1) end.
accept(Listener, Counter) ->
    {ok, Socket} = gen_tcp:accept(Listener), Own = spawn(fun() -> receive go -> answer(Socket, Counter) end end),
    gen_tcp:controlling_process(Socket, Own), Own ! go, accept(Listener, Counter).
answer(Socket, Counter) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, _} -> Counter ! {self(), next}, receive {number, N} -> gen_tcp:send(Socket, [$:, integer_to_list(N), 13, 10]) end, answer(Socket, Counter);
        _ -> ok
    end.
"""

    def words(self):
        (self.place / "counter.erl").write_text(self.SOURCE)
        subprocess.run(["erlc", "-o", self.place, self.place / "counter.erl"], check=True)
        return [self.program(), "-noinput", "-pa", self.place, "-run", "counter", "start", self.port]


class Ruby(Server):
    command = "ruby"
    SOURCE = """require 'socket'
server = TCPServer.new('127.0.0.1', ARGV[0].to_i); n = 0; lock = Mutex.new
loop { one = server.accept; Thread.new { while one.gets; one.write(":#{lock.synchronize { n += 1 }}\\r\\n"); end } }
"""

    def words(self):
        (self.place / "counter.rb").write_text(self.SOURCE)
        return [self.program(), self.place / "counter.rb", self.port]


ALL = [Redis, RedisThatWritesAll, Memcached, Nginx, Apache, HAProxy, Varnish, Php, Etcd, Postgres, MariaDB, Erlang, Ruby]
