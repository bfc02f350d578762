//! Journals as a worker leaves them and another one finds them.

use rekindle_protocol::operation::{
    Asynchronous, EventRecord, FunctionGet, StreamCreate, Synchronous, Upload,
};

use super::*;

fn entry(ring: usize, opcode: u32, ticket: u64) -> Entry<'static> {
    let (body, trailer, staged): (&[u8], &[u8], &[u8]) = (b"body", b"trailer", b"staged");
    Entry { ring, opcode, body, trailer, staged, staged_at: 0, ticket, flags: Flags::ASIDE }
}

#[test]
fn another_worker_reads_what_was_done_and_what_was_answered() {
    let file = crate::successor::memory_file(&[]).unwrap();
    let other = OwnedFd::from(file.try_clone().unwrap());
    let mut journal = Journal::new(file.into()).unwrap();
    assert!(journal.is_empty() && journal.has_room(100) && !journal.has_room(MOST_BYTES));
    let aside = journal.push(&entry(0, 7, 0));
    assert!(journal.at(aside).unwrap().flags.is_aside());
    journal.came_back(aside);
    journal.done(0, None);
    assert!(journal.push_ring(5, "ring-1-5"));
    let failed = journal.push(&entry(3, 9, 1));
    journal.fail(failed);
    journal.done(1, Some((3, 17)));
    // The worker dies in this one.
    journal.push(&entry(1, 8, 2));
    drop(journal);

    let mut journal = Journal::inherit(other).unwrap();
    journal.cut();
    let read: Vec<_> = journal.requests().collect();
    assert_eq!(read.len(), 2);
    assert_eq!((read[0].ring, read[0].opcode, read[0].body), (0, 7, &b"body"[..]));
    assert_eq!((read[1].trailer, read[1].staged), (&b"trailer"[..], &b"staged"[..]));
    assert!(read[1].flags.has_failed() && !read[0].flags.has_failed() && !read[0].flags.is_aside());
    let (base, bytes) = journal.memory();
    assert!(base != 0 && read[1].staged_at + 6 == bytes);
    assert_eq!(journal.rings().collect::<Vec<_>>(), [(5, "ring-1-5".to_string())]);
    assert_eq!(journal.next(), 2);
    let answered = journal.answered().unwrap();
    assert_eq!((answered.ring, answered.count), (3, 17));
    journal.done(2, None);
    assert!(journal.answered().is_none() && !journal.is_settled());
}

#[test]
fn of_what_has_ended_only_what_lasts_is_kept() {
    let record = |event: u32| {
        let record = EventRecord { device: 0, stream: 0, event, flags: 0 };
        postcard::to_stdvec(&record).unwrap()
    };
    let upload = |end: u64| {
        let upload = Upload { device: 0, stream: 0, to: 0, offset: 0, bytes: 6, end };
        postcard::to_stdvec(&upload).unwrap()
    };
    let mut journal = Journal::new(crate::successor::memory_file(&[]).unwrap().into()).unwrap();
    let mut push = |ring, opcode, body: &[u8]| {
        let flags = Flags::default();
        let staged: &[u8] = if opcode == Upload::OPCODE { b"staged" } else { b"" };
        journal.push(&Entry { ring, opcode, body, trailer: b"", staged, staged_at: 0, ticket: 0, flags });
    };
    push(0, StreamCreate::OPCODE, b"stream");
    push(0, EventRecord::OPCODE, &record(1));
    push(1, Upload::OPCODE, &upload(70));
    push(0, EventRecord::OPCODE, &record(2));
    push(1, Upload::OPCODE, &upload(90));
    push(0, EventRecord::OPCODE, &record(1));
    push(1, FunctionGet::OPCODE, b"function");
    journal.begin_anew();
    let kept: Vec<_> = journal.requests().map(|entry| (entry.opcode, entry.body.to_vec())).collect();
    let expected = [
        (StreamCreate::OPCODE, b"stream".to_vec()),
        (EventRecord::OPCODE, record(2)),
        (Upload::OPCODE, upload(90)),
        (EventRecord::OPCODE, record(1)),
        (FunctionGet::OPCODE, b"function".to_vec()),
    ];
    assert_eq!(kept, expected);
    assert!(journal.requests().all(|entry| entry.flags.has_failed() == (entry.opcode == Upload::OPCODE)));
    assert_eq!(
        (journal.staged(), journal.requests().map(|entry| entry.staged.len()).sum()),
        (vec![0, 90], 0)
    );
    let bytes = journal.memory().1;
    journal.begin_anew();
    assert_eq!(journal.memory().1, bytes);
}

#[test]
fn only_the_request_that_is_being_done_fails_or_is_put_back() {
    let mut journal = Journal::new(crate::successor::memory_file(&[]).unwrap().into()).unwrap();
    assert!(journal.has_room(1000) && !journal.has_admitted());
    let first = journal.admit(&entry(0, 1, 0));
    journal.fail_admitted();
    assert!(journal.at(first).unwrap().flags.has_failed() && !journal.has_admitted());
    let second = journal.admit(&entry(0, 2, 1));
    assert!(journal.has_admitted());
    // The next one is none that is kept: its failure is not the second one's, nor does it take that away.
    journal.next_admission();
    journal.fail_admitted();
    journal.put_back_admitted();
    assert!(!journal.at(second).unwrap().flags.has_failed());
    journal.admit(&entry(0, 3, 2));
    journal.put_back_admitted();
    journal.put_back_admitted();
    assert_eq!(journal.requests().map(|entry| entry.opcode).collect::<Vec<_>>(), [1, 2]);
    journal.admit(&entry(0, 4, 2));
    journal.settle();
    journal.put_back_admitted();
    assert_eq!(journal.requests().count(), 3);
}

#[test]
fn another_journal_begins_with_what_lasts_and_the_one_before_stays() {
    let file = || OwnedFd::from(crate::successor::memory_file(&[]).unwrap());
    let (mut before, mut after) = (Journal::new(file()).unwrap(), Journal::new(file()).unwrap());
    let kept = Entry {
        opcode: StreamCreate::OPCODE,
        trailer: b"",
        staged: b"",
        flags: Flags::default(),
        ..entry(0, 0, 0)
    };
    before.push(&kept);
    before.push(&entry(0, 3, 1));
    before.done(1, None);
    assert!(after.begin_behind(Some((&before, before.bytes())), 2));
    let found: Vec<_> = after.requests().map(|entry| (entry.opcode, entry.body)).collect();
    assert_eq!(found, [(StreamCreate::OPCODE, &b"body"[..])]);
    assert_eq!((after.based_at(), after.next()), (after.bytes(), 2));
    assert!(after.has_room(100));
    let at = after.push(&entry(0, 4, 2));
    assert!(at >= after.based_at());
    assert_eq!(before.requests().count(), 2);
    assert!(before.begin_behind(None, 3) && before.requests().count() == 0 && before.based_at() == 0);
}

#[test]
fn what_was_told_is_noted_with_its_hash() {
    let mut journal = Journal::new(crate::successor::memory_file(&[]).unwrap().into()).unwrap();
    assert!(journal.has_room(100));
    let at = journal.admit(&Entry { trailer: &[0; 8], flags: Flags::default(), ..entry(0, 1, 0) });
    assert!(!journal.at(at).unwrap().flags.is_told());
    journal.mark(at).brought(0x0123_4567_89ab_cdef);
    let found = journal.at(at).unwrap();
    assert!(found.flags.is_told() && !found.flags.waits());
    assert_eq!((found.body, found.staged), (&b"body"[..], &b"staged"[..]));
    assert_eq!(u64::from_le_bytes(found.trailer.try_into().unwrap()), 0x0123_4567_89ab_cdef);
    journal.set_trailer(at, &[7; 8]);
    journal.set_trailer(at, &[9; 4]);
    assert_eq!(journal.at(at).unwrap().trailer, [7; 8]);
}

#[test]
fn another_journal_begins_at_a_cut_of_the_one_before() {
    let file = || OwnedFd::from(crate::successor::memory_file(&[]).unwrap());
    let (mut before, mut after) = (Journal::new(file()).unwrap(), Journal::new(file()).unwrap());
    let making =
        |ticket| Entry { opcode: StreamCreate::OPCODE, trailer: b"", staged: b"", ..entry(0, 0, ticket) };
    before.push(&making(0));
    before.push(&entry(0, 3, 1));
    let cut = before.bytes();
    let told = Entry { trailer: &[0; 8], ..entry(0, 4, 2) };
    let told = before.push(&told);
    before.push(&making(3));
    before.mark(told).brought(7);
    let opcodes =
        |journal: &Journal| journal.requests().map(|entry| (entry.opcode, entry.ticket)).collect::<Vec<_>>();
    for (lasts, prefix) in [(true, vec![(StreamCreate::OPCODE, 0)]), (false, vec![])] {
        assert!(after.begin_at(&before, cut, lasts, 4));
        let behind = [(4, 2), (StreamCreate::OPCODE, 3)];
        assert_eq!(opcodes(&after), [&prefix[..], &behind[..]].concat());
        assert_eq!((after.next(), after.since_base()), (4, before.bytes() - cut));
        let moved = after.at(after.based_at()).unwrap();
        assert!(
            moved.flags.is_told()
                && moved.trailer == 7u64.to_le_bytes()
                && moved.staged == entry(0, 4, 2).staged
        );
    }
    assert_eq!(opcodes(&before).len(), 4);
}

#[test]
fn what_the_program_is_told_is_noted_with_the_next_request_also_where_it_was_moved() {
    let file = || OwnedFd::from(crate::successor::memory_file(&[]).unwrap());
    let (mut before, mut after) = (Journal::new(file()).unwrap(), Journal::new(file()).unwrap());
    let of = |journal: &Journal, at| marked(journal.at(at).unwrap().trailer);
    let trailer = unmarked(5);
    let wait = |ticket| Entry { trailer: &trailer, flags: Flags::WAIT, ..entry(0, 1, ticket) };
    let earlier = before.push(&wait(0));
    let cut = before.bytes();
    let (one, other) = (before.push(&wait(1)), before.push(&wait(2)));
    before.done(2, None);
    assert_eq!(of(&before, one), Some((5, None)));
    before.mark(one).told();
    assert_eq!((of(&before, one), of(&before, other)), (Some((5, Some(3))), Some((5, None))));
    assert!(after.begin_at(&before, cut, false, 9));
    let (from, to) = (before.mark(cut), after.mark(after.based_at()));
    let moved = before.mark(other).moved(from, to).unwrap();
    moved.told();
    let place = after.based_at() + other - cut;
    assert_eq!((of(&after, place), of(&before, other)), (Some((5, Some(9))), Some((5, None))));
    assert!(before.mark(earlier).moved(from, to).is_none());
}
