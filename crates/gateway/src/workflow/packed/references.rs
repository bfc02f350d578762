//! The arrays that a value has by reference.

use super::{DEPTH, FROZEN_SET, MessageError, Packed, Result, TUPLE, Walk};

const REFERENCE: i8 = 8;

/// An array that was handed on: `[name, type, [sizes], given]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub name: String,
    /// It was put for this call or for those who take this result, and for nobody else.
    pub is_given: bool,
}

impl Packed {
    pub fn references(&self) -> Result<Vec<Reference>> {
        let mut found = Vec::new();
        collect(&mut Walk { tree: &self.value, at: 0 }, &mut found, DEPTH)?;
        Ok(found)
    }
}

fn collect(walk: &mut Walk<'_>, found: &mut Vec<Reference>, depth: usize) -> Result<()> {
    let depth = depth.checked_sub(1).ok_or(MessageError::Deep)?;
    if walk.at == walk.tree.len() {
        return Ok(());
    }
    if let Some((code, inside)) = walk.clone().extension()? {
        let mut content = Walk { tree: &walk.tree[..inside.end], at: inside.start };
        match code {
            REFERENCE => found.push(reference(&mut content)?),
            TUPLE..=FROZEN_SET => collect(&mut content, found, depth)?,
            _ => {}
        }
        walk.at = inside.end;
        return Ok(());
    }
    for _ in 0..walk.one()? {
        collect(walk, found, depth)?;
    }
    Ok(())
}

fn reference(content: &mut Walk<'_>) -> Result<Reference> {
    if content.list()? != 4 {
        return Err(MessageError::Other("a reference's four values"));
    }
    let name = String::from_utf8_lossy(content.text()?).into_owned();
    content.skip(DEPTH)?;
    content.skip(DEPTH)?;
    Ok(Reference { name, is_given: content.byte()? == 0xc3 })
}
