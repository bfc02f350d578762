//! Where the driver's own heaps lie, so that module globals keep their addresses over a restore.
//!
//! The driver puts a module's globals into heaps of its own, whose GPU addresses are host addresses: it finds room for
//! one by `mmap` without a wish and without access, and the kernel answers with whatever is free in this process. What
//! else the process has mapped by then decides the address, even without address randomisation. Within a heap the
//! driver is deterministic: the same modules loaded in the same order have their globals at the same offsets.
//!
//! So the executable exports an [`mmap`] that takes the place of the C library's for every library that it opens, the
//! driver among them. It answers exactly these requests itself, with addresses of [`RANGE`], which nothing else uses,
//! one after the other; all else goes to the kernel as it is. Every answer is kept ([`given`]) and becomes part of an
//! image; a worker that restores the image gives the same answers ([`expect`]): each request gets the next address that
//! a request of its length, made for code or not for code, was given before. What was not foreseen gets new addresses.
//!
//! If the driver reserves otherwise than it did, addresses come out differently. That is seen, since each address that
//! the program was given is compared, and the restore is refused.
//!
//! A process whose executable does not export [`mmap`] keeps the kernel's choice.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rekindle_device::{DEVICE_RANGE, Placement};

/// The addresses for the driver's heaps: behind those for buffers, below all that the kernel hands out.
pub const RANGE: Range<u64> = DEVICE_RANGE.end..0x7800_0000_0000;

/// What the driver aligns its largest heaps to. It then cuts off less or nothing of what it was given.
const ALIGNMENT: u64 = 32 << 20;

static PLACING: AtomicBool = AtomicBool::new(false);
static PLACES: Mutex<HeapAddresses> = Mutex::new(HeapAddresses::new(RANGE));

thread_local! {
    /// This thread is in a driver call that may place code.
    static IN_CODE: Cell<bool> = const { Cell::new(false) };
}

/// From now on, requests for addresses are answered here.
pub(crate) fn start() {
    PLACING.store(true, Ordering::Relaxed);
}

/// Every answer so far.
pub(crate) fn given() -> Vec<Placement> {
    PLACES.lock().given.clone()
}

/// Gives the answers again that an earlier process gave. Those that both have given already are skipped.
pub(crate) fn expect(earlier: &[Placement]) {
    PLACES.lock().expect(earlier);
}

/// Forgets the answers for what the driver has given up since, as if they had not been given, and foresees nothing.
pub(crate) fn renew() {
    PLACES.lock().renew(is_mapped);
}

fn is_mapped(placement: &Placement) -> bool {
    let mut resident = 0;
    // SAFETY: writes one byte for the one page that is asked about, mapped or not.
    unsafe { libc::mincore(placement.address as *mut c_void, 1, &mut resident) == 0 }
}

/// Runs a driver call that loads code or looks something up in it.
pub(crate) fn in_code<T>(call: impl FnOnce() -> T) -> T {
    let before = IN_CODE.replace(true);
    let result = call();
    IN_CODE.set(before);
    result
}

/// The C library's function of this name, but for requests for addresses alone. For an executable to export.
///
/// # Safety
/// As for the C library's.
pub unsafe fn mmap(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: i64,
) -> *mut c_void {
    const ADDRESSES_ALONE: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let asks_for_addresses = address.is_null()
        && protection == libc::PROT_NONE
        && flags & !libc::MAP_NORESERVE == ADDRESSES_ALONE
        && PLACING.load(Ordering::Relaxed);
    if asks_for_addresses
        && let Some(place) = PLACES.lock().place(bytes as u64, IN_CODE.get(), |at| reserve(at, bytes, flags))
    {
        return place as *mut c_void;
    }
    // SAFETY: the caller's promise is handed on.
    unsafe { system_mmap(address, bytes, protection, flags, descriptor, offset) }
}

/// Reserves exactly these addresses, if they are free.
fn reserve(at: u64, bytes: usize, flags: c_int) -> bool {
    let flags = flags | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping without access, which replaces none.
    let found = unsafe { system_mmap(at as *mut c_void, bytes, libc::PROT_NONE, flags, -1, 0) };
    if found == libc::MAP_FAILED {
        return false;
    }
    if found as u64 != at {
        // SAFETY: a kernel that takes the address for a wish has just made this mapping for nobody else.
        unsafe { libc::munmap(found, bytes) };
    }
    found as u64 == at
}

/// # Safety
/// As for `mmap`.
unsafe fn system_mmap(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise is handed on; sets errno as the C library does.
    unsafe {
        libc::syscall(libc::SYS_mmap, address, bytes, protection, flags, descriptor, offset) as *mut c_void
    }
}

/// The answers given, and those to give.
struct HeapAddresses {
    range: Range<u64>,
    /// Where new addresses begin.
    next: u64,
    given: Vec<Placement>,
    expected: Vec<Placement>,
}

impl HeapAddresses {
    const fn new(range: Range<u64>) -> HeapAddresses {
        HeapAddresses { next: range.start, range, given: Vec::new(), expected: Vec::new() }
    }

    fn expect(&mut self, earlier: &[Placement]) {
        let mut given = self.given.clone();
        self.expected = earlier
            .iter()
            .filter(|placement| match given.iter().position(|one| one == *placement) {
                Some(at) => {
                    given.remove(at);
                    false
                }
                None => self.range.contains(&placement.address),
            })
            .copied()
            .collect();
        let end =
            self.expected.iter().map(|placement| placement.address.saturating_add(placement.bytes)).max();
        self.next = self.next.max(end.unwrap_or(0).min(self.range.end).next_multiple_of(ALIGNMENT));
    }

    fn renew(&mut self, is_there: impl Fn(&Placement) -> bool) {
        self.expected.clear();
        self.given.retain(is_there);
    }

    /// An address that `reserve` could take.
    fn place(&mut self, bytes: u64, code: bool, mut reserve: impl FnMut(u64) -> bool) -> Option<u64> {
        let foreseen = self.expected.iter().position(|one| one.bytes == bytes && one.code == code);
        let foreseen = foreseen.map(|at| self.expected.remove(at).address);
        let address = match foreseen.filter(|address| reserve(*address)) {
            Some(address) => address,
            None => {
                let address = self.next;
                let end = address.checked_add(bytes).filter(|end| *end <= self.range.end)?;
                self.next = end.next_multiple_of(ALIGNMENT);
                reserve(address).then_some(address)?
            }
        };
        self.given.push(Placement { address, bytes, code });
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAP: u64 = 96 << 20;

    fn places() -> HeapAddresses {
        HeapAddresses::new(RANGE)
    }

    fn asks(places: &mut HeapAddresses, requests: &[(u64, bool)]) -> Vec<u64> {
        requests.iter().map(|(bytes, code)| places.place(*bytes, *code, |_| true).unwrap()).collect()
    }

    #[test]
    fn what_else_is_asked_for_in_between_does_not_move_code() {
        let mut first = places();
        let before =
            asks(&mut first, &[(HEAP, false), (HEAP, true), (HEAP, false), (HEAP, true), (4096, true)]);
        let mut second = places();
        asks(&mut second, &[(HEAP, false)]);
        second.expect(&first.given);
        let after =
            asks(&mut second, &[(HEAP, true), (8192, false), (HEAP, true), (HEAP, false), (4096, true)]);
        assert_eq!([after[0], after[2], after[4]], [before[1], before[3], before[4]]);
        assert_eq!(after[3], before[2]);
        assert!(!before.contains(&after[1]));
    }

    #[test]
    fn a_third_process_is_as_the_second() {
        let mut first = places();
        let wanted = asks(&mut first, &[(4096, false), (HEAP, true)]);
        let mut second = places();
        second.expect(&first.given);
        asks(&mut second, &[(HEAP, true), (4096, false), (8192, true)]);
        let mut third = places();
        third.expect(&second.given);
        assert_eq!(asks(&mut third, &[(4096, false), (HEAP, true)]), wanted);
    }

    #[test]
    fn taken_addresses_are_passed_over() {
        let mut first = places();
        let before = asks(&mut first, &[(HEAP, true)]);
        let mut second = places();
        second.expect(&first.given);
        let instead = second.place(HEAP, true, |at| at != before[0]).unwrap();
        assert!(instead >= before[0] + HEAP);
        assert_eq!(second.place(HEAP, true, |_| false), None);
        assert_eq!(second.place(u64::MAX, true, |_| true), None);
    }

    #[test]
    fn what_was_given_up_is_no_part_of_what_the_next_program_has() {
        let mut first = places();
        let given = asks(&mut first, &[(HEAP, true), (HEAP, false), (HEAP, true)]);
        first.renew(|one| one.address != given[2]);
        let later = asks(&mut first, &[(HEAP, true)])[0];
        assert!(!given.contains(&later));
        let mut second = places();
        asks(&mut second, &[(HEAP, true), (HEAP, false)]);
        second.expect(&first.given);
        assert_eq!(asks(&mut second, &[(HEAP, true)]), [later]);
        let mapped = Placement { address: first_page(), bytes: HEAP, code: true };
        assert!(is_mapped(&mapped) && !is_mapped(&Placement { address: RANGE.end - HEAP, ..mapped }));
    }

    /// Something that is mapped: the stack.
    fn first_page() -> u64 {
        let local = 0u8;
        &raw const local as u64 & !4095
    }

    #[test]
    fn only_requests_for_addresses_are_answered_here() {
        start();
        let ask = |protection, flags| {
            // SAFETY: new private mappings, left to the end of the process.
            unsafe { mmap(std::ptr::null_mut(), 1 << 20, protection, flags, -1, 0) as u64 }
        };
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let (one, two) = (ask(libc::PROT_NONE, anonymous), in_code(|| ask(libc::PROT_NONE, anonymous)));
        assert!(RANGE.contains(&one) && RANGE.contains(&two) && one != two, "{one:#x} {two:#x}");
        assert!(given().contains(&Placement { address: two, bytes: 1 << 20, code: true }));
        assert!(!RANGE.contains(&ask(libc::PROT_READ, anonymous)));
        assert!(!RANGE.contains(&ask(libc::PROT_NONE, libc::MAP_SHARED | libc::MAP_ANONYMOUS)));
    }

    proptest! {
        #[test]
        fn the_same_requests_get_the_same_answers_and_none_overlap(
            requests in proptest::collection::vec((1u64..1 << 30, any::<bool>()), 1..40), known in 0usize..40,
        ) {
            let mut first = places();
            let before = asks(&mut first, &requests);
            let mut second = places();
            let (begin, rest) = requests.split_at(known.min(requests.len()));
            let mut after = asks(&mut second, begin);
            second.expect(&first.given);
            after.extend(asks(&mut second, rest));
            prop_assert_eq!(before, after);
            let mut all = second.given;
            all.sort_by_key(|one| one.address);
            prop_assert!(all.windows(2).all(|two| two[0].address + two[0].bytes <= two[1].address));
        }

        #[test]
        fn nonsense_in_an_image_does_no_harm(
            earlier in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<bool>()), 0..10),
        ) {
            let mut places = places();
            let earlier: Vec<_> =
                earlier.into_iter().map(|(address, bytes, code)| Placement { address, bytes, code }).collect();
            places.expect(&earlier);
            let _ = places.place(4096, true, |_| true);
        }
    }
}
