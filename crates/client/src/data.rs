//! Declared data: functions of Rekindle's own, beside the driver's. The Python package calls them by their names.
//!
//! ```c
//! int rekindleDataLoad(CUdeviceptr *address, const char *url, size_t bytes);
//! int rekindleDataState(CUdeviceptr address, int wait, int *state, char *sentence, int room);
//! int rekindleDataOpen(CUdeviceptr *address, const char *url, size_t bytes, int create);
//! int rekindleDataDump(CUdeviceptr address, CUstream stream, int *problem, char *sentence, int room);
//! int rekindleDataRead(const char *url, size_t offset, void *to, size_t *bytes, unsigned long long *total,
//!                      int *problem, char *sentence, int room);
//! int rekindleDataDumped(CUdeviceptr address, int wait, int *state, char *sentence, int room);
//! int rekindleDataWaits(unsigned long long (*times)[3], int *count);
//! ```
//!
//! The first gives an address at once, of a buffer like any other, into which the object is loaded; work that names it
//! waits until all of it is there. The second says how that stands: 0 all is there, -1 some is still to come, or the
//! number of what is wrong, with a sentence.
//!
//! The third is as the first, for a buffer that the program writes to; with `create` an object that is not there is zeros. The
//! fourth has its contents, as they are at that place of the stream, written into the store, and does not wait for that. The
//! sixth says how that stands, as the second. The fifth reads at most so many bytes of an object from its store, and says how
//! many it read and how many there are.
//!
//! The seventh tells when work of the program has waited for bytes, each time once: for what (0 declared data, 1 its image, which is
//! loaded), when that began, in µs since 1970, and how many µs it took. `count` is how many there is room for, then how many there are.

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_protocol::operation::{
    DataDump, DataDumped, DataFound, DataLoad, DataOpen, DataRead, DataState, DataWaits,
};

use crate::abi::{Handle, Out, Result, Text, put_text};
use crate::export::exports;
use crate::memory::{self, Purpose};
use crate::stream::{StreamTarget, resolve};
use crate::{context, lane, session};

/// Some is still to come.
const LOADING: i32 = -1;

/// The device that so many bytes can be loaded to.
fn device_for(bytes: usize) -> Result<u8> {
    let device = context::device()?;
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if bytes as u64 > session::get()?.device(device.into())?.total_memory {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    Ok(device)
}

fn tell(found: DataFound, state: Out<i32>, sentence: Out<u8>, room: i32) -> Result<()> {
    let (number, words) = match found.problem {
        Some((kind, words)) => (kind as i32, words),
        None if found.loading => (LOADING, String::new()),
        None => (0, String::new()),
    };
    put_text(sentence, room, &words)?;
    state.put(number)
}

exports! {
    call fn rekindleDataLoad(out: Out<u64>, url: Text, bytes: usize) {
        out.check()?;
        let (device, bytes) = (device_for(bytes)?, bytes as u64);
        let address = lane::ask(&DataLoad { device, url: url.get()?, bytes })?;
        memory::note(address, bytes, Purpose::Device)?;
        out.put(address)
    }
    call fn rekindleDataState(address: u64, wait: i32, state: Out<i32>, sentence: Out<u8>, room: i32) {
        state.check()?;
        tell(lane::ask(&DataState { address, wait: wait != 0 })?, state, sentence, room)
    }
    call fn rekindleDataOpen(out: Out<u64>, url: Text, bytes: usize, create: i32) {
        out.check()?;
        let (device, bytes) = (device_for(bytes)?, bytes as u64);
        let address = lane::ask(&DataOpen { device, url: url.get()?, bytes, create: create != 0 })?;
        memory::note(address, bytes, Purpose::Device)?;
        out.put(address)
    }
    call fn rekindleDataDump(address: u64, stream: Handle, problem: Out<i32>, sentence: Out<u8>, room: i32) {
        problem.check()?;
        let StreamTarget { device, id, .. } = resolve(stream)?;
        match lane::ask(&DataDump { device, stream: id, address })? {
            Ok(()) => problem.put(0),
            Err((kind, words)) => {
                put_text(sentence, room, &words)?;
                problem.put(kind as i32)
            }
        }
    }
    call fn rekindleDataRead(
        url: Text,
        offset: usize,
        to: Out<u8>,
        bytes: Out<usize>,
        total: Out<u64>,
        problem: Out<i32>,
        sentence: Out<u8>,
        room: i32,
    ) {
        bytes.check()?;
        total.check()?;
        problem.check()?;
        context::device()?;
        let wanted = u32::try_from(bytes.current()?).unwrap_or(u32::MAX);
        match lane::ask(&DataRead { url: url.get()?, offset: offset as u64, bytes: wanted })? {
            Ok((all, found)) => {
                to.check()?;
                to.fill(wanted as usize, found.iter().copied());
                bytes.put(found.len())?;
                total.put(all)?;
                problem.put(0)
            }
            Err((kind, words)) => {
                put_text(sentence, room, &words)?;
                problem.put(kind as i32)
            }
        }
    }
    call fn rekindleDataDumped(address: u64, wait: i32, state: Out<i32>, sentence: Out<u8>, room: i32) {
        state.check()?;
        tell(lane::ask(&DataDumped { address, wait: wait != 0 })?, state, sentence, room)
    }
    call fn rekindleDataWaits(times: Out<u64>, count: Out<i32>) {
        times.check()?;
        count.check()?;
        context::device()?;
        let most = u32::try_from(count.current()?).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let found = lane::ask(&DataWaits { most })?;
        let words = found.iter().flat_map(|(what, begin, took)| [*what as u64, *begin, *took]);
        times.fill(3 * most as usize, words);
        count.put(found.len() as i32)
    }
}
