//! Loads and stores through the state spaces.

use super::access;
use super::step::{Exec, StepError, Stop};
use super::warp::{LOCAL_LIMIT, Path, lanes};
use super::windows::{self, LOCAL, PARAM, SHARED};
use crate::alu::{LANES, Lanes};
use crate::program::Access;
use crate::types::Space;

/// Where an address leads.
pub(super) enum AddressTarget {
    Device(u64),
    /// Rank of the block, and offset.
    Shared(usize, usize),
    Local(usize),
    Parameter(usize),
}

fn little_endian(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

/// Writes the low bytes of a value.
fn put(bytes: &mut [u8], value: u64) {
    match bytes.len() {
        1 => bytes.copy_from_slice(&[value as u8]),
        2 => bytes.copy_from_slice(&(value as u16).to_le_bytes()),
        4 => bytes.copy_from_slice(&(value as u32).to_le_bytes()),
        _ => bytes.copy_from_slice(&value.to_le_bytes()),
    }
}

/// Consecutive elements of memory to lanes.
fn widen(buffer: &[u8; LANES * 8], width: usize, values: &mut Lanes) {
    macro_rules! each {
        ($t:ty, $n:literal) => {
            for (value, bytes) in values.iter_mut().zip(buffer.as_chunks::<$n>().0) {
                *value = <$t>::from_le_bytes(*bytes).into();
            }
        };
    }
    match width {
        1 => each!(u8, 1),
        2 => each!(u16, 2),
        4 => each!(u32, 4),
        _ => each!(u64, 8),
    }
}

/// Lanes to consecutive elements of memory.
fn narrow(values: &Lanes, width: usize, buffer: &mut [u8; LANES * 8]) {
    macro_rules! each {
        ($t:ty, $n:literal) => {
            for (bytes, value) in buffer.as_chunks_mut::<$n>().0.iter_mut().zip(values) {
                *bytes = (*value as $t).to_le_bytes();
            }
        };
    }
    match width {
        1 => each!(u8, 1),
        2 => each!(u16, 2),
        4 => each!(u32, 4),
        _ => each!(u64, 8),
    }
}

fn sign_extended(value: u64, width: u8, register: u8) -> u64 {
    let shift = 64 - 8 * u32::from(width);
    let extended = (value << shift) as i64 >> shift;
    extended as u64 & (u64::MAX >> (64 - u32::from(register)))
}

impl Exec<'_> {
    pub fn place(
        &self,
        space: Space,
        address: u64,
        bytes: usize,
        write: bool,
    ) -> Result<AddressTarget, StepError> {
        let illegal = || StepError::Address { address, write };
        match space {
            Space::Shared => self.shared_place(address, bytes).ok_or_else(illegal),
            Space::Local => self.local_place(address, bytes).ok_or_else(illegal),
            Space::Param => self.parameter_place(address, bytes).filter(|_| !write).ok_or_else(illegal),
            Space::Generic if windows::is_window_address(address) => {
                let inner = if windows::in_window(address, SHARED) {
                    self.shared_place(address - SHARED, bytes)
                } else if windows::in_window(address, LOCAL) {
                    self.local_place(address - LOCAL, bytes)
                } else if windows::in_window(address, PARAM) && !write {
                    self.parameter_place(address - PARAM, bytes)
                } else {
                    None
                };
                inner.ok_or_else(illegal)
            }
            Space::Generic | Space::Global | Space::Const => {
                if self.in_ranges(address, bytes as u64) {
                    Ok(AddressTarget::Device(address))
                } else {
                    Err(illegal())
                }
            }
        }
    }

    fn in_ranges(&self, address: u64, bytes: u64) -> bool {
        let end = address.checked_add(bytes);
        self.grid.ranges.iter().any(|range| address >= range.start && end.is_some_and(|end| end <= range.end))
    }

    fn shared_place(&self, address: u64, bytes: usize) -> Option<AddressTarget> {
        let (rank, offset) = windows::split_shared(address);
        let rank = rank.unwrap_or(self.block.rank) as usize;
        let size = self.cluster.shared.get(rank)?.len();
        (address < 1 << 32 && offset + bytes <= size).then_some(AddressTarget::Shared(rank, offset))
    }

    fn local_place(&self, address: u64, bytes: usize) -> Option<AddressTarget> {
        (address.saturating_add(bytes as u64) <= u64::from(LOCAL_LIMIT))
            .then_some(AddressTarget::Local(address as usize))
    }

    fn parameter_place(&self, address: u64, bytes: usize) -> Option<AddressTarget> {
        let fits = address.saturating_add(bytes as u64) <= self.grid.parameters.len() as u64;
        fits.then_some(AddressTarget::Parameter(address as usize))
    }

    /// A thread's local memory up to `end`, which grows as it is used.
    pub fn local(&mut self, lane: usize, end: usize) -> &mut Vec<u8> {
        let local = &mut self.warp.local[lane];
        if local.len() < end {
            local.resize(end.next_power_of_two().max(256), 0);
        }
        local
    }

    pub fn read(&mut self, lane: usize, space: Space, address: u64, width: u8) -> Result<u64, StepError> {
        let bytes = usize::from(width);
        if !address.is_multiple_of(u64::from(width)) {
            return Err(StepError::Misaligned { address, align: u32::from(width) });
        }
        Ok(match self.place(space, address, bytes, false)? {
            AddressTarget::Device(at) => {
                access::load(at, width).map_err(|_| StepError::Address { address, write: false })?
            }
            AddressTarget::Shared(rank, at) => little_endian(&self.cluster.shared[rank][at..at + bytes]),
            AddressTarget::Local(at) => little_endian(&self.local(lane, at + bytes)[at..at + bytes]),
            AddressTarget::Parameter(at) => little_endian(&self.grid.parameters[at..at + bytes]),
        })
    }

    pub fn write(
        &mut self,
        lane: usize,
        space: Space,
        address: u64,
        width: u8,
        value: u64,
    ) -> Result<(), StepError> {
        let bytes = usize::from(width);
        if !address.is_multiple_of(u64::from(width)) {
            return Err(StepError::Misaligned { address, align: u32::from(width) });
        }
        match self.place(space, address, bytes, true)? {
            AddressTarget::Device(at) => {
                access::store(at, width, value).map_err(|_| StepError::Address { address, write: true })?;
            }
            AddressTarget::Shared(rank, at) => put(&mut self.cluster.shared[rank][at..at + bytes], value),
            AddressTarget::Local(at) => put(&mut self.local(lane, at + bytes)[at..at + bytes], value),
            AddressTarget::Parameter(_) => return Err(StepError::Address { address, write: true }),
        }
        Ok(())
    }

    /// The address of each lane's access, and the alignment that all of its elements need.
    pub fn addresses(&self, path: &Path, access: &Access, base: u32) -> Lanes {
        let mut addresses = *self.row(path, base);
        let offset =
            if access.frame { i64::from(path.fp).wrapping_add(access.offset) } else { access.offset };
        for address in &mut addresses {
            *address = address.wrapping_add_signed(offset);
        }
        addresses
    }

    pub fn check_vector(&self, access: &Access, addresses: &Lanes, mask: u32) -> Result<(), Stop> {
        let align = u32::from(access.width) * u32::from(access.count);
        match lanes(mask).find(|lane| !addresses[*lane].is_multiple_of(u64::from(align))) {
            Some(lane) => Err(StepError::Misaligned { address: addresses[lane], align }.at(lane)),
            None => Ok(()),
        }
    }

    /// The first address, if all lanes access one after the other in device memory.
    fn contiguous(&self, access: &Access, addresses: &Lanes, mask: u32) -> Option<u64> {
        if mask != u32::MAX || access.count != 1 || !matches!(access.space, Space::Global | Space::Generic) {
            return None;
        }
        let (first, width) = (addresses[0], u64::from(access.width));
        let in_order = (0..LANES).all(|lane| addresses[lane] == first.wrapping_add(width * lane as u64));
        let plain = first.is_multiple_of(width)
            && self.in_ranges(first, width * LANES as u64)
            && !windows::is_window_address(first);
        (in_order && plain).then_some(first)
    }

    /// Whether all lanes access the block's own shared memory, aligned and within it.
    fn in_own_shared(&self, access: &Access, addresses: &Lanes, mask: u32) -> bool {
        if access.space != Space::Shared || access.count != 1 {
            return false;
        }
        let (width, size) =
            (u64::from(access.width), self.cluster.shared[self.block.rank as usize].len() as u64);
        // Widths are powers of two; an address that names a rank lies beyond any size.
        let fits = |address: u64| address & (width - 1) == 0 && address < size && address + width <= size;
        lanes(mask).all(|lane| fits(addresses[lane]))
    }

    pub fn load_parameter(
        &mut self,
        path: &Path,
        access: &Access,
        results: &[u32],
        mask: u32,
    ) -> Result<(), Stop> {
        let lane = mask.trailing_zeros() as usize;
        for (index, result) in results.iter().enumerate() {
            let address = (access.offset as u64).wrapping_add(index as u64 * u64::from(access.width));
            let mut value =
                self.read(lane, Space::Param, address, access.width).map_err(|trouble| trouble.at(lane))?;
            if access.sign_extend != 0 {
                value = sign_extended(value, access.width, access.sign_extend);
            }
            self.set(path, *result, &[value; LANES], mask);
        }
        Ok(())
    }

    pub fn load(
        &mut self,
        path: &Path,
        access: &Access,
        results: &[u32],
        base: u32,
        mask: u32,
    ) -> Result<(), Stop> {
        let addresses = self.addresses(path, access, base);
        let mut values = [0; LANES];
        if let Some(first) = self.contiguous(access, &addresses, mask) {
            let width = usize::from(access.width);
            let mut buffer = [0; LANES * 8];
            if access::read(first, &mut buffer[..LANES * width]).is_ok() {
                widen(&buffer, width, &mut values);
                return self.finish_load(path, access, results[0], values, mask);
            }
        }
        if self.in_own_shared(access, &addresses, mask) {
            let (shared, width) = (&self.cluster.shared[self.block.rank as usize], usize::from(access.width));
            for lane in lanes(mask) {
                let at = addresses[lane] as usize;
                values[lane] = little_endian(&shared[at..at + width]);
            }
            return self.finish_load(path, access, results[0], values, mask);
        }
        self.check_vector(access, &addresses, mask)?;
        for (index, result) in results.iter().enumerate() {
            let distance = index as u64 * u64::from(access.width);
            for lane in lanes(mask) {
                values[lane] = self
                    .read(lane, access.space, addresses[lane].wrapping_add(distance), access.width)
                    .map_err(|trouble| trouble.at(lane))?;
            }
            self.finish_load(path, access, *result, values, mask)?;
        }
        Ok(())
    }

    fn finish_load(
        &mut self,
        path: &Path,
        access: &Access,
        result: u32,
        mut values: Lanes,
        mask: u32,
    ) -> Result<(), Stop> {
        if access.sign_extend != 0 {
            for value in &mut values {
                *value = sign_extended(*value, access.width, access.sign_extend);
            }
        }
        self.set(path, result, &values, mask);
        Ok(())
    }

    pub fn store(&mut self, path: &Path, access: &Access, sources: &[u32], mask: u32) -> Result<(), Stop> {
        let addresses = self.addresses(path, access, sources[0]);
        if let Some(first) = self.contiguous(access, &addresses, mask) {
            let width = usize::from(access.width);
            let mut buffer = [0; LANES * 8];
            narrow(self.row(path, sources[1]), width, &mut buffer);
            if access::write(first, &buffer[..LANES * width]).is_ok() {
                return Ok(());
            }
        }
        if self.in_own_shared(access, &addresses, mask) {
            let (values, width) = (*self.row(path, sources[1]), usize::from(access.width));
            let shared = &mut self.cluster.shared[self.block.rank as usize];
            for lane in lanes(mask) {
                let at = addresses[lane] as usize;
                put(&mut shared[at..at + width], values[lane]);
            }
            return Ok(());
        }
        self.check_vector(access, &addresses, mask)?;
        for (index, source) in sources[1..].iter().enumerate() {
            let values = *self.row(path, *source);
            let distance = index as u64 * u64::from(access.width);
            for lane in lanes(mask) {
                self.write(
                    lane,
                    access.space,
                    addresses[lane].wrapping_add(distance),
                    access.width,
                    values[lane],
                )
                .map_err(|trouble| trouble.at(lane))?;
            }
        }
        Ok(())
    }

    /// Bytes of any space up to a zero, for messages.
    pub fn read_text(&mut self, lane: usize, address: u64) -> Result<Vec<u8>, StepError> {
        const LONGEST: u64 = 1 << 16;
        let mut text = Vec::new();
        for at in 0..LONGEST {
            match self.read(lane, Space::Generic, address.wrapping_add(at), 1)? {
                0 => break,
                byte => text.push(byte as u8),
            }
        }
        Ok(text)
    }
}
