"""Servers that give what they are asked for, and count nothing."""

import contextlib
import shutil
import socket
import struct

from kinds import HELLO, Line, Server, Web


class Nginx(Web):
    """Its workers run as another user."""

    command = "nginx"

    def words(self):
        for above in [self.place, *self.place.parents[:-2]]:
            above.chmod(0o755)
        temporary = "".join(f"{kind}_temp_path {self.place}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        written = self.configure(
            f"daemon off; worker_processes 2; pid {self.place}/pid; events {{}}"
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


class Tomcat(Web):
    HOME = "/usr/share/tomcat10"

    @classmethod
    def program(cls):
        return shutil.which(f"{cls.HOME}/bin/catalina.sh")

    def words(self):
        base = self.place / "base"
        shutil.copytree("/etc/tomcat10", base / "conf")
        for name in ("webapps/ROOT", "logs", "temp", "work"):
            (base / name).mkdir(parents=True)
        (base / "webapps/ROOT/x").write_bytes(HELLO)
        configuration = base / "conf/server.xml"
        text = configuration.read_text().replace('port="8080"', f'port="{self.port}" maxKeepAliveRequests="-1"')
        configuration.write_text(text.replace('port="8005"', 'port="-1"'))
        return ["env", f"CATALINA_BASE={base}", f"CATALINA_HOME={self.HOME}", self.program(), "run"]


class Gunicorn(Web):
    command = "gunicorn"
    SOURCE = "import flask\napp = flask.Flask('app')\n@app.route('/x')\ndef x():\n    return 'hello\\n'\n"

    def words(self):
        (self.place / "app.py").write_text(self.SOURCE)
        more = ["--workers", "2", "--threads", "4", "--keep-alive", "100"]
        return [self.program(), "--chdir", self.place, *more, "--bind", f"127.0.0.1:{self.port}", "app:app"]


class Uvicorn(Web):
    command = "uvicorn"
    SOURCE = """async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
        await send({"type": "http.response.body", "body": b"hello\\n"})
"""

    def words(self):
        (self.place / "app.py").write_text(self.SOURCE)
        return [self.program(), "--app-dir", self.place, "--port", self.port, "--workers", "2", "--log-level", "warning", "app:app"]


class Prometheus(Web):
    command = "prometheus"

    def words(self):
        own = f"global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: own, static_configs: [{{targets: ['127.0.0.1:{self.port}']}}]}}]\n"
        places = [f"--config.file={self.configure(own)}", f"--storage.tsdb.path={self.place}/data"]
        return [self.program(), *places, f"--web.listen-address=127.0.0.1:{self.port}"]

    def ask(self, line):
        if b"success" not in line.get(b"GET /api/v1/query?query=up HTTP/1.1\r\nHost: a\r\n\r\n"):
            raise OSError("no success")


class Questions:
    """Of the name system, by UDP."""

    def __init__(self, port):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", port))
        self.number = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


class Unbound(Server):
    command = "unbound"
    connect = Questions
    NAME, ADDRESS = b"\x01a\x04test\x00", b"\x01\x02\x03\x04"

    def words(self):
        text = f"""server:
 interface: 127.0.0.1
 port: {self.port}
 num-threads: 2
 username: ""
 chroot: ""
 directory: "{self.place}"
 pidfile: ""
 use-syslog: no
 local-zone: "test." static
 local-data: "a.test. A 1.2.3.4"
remote-control:
 control-enable: no
"""
        (self.place / "configuration").write_text(text)
        return [self.program(), "-d", "-c", self.place / "configuration"]

    def ask(self, questions):
        questions.number = (questions.number + 1) % 65536
        head = struct.pack(">HHHHHH", questions.number, 0x100, 1, 0, 0, 0)
        questions.socket.send(head + self.NAME + struct.pack(">HH", 1, 1))
        answer = questions.socket.recv(512)
        if answer[:2] != head[:2] or self.ADDRESS not in answer:
            raise OSError(f"{answer} in place of an address")
