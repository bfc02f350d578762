//! Memory that a restore has mapped from an image's page files, and the calls for which that makes a difference.
//!
//! After such a restore, private anonymous memory is a private mapping of a page file. The kernel then answers two
//! requests otherwise than the program may count on: given back, such memory shows the image's bytes in place of zeros,
//! and growing it shows what follows in the file. So `madvise`, `mremap` and `syscall` are ours, and put real anonymous
//! memory where it matters. Without such a restore each costs one look at the mark.
//!
//! Invariants: nothing here allocates, locks or keeps a descriptor, for allocators call it from their inside; nothing
//! calls a function that could be interposed itself; `errno` is set as the C library does, and only on failure.

mod advise;
mod direct;
mod mark;
mod remap;
mod vma;

pub use advise::populate;
