//! Stories of services that want memory, told by the book alone.

use std::time::{Duration, Instant};

use super::book::Book;
use super::share::Share;
use super::step::{Idle, Step};

const GPU: &str = "nvidia:0";

struct Story {
    book: Book,
    now: Instant,
    limit: Option<u64>,
}

/// As long as one that found its GPU full waits at most.
const AGAIN: Duration = Duration::from_secs(1);

impl Story {
    fn new(limit: Option<u64>) -> Story {
        Story { book: Book::default(), now: Instant::now(), limit }
    }

    fn step(&mut self, idle: &[(u64, f64, u64)]) -> Vec<Step> {
        let of = |(service, rate, frees): &(u64, f64, u64)| Idle {
            key: (*service, 1),
            rate: *rate,
            frees: *frees,
            ends: *frees == 0,
            since: self.now,
        };
        let idle: Vec<Idle> = idle.iter().map(of).collect();
        self.book.step(self.limit, &idle, self.now)
    }
}

#[test]
fn what_fits_is_granted_at_once_and_without_a_limit_all_does() {
    let mut story = Story::new(Some(10));
    story.book.claim(GPU, (1, 1), 6);
    story.book.claim("nvidia:1", (2, 1), 6);
    assert_eq!(story.step(&[]), [Step::Grant((1, 1)), Step::Grant((2, 1))], "each GPU has its own");
    story.book.claim(GPU, (3, 1), 5);
    assert_eq!(story.step(&[]), []);
    assert!(story.book.is_short(story.limit));
    story.limit = None;
    assert_eq!(story.step(&[]), [Step::Grant((3, 1))]);
    assert!(!story.book.is_short(None));
}

#[test]
fn who_saves_least_for_what_it_holds_goes_first() {
    let mut story = Story::new(Some(10));
    for (service, bytes) in [(1, 4), (2, 2), (3, 4)] {
        story.book.hold(GPU, (service, 1), bytes);
    }
    story.book.claim(GPU, (4, 1), 2);
    // 1 and 3 save more requests than 2, and for each byte 3 the fewest.
    let idle = [(1, 4.0, 4), (2, 1.0, 2), (3, 1.5, 4)];
    assert_eq!(story.step(&idle), [Step::Demote((3, 1))]);
    assert_eq!(story.step(&idle), [], "it is on its way");
    story.book.stays((3, 1));
    assert_eq!(story.step(&idle[..2]), [Step::Demote((2, 1))]);
    story.book.hold(GPU, (2, 1), 0);
    assert_eq!(story.step(&idle), [Step::Grant((4, 1))]);
    story.book.claim(GPU, (5, 1), 9);
    let idle = [idle[0], idle[2]];
    assert_eq!(story.step(&idle), [Step::Demote((3, 1)), Step::Demote((1, 1))], "as many as it takes");
}

#[test]
fn the_first_to_come_is_the_first_to_go_and_what_never_fits_is_refused() {
    let mut story = Story::new(Some(10));
    story.book.hold(GPU, (1, 1), 8);
    story.book.claim(GPU, (2, 1), 4);
    story.book.claim(GPU, (3, 1), 1);
    assert_eq!(story.step(&[]), []);
    assert!(story.book.why((2, 1), story.limit).unwrap().contains("services have"));
    story.book.withdraw((2, 1));
    assert_eq!(story.step(&[]), [Step::Grant((3, 1))]);
    story.book.claim(GPU, (4, 1), 11);
    let steps = story.step(&[]);
    assert!(matches!(&steps[..], [Step::Fail((4, 1), why)] if why.contains("--service-memory")), "{steps:?}");
}

#[test]
fn what_grows_beyond_the_limit_is_counted() {
    let mut story = Story::new(Some(10));
    story.book.hold(GPU, (1, 1), 4);
    story.book.hold(GPU, (2, 1), 4);
    assert!(!story.book.is_short(story.limit));
    story.book.measured((1, 1), 9);
    assert_eq!(story.step(&[(2, 5.0, 4)]), [Step::Demote((2, 1))]);
    story.book.measured((2, 1), 4);
    assert_eq!(story.step(&[(2, 5.0, 4)]), [], "it is on its way");
    story.book.hold(GPU, (2, 1), 0);
    assert!(!story.book.is_short(story.limit));
}

#[test]
fn one_that_finds_its_gpu_full_has_others_go_and_tries_again() {
    let mut story = Story::new(None);
    for service in 1..=3 {
        story.book.hold(GPU, (service, 1), 4);
    }
    let full = |story: &mut Story, missing| {
        story.book.found_full(GPU, (4, 1), (6, 0), (missing, "full".into()), story.now);
    };
    full(&mut story, 6);
    let idle = [(1, 1.0, 4), (2, 2.0, 4), (3, 3.0, 4)];
    assert_eq!(story.step(&idle), [Step::Demote((1, 1)), Step::Demote((2, 1))]);
    story.book.gone((1, 1));
    assert_eq!(story.step(&idle), []);
    story.book.hold(GPU, (2, 1), 0);
    assert_eq!(story.step(&idle), [Step::Grant((4, 1))]);
    // The rest is busy: it waits, and looks again after a while.
    full(&mut story, 0);
    assert_eq!(story.step(&[]), []);
    story.now += AGAIN;
    assert_eq!(story.step(&[]), [Step::Grant((4, 1))]);
    // Nobody is there who could ever go.
    full(&mut story, 0);
    story.book.gone((3, 1));
    story.book.gone((2, 1));
    assert_eq!(story.step(&[]), [Step::Grant((4, 1))], "something was given back");
    full(&mut story, 0);
    assert_eq!(story.step(&[]), [Step::Fail((4, 1), "full".into())]);
}

#[test]
fn one_that_wakes_needs_what_it_does_not_have_yet() {
    let mut story = Story::new(Some(10));
    story.book.hold(GPU, (1, 1), 5);
    story.book.hold(GPU, (2, 1), 3);
    story.book.claim(GPU, (2, 1), 5);
    assert_eq!(story.step(&[]), [Step::Grant((2, 1))]);
    assert_eq!(story.book.used()[GPU], 10);
    assert_eq!(story.book.bytes((2, 1)), Some(5));
}

impl Story {
    /// Where the services 1 and 2 are the tenant a's, and 3 is b's.
    fn of_tenants(limit: Option<u64>, share: Share) -> Story {
        let mut story = Story::new(limit);
        for (service, tenant) in [(1, "a"), (2, "a"), (3, "b")] {
            story.book.shares.join(service, tenant);
        }
        story.book.shares.set("a", share);
        story
    }
}

#[test]
fn a_tenant_s_share_is_of_all_gpus_together_and_nobody_waits_behind_it() {
    let mut story = Story::of_tenants(Some(100), Share { bytes: Some(10), instances: None });
    story.book.hold(GPU, (1, 1), 6);
    story.book.claim("nvidia:1", (2, 1), 5);
    story.book.claim("nvidia:1", (1, 2), 1);
    story.book.claim("nvidia:1", (3, 1), 50);
    story.book.claim("nvidia:1", (4, 1), 50);
    // Who came later of the same tenant waits; others do not.
    assert_eq!(story.step(&[]), [Step::Grant((3, 1)), Step::Grant((4, 1))]);
    let why = story.book.why((2, 1), story.limit).unwrap();
    assert!(why.contains("tenant \"a\" have"), "{why}");
    assert!(story.book.is_short(story.limit));
    // Only its own go for it, however little others are worth.
    assert_eq!(story.step(&[(3, 0.0, 50), (4, 0.0, 50)]), []);
    assert_eq!(story.step(&[(1, 9.0, 6), (3, 0.0, 50)]), [Step::Demote((1, 1))]);
    story.book.hold(GPU, (1, 1), 0);
    // The GPU has no room for it meanwhile.
    assert_eq!(story.step(&[]), []);
    assert!(story.book.why((2, 1), story.limit).unwrap().contains("services have"));
    story.book.gone((4, 1));
    assert_eq!(story.step(&[]), [Step::Grant((2, 1)), Step::Grant((1, 2))]);
    assert!(!story.book.is_short(story.limit));
}

#[test]
fn for_room_on_the_gpu_a_tenant_s_own_go_first() {
    let mut story = Story::of_tenants(Some(10), Share::default());
    story.book.hold(GPU, (1, 1), 5);
    story.book.hold(GPU, (3, 1), 5);
    story.book.claim(GPU, (2, 1), 5);
    let idle = [(1, 9.0, 5), (3, 0.0, 5)];
    assert_eq!(story.step(&idle), [Step::Demote((1, 1))]);
    story.book.stays((1, 1));
    assert_eq!(story.step(&idle[1..]), [Step::Demote((3, 1))]);
    story.book.withdraw((2, 1));
    story.book.stays((3, 1));
    // For who is nobody's all are alike.
    story.book.claim(GPU, (4, 1), 5);
    assert_eq!(story.step(&idle), [Step::Demote((3, 1))]);
}

#[test]
fn of_instances_those_that_sleep_go_first_and_those_that_wake_need_none() {
    let mut story = Story::of_tenants(None, Share { bytes: None, instances: Some(2) });
    story.book.hold(GPU, (1, 1), 5);
    story.book.hold(GPU, (2, 1), 0);
    story.book.claim(GPU, (1, 2), 5);
    story.book.claim(GPU, (2, 1), 5);
    story.book.claim(GPU, (3, 1), 5);
    assert_eq!(story.step(&[]), [Step::Grant((2, 1)), Step::Grant((3, 1))], "it is there already");
    assert!(story.book.why((1, 2), None).unwrap().contains("have 2 instances, and may have 2"));
    story.book.hold(GPU, (2, 1), 0);
    let idle = [(1, 1.0, 5), (2, 2.0, 0)];
    assert_eq!(story.step(&idle), [Step::Demote((2, 1))]);
    assert_eq!(story.step(&idle), [], "it is on its way");
    story.book.gone((2, 1));
    assert_eq!(story.step(&idle[..1]), [Step::Grant((1, 2))]);
    let tally = story.book.tally("a");
    assert_eq!((tally.instances, tally.bytes), (2, 10));
}

#[test]
fn one_instance_goes_for_another_even_if_it_has_to_sleep_first() {
    let mut story = Story::of_tenants(None, Share { bytes: None, instances: Some(2) });
    story.book.hold(GPU, (1, 1), 5);
    story.book.hold(GPU, (2, 1), 5);
    story.book.claim(GPU, (1, 2), 5);
    let idle = [(1, 1.0, 5), (2, 2.0, 5)];
    assert_eq!(story.step(&idle), [Step::Demote((1, 1))]);
    // It sleeps, and nobody knows yet that it is idle again.
    story.book.hold(GPU, (1, 1), 0);
    assert_eq!(story.step(&idle[1..]), []);
    assert_eq!(story.step(&[(1, 1.0, 0), (2, 2.0, 5)]), [Step::Demote((1, 1))]);
    // It was asked for meanwhile: another one goes.
    story.book.stays((1, 1));
    assert_eq!(story.step(&idle[1..]), [Step::Demote((2, 1))]);
    story.book.hold(GPU, (2, 1), 0);
    // Nobody needs the place any more, and it stays.
    story.book.withdraw((1, 2));
    assert_eq!(story.step(&[(2, 2.0, 0)]), []);
    assert_eq!(story.step(&[(2, 2.0, 0)]), []);
    assert!(!story.book.is_short(None));
}

#[test]
fn a_share_that_becomes_less_is_kept_to_and_what_never_fits_is_refused() {
    let mut story = Story::of_tenants(None, Share { bytes: Some(10), instances: None });
    story.book.hold(GPU, (1, 1), 5);
    story.book.hold(GPU, (2, 1), 5);
    story.book.hold(GPU, (3, 1), 5);
    assert!(!story.book.is_short(None));
    story.book.shares.set("a", Share { bytes: Some(5), instances: None });
    assert!(story.book.is_short(None));
    let idle = [(1, 2.0, 5), (2, 1.0, 5), (3, 0.0, 5)];
    assert_eq!(story.step(&idle), [Step::Demote((2, 1))]);
    assert_eq!(story.step(&idle), [], "it is on its way");
    story.book.claim(GPU, (2, 2), 6);
    let steps = story.step(&[]);
    assert!(
        matches!(&steps[..], [Step::Fail((2, 2), why)] if why.contains("tenant set a --memory")),
        "{steps:?}"
    );
    story.book.shares.set("a", Share::default());
    story.book.shares.leave(2);
    assert!(!story.book.is_short(None));
}
