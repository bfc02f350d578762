"""Stores for the benchmark, each on this machine and with one object: `server.py`, and an S3 server, which is versitygw with its
files in memory."""

import datetime
import hashlib
import hmac
import http.client
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT = 30


class Store:
    """`with PlainStore(size) as store:`. `url` is the object's; `prefix` is how all begin; `environment` is for who reads it."""

    port: int
    prefix: str
    root = ""
    environment: dict[str, str] = {}

    @property
    def url(self):
        return f"{self.prefix}/blob"

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port)

    def ask(self, connection, method, name, body=None, headers=None):
        """The answer, once its head is there."""
        path = f"{self.root}/{name}" if name else self.root
        headers = (headers or {}) | self.signed(method, path)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        if answer.status // 100 != 2:
            raise RuntimeError(f"{method} {path} was answered with {answer.status}: {answer.read()[:500]!r}; look at the store")
        return answer

    def ask_once(self, method, name, body=None):
        connection = self.connect()
        self.ask(connection, method, name, body).read()
        connection.close()

    def signed(self, method, path):
        return {}

    def __enter__(self):
        try:
            return self.begin()
        except BaseException:
            self.end()
            raise

    def __exit__(self, *_):
        self.end()

    def end(self):
        self.server.kill()
        self.server.wait()
        shutil.rmtree(self.directory)


class PlainStore(Store):
    def __init__(self, size):
        self.directory = Path(tempfile.mkdtemp())
        blob = self.directory / "blob"
        blob.write_bytes(os.urandom(1 << 20) * (size >> 20))
        self.server = subprocess.Popen([sys.executable, HERE / "server.py", blob], stdout=subprocess.PIPE, text=True)

    def begin(self):
        self.port = int(self.server.stdout.readline())
        self.prefix = f"http://127.0.0.1:{self.port}"
        return self

    def change(self):
        """The object is another version from now on: nothing of that is in the host's memory."""
        self.ask_once("POST", "blob")


class S3Store(Store):
    bucket, region = "bench", "us-east-1"

    def __init__(self, size, binary):
        self.directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
        self.contents = bytearray(os.urandom(1 << 20) * (size >> 20))
        self.key, self.secret = "bench", secrets.token_hex()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [binary, "--quiet", "--keep-alive", "--port", f"127.0.0.1:{self.port}", "posix", self.directory]
        environment = os.environ | {"ROOT_ACCESS_KEY": self.key, "ROOT_SECRET_KEY": self.secret, "VGW_REGION": self.region}
        self.server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        self.root, self.prefix = f"/{self.bucket}", f"s3://{self.bucket}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
        }

    def begin(self):
        until = time.monotonic() + LIMIT
        while True:
            try:
                self.ask_once("PUT", "")
                break
            except ConnectionError:
                if time.monotonic() > until or self.server.poll() is not None:
                    raise
                time.sleep(0.05)
        self.change()
        return self

    def change(self):
        """As `PlainStore.change`: its ETag is of its contents."""
        self.contents[:16] = secrets.token_bytes(16)
        self.ask_once("PUT", "blob", self.contents)

    def signed(self, method, path):
        """The headers by which S3 knows who asks (AWS Signature Version 4)."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        contents, host = "UNSIGNED-PAYLOAD", f"127.0.0.1:{self.port}"
        names = "host;x-amz-content-sha256;x-amz-date"
        canonical = f"{method}\n{path}\n\nhost:{host}\nx-amz-content-sha256:{contents}\nx-amz-date:{now}\n\n{names}\n{contents}"
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"AWS4{self.secret}".encode()
        for part in (*scope.split("/"), text):
            key = hmac.digest(key, part.encode(), "sha256")
        authorization = f"AWS4-HMAC-SHA256 Credential={self.key}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        return {"x-amz-date": now, "x-amz-content-sha256": contents, "Authorization": authorization}


def store(size, server):
    """The store that `--server` names: none, or `versitygw=PATH`."""
    kind, _, binary = server.partition("=")
    if not server:
        return PlainStore(size)
    if kind != "versitygw" or not Path(binary).is_file():
        raise SystemExit(f"--server {server!r} names no store; give versitygw=PATH, where PATH is its binary")
    return S3Store(size, binary)
