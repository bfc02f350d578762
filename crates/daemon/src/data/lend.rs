//! Arrays that functions hand on, for other nodes and for those who call.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rekindle_protocol::data::{DataRequest, DataRequestHead, Problem, ProblemKind};
use rekindle_protocol::exchange::{Answer, ArrayKind, ExchangeRequest, Gpu};
use rekindle_protocol::frame::{self, FrameError, Limits};

use super::Data;

/// How long it may take to find an array: one that is being moved is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// An array that stays for as long as this is there.
pub struct Loan {
    pub array: ArrayKind,
    /// Where it lies, if that is not the host.
    pub gpu: Option<Gpu>,
    /// Memory of the host that has it; or that of the GPU, and memory of the host that it is to be copied to.
    pub memories: Vec<File>,
    _connection: UnixStream,
}

impl Data {
    /// An array that is to be sent to another node.
    pub fn lend(&self, owner: &str, id: &str) -> Result<Loan, Problem> {
        let request = ExchangeRequest::Lend { owner: owner.to_string(), id: id.to_string() };
        let (connection, answer, memories) = self.ask_exchange(request)?;
        let Answer::Lent { array, gpu } = answer else { return Err(misunderstood()) };
        Ok(Loan { array, gpu, memories, _connection: connection })
    }

    /// An array is not needed any more.
    pub fn drop_array(&self, owner: &str, id: &str, use_only: bool) -> Result<(), Problem> {
        let (owner, id) = (owner.to_string(), id.to_string());
        match self.ask_exchange(ExchangeRequest::Drop { owner, id, use_only })?.1 {
            Answer::Done { .. } => Ok(()),
            _ => Err(misunderstood()),
        }
    }

    /// On which GPU most bytes of these lie, if that is known.
    pub fn locate(&self, ids: &[String]) -> Option<Gpu> {
        match self.ask_exchange(ExchangeRequest::Where { ids: ids.to_vec() }) {
            Ok((_, Answer::Lie { on }, _)) => on,
            _ => None,
        }
    }

    fn ask_exchange(&self, request: ExchangeRequest) -> Result<(UnixStream, Answer, Vec<File>), Problem> {
        let ask = || -> Result<_, FrameError> {
            let stream = UnixStream::connect(&self.socket)?;
            frame::send(&stream, &DataRequestHead::new(DataRequest::Exchange(request)), &[])?;
            let limits = Limits { time: Some(PATIENCE), ..Limits::default() };
            let (answer, memories) = frame::receive_within::<Answer>(&stream, &limits)?;
            Ok((stream, answer, memories.into_iter().map(File::from).collect()))
        };
        match ask() {
            Ok((_, Answer::Failed(problem), _)) => Err(problem),
            Ok(answered) => Ok(answered),
            Err(error) => {
                let sentence = format!("the memory daemon cannot be reached: {error}");
                Err(Problem::new(ProblemKind::Unavailable, sentence))
            }
        }
    }
}

fn misunderstood() -> Problem {
    Problem::new(ProblemKind::Unavailable, "the memory daemon answered something else than was asked")
}
