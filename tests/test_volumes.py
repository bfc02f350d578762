"""What programs see beside the machine's files, over checkpoint and restore: volumes, and private layers over directories."""

import errno
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rekindle import CommandError

PUPPET = Path(__file__).parent / "volumes" / "puppet.py"


class Puppets:
    """Sandboxes of one program, that all do the same steps."""

    def __init__(self, rekindle):
        self.rekindle, self.count = rekindle, 0
        # How many steps each image has seen.
        self.taken = {}
        self.steps = rekindle.root / "steps"
        self.steps.mkdir()

    def run(self, *options):
        command = [sys.executable, PUPPET, self.steps]
        self.rekindle("run", "-d", "--name", "first", "--gpu", self.rekindle.gpu, *options, "--", *command)

    def said(self, *names):
        """What each says of the next steps that it has not answered, the last of them."""
        return [json.loads(self.rekindle.wait_lines(name, self.answered(name))[-1]) for name in names]

    def answered(self, name):
        image = self.rekindle.sandbox(name)["image"]
        return self.count - (self.taken[image] if image else 0)

    def do(self, step, *names):
        """Has them do a step; what each leaves in `said`."""
        self.count += 1
        beside = self.steps / "next"
        beside.write_text(step)
        beside.rename(self.steps / str(self.count - 1))
        return self.said(*(names or ["first"]))

    def checkpoint(self, name, image, *options):
        self.rekindle("checkpoint", name, "--to", image, *options)
        self.taken[image] = self.count

    def restore(self, image, name, *options):
        return self.rekindle.json("restore", image, "--name", name, "--gpu", self.rekindle.gpu, "-d", *options)


@pytest.fixture
def puppets(rekindle):
    return Puppets(rekindle)


@pytest.fixture
def places(rekindle):
    """Directories of the machine's by name."""

    def place(name, **files):
        (rekindle.root / name).mkdir()
        for file, text in files.items():
            (rekindle.root / name / file).write_text(text)
        return rekindle.root / name

    return place


def refused(rekindle, *arguments):
    with pytest.raises(CommandError) as error:
        rekindle(*arguments)
    assert error.value.message.count("\n") == 0, error.value.message
    return error.value.message


def lies_on_overlayfs(place):
    return subprocess.run(["stat", "-f", "-c", "%T", place], capture_output=True, text=True).stdout.strip() == "overlayfs"


@pytest.fixture
def plain(rekindle):
    """Directories can have a layer here."""
    if lies_on_overlayfs(rekindle.root):
        pytest.skip("the directory for temporary files lies on an overlayfs, which cannot have another one over it")


def files(place):
    return {path.name: path.read_text() for path in place.iterdir() if path.is_file()}


def test_volumes_are_there_at_a_checkpoint_and_after_a_restore(rekindle, puppets, places):
    host, inside = places("host", data="one"), places("inside", hidden="")
    models, at_models = places("models", weights="w" * 9000), places("at-models")
    single = places("single", file="alone")
    target = places("target", file="")
    puppets.run(
        *("--volume", f"{host}:{inside}", "--volume", f"{models}:{at_models}:ro"),
        *("--volume", f"{single}/file:{target}/file"),
    )
    begin = f"""
import mmap, os
log = open("{inside}/log", "wb", buffering=0)
log.write(b"first ")
weights = open("{at_models}/weights", "rb")
mapped = mmap.mmap(weights.fileno(), 0, prot=mmap.PROT_READ)
os.chdir("{inside}")
said = [sorted(os.listdir()), open("{target}/file").read(), len(mapped)]
"""
    assert puppets.do(begin) == [[["data", "log"], "alone", 9000]]
    assert puppets.do(f"open('{at_models}/weights', 'a')") == [f"errno {errno.EROFS}"]
    assert "log" not in files(inside)
    puppets.checkpoint("first", "image", "--leave-running")
    # It goes on, and what it writes then is written again by those who come from the image.
    go_on = "log.write(b'second ')\nsaid = [open('data').read(), mapped[:1].decode(), open('log').read()]"
    assert puppets.do(go_on) == [["one", "w", "first second "]]
    rekindle("kill", "first")
    puppets.restore("image", "again")
    assert puppets.said("again") == [["one", "w", "first second "]]
    assert (host / "log").read_text() == "first second "
    assert puppets.do(f"open('{at_models}/new', 'w')", "again") == [f"errno {errno.EROFS}"]
    rekindle("kill", "again")
    # A program may find something else at the same place, if it has what it uses.
    other = places("other", data="two", log="first ")
    puppets.restore("image", "elsewhere", "--volume", f"{other}:{inside}")
    assert puppets.said("elsewhere") == [f"errno {errno.EROFS}"]
    assert puppets.do(go_on, "elsewhere") == [["two", "w", "first second second "]]
    assert (other / "log").read_text() == "first second second " and (host / "log").read_text() == "first second "
    assert {"host": str(other), "inside": str(inside)} in rekindle.sandbox("elsewhere")["mounts"]["volumes"]
    # The image says so too, in its second generation.
    puppets.checkpoint("elsewhere", "second", "--stop")
    puppets.restore("second", "last")
    assert puppets.do("said = open('data').read()", "last") == ["two"]


def test_volumes_that_are_not_as_they_were_are_refused_before_anything_begins(rekindle, puppets, places):
    host, inside = places("host", data="one" * 3000), places("inside")
    puppets.run("--volume", f"{host}:{inside}")
    puppets.do(f"data = open('{inside}/data')\nsaid = data.read(3)")
    puppets.checkpoint("first", "image", "--stop")
    (host / "data").write_text("another length")
    why = refused(rekindle, "restore", "image")
    assert f"{inside}/data, which the program used, has changed" in why
    gone = host.rename(rekindle.root / "gone")
    assert f"there is no {host}; make it, or name another one" in refused(rekindle, "restore", "image")
    host.write_text("a file")
    assert "name two of one kind" in refused(rekindle, "restore", "image")
    assert "data, which the program used, cannot be read" in refused(rekindle, "restore", "image", "--volume", f"{places('empty')}:{inside}")
    assert [row["name"] for row in rekindle.sandboxes()] == ["first"]
    (gone / "data").write_text("one" * 3000)
    puppets.restore("image", "again", "--volume", f"{gone}:{inside}")
    assert puppets.do("said = data.read(3)", "again") == ["one"]


def test_a_layer_takes_what_each_instance_writes_beside_itself(rekindle, puppets, places, plain):
    app = places("app", state="old", removed="there", read="unchanged")
    (app / "package").mkdir()
    (app / "package/module").write_text("code")
    before = files(app)
    puppets.run("--overlay", app, "--workdir", app)
    begin = f"""
import ctypes, fcntl, mmap, os, shutil, socket, sqlite3
state = open("state", "r+")
state.seek(0, 2)
state.write(" new")
state.flush()
own = open("own", "w+b")
own.write(b"o" * 5000)
own.flush()
shared = mmap.mmap(own.fileno(), 0)
reading = open("read")
gone = open("gone", "w+")
gone.write("kept")
gone.flush()
os.remove("gone")
os.remove("removed")
shutil.rmtree("package")
os.mkdir("package")
os.symlink("state", "link")
os.mkfifo("pipe")
os.utime("own", (1, 1))
fcntl.flock(own, fcntl.LOCK_EX)
database = sqlite3.connect("database")
database.execute("create table rows (text)")
database.commit()
database.execute("insert into rows values ('open')")
door = socket.socket(socket.AF_UNIX)
door.bind("{app}/door")
door.listen()
libc = ctypes.CDLL(None)
watch = libc.inotify_init1(os.O_NONBLOCK)
for name in (b".", b"read", b"own"):
    assert libc.inotify_add_watch(watch, name, 0x2) > 0, name

def look():
    names = sorted(name for name in os.listdir() if not name.endswith("-journal"))
    held = fcntl.fcntl(own, fcntl.F_GETFD) >= 0
    rows = database.execute("select text from rows").fetchall()
    gone.seek(0)
    return [names, os.listdir("package"), open("link").read(), reading.read(2), os.stat("own").st_mtime, rows, gone.read(), held]
"""
    names = ["database", "door", "link", "own", "package", "pipe", "read", "state"]
    state = [names, [], "old new", "un", 1, [["open"]], "kept", True]
    assert puppets.do(begin + "said = look()") == [state]
    assert files(app) == before and (app / "package/module").read_text() == "code"
    # A daemon that begins meanwhile finds it again.
    rekindle("shutdown")
    puppets.checkpoint("first", "image", "--prove", "--stop")
    assert files(app) == before
    instances = ["second", "third", "fourth"]
    with ThreadPoolExecutor(len(instances)) as pool:
        list(pool.map(lambda name: puppets.restore("image", name), instances))
    reading = "said = look()"
    assert puppets.do(reading, *instances) == [[*state[:3], "ch", *state[4:]]] * 3
    # What each writes from here on no other one sees.
    write = """
me = os.readlink("/proc/self/ns/mnt")
shared[:len(me)] = me.encode()
state.write(me)
state.flush()
database.execute("insert into rows values (?)", [me])
database.commit()
os.write(own.fileno(), b"more")
said = [me, len(os.read(watch, 4096)) > 0]
"""
    each, notified = zip(*puppets.do(write, *instances), strict=True)
    assert all(notified)
    assert len(set(each)) == 3
    compare = "said = [open('own').read()[:len(me)], open('state').read(), sorted(row[0] for row in database.execute('select text from rows'))]"
    assert puppets.do(compare, *instances) == [[me, f"old new{me}", [me, "open"]] for me in each]
    # So in the next generation.
    puppets.checkpoint("third", "next", "--stop")
    puppets.restore("next", "fifth")
    assert puppets.do(compare, "fifth") == [[each[1], f"old new{each[1]}", [each[1], "open"]]]
    assert files(app) == before and (app / "package/module").read_text() == "code"
    assert str(app) not in Path("/proc/self/mountinfo").read_text()


def test_files_beneath_a_layer_are_checked_and_those_in_it_are_not(rekindle, puppets, places, plain):
    app = places("app", read="beneath" * 1000, written="old")
    puppets.run("--overlay", app)
    puppets.do(f"read = open('{app}/read')\nwritten = open('{app}/written', 'a')\nwritten.write('new')\nwritten.flush()\nsaid = read.read(3)")
    puppets.checkpoint("first", "image", "--stop")
    (app / "written").unlink()
    puppets.restore("image", "again")
    assert puppets.do(f"said = [read.read(4), open('{app}/written').read()]", "again") == [["eath", "oldnew"]]
    (app / "read").write_text("shorter")
    assert f"{app}/read, which the program used, has changed" in refused(rekindle, "restore", "image")
    (app / "read").unlink()
    assert f"{app}/read, which the program used, cannot be read" in refused(rekindle, "restore", "image")


@pytest.mark.parametrize("volume", [False, True])
def test_who_restores_beside_a_newer_database_is_told(rekindle, puppets, places, volume):
    host = places("host", table="of a database", log="of steps", other="")
    seen = places("seen") if volume else host
    puppets.run(*(("--volume", f"{host}:{seen}") if volume else ()))
    opened = f"table, other = (open('{seen}/' + name, 'rb+', buffering=0) for name in ('table', 'other'))"
    assert puppets.do(f"{opened}\nlog = open('{seen}/log', 'w')\nsaid = table.read().decode()") == ["of a database"]
    puppets.checkpoint("first", "image", "--leave-running")
    assert puppets.restore("image", "second")["warnings"] == []
    # Of the same length, so that its size tells nothing.
    assert puppets.do("said = [table.seek(0), table.write(b'OF'), log.write('more'), log.flush()]", "first") == [[0, 2, 4, None]]
    (warning,) = puppets.restore("image", "third")["warnings"]
    assert warning.startswith(f"{seen}/table has been written since the image") and "and the program reads and writes it" in warning
    assert puppets.do("said = other.write(b'1')", "first") == [1]
    (warning,) = puppets.restore("image", "fourth")["warnings"]
    assert " (and 1 more) has been written since" in warning


def test_a_layer_that_is_full_is_so_for_the_program_alone(rekindle, puppets, places, plain):
    host, app = places("host", data="of a volume"), places("app")
    puppets.run("--volume", f"{host}:{app}", "--overlay", f"{app}:1M")
    write = f"open('{app}/large', 'wb', buffering=0).write(b'1' * (1 << 19))\nsaid = os.path.getsize('{app}/large')"
    assert puppets.do("import os\n" + write) == [1 << 19]
    more = f"""
file = open("{app}/more", "wb", buffering=0)
for _ in range(2048):
    file.write(b"2" * 1024)
"""
    full = f"errno {errno.ENOSPC}"
    assert puppets.do(more) == [full]
    puppets.checkpoint("first", "image", "--leave-running")
    puppets.restore("image", "again")
    look = f"said = [sorted(os.listdir('{app}')), open('{app}/data').read()]"
    assert puppets.do(look, "first", "again") == [[["data", "large", "more"], "of a volume"]] * 2
    assert puppets.do(more, "first", "again") == [full] * 2
    assert files(host) == {"data": "of a volume"} and not files(app)


def test_what_cannot_be_mounted_is_refused_in_a_sentence(rekindle, places, plain):
    host, inside = places("host", data=""), places("inside")
    run = ("run", "--gpu", rekindle.gpu)
    for volume, word in (
        (f"{host}", "expected HOST:INSIDE"),
        (f"relative:{inside}", "no absolute path"),
        (f"{host}:relative", "no absolute path"),
        (f"{host}:{inside}/../x", "no absolute path"),
        (f"{host}:{inside}:rx", "expected HOST:INSIDE"),
    ):
        with pytest.raises(CommandError) as error:
            rekindle(*run, "--volume", volume, "--", "true")
        assert error.value.code == 2 and word in error.value.message, volume
    for volume, word in (
        (f"{host}/none:{inside}", f"there is no {host}/none"),
        (f"{host}:{inside}/none", "make a directory there"),
        (f"{host}:/dev/shm", "is the sandbox's own"),
        (f"{host}/data:{inside}", "name two of one kind"),
    ):
        assert word in refused(rekindle, *run, "--volume", volume, "--", "true"), volume
    for overlay, word in (
        (f"{host}/none", f"there is no {host}/none"),
        (f"{host}/data", "it is no directory"),
        ("/", "is the sandbox's own"),
        ("/proc", "is the sandbox's own"),
    ):
        assert word in refused(rekindle, *run, "--overlay", overlay, "--", "true"), overlay
    assert "mounted in it" in refused(rekindle, *run, "--overlay", rekindle.root, "--volume", f"{host}:{inside}", "--", "true")
    for wrong in ("relative", f"{host}:1K"):
        with pytest.raises(CommandError) as error:
            rekindle(*run, "--overlay", wrong, "--", "true")
        assert error.value.code == 2 and "expected" in error.value.message
    assert not rekindle.sandboxes()


def test_a_directory_on_an_overlayfs_is_refused_a_second_one(rekindle, places):
    lower, upper, work, merged = (places(name) for name in ("lower", "upper", "work", "merged"))
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    mounted = subprocess.run(["mount", "-t", "overlay", "none", "-o", options, merged], capture_output=True, text=True)
    if mounted.returncode and not lies_on_overlayfs(merged):
        pytest.skip(f"no overlayfs can be mounted here: {mounted.stderr.strip()}")
    try:
        why = refused(rekindle, "run", "--gpu", rekindle.gpu, "--overlay", merged, "--", "true")
    finally:
        subprocess.run(["umount", merged], capture_output=True)
    assert "it lies on an overlayfs itself" in why
