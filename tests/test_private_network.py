"""Networks of sandboxes' own, and ports of the machine's that lead there: through checkpoint, stop, restore and sleep."""

import asyncio
import contextlib
import ctypes
import http.client
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rekindle import PATIENCE, ROOT, CommandError, Rekindle

NETWORK = Path(__file__).parent / "network"
SERVER = (sys.executable, NETWORK / "server.py", 8000)
COUNTER = ROOT / "crates/cli/tests/programs/bump.py"
CLIENTS = 50


def start(rekindle, name, *command, ports=("0:8000",), options=()):
    """A program in a network of its own; the machine's ports that lead there."""
    publish = [word for port in ports for word in ("-p", port)]
    rekindle("run", "-d", "--name", name, "--gpu", rekindle.gpu, "--network", "private", *publish, *options, "--", *command)
    row = rekindle.sandbox(name)
    assert row["network"] == "private"
    return [port["port"] for port in row["ports"]]


def restore(rekindle, image, name, *options):
    rekindle("restore", image, "--name", name, "--gpu", rekindle.gpu, "-d", *options)
    return [port["port"] for port in rekindle.sandbox(name)["ports"]]


def fails(rekindle, *arguments):
    with pytest.raises(CommandError) as error:
        rekindle(*arguments)
    return error.value


def ask(port):
    """How many requests the server has answered before this one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        return int(connection.getresponse().read())


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def read(port):
    """What the service of `private.py` says of itself."""
    with connect(port) as sock:
        return sock.makefile("rb").read().decode()


class Clients:
    """Ask without a pause, each on a connection of its own or on a new one each time, until they are told to stop."""

    def __init__(self, port):
        self.port, self.answered, self.failures, self.goes_on = port, [0] * CLIENTS, [], True

    async def one(self, index):
        while self.goes_on:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            while self.goes_on:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                int(await reader.readexactly(int(head.split(b":")[1])))
                self.answered[index] += 1
                if index % 2:
                    break
            writer.close()
            await writer.wait_closed()

    async def more(self):
        """Until each has been answered once more, or one has failed."""
        so_far = list(self.answered)
        while not self.failures and any(now <= then for now, then in zip(self.answered, so_far, strict=True)):
            await asyncio.sleep(0.01)

    async def over(self, *works):
        async def watched(index):
            try:
                await self.one(index)
            except (OSError, EOFError, ValueError) as error:
                self.failures.append(error)

        running = [asyncio.create_task(watched(index)) for index in range(CLIENTS)]
        try:
            for work in works:
                await asyncio.wait_for(self.more(), PATIENCE)
                await asyncio.to_thread(work)
            await asyncio.wait_for(self.more(), PATIENCE)
        finally:
            self.goes_on = False
            await asyncio.wait_for(asyncio.gather(*running), PATIENCE)


def test_no_request_of_fifty_clients_fails_over_a_checkpoint_that_leaves_the_service_running(rekindle):
    (port,) = start(rekindle, "service", *SERVER)
    clients = Clients(port)
    take = [lambda image=image: rekindle("checkpoint", "service", "--to", image, "--leave-running") for image in ("one", "two")]
    asyncio.run(clients.over(*take))
    assert clients.failures == []
    # Fewer threads than clients carry that.
    held = [connect(port) for _ in range(CLIENTS)]
    assert len(os.listdir(f"/proc/{daemon(rekindle)}/task")) < CLIENTS
    for sock in held:
        sock.close()
    rekindle("kill", "service")
    # One that was killed has given its port back.
    with pytest.raises(ConnectionRefusedError):
        connect(port)
    assert restore(rekindle, "two", "again") == [port]
    assert ask(port) >= CLIENTS


def daemon(rekindle):
    """The daemon's pid."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(rekindle.environment["REKINDLE_SOCKET"])
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[0]


def test_instances_of_one_image_run_beside_each_other_on_ports_of_their_own(rekindle):
    (port,) = start(rekindle, "first", *SERVER)
    assert [ask(port), ask(port)] == [0, 1]
    rekindle("checkpoint", "first", "--to", "image", "--leave-running")
    others = {name: restore(rekindle, "image", name, "-p", "0:8000")[0] for name in ("second", "third", "fourth")}
    assert len({port, *others.values()}) == 4
    # Each has what the image has, and what it has seen itself.
    for other in others.values():
        assert [ask(other), ask(other)] == [2, 3]
    assert ask(port) == 2
    # An image of an instance has that one's port, and gives it to whoever asks once nobody runs there.
    rekindle("checkpoint", "second", "--to", "later", "--stop")
    assert restore(rekindle, "later", "another") == [others["second"]]
    assert ask(others["second"]) == 4


def test_who_comes_while_the_program_is_away_waits_for_it(rekindle):
    (port,) = start(rekindle, "service", sys.executable, NETWORK / "private.py")
    assert rekindle.wait_lines("service", 1) == ["outside ENETUNREACH"]
    with connect(port) as first:
        rekindle.wait_lines("service", 2)
        rekindle("checkpoint", "service", "--to", "image", "--stop")
        # It is told that the program has gone.
        with contextlib.suppress(ConnectionResetError):
            assert first.recv(1) == b""
    for image in ("again", "once more"):
        waiting = [connect(port) for _ in range(3)]
        assert rekindle.sandbox("service")["state"] == "stopped"
        assert restore(rekindle, "image" if image == "again" else "again", "service") == [port]
        answers = {sock.makefile("rb").read().decode() for sock in waiting}
        assert len(answers) == 3 and {answer.split()[0] for answer in answers} == {"UNREAD"}
        rekindle("checkpoint", "service", "--to", image, "--stop")
    # What it was connected to itself has come along, and what it was connected to from outside was reset.
    log = rekindle("logs", "service")
    assert "first ConnectionResetError" in log


# Listens on a Unix socket too, for which a restore needs its directory.
BOUND = """
import runpy, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv.pop(1))
runpy.run_path(sys.argv.pop(1))
"""


def test_a_restore_that_fails_leaves_those_who_wait_their_place(rekindle):
    directory, away = rekindle.root / "directory", rekindle.root / "away"
    directory.mkdir()
    (port,) = start(rekindle, "service", sys.executable, "-c", BOUND, directory / "socket", *SERVER[1:])
    assert ask(port) == 0
    rekindle("checkpoint", "service", "--to", "image", "--stop")
    directory.rename(away)
    directory.touch()
    with connect(port) as waiting:
        waiting.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert "socket" in fails(rekindle, "restore", "image", "-d").message
        assert rekindle.sandbox("service")["state"] == "stopped"
        directory.unlink()
        away.rename(directory)
        assert restore(rekindle, "image", "service") == [port]
        assert waiting.recv(1000).endswith(b"\r\n\r\n1")


def test_a_stopped_program_s_port_is_another_s_as_long_as_that_runs(rekindle):
    (port,) = start(rekindle, "service", *SERVER)
    assert ask(port) == 0
    rekindle("checkpoint", "service", "--to", "image", "--stop")
    # The next daemon listens again.
    rekindle("shutdown")
    rekindle("ps")
    assert restore(rekindle, "image", "other") == [port]
    assert ask(port) == 1
    refusal = fails(rekindle, "restore", "image", "--name", "service", "-d")
    assert f'port {port} is published by the sandbox "other"' in refusal.message
    rekindle("kill", "other")
    with connect(port) as waiting:
        waiting.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert restore(rekindle, "image", "service") == [port]
        assert waiting.recv(1000).endswith(b"\r\n\r\n1")


def test_a_program_with_a_gpu_goes_on_over_generations_and_sleep(rekindle):
    start(rekindle, "counter", sys.executable, COUNTER, ports=())
    for generation in ("one", "two"):
        rekindle.wait_lines("counter", 3)
        rekindle("checkpoint", "counter", "--to", generation, "--prove", "--stop")
        assert restore(rekindle, generation, "counter") == []
    rekindle.wait_lines("counter", 3)
    rekindle("sleep", "counter", "--level", "host")
    count = len(rekindle.lines("counter"))
    rekindle.wait_lines("counter", count + 3)
    numbers = [int(line) for line in rekindle.lines("counter")]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_an_image_comes_back_in_the_network_that_is_asked_for(rekindle):
    rekindle.run("host", sys.executable, NETWORK / "server.py")
    own = int(rekindle.wait_lines("host", 1)[0])
    rekindle("checkpoint", "host", "--to", "image", "--leave-running")
    # The port is in use on the machine, and not in a network of its own.
    assert f"127.0.0.1:{own}" in fails(rekindle, "restore", "image", "--name", "other", "-d").message
    (port,) = restore(rekindle, "image", "other", "--network", "private", "-p", f"0:{own}")
    assert [ask(own), ask(own), ask(port)] == [0, 1, 0]
    rekindle("kill", "host")
    rekindle("checkpoint", "other", "--to", "back", "--stop")
    assert restore(rekindle, "back", "other", "--network", "host") == []
    assert ask(own) == 1


def test_a_daemon_that_is_killed_is_followed_by_one_that_has_the_ports(rekindle):
    (port,) = start(rekindle, "service", *SERVER)
    assert ask(port) == 0
    os.kill(daemon(rekindle), signal.SIGKILL)
    rekindle("ps")
    assert ask(port) == 1
    rekindle("checkpoint", "service", "--to", "image", "--stop")
    assert restore(rekindle, "image", "service") == [port]
    assert ask(port) == 2


def test_who_comes_while_a_program_is_brought_back_after_a_failure_waits_for_it(rekindle):
    (port,) = start(rekindle, "service", *SERVER, options=("--restart", "on-failure"))
    assert [ask(port), ask(port)] == [0, 1]
    os.kill(rekindle.sandbox("service")["pid"], signal.SIGKILL)
    # It began anew, or had not ended yet, and is told of as any that ends: to a client that connects, sends or reads.
    with contextlib.suppress(ConnectionResetError, BrokenPipeError), connect(port) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sock.recv(1000).endswith((b"\r\n\r\n0", b"\r\n\r\n2")) or not sock.recv(1)

    def is_back():
        row = rekindle.sandbox("service")
        return row["state"] == "running" and row["recovery"]["recoveries"] == 1

    rekindle.wait(is_back, "the program")
    assert ask(port) <= 1
    rekindle("kill", "service")
    with pytest.raises(ConnectionRefusedError):
        connect(port)


def is_free(port):
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_a_port_is_published_once(rekindle):
    # Of those that nobody is given who asks for any.
    with socket.create_server(("127.0.0.1", random.randint(20000, 32000))) as other:
        taken = other.getsockname()[1]
        publish = ("--network", "private", "-p", f"127.0.0.1:{taken}:8000", "--", *SERVER)
        message = fails(rekindle, "run", "-d", "--name", "late", *publish).message
        assert f"port {taken} " in message and f"process {os.getpid()} (" in message
    assert [row["name"] for row in rekindle.sandboxes()] == []
    rekindle.wait(lambda: is_free(taken), "the port to be free")
    (port,) = start(rekindle, "first", *SERVER, ports=(f"127.0.0.1:{taken}:8000",))
    assert port == taken
    for again in (f"{taken}:8000", f"127.0.0.1:{taken}:9000"):
        message = fails(rekindle, "run", "-d", "--network", "private", "-p", "0:1", "-p", again, "--", *SERVER).message
        assert f'port {taken} is published by the sandbox "first"' in message
    assert ask(port) == 0


def test_ports_are_of_private_networks_and_of_a_form(rekindle):
    for command in (["run", "-d"], ["run", "-d", "--network", "host"]):
        refusal = fails(rekindle, *command, "-p", "0:8000", "--", *SERVER)
        assert refusal.code == 2 and "--network private" in refusal.message
    for wrong in ("8000", "80:", "x:80", "80:0", "70000:80", "80:80/udp", "localhost:80:80"):
        refusal = fails(rekindle, "run", "-d", "--network", "private", "-p", wrong, "--", *SERVER)
        assert refusal.code == 2 and "[ADDRESS:]PORT:PORT" in refusal.message
    # The machine's own ports may be anybody's.
    rekindle.run("host", sys.executable, NETWORK / "server.py")
    rekindle.wait_lines("host", 1)
    rekindle("checkpoint", "host", "--to", "image", "--stop")
    refusal = fails(rekindle, "restore", "image", "-d", "-p", "0:8000")
    assert refusal.code == 2 and "--network private" in refusal.message
    # An address that is not this machine's.
    message = fails(rekindle, "run", "-d", "--network", "private", "-p", "192.0.2.1:0:80", "--", *SERVER).message
    assert "192.0.2.1:0:80 cannot be published" in message


def test_who_comes_to_a_program_that_never_listens_is_refused_in_time():
    with Rekindle(REKINDLE_PUBLISH_WAIT="1") as rekindle:
        (port,) = start(rekindle, "deaf", sys.executable, COUNTER)

        def waits(_):
            """For how long, until it is told; one that is slow to hear that it is connected is told of both at once."""
            began = time.monotonic()
            with pytest.raises(ConnectionResetError), connect(port) as sock:
                sock.recv(1)
            return time.monotonic() - began

        with ThreadPoolExecutor() as pool:
            assert min(pool.map(waits, range(3))) >= 1
        count = len(rekindle.lines("deaf"))
        rekindle.wait_lines("deaf", count + 3)
        assert rekindle.sandbox("deaf")["state"] == "running"


def test_without_the_capability_a_network_is_refused_in_a_sentence():
    sys_admin, drop_from_bounding_set = 21, 24
    binaries = Path(Rekindle().command).parent
    with Rekindle() as rekindle:

        def give_up():
            assert ctypes.CDLL(None).prctl(drop_from_bounding_set, sys_admin, 0, 0, 0) == 0

        log = (rekindle.root / "log").open("wb")
        served = subprocess.Popen(
            [binaries / "rekindled"], env=rekindle.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=give_up
        )
        try:
            rekindle.wait((rekindle.root / "socket").exists, "the daemon")
            message = fails(rekindle, "run", "-d", "--network", "private", "--", *SERVER).message
            assert "cannot be made" in message and "CAP_SYS_ADMIN" in message and "--network host" in message
            assert rekindle.sandboxes() == []
        finally:
            rekindle("shutdown")
            served.wait(PATIENCE)
