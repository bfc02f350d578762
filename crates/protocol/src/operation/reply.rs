//! The answer to a `sync` operation: eight bytes of status and length, then the value.

use rekindle_cuda::{CUDA_ERROR_UNKNOWN, CuResult};
use serde::{Serialize, de::DeserializeOwned};

/// What a handler does with a `sync` operation.
pub enum Answer<T> {
    Now(Result<T, CuResult>),
    /// The handler keeps the origin and answers when it can.
    Later,
}

impl<T> From<Result<T, CuResult>> for Answer<T> {
    fn from(result: Result<T, CuResult>) -> Self {
        Answer::Now(result)
    }
}

/// The first eight bytes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    pub status: i32,
    pub bytes: u32,
}

impl ReplyHead {
    pub const BYTES: usize = 8;

    pub fn decode(head: [u8; 8]) -> ReplyHead {
        let [a, b, c, d, e, f, g, h] = head;
        ReplyHead { status: i32::from_le_bytes([a, b, c, d]), bytes: u32::from_le_bytes([e, f, g, h]) }
    }
}

/// Head and value, ready for the reply area. A value that cannot be encoded is answered as an unknown error.
pub fn encode_reply<T: Serialize>(result: &Result<T, CuResult>) -> Vec<u8> {
    let mut bytes = vec![0; ReplyHead::BYTES];
    let mut status = match result {
        Ok(_) => 0,
        Err(code) => code.0,
    };
    if let Ok(value) = result {
        match postcard::to_extend(value, std::mem::take(&mut bytes)) {
            Ok(whole) => bytes = whole,
            Err(_) => {
                bytes = vec![0; ReplyHead::BYTES];
                status = CUDA_ERROR_UNKNOWN.0;
            }
        }
    }
    let length = (bytes.len() - ReplyHead::BYTES) as u32;
    bytes[..4].copy_from_slice(&status.to_le_bytes());
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// The value of an answer whose head said success.
pub fn decode_reply<T: DeserializeOwned>(value: &[u8]) -> Result<T, CuResult> {
    postcard::from_bytes(value).map_err(|_| CUDA_ERROR_UNKNOWN)
}
