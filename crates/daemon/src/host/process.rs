//! Processes that the daemon did not start or does not wait for.

use std::io;

use rekindle_sandbox::Stat;
use rekindle_sandbox::process::Handle;

/// Whether a process exists and is no zombie.
pub fn is_alive(pid: i32) -> bool {
    if pid <= 0 {
        return false;
    }
    match Stat::of(pid) {
        Ok(stat) => !stat.has_ended(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// The command that a process was started with.
pub fn command(pid: i32) -> Vec<String> {
    let text = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = text.strip_suffix(b"\0").unwrap_or(&text).split(|byte| *byte == 0);
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Returns when the process has ended, at once if there is none.
pub fn wait_for_end(pid: i32) {
    if let Ok(process) = Handle::open(pid) {
        let _ = process.ended(None);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn ends_are_noticed() {
        // It ends with its input.
        let mut child = std::process::Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        assert!(is_alive(pid));
        drop(child.stdin.take());
        wait_for_end(pid);
        assert!(!is_alive(pid));
        child.wait().unwrap();
        wait_for_end(pid);
    }
}
