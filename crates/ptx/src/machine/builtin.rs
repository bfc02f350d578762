//! Functions that the device provides: `vprintf`, `__assertfail`, `malloc`, `free`, `cudaGraphSetConditional`.

use super::printf;
use super::step::{Exec, Operands, StepError, Stop};
use super::warp::{Path, lanes};
use crate::alu::LANES;
use crate::program::{ArgumentPlace, Builtin, BuiltinCall};
use crate::types::Space;

impl Exec<'_> {
    fn argument(
        &mut self,
        path: &Path,
        place: ArgumentPlace,
        operands: Operands<'_>,
        lane: usize,
        width: u8,
    ) -> Result<u64, StepError> {
        match place {
            ArgumentPlace::Frame(offset) => self.read(lane, Space::Local, u64::from(path.fp + offset), width),
            ArgumentPlace::Operand(index) => {
                Ok(self.row(path, operands.sources[usize::from(index) - operands.results.len()])[lane])
            }
        }
    }

    pub fn builtin(
        &mut self,
        path: &Path,
        call: &BuiltinCall,
        operands: Operands<'_>,
        mask: u32,
    ) -> Result<(), Stop> {
        for lane in lanes(mask) {
            let value = self.builtin_lane(path, call, operands, lane).map_err(|trouble| trouble.at(lane))?;
            match call.result {
                Some(ArgumentPlace::Frame(offset)) => {
                    let width = if call.builtin == Builtin::Malloc { 8 } else { 4 };
                    self.write(lane, Space::Local, u64::from(path.fp + offset), width, value)
                        .map_err(|trouble| trouble.at(lane))?;
                }
                Some(ArgumentPlace::Operand(_)) => {
                    self.set(path, operands.results[0], &[value; LANES], 1 << lane)
                }
                None => {}
            }
        }
        Ok(())
    }

    fn builtin_lane(
        &mut self,
        path: &Path,
        call: &BuiltinCall,
        operands: Operands<'_>,
        lane: usize,
    ) -> Result<u64, StepError> {
        let first = self.argument(path, call.arguments[0], operands, lane, 8)?;
        match call.builtin {
            Builtin::Malloc => Ok(self.host.malloc(first)),
            Builtin::Free => {
                self.host.free(first);
                Ok(0)
            }
            Builtin::SetConditional => {
                let value = self.argument(path, call.arguments[1], operands, lane, 4)?;
                self.host.set_conditional(first, value as u32);
                Ok(0)
            }
            Builtin::Vprintf => {
                let arguments = self.argument(path, call.arguments[1], operands, lane, 8)?;
                let format = self.read_text(lane, first)?;
                let (text, count) = printf::format(&format, &mut Buffer { exec: self, lane, at: arguments })?;
                self.host.printf(&text);
                Ok(u64::from(count))
            }
            Builtin::AssertFail => {
                let file = self.argument(path, call.arguments[1], operands, lane, 8)?;
                let line = self.argument(path, call.arguments[2], operands, lane, 4)? as u32;
                let function = self.argument(path, call.arguments[3], operands, lane, 8)?;
                let texts = [first, file, function].map(|address| match self.read_text(lane, address) {
                    Ok(text) => String::from_utf8_lossy(&text).into_owned(),
                    Err(_) => "?".to_owned(),
                });
                let [message, file, function] = texts;
                Err(StepError::Assert(format!("{file}:{line}: {function}: `{message}`")))
            }
        }
    }
}

/// The packed arguments of `vprintf`: each at the next multiple of its size.
struct Buffer<'e, 'a> {
    exec: &'e mut Exec<'a>,
    lane: usize,
    at: u64,
}

impl printf::Arguments for Buffer<'_, '_> {
    type Error = StepError;

    fn next(&mut self, width: u8) -> Result<u64, StepError> {
        self.at = self.at.next_multiple_of(u64::from(width));
        let value = self.exec.read(self.lane, Space::Generic, self.at, width)?;
        self.at += u64::from(width);
        Ok(value)
    }

    fn text(&mut self, address: u64) -> Result<Vec<u8>, StepError> {
        self.exec.read_text(self.lane, address)
    }
}
