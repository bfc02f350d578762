"""Pages of the CPU half on demand: whatever an allocator does with its memory, a restored program sees what it should."""

import subprocess
import sys
from pathlib import Path

import pytest
from rekindle import ROOT, Rekindle

SOURCES = Path(__file__).parent / "allocators"
ALLOCATORS = ROOT / ".build/allocators"
SECONDS = "2"

# By library: what makes it give memory back early and often.
EAGER = {
    "glibc": {"MALLOC_ARENA_MAX": "3"},
    "libjemalloc": {"MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0"},
    "libjemalloc, lazily": {"MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:500"},
    "libtcmalloc": {"TCMALLOC_RELEASE_RATE": "10", "TCMALLOC_AGGRESSIVE_DECOMMIT": "true"},
    "libmimalloc": {"MIMALLOC_PURGE_DELAY": "0", "MIMALLOC_RESET_DELAY": "0", "MIMALLOC_PAGE_RESET": "1"},
}


def library(name):
    if name == "glibc":
        return None
    found = sorted(ALLOCATORS.glob(f"{name.split(',')[0]}*.so*"))
    if not found:
        pytest.skip(f"{name} is not in {ALLOCATORS}: scripts/allocators could not fetch it")
    return found[0]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    def build(*options):
        program = tmp_path_factory.mktemp("churn") / "churn"
        subprocess.run(["cc", "-O1", "-pthread", *options, SOURCES / "churn.c", "-o", program], check=True)
        return program

    return build


def maps(rekindle, name):
    return Path(f"/proc/{rekindle.sandbox(name)['pid']}/maps").read_text()


def survives(rekindle, *command, mapped=True, environment=()):
    """Through a checkpoint and a restore, and through those of the restored program; the warnings."""
    go = rekindle.root / "go"
    rekindle.run("first", "env", *environment, *command, go, SECONDS)
    assert rekindle.wait_lines("first", 1)[:1] == ["ready"], rekindle.lines("first")
    warnings = rekindle.json("checkpoint", "first", "--to", "one", "--stop")["warnings"]
    for name in "ab":
        assert rekindle.restore("one", name)["warnings"] == warnings
        assert ("/run/rekindle/pages/anon-" in maps(rekindle, name)) == mapped
    rekindle("checkpoint", "b", "--to", "two", "--stop")
    # An image stands for itself, and a program for itself once it runs.
    rekindle("rmi", "one")
    rekindle("verify", "two")
    rekindle.restore("two", "c")
    go.touch()
    for name in "ac":
        assert rekindle.wait_end(name) == ["ok"]
    return warnings


@pytest.mark.parametrize("allocator", EAGER)
def test_allocators_find_zeros_and_what_they_kept(rekindle, build, allocator):
    preload = library(allocator)
    environment = [f"{name}={value}" for name, value in EAGER[allocator].items()]
    if preload:
        # Behind the client, as a user's own LD_PRELOAD is.
        environment.append(f"LD_PRELOAD=/run/rekindle/lib/libcuda.so.1:{preload}")
    program = build() if preload else build("-DGLIBC")
    assert survives(rekindle, program, environment=environment) == []


def test_python_objects(rekindle):
    assert survives(rekindle, sys.executable, SOURCES / "objects.py") == []


def test_hidden_memory_grows_by_zeros(rekindle):
    assert survives(rekindle, sys.executable, SOURCES / "grown.py") == []


def test_a_program_that_asks_the_kernel_itself_is_read_whole(rekindle, build):
    """What Go's programs do and nobody sees: by the note in them they are known."""
    program = build("-DDIRECT", "-DGO")
    warnings = survives(rekindle, program, mapped=False)
    assert len(warnings) == 1 and "Go" in warnings[0] and str(program) in warnings[0]


def test_a_program_without_the_client_is_read_whole(rekindle, build):
    warnings = survives(rekindle, build("-static", "-DGLIBC"), mapped=False)
    assert len(warnings) == 1 and "client" in warnings[0]


def test_a_program_with_another_madvise_before_the_clients_is_read_whole(rekindle, build):
    shim = rekindle.root / "shim.so"
    source = "int syscall(long, ...); int madvise(void *a, unsigned long b, int c) { return syscall(28, a, b, c); }"
    subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", shim], input=source, text=True, check=True)
    preload = [f"LD_PRELOAD={shim}:/run/rekindle/lib/libcuda.so.1"]
    warnings = survives(rekindle, build("-DGLIBC"), mapped=False, environment=preload)
    assert len(warnings) == 1 and "madvise" in warnings[0]


def test_pages_are_read_where_that_is_wanted(build):
    with Rekindle(REKINDLE_TUNING="restore.map-pages=off") as rekindle:
        assert survives(rekindle, build("-DGLIBC"), mapped=False) == []


def test_a_program_restored_from_page_files_can_be_made_to_be_read(rekindle, build):
    go = rekindle.root / "go"
    rekindle.run("first", build("-DGLIBC"), go, SECONDS)
    rekindle.wait_lines("first", 1)
    rekindle("checkpoint", "first", "--to", "one", "--stop")
    rekindle.restore("one", "a")
    rekindle("shutdown")
    rekindle.environment["REKINDLE_TUNING"] = "restore.map-pages=off"
    rekindle("checkpoint", "a", "--to", "two", "--stop")
    kinds = [part["kind"] for part in rekindle.json("inspect", "two")["parts"]]
    assert "cpu-pages" not in kinds
    rekindle.restore("two", "b")
    assert "/run/rekindle/pages" not in maps(rekindle, "b")
    go.touch()
    assert rekindle.wait_end("b") == ["ok"]


def test_images_lie_in_memory_in_huge_pages(rekindle):
    """There a file's blocks are 2 MB, and reach beyond its contents."""
    state = rekindle.root / "state"
    state.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "huge=always,mode=0700", "rekindle-test", state]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system in huge pages can be mounted here")
    try:
        assert survives(rekindle, sys.executable, SOURCES / "objects.py") == []
    finally:
        rekindle("shutdown", check=False)
        subprocess.run(["umount", "--lazy", state], check=True)


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "remove"])
def test_a_damaged_page_file_is_refused(rekindle, damage):
    """By the cheap look that a restore takes, and by verifying."""
    rekindle.run("first", sys.executable, SOURCES / "objects.py", rekindle.root / "go", SECONDS)
    rekindle.wait_lines("first", 1)
    rekindle("checkpoint", "first", "--to", "image", "--stop")
    pages = next(Path(rekindle.json("inspect", "image")["path"]).glob("pages/anon-*"))
    if damage == "remove":
        pages.unlink()
    else:
        with pages.open("r+b") as file:
            if damage == "flip":
                end = file.seek(0, 3)  # SEEK_DATA
                byte = file.read(1)
                file.seek(end)
                file.write(bytes([byte[0] ^ 1]))
            elif damage == "cut":
                file.truncate(1 << 20)
            else:
                file.seek(-100, 2)
                file.write(b"x")
    for command in (["restore", "image", "-d"], ["verify", "image"]):
        with pytest.raises(Exception, match="anon-"):
            rekindle(*command)
    assert not any(row["pid"] for row in rekindle.sandboxes())
