"""Programs that have several GPUs in one sandbox."""

import sys
from pathlib import Path

import pytest
from rekindle import CommandError
from test_ipc import Scene

PROGRAM = Path(__file__).parent / "several_gpus/two.py"
MEET = PROGRAM.with_name("meet.py")
FEATURES = Path(__file__).parent / "features"
TWO = "emulated:devices=2"


@pytest.mark.parametrize("share", [(), ("--share", "us")])
def test_a_program_on_two_gpus_goes_on_and_comes_back(rekindle, share):
    go = rekindle.root / "go"
    rekindle("run", "-d", "--name", "program", "--gpu", TWO, *share, "--", sys.executable, PROGRAM, go)
    assert rekindle.wait_lines("program", 1)[:1] == ["ready"], rekindle.lines("program")
    rekindle("checkpoint", "program", "--to", "image", "--leave-running")
    with pytest.raises(CommandError, match="it needs 2 GPUs and this one has 1; give another --gpu"):
        rekindle("restore", "image", "--name", "too-few", "--gpu", "emulated", "-d")
    rekindle("restore", "image", "--name", "restored", "--gpu", TWO, *share, "-d")
    rekindle("checkpoint", "restored", "--to", "second", "--stop")
    rekindle("restore", "second", "--name", "again", "--gpu", TWO, *share, "-d")
    go.touch()
    for name in ("program", "again"):
        assert rekindle.wait_end(name)[-1] == "ok", rekindle.lines(name)


@pytest.mark.parametrize("gpu", ["nvidia:0,", "nvidia:0,x"])
def test_gpus_that_are_named_wrongly_are_refused(rekindle, gpu):
    with pytest.raises(CommandError, match=f"no GPU is named {gpu!r}".replace("'", '"')):
        rekindle("run", "-d", "--name", "program", "--gpu", gpu, "--", "true")


@pytest.mark.parametrize(("gpu", "number"), [("nvidia:0,0", 0), ("emulated:2,1,2", 2)])
def test_a_gpu_that_is_named_twice_is_refused(rekindle, gpu, number):
    with pytest.raises(CommandError, match=f"names GPU {number} twice"):
        rekindle("run", "-d", "--name", "program", "--gpu", gpu, "--", "true")


CODE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from gpu import Module, call, open_device
contexts = [open_device(device) for device in range(2)]
kernel = 'extern "C" __global__ void %s(int *word) { *word = 1; }'
Module("".join(kernel % name for name in ("one", "other", "third"))).one
print("ready", flush=True)
time.sleep(600)
"""


def test_images_have_all_kernels_of_a_module_also_those_that_are_not_looked_up(rekindle):
    rekindle("run", "-d", "--name", "program", "--gpu", TWO, "--", sys.executable, "-c", CODE, FEATURES)
    assert rekindle.wait_lines("program", 1)[:1] == ["ready"], rekindle.lines("program")
    for image in ("first", "second"):
        rekindle("checkpoint", "program", "--to", image, "--stop")
        (code,) = rekindle.json("inspect", image)["code"]
        assert (code["loaded"], code["kernels"]) == (3, 1)
        rekindle("rm", "program")
        rekindle("restore", image, "--name", "program", "--gpu", TWO, "-d")


ON_SECOND = """
import sys, time
sys.path.insert(0, sys.argv[1])
from gpu import call, open_device
contexts = [open_device(device) for device in range(2)]
call("cuMemAlloc", 100 << 20)
print("ready", flush=True)
time.sleep(1000)
"""


def test_memory_is_looked_for_on_each_of_the_gpus(rekindle):
    rekindle("run", "-d", "--name", "program", "--gpu", TWO, "--", sys.executable, "-c", ON_SECOND, FEATURES)
    assert rekindle.wait_lines("program", 1)[:1] == ["ready"], rekindle.lines("program")
    rekindle("checkpoint", "program", "--to", "image", "--stop")
    # Both together have enough.
    with pytest.raises(CommandError, match="it needs 100 MB of GPU memory and 64 MB are free"):
        rekindle("restore", "image", "--name", "short", "--gpu", "emulated:0,1,memory=64M", "-d")


FAULTY = """
import contextlib, sys, time
sys.path.insert(0, sys.argv[1])
from gpu import Module, call, driver, open_device
contexts, modules, words = [], [], []
for device in range(2):
    contexts.append(open_device(device))
    modules.append(Module('extern "C" __global__ void write(int *word) { *word = 1; }'))
    words.append(call("cuMemAlloc", 4))
print("ready", flush=True)
modules[1].write(1, 1, 1 << 40)
time.sleep(0.5)
for device in (0, 1, 0, 1, 0):
    call("cuCtxSetCurrent", contexts[device])
    with contextlib.nullcontext() if device == 0 else contextlib.suppress(RuntimeError):
        modules[device].write(1, 1, words[device])
for device in range(2):
    call("cuCtxSetCurrent", contexts[device])
    print(driver.cuCtxSynchronize()[0].name, flush=True)
"""


def test_a_fault_of_one_gpu_is_not_the_other_ones(rekindle):
    rekindle("run", "-d", "--name", "program", "--gpu", TWO, "--", sys.executable, "-c", FAULTY, FEATURES)
    assert rekindle.wait_end("program") == ["ready", "CUDA_SUCCESS", "CUDA_ERROR_ILLEGAL_ADDRESS"]


@pytest.mark.parametrize("late", ["0", "0.05"])
@pytest.mark.parametrize("way", ["MEET_THREADS=one", "MEET_THREADS=each", "MEET_LOADS=1"])
@pytest.mark.parametrize("gpus", [2, 3])
def test_gpus_whose_kernels_wait_for_each_other_come_to_a_stand(rekindle, gpus, way, late):
    scene = Scene(rekindle, gpus, MEET, gpu=f"emulated:devices={gpus}")
    scene.begin("a", "--env", f"MEET_LATE={late}", "--env", way)
    for number in range(6):
        rekindle("checkpoint", "a", "--to", f"going-{number}", "--leave-running", limit=20)
        scene.goes_on("a")
    rekindle("checkpoint", "a", "--to", "stopped", "--stop", limit=20)
    before = scene.steps("a")
    for image in ("going-5", "stopped"):
        rekindle("restore", image, "--name", f"from-{image}", "--gpu", scene.gpu, "-d")
        scene.goes_on(f"from-{image}")
    assert scene.steps("from-stopped")[0] == before[-1] + 1


def test_kernels_that_wait_for_each_other_run_while_an_image_is_loaded(rekindle):
    gpu = "emulated:devices=2,bandwidth=20M"
    scene = Scene(rekindle, 2, MEET, gpu=gpu)
    # The first GPU's kernel waits for one that is launched once the program waits for the first, and all of that while it is loaded.
    settings = {"MEET_PACE": 0.2, "MEET_LATE": 0.3, "MEET_BYTES": 20 << 20}
    scene.begin("a", *(word for name, value in settings.items() for word in ("--env", f"{name}={value}")))
    scene.goes_on("a")
    rekindle("checkpoint", "a", "--to", "image", "--stop", limit=20)
    before = scene.steps("a")
    rekindle("restore", "image", "--name", "b", "--gpu", gpu, "-d")
    scene.follows("b", before)
