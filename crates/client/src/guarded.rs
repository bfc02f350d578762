//! A table of the driver's whose functions a library calls at any time, long after it has asked for it: NVML's.
//!
//! A checkpoint [detaches](crate::genuine) the driver, and a restore leaves it so until somebody needs it. A function of a
//! driver that is detached waits for ever. So each entry of the copy that NVML is given has the driver attached first,
//! and in use until it returns.

use std::ffi::c_void;
use std::sync::OnceLock;

use crate::{gate, genuine};

/// NVML's table has 34 entries.
const MOST: usize = 64;

/// The driver's functions.
static GENUINE: OnceLock<Vec<usize>> = OnceLock::new();

/// Words of whole registers, as most functions take and return. What lies on the stack is passed on as far as any
/// function of the table can have arguments there.
type Word = usize;
type Function = extern "C" fn(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word) -> Word;

/// `CUDA_ERROR_DEVICE_UNAVAILABLE`.
const UNAVAILABLE: Word = 46;

#[allow(clippy::too_many_arguments)]
extern "C" fn entry<const INDEX: usize>(
    a: Word,
    b: Word,
    c: Word,
    d: Word,
    e: Word,
    f: Word,
    g: Word,
    h: Word,
    i: Word,
    j: Word,
    k: Word,
    l: Word,
) -> Word {
    let Some(function) = GENUINE.get().and_then(|entries| entries.get(INDEX)) else { return UNAVAILABLE };
    // SAFETY: the driver's function at this index; who calls this one means that one.
    let function = unsafe { std::mem::transmute::<usize, Function>(*function) };
    let (Ok(_inside), Ok(_used)) = (gate::enter(), genuine::used()) else { return UNAVAILABLE };
    function(a, b, c, d, e, f, g, h, i, j, k, l)
}

macro_rules! entries {
    ($($index:literal)*) => { [$(entry::<$index> as *const () as usize),*] };
}

static OURS: OnceLock<[usize; MOST]> = OnceLock::new();

fn ours() -> &'static [usize; MOST] {
    OURS.get_or_init(|| {
        entries!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38
            39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63)
    })
}

/// The table in which every function but those past the last of [`MOST`] is ours. Its first word is its size.
pub fn copy(genuine: *const *const c_void, count: usize) -> *const *const c_void {
    static COPY: OnceLock<Vec<usize>> = OnceLock::new();
    let table = COPY.get_or_init(|| {
        // SAFETY: the driver's table has that many entries, each of a word.
        let own = unsafe { std::slice::from_raw_parts(genuine.cast::<usize>(), count) };
        let own = GENUINE.get_or_init(|| own.to_vec());
        let guarded = |(index, entry): (usize, &usize)| match index {
            1..MOST if *entry != 0 => ours()[index],
            _ => *entry,
        };
        own.iter().enumerate().map(guarded).collect()
    });
    table.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_but_none_is_ours() {
        let own: Vec<usize> = (0..40).map(|index| if index == 7 { 0 } else { 1000 + index }).collect();
        let given = copy(own.as_ptr().cast(), own.len());
        // SAFETY: the copy has as many words.
        let given = unsafe { std::slice::from_raw_parts(given.cast::<usize>(), own.len()) };
        assert_eq!((given[0], given[7]), (1000, 0));
        let mut functions: Vec<usize> = given[1..].iter().copied().filter(|entry| *entry != 0).collect();
        assert!(functions.iter().all(|entry| !own.contains(entry)));
        functions.sort_unstable();
        functions.dedup();
        assert_eq!(functions.len(), 38);
    }
}
