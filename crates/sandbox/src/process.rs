//! What `/proc` tells about the processes of a sandbox, seen from outside and from inside.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub use rekindle_protocol::maps;
use rekindle_protocol::maps::Area;

use crate::stat::Stat;

/// A process held by descriptor, so that a pid used again is never mistaken for it.
#[derive(Debug)]
pub struct Handle(OwnedFd);

impl Handle {
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: a null siginfo is allowed and means the one that kill() would send.
        let done = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, none, 0) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Ends the process, and gives its memory back beside the one thread of it that does so.
    pub fn end(&self) -> io::Result<()> {
        self.signal(libc::SIGKILL)?;
        // SAFETY: takes two integers and touches no memory of ours. Where it is refused the process does it all.
        unsafe { libc::syscall(libc::SYS_process_mrelease, self.0.as_raw_fd(), 0) };
        Ok(())
    }

    /// What the process has as descriptor `number`, for us too.
    pub fn descriptor(&self, number: i32) -> io::Result<OwnedFd> {
        // SAFETY: takes three integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.0.as_raw_fd(), number, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }

    /// Whether the process has ended, waiting up to `timeout` (`None`: for ever).
    pub fn ended(&self, timeout: Option<Duration>) -> io::Result<bool> {
        readable(self.0.as_fd(), timeout)
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether `fd` can be read, or its other side has closed, within `timeout` (`None`: waits for ever).
pub fn readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    let deadline = timeout.map(|timeout| std::time::Instant::now() + timeout);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(std::time::Instant::now()));
        let wait = match left {
            None => PollTimeout::NONE,
            Some(left) => {
                let millis = left.as_micros().div_ceil(1000);
                PollTimeout::try_from(i32::try_from(millis).unwrap_or(i32::MAX)).unwrap_or(PollTimeout::MAX)
            }
        };
        match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], wait) {
            Err(nix::Error::EINTR) => {}
            Ok(0) if left.is_some_and(|left| !left.is_zero()) => {}
            other => return Ok(other? > 0),
        }
    }
}

/// Of the areas of a process, the readable and writable private memory that has no file and no name, in order.
pub fn private_memory(areas: &[Area]) -> Vec<Range<u64>> {
    spans(areas, |area| is_plain(area) && area.name.is_empty())
}

/// As [`private_memory`], with that which `brk` gives and that which the program has named.
pub fn allocated_memory(areas: &[Area]) -> Vec<Range<u64>> {
    spans(areas, |area| is_plain(area) && is_allocated(&area.name))
}

/// The memory without files that a process alone has, whatever it may do with it, but for stacks that grow and code.
pub fn own_memory(areas: &[Area]) -> Vec<Range<u64>> {
    spans(areas, |area| area.is_anonymous() && !area.may(libc::PROT_EXEC) && is_allocated(&area.name))
}

/// The private memory of a process that may hold code, in order.
pub fn executable_memory(areas: &[Area]) -> Vec<Range<u64>> {
    spans(areas, |area| area.may(libc::PROT_EXEC) && !area.is_shared)
}

fn spans(areas: &[Area], is_chosen: impl Fn(&Area) -> bool) -> Vec<Range<u64>> {
    areas.iter().filter(|area| is_chosen(area)).map(|area| area.span.clone()).collect()
}

fn is_allocated(name: &[u8]) -> bool {
    name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon:")
}

fn is_plain(area: &Area) -> bool {
    area.protection == libc::PROT_READ | libc::PROT_WRITE && area.is_anonymous()
}

/// Whether the kernel guards the process's return addresses, in memory that nobody else can write to.
pub fn has_shadow_stack(pid: i32) -> bool {
    status_field(pid, "x86_Thread_features").is_some_and(|features| features.contains("shstk"))
}

/// The descriptors of a process, with what each is called in `/proc`.
pub fn descriptors(pid: i32) -> impl Iterator<Item = (i32, String)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()))
    })
}

/// The descriptors of a process that are sockets, with their inodes.
pub fn socket_descriptors(pid: i32) -> impl Iterator<Item = (i32, u64)> {
    let inode = |link: &str| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
    descriptors(pid).filter_map(move |(number, link)| Some((number, inode(&link)?)))
}

/// The inodes of a process's sockets.
pub fn sockets(pid: i32) -> Vec<u64> {
    socket_descriptors(pid).map(|(_, inode)| inode).collect()
}

/// The threads of `pid`; none of a process that is gone.
pub fn threads(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// The children of `pid`, of all its threads.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    threads(pid)
        .into_iter()
        .filter_map(|thread| fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")).ok())
        .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// `pid` and all that descend from it.
pub fn tree(pid: i32) -> Vec<i32> {
    let mut out = vec![pid];
    let mut next = 0;
    while next < out.len() {
        let more: Vec<_> = children(out[next]).into_iter().filter(|pid| !out.contains(pid)).collect();
        out.extend(more);
        next += 1;
    }
    out
}

/// What a file of `/proc` says. Programs, and what they map, may have names of any bytes.
pub fn text(path: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// A line of `/proc/PID/status`.
pub(crate) fn status_field(pid: i32, name: &str) -> Option<String> {
    text(&format!("/proc/{pid}/status"))
        .ok()?
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
}

/// The pid of `pid` in the innermost namespace it is in.
pub fn innermost_pid(pid: i32) -> Option<i32> {
    status_field(pid, "NSpid")?.split_whitespace().next_back()?.parse().ok()
}

/// The sandbox's pids (as its programs see them) with ours, for `init` and all below it.
pub fn pid_map(init: i32) -> BTreeMap<i32, i32> {
    tree(init).into_iter().filter_map(|host| Some((innermost_pid(host)?, host))).collect()
}

/// The process that `init`'s pid namespace knows as `pid`, also where it may be seen as nobody's child: when its parent is
/// just ending, as CRIU is after a restore.
pub fn find_inside(init: i32, pid: i32) -> Option<i32> {
    pid_map(init).get(&pid).copied().or_else(|| find_anywhere(init, pid))
}

fn find_anywhere(init: i32, pid: i32) -> Option<i32> {
    let space = namespace(init, "pid")?;
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let mut all = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    all.find(|&host| namespace(host, "pid").as_ref() == Some(&space) && innermost_pid(host) == Some(pid))
}

/// The pid in our namespace that a `/proc` made for the sandbox would show as the parent of `pid`.
pub fn parent(pid: i32) -> Option<i32> {
    status_field(pid, "PPid")?.parse().ok()
}

/// Who traces a thread of `pid`, as we see it.
pub fn tracer(pid: i32) -> Option<i32> {
    let mut tracers =
        threads(pid).into_iter().filter_map(|thread| status_field(thread, "TracerPid")?.parse().ok());
    tracers.find(|&tracer| tracer != 0)
}

pub fn is_zombie(pid: i32) -> bool {
    status_field(pid, "State").is_none_or(|state| state.starts_with('Z') || state.starts_with('X'))
}

/// Whether the process belongs to the kernel: it has no memory of its own.
pub fn is_kernel_thread(pid: i32) -> bool {
    status_field(pid, "VmSize").is_none() && !is_zombie(pid)
}

/// What tells one namespace of `pid` from another of its kind.
pub fn namespace(pid: i32, kind: &str) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()
}

/// The threads of `pid` that wait uninterruptibly, each with `pid`.
pub fn uninterruptible(pid: i32) -> impl Iterator<Item = (i32, i32)> {
    let is_waiting =
        |thread: &i32| status_field(*thread, "State").is_some_and(|state| state.starts_with('D'));
    threads(pid).into_iter().filter(is_waiting).map(move |thread| (pid, thread))
}

/// Whether a thread can be brought to a stand now: it has not ended, and does not wait uninterruptibly.
pub fn can_stand(thread: i32) -> bool {
    status_field(thread, "State").is_some_and(|state| !state.starts_with(['Z', 'X', 'D']))
}

/// Whether the session of the first of `pids` was begun by a process that is not among them.
pub fn is_session_outside(pids: &[i32]) -> bool {
    pids.first().and_then(|&first| session(first)).is_some_and(|session| !pids.contains(&session))
}

/// The leader of a process's session; 0 if it is in none of our pid namespaces.
pub fn session(pid: i32) -> Option<i32> {
    Stat::of(pid).ok()?.field(Stat::SESSION)
}

/// The device of the terminal that controls a process; none if it has none.
pub(crate) fn controlling_terminal(pid: i32) -> Option<u64> {
    let device: i64 = Stat::of(pid).ok()?.field(Stat::TERMINAL)?;
    // The kernel shows 32 bits with a sign.
    (device != 0).then_some(u64::from(device as u32))
}

pub fn name(pid: i32) -> String {
    text(&format!("/proc/{pid}/comm")).map(|name| name.trim().to_owned()).unwrap_or_default()
}

/// Every pid that `/proc` shows.
pub fn all() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The bytes of its own that a process has in memory.
pub(crate) fn own_bytes(pid: i32) -> u64 {
    let text = status_field(pid, "RssAnon");
    text.and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok())
        .map_or(0, |kilobytes| kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_is_found_and_its_end_is_seen() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id() as i32;
        assert!(tree(std::process::id() as i32).contains(&pid));
        assert_eq!(parent(pid), Some(std::process::id() as i32));
        assert_eq!(innermost_pid(pid), Some(pid));
        let handle = Handle::open(pid).unwrap();
        assert!(!handle.ended(Some(Duration::from_millis(5))).unwrap());
        handle.signal(libc::SIGKILL).unwrap();
        assert!(handle.ended(Some(Duration::from_secs(120))).unwrap());
        assert!(is_zombie(pid));
        child.wait().unwrap();
        assert!(Handle::open(pid).is_err());
    }

    #[test]
    fn all_are_ended_whether_they_are_there_or_not() {
        let mut children =
            [(); 2].map(|()| Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap());
        let pids = children.each_ref().map(|child| child.id() as i32);
        children[0].kill().unwrap();
        children[0].wait().unwrap();
        crate::ending::end_all(pids.into_iter());
        let ended = std::os::unix::process::ExitStatusExt::signal(&children[1].wait().unwrap());
        assert_eq!(ended, Some(libc::SIGKILL));
    }

    #[test]
    fn a_process_is_found_whoever_its_parent_is() {
        let own = std::process::id() as i32;
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let (pid, inside) = (child.id() as i32, innermost_pid(child.id() as i32).unwrap());
        assert_eq!((find_inside(own, inside), find_anywhere(own, inside)), (Some(pid), Some(pid)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(find_inside(own, inside), None);
        assert_eq!(find_inside(-1, inside), None);
    }

    #[test]
    fn a_name_of_any_bytes_hides_nothing() {
        let wait = "printf '\\377) Z (' > /proc/$$/comm; echo; sleep 60";
        let mut child = Command::new("sh").args(["-c", wait]).stdout(Stdio::piped()).spawn().unwrap();
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let pid = child.id() as i32;
        assert_eq!(parent(pid), Some(std::process::id() as i32));
        assert_eq!(session(pid), session(std::process::id() as i32));
        assert!(name(pid).ends_with(") Z ("), "{}", name(pid));
        assert!(!is_zombie(pid) && !crate::ending::is_dying(pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn memory_is_told_apart_by_what_it_holds() {
        let text = b"400000-402000 r-xp 00001000 08:01 77 /bin/x\n\
            402000-403000 rwxp 00000000 00:00 0 \n\
            403000-404000 r-xs 00000000 00:01 1 /memfd:code\n\
            55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0 [heap]\n\
            200000000-300200000 ---p 00000000 00:00 0 \n\
            200800000-204000000 rw-s 00000000 00:05 142 /dev/nvidiactl\n\
            7f0000000000-7f0000001000 rw-p 00001000 08:01 77 /lib/x.so\n\
            7f52591db000-7f5370000000 rw-p 00000000 00:00 0 \n";
        let plain: Vec<_> =
            maps::parse(text).into_iter().filter(is_plain).map(|area| area.span.start).collect();
        assert_eq!(plain, [0x55d0_c000_0000, 0x7f52_591d_b000]);
        let ours = std::process::id() as i32;
        let here = memory_is_told_apart_by_what_it_holds as *const () as u64;
        let areas = maps::of(ours).unwrap();
        assert!(executable_memory(&areas).iter().any(|span| span.contains(&here)));
        assert!(private_memory(&areas).len() < allocated_memory(&areas).len());
    }
}
