"""What a process has of the kernel, set to something unusual where that is allowed: after a restore all is as it was."""

import ctypes
import fcntl
import json
import mmap
import os
import resource
import signal
import sys
import threading
from pathlib import Path

from kept import main

libc = ctypes.CDLL(None, use_errno=True)
SYSCALLS = {
    "pidfd_open": 434,
    "timer_create": 222,
    "timer_settime": 223,
    "timer_gettime": 224,
    "mbind": 237,
    "set_mempolicy": 238,
    "get_mempolicy": 239,
    "add_key": 248,
    "keyctl": 250,
    "ioprio_set": 251,
    "ioprio_get": 252,
    "timerfd_create": 283,
    "timerfd_settime": 286,
    "timerfd_gettime": 287,
    "signalfd4": 289,
    "sched_setattr": 314,
    "sched_getattr": 315,
    "seccomp": 317,
    "membarrier": 324,
}


def call(name, *arguments):
    """A system call; the kernel's error if it fails."""
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    done = libc.syscall(ctypes.c_long(SYSCALLS[name]), *arguments)
    if done < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return done


def prctl(option, *arguments):
    done = libc.prctl(option, *[ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]])
    if done < 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")
    return done


def got(option):
    """What a prctl writes to an address."""
    value = ctypes.c_int()
    prctl(option, ctypes.addressof(value))
    return value.value


def status(name):
    lines = Path("/proc/thread-self/status").read_text(errors="replace").splitlines()
    return next(line.split(":", 1)[1].split() for line in lines if line.startswith(f"{name}:"))


def attributes():
    """The thread's scheduling attributes: policy, flags, nice, priority, runtime, deadline, period."""
    buffer = (ctypes.c_uint32 * 12)()
    call("sched_getattr", 0, buffer, 48, 0)
    return list(buffer)[1:]


def set_attributes(policy, nice):
    call("sched_setattr", 0, (ctypes.c_uint32 * 12)(48, policy, 0, 0, nice), 0)


def registrations():
    """What is registered for membarriers; kernels before 6.3 do not say."""
    try:
        return call("membarrier", 512, 0, 0)
    except OSError:
        return None


def memory(advice=None):
    area = mmap.mmap(-1, 1 << 16, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area[0] = 1
    if advice is not None:
        area.madvise(advice)
    return area


def address(area):
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


def flags_of(area):
    """The kernel's flags of an area, but for one that says that it was written to."""
    at = address(area)
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            start, end = (int(word, 16) for word in words[0].split("-"))
            found = start <= at < end
        elif found and words[0] == "VmFlags:":
            return sorted(set(words[1:]) - {"sd"})
    return None


def policy_of(area=None):
    mode, nodes = ctypes.c_int(), ctypes.c_ulong()
    where = (address(area), 2) if area else (0, 0)
    call("get_mempolicy", ctypes.byref(mode), ctypes.byref(nodes), 64, *where)
    return [mode.value, nodes.value]


def per_thread(number):
    """What each thread has of its own; how it is looked up."""
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [cpus[number % len(cpus)]])
    if number:
        set_attributes(3, 7)
    else:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(3))
    call("ioprio_set", 1, 0, (2 << 13) | (5 + number))
    prctl(29, 123_456 + number)
    node = ctypes.c_ulong(1)
    call("set_mempolicy", 1 + number, ctypes.byref(node), 64)
    name = ctypes.create_string_buffer(b"\xffkept-%d) " % number)
    prctl(15, ctypes.addressof(name))
    prctl(1, signal.SIGUSR1 + number)

    def look():
        return {
            "affinity": sorted(os.sched_getaffinity(0)),
            "scheduling": attributes(),
            "priority of I/O": call("ioprio_get", 1, 0),
            "timer slack": prctl(30),
            "memory policy": policy_of(),
            "name": repr(Path("/proc/thread-self/comm").read_bytes()),
            "signal of the parent's end": got(2),
            "blocked signals": status("SigBlk"),
            "capabilities": [status(name) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
            "no new privileges": status("NoNewPrivs"),
            "seccomp": status("Seccomp") + status("Seccomp_filters"),
            "securebits": prctl(27),
            "speculation": status("Speculation_Store_Bypass") + status("SpeculationIndirectBranch"),
        }

    return look


def processes():
    """What the process has; how it is looked up."""
    own = Path("/proc/self")
    (own / "oom_score_adj").write_text("321")
    (own / "coredump_filter").write_text("0x7")
    resource.setrlimit(resource.RLIMIT_CORE, (4096, 8192))
    resource.setrlimit(resource.RLIMIT_NOFILE, (700, 1700))
    os.umask(0o027)
    libc.personality(0x0040000)
    prctl(36, 1)
    prctl(41, 1)
    signal.setitimer(signal.ITIMER_REAL, 5000, 7)
    timer = ctypes.c_int()
    event = (ctypes.c_byte * 64)()
    ctypes.memmove(ctypes.addressof(event) + 8, bytes(ctypes.c_int(signal.SIGUSR2)), 4)
    call("timer_create", 1, event, ctypes.byref(timer))
    times = (ctypes.c_long * 4)(11, 0, 6000, 0)
    call("timer_settime", timer.value, 0, times, None)
    call("membarrier", 16, 0, 0)
    areas = {
        "locked": memory(),
        "not inherited": memory(mmap.MADV_DONTFORK),
        "not in core dumps": memory(mmap.MADV_DONTDUMP),
        "merged": memory(mmap.MADV_MERGEABLE),
        "wiped in children": memory(18),
        "bound to a node": memory(),
    }
    libc.mlock(ctypes.c_void_p(address(areas["locked"])), ctypes.c_size_t(4096))
    node = ctypes.c_ulong(1)
    call("mbind", ctypes.c_void_p(address(areas["bound to a node"])), 1 << 16, 2, ctypes.byref(node), 64, 0)

    def time_left(name, which):
        left = (ctypes.c_long * 4)()
        call(name, which, left)
        return [left[0], 0 < left[2] < 10_000]

    def look():
        interval, left = signal.getitimer(signal.ITIMER_REAL)[::-1]
        return {
            "score of the OOM killer": (own / "oom_score_adj").read_text(),
            "filter of core dumps": (own / "coredump_filter").read_text(),
            "limits": [resource.getrlimit(which) for which in range(16)],
            "umask": status("Umask"),
            "personality": libc.personality(0xFFFFFFFF),
            "subreaper": got(37),
            "no huge pages": prctl(42),
            "dumpable": prctl(3),
            "interval timer": [interval, 0 < left < 10_000],
            "timer": time_left("timer_gettime", timer.value),
            "membarrier": registrations(),
            "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
            **{f"memory {name}": flags_of(area) for name, area in areas.items()},
            "policy of memory": policy_of(areas["bound to a node"]),
        }

    return look


def descriptors():
    """What descriptors have."""
    timer = call("timerfd_create", 1, 0)
    call("timerfd_settime", timer, 0, (ctypes.c_long * 4)(13, 0, 7000, 0), None)
    signals = call("signalfd4", -1, ctypes.byref(ctypes.c_ulong(1 << (signal.SIGUSR2 - 1))), 8, 0)
    child = os.fork()
    if not child:
        signal.pause()
    pidfd = call("pidfd_open", child, 0)
    read, write = os.pipe2(os.O_NONBLOCK)
    fcntl.fcntl(write, 1031, 1 << 17)
    os.write(write, b"in the pipe")
    fcntl.fcntl(read, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(read, 10, signal.SIGUSR1)
    sealed = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    locked = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
    # Several instances of an image can hold it.
    fcntl.lockf(locked, fcntl.LOCK_SH, 10, 0)

    def look():
        left = (ctypes.c_long * 4)()
        call("timerfd_gettime", timer, left)
        info = Path(f"/proc/self/fdinfo/{pidfd}").read_text().split()
        locks = [line.split()[1:6] for line in Path(f"/proc/self/fdinfo/{locked}").read_text().splitlines() if line.startswith("lock")]
        return {
            "timerfd": [left[0], 0 < left[2] < 10_000],
            "signalfd": Path(f"/proc/self/fdinfo/{signals}").read_text().split("sigmask")[1],
            "pidfd": int(info[info.index("Pid:") + 1]) == child,
            "size of a pipe": fcntl.fcntl(write, 1032),
            "flags of a pipe": fcntl.fcntl(write, fcntl.F_GETFL),
            "owner of a pipe": [fcntl.fcntl(read, fcntl.F_GETOWN), fcntl.fcntl(read, 11)],
            "seals": fcntl.fcntl(sealed, fcntl.F_GET_SEALS),
            "locks": locks,
        }

    return look


def setup(_place):
    looks = {}
    asked, answered = threading.Semaphore(0), threading.Semaphore(0)
    seen = {}

    def other():
        look = per_thread(1)
        answered.release()
        while True:
            asked.acquire()
            seen["second thread"] = look()
            answered.release()

    threading.Thread(target=other, daemon=True).start()
    answered.acquire()
    looks["first thread"] = per_thread(0)
    looks["process"] = processes()
    looks["descriptors"] = descriptors()

    def look():
        asked.release()
        answered.acquire()
        return {name: look() for name, look in looks.items()} | {"second thread": seen["second thread"]}

    before = look()

    def verify():
        after = look()
        for of, values in before.items():
            for name, value in values.items():
                if after[of][name] != value:
                    print(json.dumps([of, name, value, after[of][name]]), flush=True)

    return verify


main(setup)
