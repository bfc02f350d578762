"""Programs of one tenant in one GPU context: run, imaged, restored there and elsewhere, and ended beside each other."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from interleavings.machine import daemon, is_alive
from rekindle import PATIENCE, CommandError, processes
from test_services import SERVER, begun, image

STEPS = Path(__file__).parent / "cut/steps.py"
FEATURES = Path(__file__).parent / "features"
# Has two buffers, and says where; when it is told to, what is in them, and whether it still computes.
OWNER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from gpu import Module, call, download, open_device, upload
open_device()
module = Module('extern "C" __global__ void add(int *at) { at[threadIdx.x] += 1; }')
buffers = [upload(np.full(1 << 20, 7, np.int32)) for _ in range(2)]
print(*map(int, buffers), flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.005)
print(*({int(word) for word in download(at, 1 << 20, np.int32)} for at in buffers), flush=True)
module.add(1, 1, np.uint64(int(buffers[0])))
print(download(buffers[0], 2, np.int32).tolist(), flush=True)
"""
# Has one buffer, and tries to reach what lies at an address: by the driver, and by a kernel.
REACHING = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from gpu import Module, call, download, driver, open_device, upload
open_device()
module = Module(
    'extern "C" __global__ void store(int *own, int *at) { at[threadIdx.x] = 9; }'
    'extern "C" __global__ void change(int *own, int *at) { atomicAdd(at + threadIdx.x, 9); }'
    'extern "C" __global__ void load(int *own, int *at) { own[threadIdx.x] = at[threadIdx.x]; }'
)
own, host, at = int(upload(np.full(1 << 20, 3, np.int32))), np.zeros(4, np.int32), int(sys.argv[2])
print(own, flush=True)
for name, *arguments in (
    ("cuMemsetD32", at, 9, 4),
    ("cuMemcpyHtoD", at, host.ctypes.data, 16),
    ("cuMemcpyDtoH", host.ctypes.data, at, 16),
    ("cuMemcpyDtoD", at, own, 16),
    ("cuMemcpyDtoD", own, at, 16),
):
    # Some are done after they have returned.
    codes = [getattr(driver, name)(*arguments)[0], driver.cuCtxSynchronize()[0]]
    print(*(code.name for code in codes if code.value), flush=True)
getattr(module, sys.argv[3])(1, 4, np.uint64(own), np.uint64(at))
print(driver.cuCtxSynchronize()[0].name, flush=True)
"""
# Says, as often as it is told to, how much dynamic shared memory its kernel may have, and whether it may be launched with more
# than that is at first. With `more` it sets that before.
SETTING = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from gpu import Module, call, download, driver, open_device, upload
open_device()
module = Module('extern "C" __global__ void add(int *at) { at[threadIdx.x] += 1; }')
function = module.function("add")
MOST, MORE = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100_000
at = upload(np.zeros(32, np.int32))
module.add(1, 1, np.uint64(int(at)))
if sys.argv[3] == "more":
    call("cuFuncSetAttribute", function, MOST, MORE)
times = 0
while True:
    while not os.path.exists(f"{sys.argv[2]}-{times}"):
        time.sleep(0.005)
    address = np.array([int(at)], np.uint64)
    pointers = np.array([address.ctypes.data], np.uint64)
    code = driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, MORE, 0, pointers.ctypes.data, 0)[0]
    print(times, call("cuFuncGetAttribute", MOST, function), code.name, download(at, 1, np.int32).item(), flush=True)
    times += 1
"""
# Reserves addresses until there are none left, and says how many GB it had and what the last code was; after that it allocates and
# computes as before. Then it gives them back and has as many again.
FILLING = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from gpu import Module, call, download, driver, open_device, upload
open_device()
module = Module('extern "C" __global__ void add(int *at) { at[threadIdx.x] += 1; }')
GB = 1 << 30
for _ in range(2):
    had = []
    while True:
        code, at = driver.cuMemAddressReserve(32 * GB, 0, 0, 0)
        if code.value:
            break
        had.append(int(at))
    buffer = upload(np.full(32, 7, np.int32))
    module.add(1, 1, np.uint64(int(buffer)))
    print(len(had) * 32, code.name, download(buffer, 1, np.int32).item(), flush=True)
    for at in had:
        call("cuMemAddressFree", at, 32 * GB)
"""
RESTORES = 12
SETTLED = 4
# Of contexts that go with their last program.
ENDS = 6


class Programs:
    """Counting programs, whose limit a link says."""

    def __init__(self, rekindle):
        self.rekindle = rekindle
        self.limit = rekindle.root / "limit"
        self.to = 0
        self.go_to(2)

    def go_to(self, limit):
        self.to = limit
        new = self.limit.with_suffix(".new")
        new.symlink_to(str(limit))
        new.rename(self.limit)

    def start(self, *names, options=()):
        for name in names:
            self.rekindle("run", "-d", "--share", "us", "--name", name, "--gpu", self.rekindle.gpu, *options, "--", sys.executable, STEPS, self.limit)
        for name in names:
            assert self.rekindle.wait_lines(name, 3) == ["ready", "step 1 found 0", "step 2 found 1"], name

    def restore(self, image, name, *options):
        self.rekindle("restore", "-d", image, "--name", name, "--gpu", self.rekindle.gpu, *options)

    def worker(self, name):
        (pid,) = self.rekindle.sandbox(name)["workers"]
        return pid

    def go_on(self, *names):
        """Two steps more of each, which find what the one before has left."""
        steps = [f"step {n} found {n - 1}" for n in (self.to + 1, self.to + 2)]
        self.go_to(self.to + 2)
        for name in names:
            self.rekindle.wait(lambda name=name: steps[1] in self.rekindle.lines(name) or not self.rekindle.sandbox(name)["pid"], f"steps of {name}")
            assert self.rekindle.lines(name)[-2:] == steps, name


@pytest.fixture
def programs(rekindle):
    return Programs(rekindle)


def contexts(rekindle):
    return rekindle.json("ps")["contexts"]


def test_programs_that_start_at_once_have_one_context(rekindle, programs):
    names = [f"at-once-{number}" for number in range(8)]
    start = (rekindle.command, "run", "-d", "--share", "us", "--gpu", rekindle.gpu)
    starting = [subprocess.Popen([*start, "--name", name, "--", sys.executable, STEPS, programs.limit], env=rekindle.environment) for name in names]
    assert [one.wait(PATIENCE) for one in starting] == [0] * len(names)
    programs.go_on(*names)
    (shared,) = contexts(rekindle)
    assert {programs.worker(name) for name in names} == {shared["pid"]}


def test_programs_of_a_tenant_have_one_context_and_their_images_come_back_to_it(rekindle, programs):
    programs.start("a", "b", "c")
    (shared,) = contexts(rekindle)
    assert shared["tenant"] == "us" == rekindle.sandbox("a")["tenant"]
    assert {programs.worker(name) for name in "abc"} == {shared["pid"]}
    # One is imaged and goes on; two are, and end.
    rekindle("checkpoint", "a", "--to", "image-a", "--leave-running")
    for name in "bc":
        rekindle("checkpoint", name, "--to", f"image-{name}", "--stop")
    programs.restore("image-b", "b", "--share", "us")
    programs.restore("image-c", "c")
    # Another of the first has the same addresses: it gets another context.
    programs.restore("image-a", "again", "--share", "us")
    programs.restore("image-a", "theirs", "--share", "them")
    workers = {name: programs.worker(name) for name in ("a", "b", "c", "again", "theirs")}
    assert workers["a"] == workers["b"] == shared["pid"] and len(set(workers.values())) == 4
    tenants = sorted(one["tenant"] for one in contexts(rekindle))
    assert tenants == ["them", "us", "us"] and "tenant" not in rekindle.sandbox("c")
    programs.go_on(*workers)
    # What was restored alone keeps its addresses, and can share again.
    rekindle("checkpoint", "c", "--to", "image-c2", "--stop")
    programs.restore("image-c2", "c", "--share", "us")
    assert programs.worker("c") == shared["pid"]
    programs.go_on(*workers)


def test_what_a_program_sets_for_a_kernel_is_its_own_where_another_has_the_same(rekindle):
    """One context has the code of both once."""
    go = rekindle.root / "settings"
    run = lambda name, what: rekindle(
        "run", "-d", "--share", "us", "--name", name, "--gpu", rekindle.gpu, "--", sys.executable, "-c", SETTING, FEATURES, go, what
    )
    for name, what in {"before": "as it is", "more": "more", "again": "more", "after": "as it is"}.items():
        run(name, what)
    Path(f"{go}-0").touch()
    set_so = "100000 CUDA_SUCCESS"
    for name in ("before", "after"):
        assert rekindle.wait_lines(name, 1)[0] == "0 49152 CUDA_ERROR_INVALID_VALUE 1", name
    for name in ("more", "again"):
        assert rekindle.wait_lines(name, 1)[0] == f"0 {set_so} 2", name
    assert len({rekindle.sandbox(name)["workers"][0] for name in ("before", "more", "again", "after")}) == 1
    # So are they after a restore, in the same context and in another.
    for name, place in {"more": ("--share", "us"), "before": ("--share", "them")}.items():
        rekindle("checkpoint", name, "--to", name, "--stop")
        rekindle("restore", "-d", name, "--name", name, "--gpu", rekindle.gpu, *place)
    Path(f"{go}-1").touch()
    ends = {
        "more": f"1 {set_so} 3",
        "again": f"1 {set_so} 3",
        "before": "1 49152 CUDA_ERROR_INVALID_VALUE 1",
        "after": "1 49152 CUDA_ERROR_INVALID_VALUE 1",
    }
    for name, end in ends.items():
        rekindle.wait(lambda name=name, end=end: end in rekindle.lines(name) or not rekindle.sandbox(name)["pid"], name)
        assert rekindle.lines(name)[-1] == end, name


def test_a_program_whose_slice_of_addresses_is_full_is_told_so_and_goes_on(rekindle, programs):
    programs.start("beside")
    filling = rekindle("run", "--share", "us", "--gpu", rekindle.gpu, "--", sys.executable, "-c", FILLING, FEATURES).splitlines()
    first, again = (line.split() for line in filling)
    assert first == again and first[1:] == ["CUDA_ERROR_OUT_OF_MEMORY", "8"]
    assert 256 <= int(first[0]) <= 512
    programs.go_on("beside")


def test_the_end_of_one_is_not_that_of_the_others_and_leaves_nothing(rekindle, programs):
    programs.start("a", "b")
    pid = programs.worker("a")
    rekindle("checkpoint", "a", "--to", "image", "--stop")
    held = []
    for count in range(RESTORES):
        programs.restore("image", "again", "--share", "us")
        assert programs.worker("again") == pid
        # One in two by a signal that nobody hears of before.
        if count % 2:
            os.kill(rekindle.sandbox("again")["pid"], signal.SIGKILL)
            rekindle.wait_end("again")
        else:
            rekindle("kill", "again")
        if count == SETTLED:
            held.append(holdings(rekindle, pid))
    rekindle.wait(lambda: all(after <= before for after, before in zip(holdings(rekindle, pid), held[0], strict=True)), f"no more than {held[0]}")
    programs.go_on("b")


def holdings(rekindle, pid):
    """Descriptors, threads and mappings of rings and boards of the process."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    shared = [line for line in maps if str(rekindle.run_root) in line]
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")), len(shared)


def test_they_outlive_the_daemon_and_the_next_one_finds_their_context(rekindle, programs):
    programs.start("a", "b")
    pid = programs.worker("a")
    rekindle("checkpoint", "b", "--to", "image", "--stop")
    before = daemon(rekindle)
    os.kill(before, signal.SIGKILL)
    rekindle.wait(lambda: not is_alive(before), "the end of the daemon")
    programs.go_on("a")
    programs.restore("image", "b", "--share", "us")
    assert programs.worker("a") == programs.worker("b") == pid
    programs.go_to(programs.to + 2)
    rekindle.wait(lambda: rekindle.lines("b")[-1:] == [f"step {programs.to} found {programs.to - 1}"], "steps of b")
    rekindle("kill", "a")
    programs.go_on("b")


def test_when_its_process_is_killed_all_are_told_and_the_next_gets_another(rekindle, programs):
    programs.start("a", "b")
    rekindle("checkpoint", "b", "--to", "image", "--stop")
    programs.restore("image", "b", "--share", "us")
    pid = programs.worker("a")
    os.kill(pid, signal.SIGKILL)
    rekindle.wait(lambda: "its GPU worker died" in (rekindle.sandbox("a")["problem"] or ""), "the problem of a")
    # Whose contents were not yet known to be there gets another worker at once.
    told = lambda: "its GPU worker died" in (rekindle.sandbox("b")["problem"] or "")
    rekindle.wait(lambda: told() or pid not in rekindle.sandbox("b")["workers"], "the problem of b, or another worker")
    for name in "ab":
        rekindle("kill", name, check=False)
        rekindle.wait_end(name)
    programs.restore("image", "b", "--share", "us")
    assert programs.worker("b") != pid and len(contexts(rekindle)) == 1
    programs.go_on("b")


@pytest.mark.parametrize(("owner", "other"), [("us", "them"), ("us", None), (None, None)])
def test_what_one_has_nobody_of_another_context_reaches_by_its_address(rekindle, owner, other):
    def start(name, tenant, *command):
        share = ["--share", tenant] if tenant else []
        rekindle("run", "-d", "--name", name, *share, "--gpu", rekindle.gpu, "--", sys.executable, "-c", *command)

    go = rekindle.root / "go"
    start("owner", owner, OWNER, FEATURES, go)
    (line,) = rekindle.wait_lines("owner", 1)
    first, second = map(int, line.split())
    before = rekindle.sandbox("owner")["workers"]
    for kernel in ("store", "change", "load"):
        start(kernel, other, REACHING, FEATURES, second, kernel)
        own, *said = rekindle.wait_end(kernel)
        # Addresses of two contexts may be the same, and are each one's own.
        assert int(own) != second
        assert said == ["CUDA_ERROR_INVALID_VALUE"] * 5 + ["CUDA_ERROR_ILLEGAL_ADDRESS"], kernel
    start("first", other, REACHING, FEATURES, first, "store")
    own, *said = rekindle.wait_end("first")
    assert said[-1] == ("CUDA_SUCCESS" if int(own) == first else "CUDA_ERROR_ILLEGAL_ADDRESS")
    row = rekindle.sandbox("owner")
    assert (row["workers"], row["problem"]) == (before, None)
    go.touch()
    assert rekindle.wait_end("owner")[1:] == ["{7} {7}", "[8, 7]"]


def test_instances_of_services_share_and_end_when_they_are_idle():
    with begun() as rekindle:
        for name in ("red", "blue"):
            options = ("--network", "private", "--share", "us", "--gpu", rekindle.gpu)
            rekindle("run", "-d", "--name", name, *options, "--", sys.executable, SERVER, name)
            assert rekindle.wait_lines(name, 1)
            rekindle("checkpoint", name, "--to", name, "--stop")

        def serve(name, idle):
            times = ("--idle", idle, "--idle-end", idle)
            return rekindle.json("serve", name, "--name", name, "--port", "127.0.0.1:0", "--to", 8000, "--share", "us", *times)["port"]

        # An instance that is about to end still has its place in the context, and the next one of its image gets another.
        ports = {name: serve(name, "10m") for name in ("red", "blue")}
        for name in ("red", "blue", "red"):
            with urllib.request.urlopen(f"http://127.0.0.1:{ports[name]}/", timeout=PATIENCE) as answer:
                assert json.load(answer)["tag"] == name
        assert len(contexts(rekindle)) == 1
        served = lambda: [row for row in rekindle.sandboxes() if row["pid"]]
        assert {row["tenant"] for row in served()} == {"us"}
        for name in ports:
            serve(name, "10ms")
        rekindle.wait(lambda: not served(), "the end of idle instances")


# Counts its answers on the GPU, which it uses in the first of them.
LATE = """
import http.server, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from gpu import download, open_device, upload
counts = [np.zeros(1, np.int32)]

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if len(counts) == 1:
            open_device()
        else:
            counts[0] = download(counts.pop(), 1, np.int32) + 1
        counts.append(upload(counts[0]))
        body = str(counts[0][0]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = http.server.HTTPServer(("", 8000), Handler)
print("listens", flush=True)
server.serve_forever()
"""


def test_instances_of_images_that_have_left_the_gpu_alone_share_when_they_use_it():
    with begun() as rekindle:
        for name in ("red", "blue", "green"):
            image(rekindle, name, sys.executable, "-c", LATE, FEATURES)
            assert rekindle.json("inspect", name)["gpus"] == []
        options = ("--port", "127.0.0.1:0", "--to", 8000, "--share", "us", "--gpu", rekindle.gpu)
        ports = [
            rekindle.json("serve", "red", "--name", "one", *options, "--variant", "green")["port"],
            rekindle.json("serve", "blue", "--name", "two", *options)["port"],
        ]
        for port in ports:
            for number in range(2):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as answer:
                    assert answer.read() == str(number).encode()
        (shared,) = contexts(rekindle)
        workers = [row["workers"] for row in rekindle.sandboxes() if row["pid"]]
        assert workers == [[shared["pid"]]] * 2, workers


def test_a_context_without_programs_ends_soon_after_the_daemon():
    with begun(REKINDLE_CONTEXT_KEEP="600") as rekindle:
        programs = Programs(rekindle)
        programs.start("a")
        pid = programs.worker("a")
        rekindle("kill", "a")
        rekindle("shutdown")
        assert pid in processes(rekindle.root), "it does not wait for another daemon"
        rekindle.wait(lambda: not processes(rekindle.root), "the end of the context")


@pytest.mark.parametrize(("keep", "is_kept"), [("0", False), ("600", True)])
def test_a_context_without_programs_is_kept_for_as_long_as_is_said(keep, is_kept):
    with begun(REKINDLE_CONTEXT_KEEP=keep) as rekindle:
        programs = Programs(rekindle)
        programs.start("a", "b")
        (shared,) = contexts(rekindle)
        rekindle("kill", "a")
        programs.go_on("b")
        rekindle("kill", "b")
        if is_kept:
            # Longer than a process that is to go at once takes to notice.
            time.sleep(2)
            assert contexts(rekindle) == [shared]
        else:
            rekindle.wait(lambda: not contexts(rekindle), "the end of the context")
        # Whoever comes next has it, or another one.
        programs.go_to(2)
        programs.start("c")
        assert (programs.worker("c") == shared["pid"]) == is_kept
        # Each of these comes just as the one before goes.
        last = "c"
        for number in range(ENDS):
            rekindle("kill", last)
            last = f"d-{number}"
            programs.go_to(2)
            programs.start(last)
            programs.go_on(last)


def test_what_cannot_be_shared_is_said(rekindle, programs):
    def refused(*arguments):
        with pytest.raises(CommandError) as error:
            rekindle(*arguments)
        return error.value.message

    command = ["--gpu", rekindle.gpu, "--", sys.executable, STEPS, programs.limit]
    assert "is no tenant's name" in refused("run", "-d", "--share", "a b", *command)
    assert "context of its own" in refused("run", "-d", "--share", "us", "--mode", "driver", "--", "true")
    rekindle("run", "-d", "--name", "own", *command)
    rekindle.wait_lines("own", 3)
    rekindle("checkpoint", "own", "--to", "image", "--stop")
    assert "was started without `--share TENANT`" in refused("restore", "-d", "image", "--share", "us")
    assert "was started without `--share TENANT`" in refused("serve", "image", "--name", "web", "--port", "127.0.0.1:0", "--to", 80, "--share", "us")
    programs.start("shared")
    assert "cannot be put to sleep" in refused("sleep", "shared")
    programs.go_on("shared")
    assert [row["name"] for row in rekindle.sandboxes() if row["pid"]] == ["shared"]
