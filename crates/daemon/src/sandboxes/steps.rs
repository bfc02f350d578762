//! The steps of a program, as it tells them itself.
//!
//! Nothing that is open tells a step, so that an image may be taken at any moment: by Rekindle's own file the program tells
//! the number as the file's size, which it sets by name (`rekindle.step()`); of a file of the program's each change is one.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rekindle_protocol::client::STEPS;
use rekindle_protocol::daemon::StepPlan;
use rekindle_sandbox::RUN_PATH;

/// Sees when as many steps are done as are wanted between two images.
#[derive(Debug)]
pub struct Steps {
    every: u64,
    /// As the program sees it.
    file: PathBuf,
    counts: Counts,
    /// Steps when an image was last due.
    last: u64,
}

#[derive(Debug)]
enum Counts {
    /// The file's size.
    Size,
    /// The file's changes: how many were seen, and what it was like then.
    Changes { seen: u64, last: Option<(i64, i64, u64)> },
}

impl Steps {
    /// The program has done `last` steps. `directory` is its working directory, and `root` its root as the host sees it.
    pub fn new(plan: &StepPlan, last: u64, directory: &Path, root: &Path) -> Steps {
        let own = || Path::new(RUN_PATH).join(STEPS);
        let file = plan.file.as_ref().map_or_else(own, |file| directory.join(file));
        let counts = match &plan.file {
            None => Counts::Size,
            Some(_) => Counts::Changes { seen: last, last: look(root, &file).map(|now| state(&now)) },
        };
        Steps { every: plan.every.max(1), file, counts, last }
    }

    /// The number of steps, if an image is due.
    pub fn are_due(&mut self, root: &Path) -> Option<u64> {
        let now = look(root, &self.file)?;
        let count = match &mut self.counts {
            Counts::Size => now.len(),
            Counts::Changes { seen, last } => {
                let now = Some(state(&now));
                *seen += u64::from(*last != now);
                *last = now;
                *seen
            }
        };
        let is_due = count / self.every > self.last / self.every;
        // A program may begin to count anew.
        if is_due || count < self.last {
            self.last = count;
        }
        is_due.then_some(count)
    }
}

fn look(root: &Path, file: &Path) -> Option<Metadata> {
    fs::metadata(root.join(file.strip_prefix("/").unwrap_or(file))).ok()
}

fn state(of: &Metadata) -> (i64, i64, u64) {
    (of.mtime(), of.mtime_nsec(), of.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(root: &Path, count: u64) {
        let file = root.join("run/rekindle").join(STEPS);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::File::create(file).unwrap().set_len(count).unwrap();
    }

    #[test]
    fn an_image_is_due_after_so_many_steps() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let plan = StepPlan { every: 3, file: None };
        let mut steps = Steps::new(&plan, 0, Path::new("/"), root);
        assert_eq!(steps.are_due(root), None);
        let due = |steps: &mut Steps, count| {
            told(root, count);
            steps.are_due(root).is_some()
        };
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 6, 11].map(|count| due(&mut steps, count)),
            [false, false, false, true, false, false, true, false, true]
        );
        // The program started anew.
        assert_eq!([1, 2, 3].map(|count| due(&mut steps, count)), [false, false, true]);
        // Brought back from an image of step 9.
        let mut back = Steps::new(&plan, 9, Path::new("/"), root);
        assert_eq!([10, 11, 12].map(|count| due(&mut back, count)), [false, false, true]);
        let mut each = Steps::new(&StepPlan { every: 1, file: None }, 0, Path::new("/"), root);
        assert_eq!([1, 1, 2].map(|count| due(&mut each, count)), [true, false, true]);
    }

    #[test]
    fn each_change_of_a_file_is_a_step() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::create_dir(root.join("work")).unwrap();
        let file = root.join("work/log");
        fs::write(&file, "from before").unwrap();
        let plan = StepPlan { every: 2, file: Some("log".into()) };
        let mut steps = Steps::new(&plan, 0, Path::new("/work"), root);
        let mut change = |text: &str| {
            fs::write(&file, text).unwrap();
            steps.are_due(root)
        };
        assert_eq!(["a", "ab", "abc", "abcd"].map(&mut change), [None, Some(2), None, Some(4)]);
        assert_eq!(steps.are_due(root), None);
        fs::remove_file(&file).unwrap();
        assert_eq!(steps.are_due(root), None);
    }
}
