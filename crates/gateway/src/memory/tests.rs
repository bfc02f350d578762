//! Stories of services that want memory, told by the book alone.

use std::time::{Duration, Instant};

use super::holding::{Datum, Holding};
use super::ledger::MemoryLedger;
use super::share::TenantLimit;
use super::step::{Idle, Step};

const GPU: &str = "nvidia:0";

struct Scenario {
    ledger: MemoryLedger,
    now: Instant,
    limit: Option<u64>,
}

/// As long as one that found its GPU full waits at most.
const AGAIN: Duration = Duration::from_secs(1);

impl Scenario {
    fn new(limit: Option<u64>) -> Scenario {
        Scenario { ledger: MemoryLedger::default(), now: Instant::now(), limit }
    }

    fn idle(&self, idle: &[(u64, f64, u64)]) -> Vec<Idle> {
        let of = |(service, rate, frees): &(u64, f64, u64)| Idle {
            key: (*service, 1),
            rate: *rate,
            frees: *frees,
            ends: *frees == 0,
            since: self.now,
        };
        idle.iter().map(of).collect()
    }

    fn step(&mut self, idle: &[(u64, f64, u64)]) -> Vec<Step> {
        let idle = self.idle(idle);
        self.ledger.step(self.limit, &idle, self.now)
    }
}

#[test]
fn what_fits_is_granted_at_once_and_without_a_limit_all_does() {
    let mut scenario = Scenario::new(Some(10));
    scenario.ledger.claim(GPU, (1, 1), 6);
    scenario.ledger.claim("nvidia:1", (2, 1), 6);
    assert_eq!(scenario.step(&[]), [Step::Grant((1, 1)), Step::Grant((2, 1))], "each GPU has its own");
    scenario.ledger.claim(GPU, (3, 1), 5);
    assert_eq!(scenario.step(&[]), []);
    assert!(scenario.ledger.is_short(scenario.limit));
    scenario.limit = None;
    assert_eq!(scenario.step(&[]), [Step::Grant((3, 1))]);
    assert!(!scenario.ledger.is_short(None));
}

#[test]
fn there_is_room_where_nobody_waits_and_nobody_has_to_go() {
    let mut scenario = Scenario::new(Some(10));
    scenario.ledger.hold(GPU, (1, 1), 6);
    let has_room =
        |gpu: &str, bytes: u64| scenario.ledger.has_room(gpu, (2, u32::MAX), bytes.into(), Some(10));
    assert!(has_room(GPU, 4) && !has_room(GPU, 5) && has_room("nvidia:1", 10));
    assert!(scenario.ledger.has_room(GPU, (2, u32::MAX), 100.into(), None));
    scenario.ledger.claim(GPU, (3, 1), 5);
    assert!(!scenario.ledger.has_room(GPU, (2, u32::MAX), 1.into(), Some(10)), "somebody waits");
    scenario.ledger.gone((3, 1));
    scenario.ledger.shares.join(2, "blue");
    scenario.ledger.shares.set("blue", TenantLimit { bytes: Some(3), instances: None });
    assert!(!scenario.ledger.has_room(GPU, (2, u32::MAX), 4.into(), Some(10)), "its tenant may not have it");
}

#[test]
fn what_nobody_needs_is_room_for_one_that_waits_whoever_waits_there() {
    let mut scenario = Scenario::new(Some(10));
    scenario.ledger.hold(GPU, (1, 1), 6);
    scenario.ledger.hold(GPU, (2, 1), 3);
    scenario.ledger.claim(GPU, (3, 1), 7);
    let idle = scenario.idle(&[(1, 1.0, 6)]);
    assert_eq!(scenario.ledger.spare(&idle).get(GPU), Some(&6));
    let fits = |bytes: u64| scenario.ledger.fits(GPU, (4, u32::MAX), bytes.into(), Some(10 + 6));
    assert!(fits(7) && !fits(8));
    // Also what is given back already.
    assert_eq!(scenario.step(&[(1, 1.0, 6)]), [Step::Demote((1, 1))]);
    assert_eq!(scenario.ledger.spare(&idle).get(GPU), Some(&6));
}

#[test]
fn who_saves_least_for_what_it_holds_goes_first() {
    let mut scenario = Scenario::new(Some(10));
    for (service, bytes) in [(1, 4), (2, 2), (3, 4)] {
        scenario.ledger.hold(GPU, (service, 1), bytes);
    }
    scenario.ledger.claim(GPU, (4, 1), 2);
    // 1 and 3 save more requests than 2, and for each byte 3 the fewest.
    let idle = [(1, 4.0, 4), (2, 1.0, 2), (3, 1.5, 4)];
    assert_eq!(scenario.step(&idle), [Step::Demote((3, 1))]);
    assert_eq!(scenario.step(&idle), [], "it is on its way");
    scenario.ledger.stays((3, 1));
    assert_eq!(scenario.step(&idle[..2]), [Step::Demote((2, 1))]);
    scenario.ledger.hold(GPU, (2, 1), 0);
    assert_eq!(scenario.step(&idle), [Step::Grant((4, 1))]);
    scenario.ledger.claim(GPU, (5, 1), 9);
    let idle = [idle[0], idle[2]];
    assert_eq!(scenario.step(&idle), [Step::Demote((3, 1)), Step::Demote((1, 1))], "as many as it takes");
}

#[test]
fn the_first_to_come_is_the_first_to_go_and_what_never_fits_is_refused() {
    let mut scenario = Scenario::new(Some(10));
    scenario.ledger.hold(GPU, (1, 1), 8);
    scenario.ledger.claim(GPU, (2, 1), 4);
    scenario.ledger.claim(GPU, (3, 1), 2);
    assert_eq!(scenario.step(&[]), []);
    assert!(scenario.ledger.why((2, 1), scenario.limit).unwrap().contains("services have"));
    scenario.ledger.withdraw((2, 1));
    assert_eq!(scenario.step(&[]), [Step::Grant((3, 1))]);
    scenario.ledger.claim(GPU, (4, 1), 11);
    let steps = scenario.step(&[]);
    assert!(matches!(&steps[..], [Step::Fail((4, 1), why)] if why.contains("--service-memory")), "{steps:?}");
}

#[test]
fn who_needs_little_passes_one_that_waits_for_others_to_go_for_a_while() {
    let mut scenario = Scenario::new(Some(100));
    scenario.ledger.hold(GPU, (1, 1), 80);
    scenario.ledger.claim(GPU, (2, 1), 40);
    scenario.ledger.claim(GPU, (3, 1), 11);
    scenario.ledger.claim(GPU, (4, 1), 10);
    scenario.ledger.claim(GPU, (5, 1), 10);
    assert_eq!(scenario.step(&[]), [Step::Grant((4, 1)), Step::Grant((5, 1))], "there is room for two");
    scenario.ledger.claim(GPU, (6, 1), 1);
    assert_eq!(scenario.step(&[]), [], "there is none for a third");
    scenario.ledger.gone((4, 1));
    scenario.now += Duration::from_secs(5);
    assert_eq!(scenario.step(&[]), [], "it has waited for too long to be passed again");
    scenario.ledger.gone((1, 1));
    let granted = [(2, 1), (3, 1), (6, 1)].map(Step::Grant);
    assert_eq!(scenario.step(&[]), granted);
}

#[test]
fn what_grows_beyond_the_limit_is_counted() {
    let mut scenario = Scenario::new(Some(10));
    scenario.ledger.hold(GPU, (1, 1), 4);
    scenario.ledger.hold(GPU, (2, 1), 4);
    assert!(!scenario.ledger.is_short(scenario.limit));
    scenario.ledger.measured((1, 1), 9);
    assert_eq!(scenario.step(&[(2, 5.0, 4)]), [Step::Demote((2, 1))]);
    scenario.ledger.measured((2, 1), 4);
    assert_eq!(scenario.step(&[(2, 5.0, 4)]), [], "it is on its way");
    scenario.ledger.hold(GPU, (2, 1), 0);
    assert!(!scenario.ledger.is_short(scenario.limit));
}

#[test]
fn one_that_finds_its_gpu_full_has_others_go_and_tries_again() {
    let mut scenario = Scenario::new(None);
    for service in 1..=3 {
        scenario.ledger.hold(GPU, (service, 1), 4);
    }
    let full = |scenario: &mut Scenario, missing| {
        scenario.ledger.found_full(GPU, (4, 1), (6, 0), (missing, "full".into()), scenario.now);
    };
    full(&mut scenario, 6);
    let idle = [(1, 1.0, 4), (2, 2.0, 4), (3, 3.0, 4)];
    assert_eq!(scenario.step(&idle), [Step::Demote((1, 1)), Step::Demote((2, 1))]);
    scenario.ledger.gone((1, 1));
    assert_eq!(scenario.step(&idle), []);
    scenario.ledger.hold(GPU, (2, 1), 0);
    assert_eq!(scenario.step(&idle), [Step::Grant((4, 1))]);
    // The rest is busy: it waits, and looks again after a while.
    full(&mut scenario, 0);
    assert_eq!(scenario.step(&[]), []);
    scenario.now += AGAIN;
    assert_eq!(scenario.step(&[]), [Step::Grant((4, 1))]);
    // Nobody is there who could ever go.
    full(&mut scenario, 0);
    scenario.ledger.gone((3, 1));
    scenario.ledger.gone((2, 1));
    assert_eq!(scenario.step(&[]), [Step::Grant((4, 1))], "something was given back");
    full(&mut scenario, 0);
    assert_eq!(scenario.step(&[]), [Step::Fail((4, 1), "full".into())]);
}

#[test]
fn one_that_wakes_needs_what_it_does_not_have_yet() {
    let mut scenario = Scenario::new(Some(10));
    scenario.ledger.hold(GPU, (1, 1), 5);
    scenario.ledger.hold(GPU, (2, 1), 3);
    scenario.ledger.claim(GPU, (2, 1), 5);
    assert_eq!(scenario.step(&[]), [Step::Grant((2, 1))]);
    assert_eq!(scenario.ledger.used()[GPU], 10);
    assert_eq!(scenario.ledger.bytes((2, 1)), Some(5));
}

impl Scenario {
    /// Where the services 1 and 2 are the tenant a's, and 3 is b's.
    fn of_tenants(limit: Option<u64>, share: TenantLimit) -> Scenario {
        let mut scenario = Scenario::new(limit);
        for (service, tenant) in [(1, "a"), (2, "a"), (3, "b")] {
            scenario.ledger.shares.join(service, tenant);
        }
        scenario.ledger.shares.set("a", share);
        scenario
    }
}

#[test]
fn a_tenant_s_share_is_of_all_gpus_together_and_nobody_waits_behind_it() {
    let mut scenario = Scenario::of_tenants(Some(100), TenantLimit { bytes: Some(10), instances: None });
    scenario.ledger.hold(GPU, (1, 1), 6);
    scenario.ledger.claim("nvidia:1", (2, 1), 5);
    scenario.ledger.claim("nvidia:1", (1, 2), 1);
    scenario.ledger.claim("nvidia:1", (3, 1), 50);
    scenario.ledger.claim("nvidia:1", (4, 1), 50);
    // Who came later of the same tenant waits; others do not.
    assert_eq!(scenario.step(&[]), [Step::Grant((3, 1)), Step::Grant((4, 1))]);
    let why = scenario.ledger.why((2, 1), scenario.limit).unwrap();
    assert!(why.contains("tenant \"a\" have"), "{why}");
    assert!(scenario.ledger.is_short(scenario.limit));
    // Only its own go for it, however little others are worth.
    assert_eq!(scenario.step(&[(3, 0.0, 50), (4, 0.0, 50)]), []);
    assert_eq!(scenario.step(&[(1, 9.0, 6), (3, 0.0, 50)]), [Step::Demote((1, 1))]);
    scenario.ledger.hold(GPU, (1, 1), 0);
    // The GPU has no room for it meanwhile.
    assert_eq!(scenario.step(&[]), []);
    assert!(scenario.ledger.why((2, 1), scenario.limit).unwrap().contains("services have"));
    scenario.ledger.gone((4, 1));
    assert_eq!(scenario.step(&[]), [Step::Grant((2, 1)), Step::Grant((1, 2))]);
    assert!(!scenario.ledger.is_short(scenario.limit));
}

#[test]
fn for_room_on_the_gpu_a_tenant_s_own_go_first() {
    let mut scenario = Scenario::of_tenants(Some(10), TenantLimit::default());
    scenario.ledger.hold(GPU, (1, 1), 5);
    scenario.ledger.hold(GPU, (3, 1), 5);
    scenario.ledger.claim(GPU, (2, 1), 5);
    let idle = [(1, 9.0, 5), (3, 0.0, 5)];
    assert_eq!(scenario.step(&idle), [Step::Demote((1, 1))]);
    scenario.ledger.stays((1, 1));
    assert_eq!(scenario.step(&idle[1..]), [Step::Demote((3, 1))]);
    scenario.ledger.withdraw((2, 1));
    scenario.ledger.stays((3, 1));
    // For who is nobody's all are alike.
    scenario.ledger.claim(GPU, (4, 1), 5);
    assert_eq!(scenario.step(&idle), [Step::Demote((3, 1))]);
}

#[test]
fn of_instances_those_that_sleep_go_first_and_those_that_wake_need_none() {
    let mut scenario = Scenario::of_tenants(None, TenantLimit { bytes: None, instances: Some(2) });
    scenario.ledger.hold(GPU, (1, 1), 5);
    scenario.ledger.hold(GPU, (2, 1), 0);
    scenario.ledger.claim(GPU, (1, 2), 5);
    scenario.ledger.claim(GPU, (2, 1), 5);
    scenario.ledger.claim(GPU, (3, 1), 5);
    assert_eq!(scenario.step(&[]), [Step::Grant((2, 1)), Step::Grant((3, 1))], "it is there already");
    assert!(scenario.ledger.why((1, 2), None).unwrap().contains("have 2 instances, and may have 2"));
    scenario.ledger.hold(GPU, (2, 1), 0);
    let idle = [(1, 1.0, 5), (2, 2.0, 0)];
    assert_eq!(scenario.step(&idle), [Step::Dismiss((2, 1))]);
    assert_eq!(scenario.step(&idle), [], "it is on its way");
    scenario.ledger.gone((2, 1));
    assert_eq!(scenario.step(&idle[..1]), [Step::Grant((1, 2))]);
    let tally = scenario.ledger.tally("a");
    assert_eq!((tally.instances, tally.bytes), (2, 10));
}

#[test]
fn one_instance_goes_for_another_even_if_it_has_to_sleep_first() {
    let mut scenario = Scenario::of_tenants(None, TenantLimit { bytes: None, instances: Some(2) });
    scenario.ledger.hold(GPU, (1, 1), 5);
    scenario.ledger.hold(GPU, (2, 1), 5);
    scenario.ledger.claim(GPU, (1, 2), 5);
    let idle = [(1, 1.0, 5), (2, 2.0, 5)];
    assert_eq!(scenario.step(&idle), [Step::Dismiss((1, 1))]);
    // It sleeps, and nobody knows yet that it is idle again.
    scenario.ledger.hold(GPU, (1, 1), 0);
    assert_eq!(scenario.step(&idle[1..]), []);
    assert_eq!(scenario.step(&[(1, 1.0, 0), (2, 2.0, 5)]), [Step::Dismiss((1, 1))]);
    // It was asked for meanwhile: another one goes.
    scenario.ledger.stays((1, 1));
    assert_eq!(scenario.step(&idle[1..]), [Step::Dismiss((2, 1))]);
    scenario.ledger.hold(GPU, (2, 1), 0);
    // Nobody needs the place any more, and it stays.
    scenario.ledger.withdraw((1, 2));
    assert_eq!(scenario.step(&[(2, 2.0, 0)]), []);
    assert_eq!(scenario.step(&[(2, 2.0, 0)]), []);
    assert!(!scenario.ledger.is_short(None));
}

#[test]
fn a_share_that_becomes_less_is_kept_to_and_what_never_fits_is_refused() {
    let mut scenario = Scenario::of_tenants(None, TenantLimit { bytes: Some(10), instances: None });
    scenario.ledger.hold(GPU, (1, 1), 5);
    scenario.ledger.hold(GPU, (2, 1), 5);
    scenario.ledger.hold(GPU, (3, 1), 5);
    assert!(!scenario.ledger.is_short(None));
    scenario.ledger.shares.set("a", TenantLimit { bytes: Some(5), instances: None });
    assert!(scenario.ledger.is_short(None));
    let idle = [(1, 2.0, 5), (2, 1.0, 5), (3, 0.0, 5)];
    assert_eq!(scenario.step(&idle), [Step::Demote((2, 1))]);
    assert_eq!(scenario.step(&idle), [], "it is on its way");
    scenario.ledger.claim(GPU, (2, 2), 6);
    let steps = scenario.step(&[]);
    assert!(
        matches!(&steps[..], [Step::Fail((2, 2), why)] if why.contains("tenant set a --memory")),
        "{steps:?}"
    );
    scenario.ledger.shares.set("a", TenantLimit::default());
    scenario.ledger.shares.leave(2);
    assert!(!scenario.ledger.is_short(None));
}

/// So much of one's own, and 8 of data that is everybody's.
fn with_data(own: u64) -> Holding {
    let (owner, url) = ("app:a".to_string(), "s3://b/k".to_string());
    Holding { own, data: vec![Datum { owner, url, version: None, bytes: 8, is_maker: false }] }
}

#[test]
fn data_that_several_have_is_granted_once_and_given_back_by_the_last() {
    let mut scenario = Scenario::new(Some(12));
    for service in 1..=4 {
        scenario.ledger.claim(GPU, (service, 1), with_data(1));
    }
    let all: Vec<Step> = (1..=4).map(|service| Step::Grant((service, 1))).collect();
    assert_eq!(scenario.step(&[]), all);
    assert_eq!(scenario.ledger.used()[GPU], 12);
    let shown: Vec<_> = (1..=4).map(|service| scenario.ledger.bytes((service, 1))).collect();
    assert_eq!(shown, [Some(9), Some(1), Some(1), Some(1)], "their sum is what is used");
    assert_eq!(scenario.ledger.frees((1, 1)), 1, "others have its data too");
    scenario.ledger.claim(GPU, (5, 1), 3);
    assert_eq!(scenario.step(&[]), []);
    for service in 1..=3 {
        scenario.ledger.gone((service, 1));
    }
    assert_eq!((scenario.ledger.used()[GPU], scenario.ledger.frees((4, 1))), (9, 9));
    assert_eq!(scenario.step(&[]), [Step::Grant((5, 1))]);
    scenario.ledger.gone((4, 1));
    assert_eq!(scenario.ledger.used()[GPU], 3);
}

#[test]
fn a_tenant_has_its_data_once_and_no_instance_more_than_all_of_it() {
    let mut scenario = Scenario::new(None);
    for service in 1..=2 {
        scenario.ledger.shares.join(service, "t");
    }
    scenario.ledger.shares.set("t", TenantLimit { bytes: Some(10), instances: None });
    scenario.ledger.claim(GPU, (1, 1), with_data(1));
    scenario.ledger.claim(GPU, (2, 1), with_data(1));
    assert_eq!(scenario.step(&[]), [Step::Grant((1, 1)), Step::Grant((2, 1))]);
    assert_eq!(scenario.ledger.tally("t").bytes, 10);
    scenario.ledger.claim(GPU, (1, 2), with_data(3));
    let steps = scenario.step(&[]);
    assert!(matches!(&steps[..], [Step::Fail((1, 2), why)] if why.contains("it needs")), "{steps:?}");
}
