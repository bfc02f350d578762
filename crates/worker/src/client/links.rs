//! Linking: inputs come in the trailer or in a file of the run directory, the result leaves in another.

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM, CUDA_SUCCESS};
use rekindle_device::{LinkInput, LoadError, Result};
use rekindle_protocol::operation::{Link, Linked};

use super::Client;

impl Client {
    pub(super) fn link_code(&mut self, request: Link<'_>, trailer: &[u8]) -> Result<Linked> {
        let Link { device, parts, shared, options } = request;
        let device = usize::from(device);
        let total = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.bytes));
        let total = total.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let file;
        let mut rest = if shared.is_empty() {
            trailer
        } else {
            file = self.take_shared(shared, total)?;
            &file
        };
        let mut inputs = Vec::new();
        for part in &parts {
            let (bytes, after) =
                rest.split_at_checked(part.bytes as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            inputs.push(LinkInput { kind: part.kind, name: &part.name, bytes });
            rest = after;
        }
        match self.on(device)?.link(&inputs, &options) {
            Err(LoadError { code, log }) => Ok(Linked { status: code.0, log, name: String::new(), bytes: 0 }),
            Ok((cubin, log)) => {
                let name = self.output_name();
                let path = self.run_directory().join(&name);
                std::fs::write(&path, &cubin).map_err(|error| {
                    log::error!("cannot write {}: {error}", path.display());
                    CUDA_ERROR_OPERATING_SYSTEM
                })?;
                Ok(Linked { status: CUDA_SUCCESS.0, log, name, bytes: cubin.len() as u64 })
            }
        }
    }
}
