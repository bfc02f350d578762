//! Images of a program that goes, taken and sent: while it runs, and what is new once it stands still.

use std::io::Write;
use std::time::{Duration, Instant};

use rekindle_protocol::daemon::{Report, Round};
use rekindle_store::Image;

use crate::checkpoint::{self, CheckpointRequest, Purpose};
use crate::error::{Error, Result};
use crate::fault;
use crate::peers::{MESSAGE_LIMIT, PeerError};

use super::departure::{Migration, WORK_LIMIT};
use super::message::{Answer, Ask};
use super::{image_name, refused};

const USUAL_ROUNDS: u32 = 4;
pub const MOST_ROUNDS: u32 = 16;
/// A further round is not worth it once so little was new.
const LITTLE: u64 = 64 << 20;
/// How long the driver may wait for the GPU's work to end.
const GPU_WAIT: Duration = Duration::from_secs(10);

/// What was said before a connection ended is here by then.
const SAID: Duration = Duration::from_secs(1);
/// The other node takes so much a second at least, bytes.
const SLOWEST: u64 = 16 << 20;

impl Migration<'_> {
    /// Sends what there is, again and again as long as that makes less of it.
    pub(super) fn send_ahead(&self, options: Option<u32>) -> Result<Vec<Round>> {
        let mut rounds: Vec<Round> = Vec::new();
        for number in 1..=options.unwrap_or(USUAL_ROUNDS).clamp(1, MOST_ROUNDS) {
            self.reply.check_wanted()?;
            let began = Instant::now();
            let name = image_name::name(&self.id, number);
            let report = self.take(&name, true, Purpose::Round)?;
            let image = self.daemon.store.image(&name)?;
            let bytes = self.timeline.time("send ahead", || self.send(&image))?;
            drop(image);
            // The one before was kept for what both have.
            let before = image_name::name(&self.id, number - 1);
            if number > 1
                && let Err(error) = self.daemon.store.remove(&before)
            {
                log::warn!("{error}");
            }
            if number == 1 {
                self.reply.progress("check", 0, 0);
                let gpu = self.ask(&Ask::Check, WORK_LIMIT, |answer| match answer {
                    Answer::Willing { gpu } => Some(gpu.clone()),
                    _ => None,
                })?;
                let _ = self.gpu.set(gpu);
            }
            self.lock_logs().send_more(self.sandbox, &mut self.lock())?;
            let last = rounds.last().map_or(u64::MAX, |round| round.bytes);
            let (duration_us, stopped_us) = (began.elapsed().as_micros() as u64, report.stopped_us);
            rounds.push(Round { bytes, duration_us, stopped_us });
            fault::point("node-round")?;
            if bytes <= LITTLE || bytes > last / 2 {
                break;
            }
        }
        Ok(rounds)
    }

    pub(super) fn take(&self, name: &str, leave_running: bool, purpose: Purpose<'_>) -> Result<Report> {
        let request = CheckpointRequest {
            to: name,
            leave_running,
            gpu_wait: GPU_WAIT,
            purpose,
            ..CheckpointRequest::default()
        };
        checkpoint::checkpoint(self.daemon, self.sandbox, &request, self.reply)
    }

    /// Sends of an image what the other node does not have.
    pub(super) fn send(&self, image: &Image) -> Result<u64> {
        let mut link = self.lock();
        let text = image.manifest_text()?;
        link.send(&Ask::Image { bytes: text.len() as u64 })?;
        let sent = { link.stream()?.write_all(&text) };
        sent.map_err(|source| Error::system("send an image", source))?;
        let wanted = match link.receive(MESSAGE_LIMIT)? {
            Answer::Wanted { chunks } => chunks,
            other => return Err(refused(&link, other)),
        };
        let progress = |done, total| self.reply.progress("send", done, total);
        let bytes = image.send(&wanted, link.stream()?, &progress);
        // Why it takes no more it has said by then.
        let within =
            bytes.as_ref().map_or(SAID, |bytes| MESSAGE_LIMIT + Duration::from_secs(bytes / SLOWEST));
        let answered = link.receive(within);
        match (bytes, answered) {
            (Ok(bytes), Ok(Answer::Done)) => Ok(bytes),
            (_, Ok(other)) => Err(refused(&link, other)),
            (Err(error), Err(_)) => {
                Err(PeerError::Failed { name: link.peer.name.clone(), reason: error.to_string() }.into())
            }
            (Ok(_), Err(error)) => Err(error),
        }
    }
}
