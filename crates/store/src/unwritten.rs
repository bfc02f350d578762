//! Which buffers programs that were restored from an image have left as they were.

use serde::{Deserialize, Serialize};

use crate::advice::{self, UNWRITTEN};
use crate::error::Result;
use crate::image::Image;

#[derive(Serialize, Deserialize)]
struct Unwritten {
    /// Names of parts of GPU memory.
    parts: Vec<String>,
}

impl Image {
    /// Names of parts that no restored program was seen to write to; none if nobody has looked yet.
    pub fn unwritten(&self) -> Result<Option<Vec<String>>> {
        Ok(advice::read::<Unwritten>(self, UNWRITTEN)?.map(|found| found.parts))
    }

    /// Keeps those of the parts that no other program was seen to write to before. Their number.
    pub fn learn_unwritten(&self, seen: &[String]) -> Result<usize> {
        let _turn = advice::lock(self)?;
        let mut parts = seen.to_vec();
        // A list that is damaged is as good as none.
        if let Ok(Some(before)) = self.unwritten() {
            parts.retain(|name| before.contains(name));
        }
        let count = parts.len();
        self.write_unwritten(parts)?;
        Ok(count)
    }

    /// Keeps these, in place of what was known before.
    pub fn set_unwritten(&self, parts: &[String]) -> Result<()> {
        let _turn = advice::lock(self)?;
        self.write_unwritten(parts.to_vec())
    }

    fn write_unwritten(&self, mut parts: Vec<String>) -> Result<()> {
        parts.sort_unstable();
        advice::write(self, UNWRITTEN, &Unwritten { parts })
    }
}
