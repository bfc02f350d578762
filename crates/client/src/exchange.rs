//! Arrays that functions hand on: functions of Rekindle's own, beside the driver's. The Python package calls them by their names.
//!
//! ```c
//! int rekindleExchangePut(CUdeviceptr address, size_t bytes, unsigned long long expiry_ms, unsigned uses,
//!                         int *problem, char *text, int room);
//! int rekindleExchangeGet(CUdeviceptr *address, const char *name, size_t bytes, int *problem, char *text, int room);
//! int rekindleExchangeDrop(const char *name, int use_only, int *problem, char *text, int room);
//! ```
//!
//! The first waits for the device's work, and keeps a copy of so many bytes for others: `text` is its name. The second maps
//! what has this name and size; it can only be read, and is given back by `cuMemFree`. The third says that it is needed no
//! more. Where `problem` is not 0, it is the number of what is wrong, and `text` is a sentence.

use rekindle_protocol::operation::{ContextSynchronize, DataOutcome, ExchangeDrop, ExchangeGet, ExchangePut};

use crate::abi::{Out, Result, Text, put_text};
use crate::export::exports;
use crate::memory::{self, Purpose};
use crate::{context, lane};

/// Gives what came of it, or says why nothing did.
fn give<T>(
    told: DataOutcome<T>,
    problem: Out<i32>,
    text: Out<u8>,
    room: i32,
    use_it: impl FnOnce(T) -> Result<()>,
) -> Result<()> {
    match told {
        Ok(given) => {
            use_it(given)?;
            problem.put(0)
        }
        Err((kind, sentence)) => {
            put_text(text, room, &sentence)?;
            problem.put(kind as i32)
        }
    }
}

exports! {
    call fn rekindleExchangePut(
        address: u64,
        bytes: usize,
        expiry_ms: u64,
        uses: u32,
        problem: Out<i32>,
        text: Out<u8>,
        room: i32,
    ) {
        problem.check()?;
        let device = context::device()?;
        lane::ask(&ContextSynchronize { device })?;
        let put = ExchangePut { device, address, bytes: bytes as u64, expiry_ms, uses };
        give(lane::ask(&put)?, problem, text, room, |name| put_text(text, room, &name))
    }
    call fn rekindleExchangeGet(
        out: Out<u64>,
        name: Text,
        bytes: usize,
        problem: Out<i32>,
        text: Out<u8>,
        room: i32,
    ) {
        out.check()?;
        problem.check()?;
        let get = ExchangeGet { device: context::device()?, id: name.get()?, bytes: bytes as u64 };
        give(lane::ask(&get)?, problem, text, room, |address| {
            memory::note(address, bytes as u64, Purpose::Device)?;
            out.put(address)
        })
    }
    call fn rekindleExchangeDrop(name: Text, use_only: i32, problem: Out<i32>, text: Out<u8>, room: i32) {
        problem.check()?;
        let drop = ExchangeDrop { device: context::device()?, id: name.get()?, use_only: use_only != 0 };
        give(lane::ask(&drop)?, problem, text, room, |()| Ok(()))
    }
}
