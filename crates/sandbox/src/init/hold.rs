//! A program that is dumped and held: it stands still until there is a verdict, whether its daemon lives or not.
//!
//! ```text
//!   daemon   Hold ─▶ Held ─▶ Commit or Abort ─────────────────────────────┐
//!   init     ──────┬ dies: waits for the next ─ Settle(Commit or Abort) ──┴─▶ ends, or goes on
//! ```
//!
//! So a daemon may say durably that a program has been given away, and die, and still nobody runs it here before it is known
//! who has it.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::commands::accept;
use crate::message::{Command, Reply, Step, Verdict};
use crate::process;
use crate::wire::Channel;

/// Who has asked for a dump, and where another one comes.
pub struct Daemon<'a> {
    pub channel: &'a Channel,
    pub listener: &'a UnixListener,
}

impl Daemon<'_> {
    /// Says that the program stands still and its images are written, and waits for the word.
    pub fn ask_frozen(&self, within: Duration, steps: &mut Vec<Step>) -> Result<(), String> {
        self.ask(&Reply::Frozen { steps: std::mem::take(steps) }, within)
    }

    /// Says that the program stands still and nothing was done to it, and waits for the word.
    pub fn ask_standing(&self, within: Duration) -> Result<(), String> {
        self.ask(&Reply::Standing, within)
    }

    fn ask(&self, question: &Reply, within: Duration) -> Result<(), String> {
        let gone = |error: io::Error| format!("the daemon cannot be asked: {error}");
        self.channel.send(question, &[]).map_err(gone)?;
        if !process::readable(self.channel.as_fd(), Some(within)).map_err(gone)? {
            return Err(format!("the daemon gave no word within {within:?}"));
        }
        match self.channel.recv::<Verdict>().map_err(gone)? {
            Some((Verdict::Hold, _)) => {
                // One that is gone already does not know that it is held, and has given nothing away.
                self.channel.send(&Reply::Held, &[]).map_err(gone)?;
                self.hold()
            }
            Some((verdict, _)) => word(verdict),
            None => Err("the daemon is gone".into()),
        }
    }

    fn hold(&self) -> Result<(), String> {
        let mut first = Some(self.channel);
        loop {
            let fds = [Some(self.listener.as_fd()), first.map(AsFd::as_fd)].into_iter().flatten();
            let mut polled: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            // An interrupted poll leaves nothing ready; the next round asks again.
            let _ = poll(&mut polled, PollTimeout::NONE);
            let ready: Vec<_> =
                polled.iter().map(|fd| fd.revents().is_some_and(|events| !events.is_empty())).collect();
            if let Some(channel) = first.filter(|_| ready.get(1) == Some(&true)) {
                match channel.recv::<Verdict>() {
                    Ok(Some((Verdict::Hold, _))) => {}
                    Ok(Some((verdict, _))) => return word(verdict),
                    Ok(None) | Err(_) => first = None,
                }
            }
            if ready[0]
                && let Some(verdict) = accept(self.listener).and_then(|channel| self.serve(&channel))
            {
                return word(verdict);
            }
        }
    }

    /// Answers another connection; the verdict, if it brings one.
    fn serve(&self, channel: &Channel) -> Option<Verdict> {
        let (command, _) = channel.recv::<Command>().ok()??;
        match command {
            Command::Settle(Verdict::Hold) => None,
            // A daemon that does not hear the answer comes to know by what the program does.
            Command::Settle(verdict) => {
                let _ = channel.send(&Reply::Settled(true), &[]);
                Some(verdict)
            }
            _ => {
                let _ = channel.send(&Reply::Failed("the program is held".into()), &[]);
                None
            }
        }
    }
}

fn word(verdict: Verdict) -> Result<(), String> {
    match verdict {
        Verdict::Commit => Ok(()),
        Verdict::Abort(cause) => Err(cause),
        Verdict::Hold => Err("it was to be held and nothing else".into()),
    }
}
