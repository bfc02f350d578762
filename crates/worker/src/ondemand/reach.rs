//! What memory a request may come to, also by addresses in the bytes that it brings along.
//!
//! A kernel comes to memory by its arguments, which are seen, and by addresses that lie in memory. Such an address got there
//! by a kernel that had it as an argument, or by bytes of the program's that were brought after the address was given. So
//! who looks at all that brings bytes knows what can be reached; only an address that a kernel computes from that of
//! another allocation is not found.

use std::ops::Range;

use rekindle_device::{Copy3D, DEVICE_RANGE, MemorySet};
use rekindle_protocol::operation::*;
use rekindle_ring::Record;

use super::{TouchedMemory, needs, staged};
use crate::client::Client;
use crate::ondemand::Needs;

/// Of addresses among bytes that a program brings, in structures that are packed too.
const ALIGNMENT: usize = 4;
/// Bytes that are looked at in one go.
const BLOCK: usize = 4096;

/// What a request may come to.
pub(crate) enum RequestReach {
    Nothing,
    /// This, and what lies at these addresses, which are among the bytes that it brings.
    These(TouchedMemory, Vec<u64>),
    /// Nobody knows.
    Anything,
}

impl RequestReach {
    pub(crate) fn at(address: u64, bytes: u64) -> RequestReach {
        let range = address..address.saturating_add(bytes.max(1));
        RequestReach::These(TouchedMemory { ranges: vec![range], ..TouchedMemory::default() }, Vec::new())
    }

    /// What a kernel with these parameters names.
    pub(crate) fn parameters(bytes: &[u8]) -> RequestReach {
        RequestReach::known(|touched| {
            touched.parameters(bytes);
            true
        })
    }

    pub(crate) fn strided(copy: &Copy3D) -> RequestReach {
        RequestReach::known(|touched| touched.strided(copy))
    }

    pub(crate) fn filled(set: &MemorySet) -> RequestReach {
        RequestReach::known(|touched| touched.set(set))
    }

    fn known(note: impl FnOnce(&mut TouchedMemory) -> bool) -> RequestReach {
        let mut touched = TouchedMemory::default();
        if note(&mut touched) { RequestReach::These(touched, Vec::new()) } else { RequestReach::Anything }
    }
}

/// Of a request that is no change of a graph. Bytes are searched for addresses in the range.
pub(crate) fn reach(client: &Client, ring: usize, record: &Record<'_>, among: &Range<u64>) -> RequestReach {
    let Record { opcode, body, trailer, .. } = *record;
    let reach = match opcode {
        Download::OPCODE => {
            postcard::from_bytes(body).map(|Download { from, bytes, .. }| RequestReach::at(from, bytes))
        }
        ExchangePut::OPCODE => postcard::from_bytes(body)
            .map(|ExchangePut { address, bytes, .. }| RequestReach::at(address, bytes)),
        DataDump::OPCODE => {
            postcard::from_bytes(body).map(|DataDump { address, .. }| RequestReach::at(address, 1))
        }
        WaitValue::OPCODE => {
            postcard::from_bytes(body).map(|WaitValue { address, .. }| RequestReach::at(address, 8))
        }
        WriteValue::OPCODE => postcard::from_bytes(body).map(|WriteValue { address, value, .. }| {
            let range = address..address.saturating_add(8);
            RequestReach::These(
                TouchedMemory { ranges: vec![range], words: vec![value], ..TouchedMemory::default() },
                Vec::new(),
            )
        }),
        _ => Ok(match needs(client, opcode, body, trailer) {
            Needs::Look(touched) => RequestReach::These(touched, Vec::new()),
            Needs::Memory(touched) => brought(client, ring, record, touched, among),
            Needs::All if opcode == GraphLaunch::OPCODE => RequestReach::Anything,
            // It waits, or makes something, and comes to no memory of the program's.
            Needs::All => RequestReach::Nothing,
        }),
    };
    // Whoever does it finds out that it is nonsense.
    reach.unwrap_or(RequestReach::Nothing)
}

/// With the words that the request brings along.
fn brought(
    client: &Client,
    ring: usize,
    record: &Record<'_>,
    touched: TouchedMemory,
    among: &Range<u64>,
) -> RequestReach {
    let pinned = |range: &Range<u64>| {
        client.pinned.iter().any(|own| own.address <= range.start && range.end <= own.address + own.bytes)
    };
    if touched.words.iter().any(|word| pinned(&(*word..word.saturating_add(1)))) {
        return RequestReach::Anything;
    }
    match record.opcode {
        Upload::OPCODE => {
            let (Some(bytes), Ok(Upload { to, .. })) =
                (staged(client, ring, record), postcard::from_bytes(record.body))
            else {
                return RequestReach::Nothing;
            };
            // A word of which a half came with the piece before.
            if !to.is_multiple_of(8) && begins_with_half(bytes, among) {
                return RequestReach::Anything;
            }
            let found = addresses(bytes.as_ptr(), bytes.len(), among);
            RequestReach::These(touched, found)
        }
        Copy::OPCODE => {
            let Ok(Copy { from, bytes, .. }) = postcard::from_bytes(record.body) else {
                return RequestReach::Nothing;
            };
            let range = from..from.saturating_add(bytes);
            match pinned(&range) {
                true => RequestReach::These(touched, addresses(from as *const u8, bytes as usize, among)),
                false => RequestReach::These(touched, Vec::new()),
            }
        }
        _ if touched.ranges.iter().any(|range| !DEVICE_RANGE.contains(&range.start)) => {
            RequestReach::Anything
        }
        _ => RequestReach::These(touched, Vec::new()),
    }
}

/// The upper halves of the addresses in a range.
fn halves(among: &Range<u64>) -> (u32, u32) {
    ((among.start >> 32) as u32, (among.end.saturating_sub(1) >> 32) as u32)
}

fn begins_with_half(bytes: &[u8], among: &Range<u64>) -> bool {
    let (least, most) = halves(among);
    let half = bytes.first_chunk().map(|half| u32::from_le_bytes(*half));
    half.is_some_and(|half| !among.is_empty() && (least..=most).contains(&half))
}

/// The words of these bytes that are addresses in the range. The memory is mapped in this process; the program may write to
/// it meanwhile, which leaves as open what is copied from there as what is found here.
fn addresses(bytes: *const u8, count: usize, among: &Range<u64>) -> Vec<u64> {
    let mut found = Vec::new();
    if among.is_empty() || count < size_of::<u64>() {
        return found;
    }
    let (least, most) = halves(among);
    // Places where a word may begin.
    let places = (count - size_of::<u64>()) / ALIGNMENT + 1;
    let in_block = BLOCK / ALIGNMENT;
    let is_wide = is_x86_feature_detected!("avx2");
    for block in (0..places).step_by(in_block) {
        let block = block..(block + in_block).min(places);
        // SAFETY: the upper halves of the words that lie inside of what the caller has, from wherever it begins; only
        // where the processor has AVX2 is it asked for it.
        let some = unsafe {
            let halves = bytes.add(block.start * ALIGNMENT + 4).cast::<u32>();
            if is_wide {
                some_wide(halves, block.len(), least, most)
            } else {
                some(halves, block.len(), least, most)
            }
        };
        if !some {
            continue;
        }
        found.extend(block.filter_map(|place| {
            // SAFETY: eight bytes inside of what the caller has.
            let word = unsafe { bytes.add(place * ALIGNMENT).cast::<u64>().read_unaligned() };
            among.contains(&word).then_some(word)
        }));
    }
    found
}

/// Whether one of `count` words, each of which begins where the one before has its second half, is in the range. Without a
/// branch, so that many are compared at once: hardly any block has one.
///
/// # Safety
///
/// All of them can be read.
#[inline(always)]
unsafe fn some(words: *const u32, count: usize, least: u32, most: u32) -> bool {
    (0..count).fold(false, |some, number| {
        // SAFETY: as the caller says.
        let word = unsafe { words.add(number).read_unaligned() };
        some | (word.wrapping_sub(least) <= most.wrapping_sub(least))
    })
}

/// The same, eight at once.
///
/// # Safety
///
/// All of them can be read, and the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn some_wide(words: *const u32, count: usize, least: u32, most: u32) -> bool {
    // SAFETY: as the caller says.
    unsafe { some(words, count, least, most) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMONG: Range<u64> = 0x6000_0010_0000..0x6001_0000_0000;

    fn found(bytes: &[u8]) -> Vec<u64> {
        addresses(bytes.as_ptr(), bytes.len(), &AMONG)
    }

    #[test]
    fn addresses_are_found_wherever_they_lie() {
        for at in [0, 4, 12, 4088, 4092, 4096, 9000, 9992] {
            let mut bytes = vec![0xff; 10_000];
            bytes[at..at + 8].copy_from_slice(&(AMONG.start + 17).to_le_bytes());
            assert_eq!(found(&bytes), [AMONG.start + 17], "at {at}");
        }
    }

    #[test]
    fn what_is_no_address_is_not_found() {
        assert!(found(&[]).is_empty() && found(&[0; 7]).is_empty());
        let outside = [AMONG.start - 1, AMONG.end, 0, u64::MAX].map(u64::to_le_bytes).concat();
        assert!(found(&outside).is_empty());
        assert!(addresses([0; 64].as_ptr(), 64, &(0..0)).is_empty());
    }

    #[test]
    fn a_word_in_two_pieces_is_seen_by_its_upper_half() {
        assert!(begins_with_half(&0x6000_u32.to_le_bytes(), &AMONG));
        assert!(!begins_with_half(&0x6001_u32.to_le_bytes(), &AMONG));
        assert!(!begins_with_half(&[0, 0x60], &AMONG));
    }
}
