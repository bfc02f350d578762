//! Declared data: functions of Rekindle's own, beside the driver's. The Python package calls them by their names.
//!
//! ```c
//! int rekindleDataLoad(CUdeviceptr *address, const char *url, size_t bytes);
//! int rekindleDataState(CUdeviceptr address, int wait, int *state, char *sentence, int room);
//! ```
//!
//! The first gives an address at once, of a buffer like any other, into which the object is loaded; work that names it
//! waits until all of it is there. The second says how that stands: 0 all is there, -1 some is still to come, or the
//! number of what is wrong, with a sentence.

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_protocol::operation::{DataLoad, DataState};

use crate::abi::{Out, Text, put_text};
use crate::export::exports;
use crate::memory::{self, Purpose};
use crate::{context, lane, session};

/// Some is still to come.
const LOADING: i32 = -1;

exports! {
    call fn rekindleDataLoad(out: Out<u64>, url: Text, bytes: usize) {
        out.check()?;
        let device = context::device()?;
        let bytes = bytes as u64;
        if bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if bytes > session::get()?.device(device.into())?.total_memory {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let address = lane::ask(&DataLoad { device, url: url.get()?, bytes })?;
        memory::note(address, bytes, Purpose::Device)?;
        out.put(address)
    }
    call fn rekindleDataState(address: u64, wait: i32, state: Out<i32>, sentence: Out<u8>, room: i32) {
        state.check()?;
        let found = lane::ask(&DataState { address, wait: wait != 0 })?;
        let (number, words) = match found.problem {
            Some((kind, words)) => (kind as i32, words),
            None if found.loading => (LOADING, String::new()),
            None => (0, String::new()),
        };
        put_text(sentence, room, &words)?;
        state.put(number)
    }
}
