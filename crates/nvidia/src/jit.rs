//! Options for the driver's compiler and linker, and the logs that they write.

use rekindle_cuda::CuResult;
use rekindle_device::LoadError;

const INFO_LOG: i32 = 3;
const INFO_LOG_BYTES: i32 = 4;
const ERROR_LOG: i32 = 5;
const ERROR_LOG_BYTES: i32 = 6;

/// Options whose values are pointers: those of the program mean nothing in this process. The logs are our own, the
/// others (symbol addresses, names of kernels and variables in use) are hints, with their counts.
const POINTERS: &[i32] = &[INFO_LOG, INFO_LOG_BYTES, ERROR_LOG, ERROR_LOG_BYTES, 17, 18, 19, 25, 26, 27, 28];

const LOG_BYTES: usize = 64 << 10;

/// A caller's options with log buffers of our own. It must live as long as what it was given to: a lazily loaded
/// library may be compiled, and log, when its first kernel is asked for.
pub struct JitOptions {
    pub keys: Vec<i32>,
    pub values: Vec<u64>,
    info: Box<[u8]>,
    error: Box<[u8]>,
}

impl JitOptions {
    pub fn new(options: &[(i32, u64)]) -> JitOptions {
        let mut info = vec![0u8; LOG_BYTES].into_boxed_slice();
        let mut error = vec![0u8; LOG_BYTES].into_boxed_slice();
        let logs = [
            (INFO_LOG, info.as_mut_ptr() as u64),
            (INFO_LOG_BYTES, LOG_BYTES as u64),
            (ERROR_LOG, error.as_mut_ptr() as u64),
            (ERROR_LOG_BYTES, LOG_BYTES as u64),
        ];
        let own = options.iter().filter(|(key, _)| !POINTERS.contains(key)).chain(&logs);
        let (keys, values) = own.copied().unzip();
        JitOptions { keys, values, info, error }
    }

    pub fn count(&self) -> u32 {
        self.keys.len() as u32
    }

    pub fn info(&self) -> String {
        log(&self.info)
    }

    pub fn failure(&self, code: CuResult) -> LoadError {
        LoadError { code, log: log(&self.error) }
    }
}

fn log(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(buffer.len());
    String::from_utf8_lossy(&buffer[..end]).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_pass_and_pointers_are_ours() {
        let options = JitOptions::new(&[(0, 32), (INFO_LOG, 0xdead), (7, 4), (27, 0xbeef), (28, 1)]);
        assert_eq!(options.keys, [0, 7, INFO_LOG, INFO_LOG_BYTES, ERROR_LOG, ERROR_LOG_BYTES]);
        assert_eq!(options.values[..2], [32, 4]);
        assert_eq!(options.values[2], options.info.as_ptr() as u64);
        assert_eq!(options.values[4], options.error.as_ptr() as u64);
        assert_eq!(options.values[3], LOG_BYTES as u64);
    }

    #[test]
    fn logs_end_at_their_nul() {
        let mut options = JitOptions::new(&[]);
        assert_eq!(options.info(), "");
        options.error[..6].copy_from_slice(b"bad 1\n");
        assert_eq!(options.failure(rekindle_cuda::CUDA_ERROR_INVALID_PTX).log, "bad 1");
    }
}
