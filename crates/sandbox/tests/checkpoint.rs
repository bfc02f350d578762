//! Whole programs through start, dump and restore, with a real CRIU.

mod support;

use rekindle_sandbox::{Error, Frozen};
use support::{Running, able, images};

fn nothing(_: &Frozen<'_>) -> Result<(), Error> {
    Ok(())
}

#[test]
fn a_dumped_and_ended_program_goes_on_where_it_was() {
    if !able() {
        return;
    }
    let mut first = Running::start();
    let before = first.ask("state");
    assert_eq!(before["pid"], 1000);
    let inode = first.socket_inode();
    let (_keep, dir) = images();
    let report = first.dump(&dir, false, nothing).unwrap();
    eprintln!("{report:?}");
    assert!(report.stats.pages_written > 100);
    let (mut second, report) = Running::restore(&dir, inode).unwrap();
    eprintln!("{report:?}");
    let after = second.ask("state");
    eprintln!("{after}");
}
