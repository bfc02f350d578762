//! Timers with a period (`timerfd`) that had run out when their program was taken, and were not read yet.
//!
//! The kernel begins the next period of such a timer when the program reads it, and has no time left to tell of until then.
//! CRIU takes that for a timer that is not set: a restored program would be told of the period that was over, and never of
//! another. So the image says that the next one begins with the restore.

use std::io;
use std::path::Path;

use crate::descriptors::{Described, FILES, Timer};
use crate::pages::image::Entries;

/// Has the timers go on that the dump in `images` has.
pub fn wind(images: &Path) -> io::Result<()> {
    let path = images.join(FILES);
    if !path.exists() {
        return Ok(());
    }
    let mut files = Entries::read(&path).map_err(io::Error::other)?;
    if wind_all(&mut files) { files.write(&path) } else { Ok(()) }
}

/// Whether there was one.
fn wind_all(files: &mut Entries) -> bool {
    let mut is_changed = false;
    for file in &mut files.entries {
        if let Some(mut timer) = Timer::of(file)
            && timer.has_run_out()
        {
            timer.begin_period();
            timer.put(file);
            is_changed = true;
        }
    }
    is_changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Message;

    /// One with so many periods over, and seconds and nanoseconds of what is left of this one and of each.
    fn timer(over: u64, left: [u64; 2], each: [u64; 2]) -> Message {
        let mut about = Message::default();
        about.set(1, 9).set(4, 1).set(5, over).set(6, 0);
        about.set(7, left[0]).set(8, left[1]).set(9, each[0]).set(10, each[1]);
        Timer::with(about).entry(9)
    }

    #[test]
    fn those_that_have_run_out_begin_their_period_and_no_others() {
        let mut files = Entries::default();
        let others = [
            timer(0, [0, 5], [1, 7]),
            timer(1, [0, 5], [1, 7]),
            // One that runs out once, and one that is not set.
            timer(1, [0, 0], [0, 0]),
            timer(0, [0, 0], [1, 7]),
            Message::default(),
        ];
        files.entries = others.to_vec();
        assert!(!wind_all(&mut files));
        files.entries.push(timer(3, [0, 0], [1, 7]));
        assert!(wind_all(&mut files));
        assert_eq!(files.entries[..5], others);
        assert_eq!(files.entries[5], timer(3, [1, 7], [1, 7]));
    }
}
