//! Declared data that an image has among its buffers ([docs/image-format.md]: the part `declared-data`).
//!
//! [docs/image-format.md]: ../../../../docs/image-format.md

use rekindle_protocol::data::Version;
use rekindle_store::{Image, PartKind};
use serde::Deserialize;

use crate::error::Result;

const PART: &str = "declared-data";
const MOST_BYTES: u64 = 64 << 20;

/// One object, as far as it matters here.
#[derive(Deserialize)]
pub struct Row {
    pub bytes: u64,
    pub url: String,
    pub version: Version,
    /// Its program writes to it, and so has it alone.
    #[serde(default)]
    write: Option<serde::de::IgnoredAny>,
}

/// What its program shares with others. What cannot be read is for the worker to refuse.
pub fn read(image: &Image) -> Result<Vec<Row>> {
    let mut all = Vec::new();
    for half in image.halves()? {
        let part = half.part(PartKind::WorkerState, PART).filter(|part| part.bytes <= MOST_BYTES);
        let Some(part) = part else { continue };
        let mut text = vec![0; part.bytes as usize];
        half.read_part(part, 0, &mut text)?;
        let rows: Vec<Row> = serde_json::from_slice(&text).unwrap_or_default();
        all.extend(rows.into_iter().filter(|row| row.write.is_none()));
    }
    Ok(all)
}
