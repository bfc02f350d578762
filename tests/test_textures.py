"""Textures whose numbers cannot come back, or that could not be made again, are refused in a sentence; programs go on."""

import sys
from pathlib import Path

import pytest
from rekindle import CommandError

FEATURES = Path(__file__).parent / "features"

# Makes so many textures before its own, destroys the array of its own if it is told to, and reads in the end.
PROGRAM = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from gpu import *

open_device()
module = Module('''extern "C" __global__ void read(cudaTextureObject_t t, float *out) {
    out[threadIdx.x] = tex2D<float>(t, threadIdx.x + 0.5f, 0.5f);
}''')
side = int(os.environ["SIDE"])
data = np.arange(side * side, dtype=np.float32).reshape(side, side)
array, out = make_array((side, side)), call("cuMemAlloc", 4096)
fill_array(array, data)
earlier = [make_texture(array_resource(array)) for _ in range(int(sys.argv[2]))]
texture = make_texture(array_resource(array))
for one in earlier:
    call("cuTexObjectDestroy", int(one))
gone = make_array((8, 8))
stale = make_texture(array_resource(gone)) if sys.argv[3:] else None
if stale is not None:
    call("cuArrayDestroy", gone)
call("cuCtxSynchronize")
print("ready", int(texture), flush=True)

def wait(word):
    while not os.path.exists(word):
        time.sleep(0.005)

if stale is not None:
    wait(sys.argv[3])
    call("cuTexObjectDestroy", int(stale))
    print("destroyed", flush=True)
wait(os.environ["GO"])
module.read(1, 1024, texture, out)
print("ok" if np.array_equal(download(out, 1024), data[0, :1024]) else "wrong", flush=True)
"""


def start(rekindle, name, earlier, *more, options=(), side=1024):
    rekindle.environment.update(GO=str(rekindle.root / "go"), SIDE=str(side))
    program = (sys.executable, "-c", PROGRAM, FEATURES, earlier, *more)
    rekindle("run", "-d", "--name", name, "--gpu", rekindle.gpu, *options, "--", *program)
    (line,) = rekindle.wait_lines(name, 1)
    return line


def counts_its_array(rekindle, name):
    rekindle.wait(lambda: rekindle.sandbox(name)["device_bytes"] >= 64 << 20, "what the array takes to be counted")


def test_a_number_that_another_program_of_the_context_has_is_refused(rekindle):
    share = ("--share", "us")
    assert start(rekindle, "first", 2, options=share) == "ready 3"
    rekindle("checkpoint", "first", "--to", "image", "--stop")
    start(rekindle, "other", 0, options=share)
    assert start(rekindle, "other2", 1, options=share) == "ready 3"
    with pytest.raises(CommandError) as refused:
        rekindle("restore", "-d", "image", "--name", "second", "--gpu", rekindle.gpu, *share)
    assert "its kernels know a texture object by its number 3, which the GPU does not give again" in refused.value.message
    # In a context of its own it comes back, and beside those that have other numbers.
    rekindle("restore", "-d", "image", "--name", "alone", "--gpu", rekindle.gpu)
    rekindle("kill", "other2")
    rekindle.wait_end("other2")
    rekindle("restore", "-d", "image", "--name", "second", "--gpu", rekindle.gpu, *share)
    (rekindle.root / "go").touch()
    for name in ("other", "alone", "second"):
        assert rekindle.wait_end(name)[-1] == "ok", name


def test_a_texture_of_a_destroyed_array_refuses_the_checkpoint_until_it_is_gone(rekindle):
    word = rekindle.root / "destroy"
    start(rekindle, "program", 0, word, side=4096)
    with pytest.raises(CommandError) as refused:
        rekindle("checkpoint", "program", "--to", "image", "--stop")
    assert "its texture object 2 is of an array that was destroyed, and could not be made again" in refused.value.message
    word.touch()
    assert rekindle.wait_lines("program", 2)[1] == "destroyed"
    counts_its_array(rekindle, "program")
    rekindle("checkpoint", "program", "--to", "image", "--stop")
    with pytest.raises(CommandError) as refused:
        rekindle("restore", "-d", "image", "--name", "again", "--gpu", "emulated:memory=64M")
    assert "MB of GPU memory and" in refused.value.message
    rekindle("restore", "-d", "image", "--name", "again", "--gpu", rekindle.gpu)
    counts_its_array(rekindle, "again")
    (rekindle.root / "go").touch()
    assert rekindle.wait_end("again")[-1] == "ok"
