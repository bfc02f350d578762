"""A Python process that makes itself ready for any app and then becomes the one that it is given.

It imports modules and runs GPU operators once, so that their code is loaded and their libraries are set up; says that it
is ready; and waits for an app: arguments, working directory and environment. It goes on as `python` with those would.
"""

import argparse
import contextlib
import gc
import importlib
import io
import json
import os
import random
import re
import runpy
import shutil
import sys
import time
import traceback
import types

# Imported if they are there and nothing is asked for.
USUAL = ("numpy", "torch")
# The options of an interpreter that has started already which it can still follow.
BUFFERING, NO_BYTECODE = "-u", "-B"


class Refused(Exception):
    """An app that this process cannot become."""


def warm_torch(torch):
    """Runs what most models consist of, in the usual types, and gives the memory for it back."""
    if not torch.cuda.is_available():
        return
    functional = torch.nn.functional
    for kind in (torch.float32, torch.float16, torch.bfloat16):
        with torch.inference_mode():
            a = torch.randn(64, 64, device="cuda", dtype=kind)
            batch = torch.randn(2, 4, 32, 16, device="cuda", dtype=kind)
            picture = torch.randn(1, 3, 32, 32, device="cuda", dtype=kind)
            weights = torch.randn(8, 3, 3, 3, device="cuda", dtype=kind)
            y = functional.conv2d(picture, weights, padding=1)
            y = functional.adaptive_avg_pool2d(functional.max_pool2d(y.relu(), 2), 1)
            z = torch.addmm(a, a, a) + functional.linear(a, a, a[0])
            z = functional.layer_norm(functional.gelu(z, approximate="tanh"), (64,)).softmax(-1)
            attention = functional.scaled_dot_product_attention(batch, batch, batch, is_causal=True)
            total = y.float().sum() + z.float().sum() + attention.float().mean()
            total += functional.embedding(torch.arange(8, device="cuda"), a).float().max() + torch.cat([a, a]).argmax()
            total.item()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def make_ready(options):
    """What a later app may have of random numbers is as after a start of its own."""
    for name in options.imports:
        importlib.import_module(name)
    if not options.imports:
        for name in USUAL:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    torch = sys.modules.get("torch")
    seed = torch and torch.initial_seed()
    if torch and not options.no_gpu:
        warm_torch(torch)
    if options.warm:
        runpy.run_path(options.warm, run_name="__warm__")
    if torch:
        torch.manual_seed(seed)
    # Collections in an app need not look at, and so not write to, what is here already.
    gc.collect()
    gc.freeze()


def wait_for_app():
    place = os.environ["REKINDLE_FRAMEWORK"]
    sys.stdout.flush()
    sys.stderr.flush()
    with open(f"{place}/ready", "w"):
        pass
    text = ""
    while not text:
        # Waits for somebody who writes.
        with open(f"{place}/app") as door:
            text = door.read()
    return json.loads(text)


def same_interpreter(word):
    """Whether this process is what `word` would start."""
    found = shutil.which(word)
    if not found:
        return False
    found = os.path.abspath(found)
    if found == sys.executable:
        return True
    in_environment = [os.path.exists(os.path.join(os.path.dirname(path), "..", "pyvenv.cfg")) for path in (found, sys.executable)]
    same_directory = os.path.dirname(found) == os.path.dirname(sys.executable)
    return os.path.realpath(found) == os.path.realpath(sys.executable) and (same_directory or not any(in_environment))


def without_interpreter(words):
    """The words after `python` and its options."""
    if re.fullmatch(r"python[0-9.]*", os.path.basename(words[0])):
        if not same_interpreter(words[0]):
            raise Refused(f"{words[0]!r} is not the interpreter of this framework image, which is {sys.executable}")
        words = words[1:]
    while words and words[0] in (BUFFERING, NO_BYTECODE):
        if words[0] == BUFFERING:
            os.environ.setdefault("PYTHONUNBUFFERED", "1")
        sys.dont_write_bytecode |= words[0] == NO_BYTECODE
        words = words[1:]
    if not words:
        raise Refused("no script was given to run")
    if words[0].startswith("-") and words[0] not in ("-c", "-m"):
        raise Refused(f"an interpreter that runs already cannot follow {words[0]!r}; leave it out")
    if words[0] in ("-c", "-m") and len(words) < 2:
        raise Refused(f"{words[0]!r} has nothing after it")
    return words


def settle(app):
    """Takes the app's environment and directory over, as far as an interpreter does so when it starts."""
    os.environ.clear()
    os.environ.update(app["environment"])
    os.chdir(app["directory"])
    time.tzset()
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def look_in(first):
    """Where imports look: at the script's place and at PYTHONPATH before all else."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [first, *(path for path in paths if path not in sys.path)]
    importlib.invalidate_caches()


def become(app):
    settle(app)
    words = without_interpreter(app["argv"])
    if os.environ.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True, write_through=True)
    main = types.ModuleType("__main__")
    if words[0] == "-m":
        sys.argv = words[1:]
        look_in(os.getcwd())
        sys.modules["__main__"] = main
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        look_in("")
        name, source = "<string>", words[1]
    else:
        sys.argv = words
        name = words[0]
        if os.path.isdir(name):
            runpy.run_path(name, run_name="__main__")
            return
        look_in(os.path.dirname(os.path.realpath(name)))
        with open(name, "rb") as file:
            source = file.read()
        main.__file__ = os.path.abspath(name)
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)


def run(app):
    try:
        become(app)
    except Refused as error:
        print(f"rekindle: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if is_apps(error):
            return show(error)
        print(f"rekindle: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        return show(error)
    return 0


def is_apps(error):
    """Whether code of the app was running."""
    return any(frame.f_code.co_filename != __file__ for frame, _ in traceback.walk_tb(error.__traceback__))


def show(error):
    """As the interpreter does, without what lies around the app."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    return 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--import", dest="imports", action="append", default=[])
    parser.add_argument("--warm")
    parser.add_argument("--no-gpu", action="store_true")
    options = parser.parse_args()
    del sys.path[0]
    make_ready(options)
    sys.exit(run(wait_for_app()))


if __name__ == "__main__":
    main()
