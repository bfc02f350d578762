//! A CRIU that reads in another order, or by other ways, than the one that the library was made for is told what the kernel
//! would tell it.

use super::fake_criu::{Subject, run};

/// Past the library, what the kernel says; by way of it, what CRIU is told.
const READS: &str = r#"
PATH, DIRECTORY, NOFOLLOW = os.O_PATH, os.O_DIRECTORY, 0x100

def open_by(call, directory, text, flags=0):
    name = ctypes.create_string_buffer(text.encode())
    if call == "kernel":
        return kernel(257, directory, ctypes.addressof(name), flags, 0)
    return result(libc.openat64(ctypes.c_int(directory), name, ctypes.c_int(flags)))

def read_by(call, fd):
    text = b""
    while True:
        got = kernel(0, fd, AT, 4096) if call == "kernel" else result(libc.read(ctypes.c_int(fd), ctypes.c_void_p(AT), 4096))
        assert got >= 0, got
        if not got:
            return text.decode()
        text += buffer.raw[:got]

def close(fd):
    libc.close(ctypes.c_int(fd))

def mode_by(call, directory, text):
    ctypes.memset(AT, 0xff, 144)
    name = ctypes.create_string_buffer(text.encode())
    if call == "kernel":
        done = kernel(262, directory, ctypes.addressof(name), AT, NOFOLLOW)
    else:
        ctypes.set_errno(0)
        done = result(libc.fstatat64(ctypes.c_int(directory), name, ctypes.c_void_p(AT), NOFOLLOW))
    return (done, struct.unpack_from("I", buffer, 24)[0] if done == 0 else 0)

def areas_of(pid):
    with open(f"/proc/{pid}/maps") as maps:
        return [line.split()[0] for line in maps]

def area(text):
    return "-".join(f"{int(end, 16):x}" for end in text.split("-"))

def same_modes(directory, names):
    for text in names:
        told, known = mode_by("library", directory, text), mode_by("kernel", directory, text)
        assert told == known, (text, told, known)

def described():
    text = read_by("library", open_by("library", proc, "smaps"))
    assert "VmFlags:" in text and "Rss:" not in text, text
    return text

proc = open_by("library", -100, f"/proc/{target}", DIRECTORY)
names = [area(text) for text in areas_of(target)]
assert len(names) > 40
"#;

fn says_all_is_well(code: &str, subjects: &[&Subject]) {
    let (said, _) = run(&format!("{READS}\n{code}"), subjects);
    assert!(said.last().is_some_and(|last| last == "done"), "{said:?}");
}

#[test]
fn links_of_areas_are_told_of_in_any_order() {
    let subject = Subject::stopped();
    let code = r#"
early = open_by("library", proc, "map_files", DIRECTORY)
same_modes(early, names)
attributes = described()
kernels = read_by("kernel", open_by("kernel", proc, "smaps"))
wanted = [line for line in kernels.splitlines() if "-" in line.split(" ")[0] or line.startswith("VmFlags")]
unread = {"um", "uw", "ui", "sd", "ac"}
words = lambda line: [word for word in line.split() if word not in unread]
told, known = ([words(line) for line in lines] for lines in (attributes.splitlines(), wanted))
assert told == known, (len(told), len(known), [pair for pair in zip(told, known) if pair[0] != pair[1]][:2])
assert len(attributes) < len(kernels)
same_modes(early, names)
links = open_by("library", proc, "map_files", DIRECTORY)
for order in names, names[::-1], names[1::2] + names[::2], ["1000-2000", "nothing", *names, "1000-2000"]:
    same_modes(links, order)
    close(links)
    links = open_by("library", proc, "map_files", DIRECTORY)
"#;
    says_all_is_well(code, &[&subject]);
}

#[test]
fn a_directory_that_has_taken_another_one_s_number_is_itself() {
    // What both have is where they both have it, as after a fork.
    let subject = Subject::stopped();
    let code = r#"
described()
links = open_by("library", proc, "map_files", DIRECTORY)
same_modes(links, names[:3])
child = os.fork()
if not child:
    import time
    time.sleep(1000)
other = os.open(f"/proc/{child}/map_files", os.O_RDONLY)
os.dup2(other, links)
try:
    same_modes(links, names)
finally:
    os.kill(child, 9)
"#;
    says_all_is_well(code, &[&subject]);
}

#[test]
fn descriptors_of_mapped_files_are_described_as_the_kernel_does() {
    let subject = Subject::stopped();
    let code = r#"
import tempfile
own = os.open(f"/proc/{os.getpid()}", os.O_RDONLY)
FIELDS = "pos", "flags", "mnt_id"

def fields(text):
    return {line.split(":")[0]: line.split(":")[1].strip() for line in text.splitlines() if line.split(":")[0] in FIELDS}

def same(fd):
    opened = [open_by(call, own, f"fdinfo/{fd}") for call in ("library", "kernel")]
    told, known = (fields(read_by(call, info)) for call, info in zip(("library", "kernel"), opened))
    for info in opened:
        close(info)
    assert told == known and len(told) == 3, (told, known)
    return opened[0]

described()
links = open_by("library", proc, "map_files", DIRECTORY)
files = [text for text in names if mode_by("kernel", links, text)[0] == 0]
assert len(files) > 10
short = 0
for flags in (0, PATH):
    for text in files:
        fd = open_by("library", links, text, flags)
        short += same(fd) > 1 << 20
        close(fd)
say("short", short)
assert short > 10
# Two at once.
fd = open_by("library", links, files[0])
first, second = (open_by("library", own, f"fdinfo/{fd}") for _ in range(2))
half = result(libc.read(ctypes.c_int(first), ctypes.c_void_p(AT), 4))
whole = read_by("library", second)
assert half == 4 and whole == "pos:" + read_by("library", first) or "ino" in whole
close(first), close(second)
# Others that have taken its number.
with tempfile.TemporaryFile() as file:
    file.write(b"some bytes")
    file.seek(7)
    os.dup2(file.fileno(), fd)
    same(fd)
    os.lseek(fd, 3, 0)
    same(fd)
os.dup2(os.eventfd(5), fd)
told = read_by("library", open_by("library", own, f"fdinfo/{fd}"))
assert "eventfd-count" in told, told
"#;
    says_all_is_well(code, &[&subject]);
}

#[test]
fn pages_are_those_of_the_process_that_a_descriptor_is_of_by_now() {
    let (one, other) = (Subject::stopped(), Subject::stopped());
    let code = r#"
def scan_by(call, fd, start, end):
    room = 64
    struct.pack_into("12Q", buffer, 0, 96, 0, start, end, 0, AT + 128, room, 0, 0, 0, 8 | 16, 8 | 16 | 4)
    request = 0xc0606610 | (1 << 32 if call == "kernel" else 0)
    if call == "kernel":
        found = kernel(16, fd, request, AT)
    else:
        found = result(libc.ioctl(ctypes.c_int(fd), ctypes.c_ulong(request), ctypes.c_void_p(AT)))
    assert found >= 0, found
    stretches = [struct.unpack_from("3Q", buffer, 128 + 24 * index) for index in range(found)]
    # What follows on another may be told of with it.
    return {page for first, last, _ in stretches for page in range(first, last, 4096)}

def same_pages(fd, pid, order):
    count = 0
    for text in order(areas_of(pid)):
        start, end = (int(part, 16) for part in text.split("-"))
        if end > 0x7ffffffff000 or end - start > 1 << 26:
            continue
        told, known = scan_by("library", fd, start, end), scan_by("kernel", fd, start, end)
        assert told == known, (text, len(told), len(known))
        count += len(known)
    assert count > 500, count

pagemap = open_by("library", proc, "pagemap")
for order in list, reversed, sorted:
    same_pages(pagemap, target, order)
other = open_by("library", -100, f"/proc/{others[0]}", DIRECTORY)
others_pages = open_by("library", other, "pagemap")
same_pages(others_pages, others[0], list)
same_pages(pagemap, target, reversed)
# By a way that the library does not see.
kernel(33, others_pages, pagemap)
same_pages(pagemap, others[0], list)
"#;
    says_all_is_well(code, &[&one, &other]);
}

const TCP: &str = r#"
import socket
own = socket.create_server(("127.0.0.1", 0))
connected = socket.create_connection(own.getsockname())
accepted, _ = own.accept()

def ports(send):
    """Those of TCP sockets by state, as they are told of."""
    asked = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4)
    send(asked, struct.pack("=IHHII BBBBI 48x", 72, 20, 0x301, 1, 0, socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xffffffff))
    found = {}
    while True:
        answer = asked.recv(1 << 20)
        while answer:
            length, kind = struct.unpack_from("IH", answer)
            if kind == 3:
                return found
            assert kind == 20, kind
            found.setdefault(answer[17], set()).add(struct.unpack_from(">H", answer, 20)[0])
            answer = answer[(length + 3) & ~3:]

told = ports(lambda asked, request: asked.sendmsg([request]))
known = ports(lambda asked, request: asked.send(request))
LISTENS, CONNECTED = 10, 1
port = own.getsockname()[1]
assert port in told[LISTENS] and port in known[LISTENS] and port in known[CONNECTED], (told, known)
"#;

#[test]
fn of_tcp_those_that_listen_are_told_of_if_the_program_has_no_others() {
    let listens = "s = socket.create_server((\"127.0.0.1\", 0))\nu = socket.socket()\nd = socket.socket(type=socket.SOCK_DGRAM)\nd.bind((\"127.0.0.1\", 0))";
    let subject = Subject::beginning_with(listens).stop();
    says_all_is_well(&format!("{TCP}\nassert set(told) == {{LISTENS}}, told"), &[&subject]);
    for others in [
        "c = socket.create_connection(s.getsockname())",
        "c = socket.create_connection(s.getsockname())\na, _ = s.accept()\na.close()",
        "b = socket.socket()\nb.bind((\"127.0.0.1\", 0))",
    ] {
        let other = Subject::beginning_with(&format!("{listens}\n{others}")).stop();
        says_all_is_well(&format!("{TCP}\nassert port in told[CONNECTED], told"), &[&subject, &other]);
    }
}

#[test]
fn guards_are_told_of_where_a_process_has_some() {
    let (none, some) = (
        Subject::stopped(),
        Subject::beginning_with(
            "import ctypes, mmap\nm = mmap.mmap(-1, 1 << 16)\nat = ctypes.addressof(ctypes.c_char.from_buffer(m))\nctypes.CDLL(None).madvise(ctypes.c_void_p(at), ctypes.c_size_t(8192), 102)",
        )
        .stop(),
    );
    let code = r#"
def guards(call, pid):
    pagemap = open_by("library", -100, f"/proc/{pid}/pagemap")
    struct.pack_into("12Q", buffer, 0, 96, 0, 0, 0x7ffffffff000, 0, AT + 128, 64, 0, 0, 256, 0, 256)
    request = 0xc0606610 | (1 << 32 if call == "kernel" else 0)
    words = ctypes.c_int(pagemap), ctypes.c_ulong(request), ctypes.c_void_p(AT)
    found = kernel(16, pagemap, request, AT) if call == "kernel" else result(libc.ioctl(*words))
    assert struct.unpack_from("Q", buffer, 32)[0] == 0x7ffffffff000 or found < 0
    return found

for pid, count in (target, 0), (others[0], 1):
    known = guards("kernel", pid)
    # A kernel before 6.15 knows of none.
    assert known in (count, -22), known
    assert known < 0 or guards("library", pid) == known
"#;
    says_all_is_well(code, &[&none, &some]);
}
