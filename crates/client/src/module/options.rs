//! `CUjit_option`s: scalars go to the compiler, log buffers are filled here.

use std::cell::Cell;

use crate::abi::{In, Out, Result};

const WALL_TIME: i32 = 2;
const INFO_LOG: i32 = 3;
const INFO_LOG_SIZE: i32 = 4;
const ERROR_LOG: i32 = 5;
const ERROR_LOG_SIZE: i32 = 6;

/// Options whose value is a pointer to something of the program's.
const POINTERS: [i32; 5] = [17, 18, 19, 25, 27];

#[derive(Default)]
pub struct Options {
    scalars: Vec<(i32, u64)>,
    info: LogBuffer,
    error: LogBuffer,
    wall_time: Cell<usize>,
}

/// A buffer for a log, and the option value where its length is expected.
#[derive(Default)]
struct LogBuffer {
    address: usize,
    size: usize,
    length: usize,
}

impl Options {
    /// Takes the options of a call. `values` is an array of pointer-sized values.
    pub fn new(count: u32, options: In<i32>, values: In<usize>) -> Result<Options> {
        let mut taken = Options::default();
        let (options, given) = (options.slice(count as usize)?, values.slice(count as usize)?);
        for (index, (option, value)) in options.iter().zip(given).enumerate() {
            let place = values.0 as usize + index * size_of::<usize>();
            match *option {
                WALL_TIME => taken.wall_time.set(place),
                INFO_LOG => taken.info.address = *value,
                INFO_LOG_SIZE => (taken.info.size, taken.info.length) = (*value, place),
                ERROR_LOG => taken.error.address = *value,
                ERROR_LOG_SIZE => (taken.error.size, taken.error.length) = (*value, place),
                option if POINTERS.contains(&option) => {}
                option => taken.scalars.push((option, *value as u64 & 0xffff_ffff)),
            }
        }
        Ok(taken)
    }

    /// Options without anything to fill.
    pub fn of_scalars(scalars: Vec<(i32, u64)>) -> Options {
        Options { scalars, ..Options::default() }
    }

    pub fn scalars(&self) -> &[(i32, u64)] {
        &self.scalars
    }

    /// Fills the log buffers: the information log when it worked, the error log when it did not.
    pub fn answer(&self, worked: bool, log: &str) {
        let (info, error) = if worked { (log, "") } else { ("", log) };
        self.info.fill(info);
        self.error.fill(error);
        if self.wall_time.get() != 0 {
            Out(self.wall_time.get() as *mut f32).offer(0.0);
        }
    }
}

impl LogBuffer {
    fn fill(&self, log: &str) {
        if self.address == 0 || self.size == 0 {
            return;
        }
        let bytes = log.bytes().take(self.size - 1);
        let written = bytes.len();
        Out(self.address as *mut u8).fill(self.size, bytes.chain([0]));
        if self.length != 0 {
            Out(self.length as *mut u32).offer(written as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_cut_to_their_buffers() {
        let mut buffer = [0xffu8; 8];
        let keys = [INFO_LOG, INFO_LOG_SIZE, 7];
        let mut values = [buffer.as_mut_ptr() as usize, 8, 3];
        let options = Options::new(3, In(keys.as_ptr()), In(values.as_mut_ptr())).unwrap();
        assert_eq!(options.scalars(), [(7, 3)]);
        options.answer(true, "a long message");
        assert_eq!((&buffer, values[1] as u32), (b"a long \0", 7));
    }
}
