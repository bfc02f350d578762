//! A few bytes of an object, which a program looks at before it loads it: what it is made of.

use std::io;

use rekindle_cuda::CUDA_ERROR_OPERATING_SYSTEM;
use rekindle_protocol::data::{self, DataRequest, DataRequestHead, Problem, ProblemKind};
use rekindle_protocol::frame::{self, FrameError};
use rekindle_protocol::operation::{Answer, DataOutcome, DataRead, Origin, encode_reply};

use super::connect;
use crate::client::Client;

/// An answer has room for so many.
const MOST: u32 = 48 << 10;

impl Client {
    /// Answers when a thread has asked the memory daemon.
    pub(crate) fn read_data(
        &mut self,
        origin: Origin,
        request: &DataRead<'_>,
    ) -> Answer<DataOutcome<(u64, Vec<u8>)>> {
        let Some(remote) = self.data.remote() else { return Answer::Now(Err(CUDA_ERROR_OPERATING_SYSTEM)) };
        let DataRead { url, offset, bytes } = *request;
        let (url, bytes) = (url.to_string(), bytes.min(MOST).into());
        let run = move || {
            let read = ask(&url, offset, bytes).unwrap_or_else(|error| {
                let sentence = format!(
                    "{url} cannot be had, for the memory daemon cannot be reached ({error}); look whether rekindled runs, and \
                     at the log memory.log in its state directory"
                );
                Err(Problem::new(ProblemKind::Unavailable, sentence))
            });
            let told = read.map_err(|problem| (problem.kind as u32, problem.sentence));
            let reply = encode_reply::<DataOutcome<(u64, Vec<u8>)>>(&Ok(told));
            remote.run(move |dispatcher| dispatcher.client.reply(origin.ring, &reply));
        };
        match std::thread::Builder::new().name("data".into()).spawn(run) {
            Ok(_) => Answer::Later,
            Err(error) => {
                log::error!("cannot start a thread: {error}");
                Answer::Now(Err(CUDA_ERROR_OPERATING_SYSTEM))
            }
        }
    }
}

fn ask(url: &str, offset: u64, bytes: u64) -> Result<Result<(u64, Vec<u8>), Problem>, FrameError> {
    let stream = connect()?;
    frame::send(
        &stream,
        &DataRequestHead::new(DataRequest::Read { url: url.to_string(), offset, bytes }),
        &[],
    )?;
    match frame::receive(&stream)?.0 {
        data::Answer::Bytes { total, bytes: found } if found.len() as u64 <= bytes => Ok(Ok((total, found))),
        data::Answer::Failed(problem) => Ok(Err(problem)),
        _ => Err(io::Error::other("it answered something else").into()),
    }
}
