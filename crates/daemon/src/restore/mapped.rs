//! The page files that a restored program maps, read whole beside it.
//!
//! ```text
//! restore  a glance at each file ─ the program runs ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▶ goes on, or is ended
//! check                            pages that it touches first ─ all others ─ sound or damaged ─┘
//! ```
//!
//! One thread reads, and gives way to all others. What does not match ends the program, and its sandbox says which image
//! and which file is to blame. What was found whole is not read again. The program's own links of the files
//! are read, so the image need not be held and may be removed meanwhile.

use std::sync::Arc;

use rekindle_protocol::worker::Phase;

use crate::error::Error;
use crate::images::verify::page_files::{First, Mapped, check};
use crate::sandboxes::{Sandbox, traces};
use crate::timeline::{Clock, PAGES};

/// The phase of a trace.
const PHASE: &str = "check what is mapped";

/// Checks what a program that runs maps, on threads of its own.
pub fn follow(sandbox: &Arc<Sandbox>, files: Vec<Mapped>, first: First, clock: Option<Clock>) {
    if files.is_empty() {
        return;
    }
    let sandbox = sandbox.clone();
    std::thread::spawn(move || {
        let began_us = clock.map(|clock| clock.elapsed_us());
        let (bytes, checked) = match check(files, &first, sandbox.record().image.as_deref()) {
            Ok(None) => return,
            Ok(Some(bytes)) => (bytes, Ok(())),
            Err(error) => (0, Err(error)),
        };
        if let (Some(clock), Some(start_us)) = (clock, began_us) {
            let duration_us = clock.elapsed_us() - start_us;
            let (lane, name) = (PAGES.to_string(), PHASE.to_string());
            let phase = Phase { lane, name, start_us, duration_us, bytes, ..Phase::default() };
            traces::extend(&sandbox.traces, [phase]);
        }
        if let Err(error) = checked {
            end(&sandbox, &error);
        }
    });
}

fn end(sandbox: &Sandbox, error: &Error) {
    let image = sandbox.record().image.unwrap_or_default();
    let what = if sandbox.is_live() {
        "the program was ended"
    } else {
        "the program had ended before that was seen"
    };
    sandbox.report_problem_if_known(format!("memory of image {image:?} is damaged, and {what}: {error}"));
    if let Ok(cpu) = sandbox.cpu("ended")
        && let Err(error) = cpu.kill()
    {
        log::error!("a program whose memory is damaged was not ended: {error}");
    }
}
