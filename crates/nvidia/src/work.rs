//! Launches and copies in the driver's form.

use std::ffi::c_void;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::{Copy3D, Launch, Result};

use crate::sys;

const ATTRIBUTE_COOPERATIVE: u32 = 2;
/// Programmatic event, launch completion event, updatable graph node: their values hold handles of the program.
const ATTRIBUTES_WITH_HANDLES: &[u32] = &[7, 12, 13];
const MOST_ATTRIBUTES: usize = 16;

/// A launch's attributes, without an allocation.
pub struct Attributes {
    rows: [sys::LaunchAttribute; MOST_ATTRIBUTES],
    count: usize,
}

impl Attributes {
    pub fn new(launch: &Launch) -> Result<Attributes> {
        let none = sys::LaunchAttribute { id: 0, pad: [0; 4], value: sys::LaunchValue([0; 64]) };
        let mut attributes = Attributes { rows: [none; MOST_ATTRIBUTES], count: 0 };
        for (id, value) in &launch.attributes.0 {
            if ATTRIBUTES_WITH_HANDLES.contains(id) {
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
            attributes.push(*id, value)?;
        }
        if launch.cooperative && !attributes.rows().iter().any(|row| row.id == ATTRIBUTE_COOPERATIVE) {
            attributes.push(ATTRIBUTE_COOPERATIVE, &1u32.to_le_bytes())?;
        }
        Ok(attributes)
    }

    fn push(&mut self, id: u32, value: &[u8]) -> Result<()> {
        let row = self.rows.get_mut(self.count).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        row.id = id;
        row.value.0.get_mut(..value.len()).ok_or(CUDA_ERROR_INVALID_VALUE)?.copy_from_slice(value);
        self.count += 1;
        Ok(())
    }

    pub fn rows(&self) -> &[sys::LaunchAttribute] {
        &self.rows[..self.count]
    }

    /// The configuration of `launch` with these attributes, which must outlive it.
    pub fn configuration(&self, launch: &Launch, stream: u64) -> sys::LaunchConfig {
        sys::LaunchConfig {
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
            stream,
            attributes: self.rows.as_ptr(),
            count: self.count as u32,
        }
    }
}

/// The `extra` array that hands a whole parameter buffer to a launch; both must outlive the call.
pub fn extra(parameters: &[u8], size: &usize) -> [*const c_void; 5] {
    [
        sys::LAUNCH_BUFFER as *const c_void,
        parameters.as_ptr().cast(),
        sys::LAUNCH_SIZE as *const c_void,
        std::ptr::from_ref(size).cast(),
        sys::LAUNCH_END as *const c_void,
    ]
}

/// A strided copy in as many driver copies as it takes: one where each slice is a whole number of rows, else one a
/// slice. Empty copies take none.
pub fn copies(copy: &Copy3D) -> impl Iterator<Item = sys::Memcpy3D> + '_ {
    let rows = |slice: u64, pitch: u64| match (slice, pitch) {
        _ if copy.depth <= 1 => Some(copy.height),
        (_, 0) => None,
        _ => (slice.is_multiple_of(pitch) && slice / pitch >= copy.height).then(|| slice / pitch),
    };
    let heights = (rows(copy.to_slice, copy.to_pitch), rows(copy.from_slice, copy.from_pitch));
    let (slices, depth, to_height, from_height) = match heights {
        (Some(to), Some(from)) => (1, copy.depth, to, from),
        _ => (copy.depth, 1, copy.height, copy.height),
    };
    let empty = copy.width == 0 || copy.height == 0 || copy.depth == 0;
    (0..if empty { 0 } else { slices }).map(move |slice| sys::Memcpy3D {
        from: side(copy.from + slice * copy.from_slice, copy.from_pitch, from_height, copy.width),
        to: side(copy.to + slice * copy.to_slice, copy.to_pitch, to_height, copy.width),
        width: copy.width as usize,
        height: copy.height as usize,
        depth: depth as usize,
    })
}

/// One side of a copy; a single row needs no pitch from the caller, but the driver wants one that holds the row.
fn side(address: u64, pitch: u64, height: u64, width: u64) -> sys::MemcpySide {
    sys::MemcpySide {
        kind: sys::MEMORY_UNIFIED,
        device: address,
        pitch: if pitch == 0 && height <= 1 { width } else { pitch } as usize,
        height: height as usize,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use rekindle_device::LaunchAttributes;

    use super::*;

    fn copy(slice: u64, depth: u64) -> Copy3D {
        Copy3D {
            to: 0x1000,
            to_pitch: 64,
            to_slice: slice,
            from: 0x8000,
            from_pitch: 32,
            from_slice: 32 * 5,
            width: 30,
            height: 5,
            depth,
        }
    }

    #[test]
    fn whole_rows_make_one_copy() {
        let all: Vec<_> = copies(&copy(64 * 6, 3)).collect();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].to.height, all[0].from.height, all[0].depth), (6, 5, 3));
        assert_eq!((all[0].to.device, all[0].from.pitch, all[0].width), (0x1000, 32, 30));
    }

    #[test]
    fn ragged_slices_are_copied_one_by_one() {
        let all: Vec<_> = copies(&copy(64 * 6 + 1, 3)).collect();
        assert_eq!(all.iter().map(|one| one.to.device).collect::<Vec<_>>(), [0x1000, 0x1181, 0x1302]);
        assert!(all.iter().all(|one| one.depth == 1 && one.to.height == 5));
    }

    #[test]
    fn empty_copies_are_none_and_flat_ones_need_no_slices() {
        assert_eq!(copies(&Copy3D { width: 0, ..copy(0, 1) }).count(), 0);
        let flat = Copy3D { to_pitch: 0, from_pitch: 0, height: 1, ..copy(0, 1) };
        let all: Vec<_> = copies(&flat).collect();
        assert_eq!((all.len(), all[0].to.pitch), (1, 30));
    }

    #[test]
    fn cooperation_becomes_an_attribute_once() {
        let mut launch = Launch { cooperative: true, ..Default::default() };
        assert_eq!(Attributes::new(&launch).unwrap().rows()[0].id, ATTRIBUTE_COOPERATIVE);
        launch.attributes = LaunchAttributes(vec![(ATTRIBUTE_COOPERATIVE, vec![1; 64])]);
        assert_eq!(Attributes::new(&launch).unwrap().rows().len(), 1);
    }

    #[test]
    fn attributes_that_do_not_fit_are_refused() {
        let launch = |rows| Launch { attributes: LaunchAttributes(rows), ..Default::default() };
        assert_eq!(Attributes::new(&launch(vec![(4, vec![0; 65])])).err(), Some(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(Attributes::new(&launch(vec![(4, vec![0]); 17])).err(), Some(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(Attributes::new(&launch(vec![(7, vec![0])])).err(), Some(CUDA_ERROR_NOT_SUPPORTED));
    }
}
