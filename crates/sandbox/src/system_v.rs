//! System V semaphores, shared memory and message queues that no image keeps.
//!
//! They belong to a namespace. A program that was started in a sandbox has one of its own, which CRIU takes along with
//! all that is in it. One that lives in the machine's shares it with others, so nothing there is taken: a program that
//! is seen to use something there is refused.

use crate::process;
use crate::process::maps::{self, Area};

/// The kinds, with the fields in the kernel's list that hold the ids of processes.
const KINDS: [(&str, &str, &[&str]); 2] =
    [("shm", "shared memory segment", &["cpid", "lpid"]), ("msg", "message queue", &["lspid", "lrpid"])];

/// Why a program of the processes `pids` cannot be taken, if it cannot.
pub fn refusal(pids: &[i32]) -> Option<String> {
    let ours = process::namespace(std::process::id() as i32, "ipc");
    let sharing: Vec<_> =
        pids.iter().copied().filter(|pid| process::namespace(*pid, "ipc") == ours).collect();
    let used = sharing.first().and_then(|_| {
        let mapped = sharing.iter().find_map(|pid| {
            let is_segment = |area: &Area| area.name.starts_with(b"/SYSV");
            maps::if_there(*pid).iter().any(is_segment).then(|| (*pid, "a shared memory segment".to_owned()))
        });
        let listed =
            || KINDS.into_iter().find_map(|(list, what, fields)| listed(list, what, fields, &sharing));
        mapped.or_else(listed).or_else(|| semaphores(&sharing))
    });
    used.map(|(pid, what)| {
        format!(
            "process {pid} uses {what} of System V, which others of this machine may use as well and no image keeps; \
             start the program with `rekindle run`, which gives it its own"
        )
    })
}

fn table(list: &str) -> Vec<Vec<String>> {
    let text = process::text(&format!("/proc/sysvipc/{list}")).unwrap_or_default();
    text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

fn listed(list: &str, what: &str, fields: &[&str], pids: &[i32]) -> Option<(i32, String)> {
    let table = table(list);
    let (names, rows) = table.split_first()?;
    let columns: Vec<_> =
        fields.iter().filter_map(|field| names.iter().position(|name| name == field)).collect();
    rows.iter().find_map(|row| {
        let used_by = columns.iter().filter_map(|column| row.get(*column)?.parse().ok());
        let pid = used_by.into_iter().find(|pid| pids.contains(pid))?;
        Some((pid, format!("the {what} {}", row.get(1)?)))
    })
}

/// The kernel knows of each semaphore who used it last.
fn semaphores(pids: &[i32]) -> Option<(i32, String)> {
    let table = table("sem");
    let (names, rows) = table.split_first()?;
    let column = |name: &str| names.iter().position(|found| found == name);
    let (id, count) = (column("semid")?, column("nsems")?);
    rows.iter().find_map(|row| {
        let (id, count): (i32, i32) = (row.get(id)?.parse().ok()?, row.get(count)?.parse().ok()?);
        // SAFETY: this command takes three integers and touches no memory of ours.
        let mut users = (0..count).map(|number| unsafe { libc::semctl(id, number, libc::GETPID) });
        let pid = users.find(|pid| pids.contains(pid))?;
        Some((pid, format!("the semaphores {id}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_uses_is_found() {
        let own = std::process::id() as i32;
        assert_eq!(refusal(&[own]), None);
        // SAFETY: makes an object, and later removes it.
        let queue = unsafe { libc::msgget(libc::IPC_PRIVATE, libc::IPC_CREAT | 0o600) };
        let message = [1i64, 2];
        // SAFETY: the message is a word for its kind and eight bytes, as is said.
        assert_eq!(unsafe { libc::msgsnd(queue, message.as_ptr().cast(), 8, 0) }, 0);
        let said = refusal(&[own]);
        // SAFETY: as above; no result is written.
        unsafe { libc::msgctl(queue, libc::IPC_RMID, std::ptr::null_mut()) };
        assert!(said.unwrap().contains(&format!("process {own} uses the message queue {queue} of System V")));

        // SAFETY: as above.
        let semaphores = unsafe { libc::semget(libc::IPC_PRIVATE, 2, libc::IPC_CREAT | 0o600) };
        let mut add = libc::sembuf { sem_num: 1, sem_op: 1, sem_flg: 0 };
        assert_eq!(refusal(&[own]), None);
        // SAFETY: one operation is passed, as is said.
        assert_eq!(unsafe { libc::semop(semaphores, &mut add, 1) }, 0);
        let said = refusal(&[own]);
        // SAFETY: as above.
        unsafe { libc::semctl(semaphores, 0, libc::IPC_RMID) };
        assert!(said.unwrap().contains(&format!("the semaphores {semaphores}")));
    }
}
