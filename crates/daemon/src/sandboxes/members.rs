//! Who lived when an operation on a program began: what fails because one of them was killed says so.

use std::time::Duration;

use rekindle_sandbox::ending::is_dying;
use rekindle_sandbox::process::Handle;

use crate::error::{Error, Result};
use crate::sandboxes::SandboxError;

/// Processes of a program.
pub struct Members {
    /// What is done to the program.
    wanted: &'static str,
    members: Vec<(i32, Handle)>,
}

impl Members {
    /// Those of these that live.
    pub fn living(wanted: &'static str, pids: impl IntoIterator<Item = i32>) -> Members {
        let lives = |pid: i32| Some((pid, Handle::open(pid).ok()?)).filter(|_| !is_dying(pid));
        Members { wanted, members: pids.into_iter().filter_map(lives).collect() }
    }

    /// One that has ended since, or cannot but end.
    pub fn missing(&self) -> Option<i32> {
        let missing = |(pid, handle): &&(i32, Handle)| !is_there(handle) || is_dying(*pid);
        self.members.iter().find(missing).map(|(pid, _)| *pid)
    }

    /// Whether this one was there and has not ended.
    pub fn has(&self, pid: i32) -> bool {
        self.members.iter().any(|(known, handle)| *known == pid && is_there(handle))
    }

    /// What failed once one has ended says that too.
    pub fn explain(&self, error: Error) -> Error {
        let is_told = |pid: &i32| error.to_string().contains(&format!("process {pid} ended"));
        match self.missing().filter(|pid| error.may_come_of_an_end() && !is_told(pid)) {
            Some(pid) => {
                SandboxError::MemberEnded { pid, wanted: self.wanted, cause: Box::new(error) }.into()
            }
            None => error,
        }
    }
}

fn is_there(handle: &Handle) -> bool {
    matches!(handle.ended(Some(Duration::ZERO)), Ok(false))
}

/// An image has all processes that have a GPU half, alive: one that was killed before CRIU came to it would be missing.
pub fn all_live(pids: &[i32]) -> Result<()> {
    match pids.iter().copied().find(|pid| is_dying(*pid)) {
        Some(pid) => Err(SandboxError::UserEnded { pid }.into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::images::ImageError;

    #[test]
    fn what_fails_after_an_end_names_who_ended() {
        let mut children = [(); 2].map(|()| Command::new("sleep").arg("1000").spawn().unwrap());
        let pids = children.each_ref().map(|child| child.id() as i32);
        let members = Members::living("checkpointed", pids);
        let lost = || ImageError::Pages { what: "they did not come".into() }.into();
        assert!(matches!(members.explain(lost()), Error::Images(ImageError::Pages { .. })));
        assert!(all_live(&pids).is_ok());
        children[1].kill().unwrap();
        let told = members.explain(lost()).to_string();
        assert!(told.contains(&format!("process {} of the program ended", pids[1])), "{told}");
        assert!(told.contains("did not come"), "{told}");
        // A refusal, and what says it itself.
        assert!(matches!(members.explain(ImageError::NoDraft.into()), Error::Images(ImageError::NoDraft)));
        let full = Error::Sandbox(rekindle_sandbox::Error::DiskFull { place: "/".into() });
        assert!(matches!(members.explain(full), Error::Sandbox(_)));
        let named = Error::Sandbox(rekindle_sandbox::Error::Died { pid: pids[1] });
        assert!(matches!(members.explain(named), Error::Sandbox(_)));
        children[1].wait().unwrap();
        assert_eq!(members.missing(), Some(pids[1]));
        assert!(all_live(&pids).is_err());
        // Who had ended before is not missed.
        assert_eq!(Members::living("checkpointed", [pids[1]]).missing(), None);
        children[0].kill().unwrap();
        children[0].wait().unwrap();
    }
}
