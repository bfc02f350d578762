//! A program that writes nonsense into its rings harms itself and not the worker's host.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::program::begin;
use common::{Client, Worker, alone};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rekindle_protocol::operation::name;
use rekindle_worker::{Ended, Gpu};

/// How long a worker may take for what a program has asked.
const LIMIT: Duration = Duration::from_secs(1);

fn worker(directory: &Path) -> Worker {
    Worker::start_on(directory, Arc::default(), || {
        Gpu::parse("emulated:memory=128M,threads=1").unwrap().open()
    })
}

#[test]
fn an_unknown_operation_ends_the_worker_with_a_reason() {
    let _alone = alone();
    for (opcode, body) in [(9999, &b""[..]), (0, &b""[..]), (9999, &[0xff; 40][..])] {
        let directory = tempfile::tempdir().unwrap();
        let worker = worker(directory.path());
        let daemon = worker.daemon();
        let (mut client, _) = Client::connect(&worker, &daemon);
        let mut lane = begin(&mut client);
        lane.push_raw(opcode, body, &[]);
        match worker.end() {
            Ended::Failed(problem) => assert!(problem.contains("request"), "{problem}"),
            Ended::Done => panic!("it went on"),
        }
    }
}

#[test]
fn any_request_with_any_contents_is_survived() {
    let _alone = alone();
    let operations = (0..).take_while(|opcode| name(*opcode).is_some()).count() as u32;
    // Numbers as the encoding has them: small ones, addresses in use, and very large ones.
    let number = prop_oneof![
        80 => (0u8..2).prop_map(|byte| vec![byte]),
        4 => (2u8..6).prop_map(|byte| vec![byte]),
        1 => Just(vec![0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x18]),
        1 => Just(vec![0x80, 0x80, 0x80, 0x01]),
        1 => Just(vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
    ];
    let body = proptest::collection::vec(number, 24).prop_map(|numbers| [vec![0], numbers.concat()].concat());
    let request = (0..operations, body, proptest::collection::vec(any::<u8>(), 0..64));
    let program = proptest::collection::vec(request, 1..400);
    let config = Config { cases: 200, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&program, |requests| {
            let directory = tempfile::tempdir().unwrap();
            let worker = worker(directory.path());
            let daemon = worker.daemon();
            let (mut client, _) = Client::connect(&worker, &daemon);
            let mut lane = begin(&mut client);
            let since = Instant::now();
            for (opcode, body, trailer) in requests {
                lane.push_until(opcode, &body, &trailer, || worker.has_ended() || since.elapsed() > LIMIT);
            }
            while !lane.is_drained() && !worker.has_ended() && since.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_millis(1));
            }
            client.die();
            // What could not be decoded may have ended it before.
            let _: Ended = worker.end();
            Ok(())
        })
        .unwrap();
}
