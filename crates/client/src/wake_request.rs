//! Waking the GPU half of this process, which sleeps: by asking at the daemon's admission socket, again and again until it is
//! awake. The barrier of the calls opens when the new worker says so, not by an answer here.

use std::time::Duration;

use rekindle_protocol::client::{ADMISSION_SOCKET, ADMISSION_VERSION, Admission, AdmissionRequest};
use rekindle_protocol::frame;

use crate::report::report;
use crate::{session, withheld};

/// Between two requests, at first and at most.
const FIRST: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_secs(5);
/// How long the daemon may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Knocks, ever less often, and says once why nobody wakes.
pub struct WakeRequester {
    pause: Duration,
    said: Option<String>,
}

impl Default for WakeRequester {
    fn default() -> WakeRequester {
        WakeRequester { pause: FIRST, said: None }
    }
}

impl WakeRequester {
    /// Knocks once; how long to wait before the next time.
    pub fn knock(&mut self) -> Duration {
        let problem = match ask() {
            Ok(Admission::Waking { problem }) => problem,
            Ok(Admission::Refused(why)) => Some(why),
            // The process is known to be awake: the word that opens the barrier is on its way.
            Ok(Admission::Admitted) => None,
            Err(problem) => Some(problem),
        };
        if problem.is_some() && problem != self.said {
            let why = problem.as_deref().unwrap_or_default();
            report(format_args!(
                "the GPU half of this program sleeps and is not woken yet: {why}; trying again"
            ));
            self.said = problem;
        }
        let pause = self.pause;
        self.pause = (2 * pause).min(LAST);
        pause
    }
}

fn ask() -> Result<Admission, String> {
    let session = session::get().map_err(|code| code.to_string())?;
    let path = session.directory.join(ADMISSION_SOCKET);
    let stream = withheld::connect(&path).map_err(|error| {
        format!("cannot reach the daemon at {}: {error}; is rekindled running?", path.display())
    })?;
    let _ = stream.set_read_timeout(Some(ANSWER_LIMIT));
    let (admission, _) = frame::send(&stream, &AdmissionRequest::Knock { version: ADMISSION_VERSION }, &[])
        .and_then(|()| frame::receive(&stream))
        .map_err(|error| format!("the daemon gave no answer: {error}"))?;
    Ok(admission)
}
