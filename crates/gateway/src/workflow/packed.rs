//! Values as functions send them to each other, taken apart and put together without looking at what they mean.
//!
//! ```text
//!  "RKM1"  size of the tree (u32)  tree ┄ array ┄ array ┄      each ┄ fills up to a multiple of 64 bytes
//!  tree = [value, [bytes of each array]]
//! ```
//!
//! Values are msgpack. An array in one is an extension that has the array's place among those of the message: that is all
//! that changes when a value comes into another message. What a number, a text or a reference says is for functions.

mod references;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::pieces::Pieces;

const MAGIC: &[u8; 4] = b"RKM1";
const HEAD: usize = 8;
const ALIGNMENT: usize = 64;
/// How deep values may be nested: the gateway's thread has its stack for all of them.
const DEPTH: usize = 256;

/// Extensions of msgpack: those that have an array's place, and those that have values.
const ARRAY: i8 = 0;
const SCALAR: i8 = 1;
const ON_GPU: i8 = 9;
const TUPLE: i8 = 2;
const FROZEN_SET: i8 = 4;

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("{0} bytes are no whole message of Rekindle's functions; send one, as the package rekindle does")]
    NoMessage(usize),
    #[error("a value of a message ends too early")]
    Short,
    #[error("a message has something behind its values")]
    Long,
    #[error("a message has the array {0}, of {1}")]
    NoArray(u64, usize),
    #[error("a message has a byte 0x{0:02x} where a value is to begin")]
    Unknown(u8),
    #[error("a message has values that are nested more than {DEPTH} deep")]
    Deep,
    #[error("a message has something else where {0} is to be")]
    Other(&'static str),
    #[error("a value has more than 4 GiB, or more than 2^32 elements")]
    Large,
}

type Result<T> = std::result::Result<T, MessageError>;

/// A value with its arrays.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    value: Bytes,
    /// Those of the message that it came in, whether they are the value's or not.
    arrays: Arc<[Bytes]>,
}

impl Packed {
    /// The value of a message.
    pub fn read(message: &Bytes) -> Result<Packed> {
        let no_message = || MessageError::NoMessage(message.len());
        let Some([b'R', b'K', b'M', b'1', size @ ..]) = message.get(..HEAD) else { return Err(no_message()) };
        let size = u32::from_le_bytes([size[0], size[1], size[2], size[3]]) as usize;
        let tree = message.get(HEAD..HEAD + size).ok_or_else(no_message)?;
        let mut walk = Walk { tree, at: 0 };
        if walk.list()? != 2 {
            return Err(MessageError::Other("a pair"));
        }
        let begin = walk.at;
        walk.skip(DEPTH)?;
        let value = message.slice(HEAD + begin..HEAD + walk.at);
        let (mut arrays, mut end) = (Vec::new(), HEAD + size);
        for _ in 0..walk.list()? {
            let length = usize::try_from(walk.number()?).map_err(|_| no_message())?;
            let start = end.next_multiple_of(ALIGNMENT);
            end = start.checked_add(length).filter(|end| *end <= message.len()).ok_or_else(no_message)?;
            arrays.push(message.slice(start..end));
        }
        if walk.at != tree.len() || end != message.len() {
            return Err(MessageError::Long);
        }
        Ok(Packed { value, arrays: arrays.into() })
    }

    /// The elements of a list or a tuple.
    pub fn elements(&self) -> Result<Vec<Packed>> {
        let mut walk = Walk { tree: &self.value, at: 0 };
        if let Some((TUPLE, inside)) = walk.clone().extension()? {
            walk = Walk { tree: &self.value[..inside.end], at: inside.start };
        }
        let count = walk.list()?;
        // The first says how many there are to be; how many there are, their bytes.
        let mut elements = Vec::new();
        for _ in 0..count {
            let begin = walk.at;
            walk.skip(DEPTH)?;
            elements.push(self.part(begin..walk.at));
        }
        Ok(elements)
    }

    /// The values of a dictionary whose keys are text.
    pub fn fields(&self) -> Result<Vec<(String, Packed)>> {
        let mut walk = Walk { tree: &self.value, at: 0 };
        let mut fields = Vec::new();
        for _ in 0..walk.map()? {
            let key = String::from_utf8_lossy(walk.text()?).into_owned();
            let begin = walk.at;
            walk.skip(DEPTH)?;
            fields.push((key, self.part(begin..walk.at)));
        }
        Ok(fields)
    }

    pub fn is_true(&self) -> bool {
        *self.value == [0xc3]
    }

    fn part(&self, range: Range<usize>) -> Packed {
        Packed { value: self.value.slice(range), arrays: self.arrays.clone() }
    }
}

/// Puts a value together.
#[derive(Debug, Default)]
pub struct Writer {
    tree: Vec<u8>,
    arrays: Vec<Bytes>,
}

impl Writer {
    /// So many values come next, which are a list.
    pub fn list(&mut self, count: usize) -> Result<()> {
        header(&mut self.tree, count, 0x90, 15, [0xdc, 0xdd])
    }

    /// So many pairs come next, which are a dictionary: keys and values.
    pub fn map(&mut self, count: usize) -> Result<()> {
        header(&mut self.tree, count, 0x80, 15, [0xde, 0xdf])
    }

    /// A short one.
    pub fn text(&mut self, text: &str) -> Result<()> {
        header(&mut self.tree, text.len(), 0xa0, 31, [0xda, 0xdb])?;
        self.tree.extend_from_slice(text.as_bytes());
        Ok(())
    }

    pub fn number(&mut self, number: u64) {
        write_number(&mut self.tree, number);
    }

    pub fn real(&mut self, number: f64) {
        self.tree.push(0xcb);
        self.tree.extend_from_slice(&number.to_be_bytes());
    }

    pub fn boolean(&mut self, value: bool) {
        self.tree.push(0xc2 + u8::from(value));
    }

    pub fn none(&mut self) {
        self.tree.push(0xc0);
    }

    pub fn value(&mut self, packed: &Packed) -> Result<()> {
        let mut walk = Walk { tree: &packed.value, at: 0 };
        copy(&mut walk, &mut self.tree, (&packed.arrays, &mut self.arrays), DEPTH)
    }

    /// All of it as one value, for other messages.
    pub fn packed(self) -> Packed {
        Packed { value: self.tree.into(), arrays: self.arrays.into() }
    }

    /// All of it as a message.
    pub fn message(self) -> Result<Pieces> {
        let mut sizes = Vec::new();
        header(&mut sizes, self.arrays.len(), 0x90, 15, [0xdc, 0xdd])?;
        self.arrays.iter().for_each(|array| write_number(&mut sizes, array.len() as u64));
        let size = u32::try_from(1 + self.tree.len() + sizes.len()).map_err(|_| MessageError::Large)?;
        let mut head = Vec::with_capacity(HEAD + size as usize);
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&size.to_le_bytes());
        head.push(0x92);
        head.extend_from_slice(&self.tree);
        head.extend_from_slice(&sizes);
        let mut end = head.len();
        let mut pieces = Pieces::from(Bytes::from(head));
        for array in self.arrays {
            static ZEROS: [u8; ALIGNMENT] = [0; ALIGNMENT];
            let start = end.next_multiple_of(ALIGNMENT);
            pieces.push(Bytes::from_static(&ZEROS[..start - end]));
            end = start + array.len();
            pieces.push(array);
        }
        Ok(pieces)
    }
}

/// Copies the next value, with the places that its arrays have among `to`, where they are added.
fn copy(
    walk: &mut Walk<'_>,
    out: &mut Vec<u8>,
    (from, to): (&[Bytes], &mut Vec<Bytes>),
    depth: usize,
) -> Result<()> {
    let depth = depth.checked_sub(1).ok_or(MessageError::Deep)?;
    if let Some((code, inside)) = walk.clone().extension()? {
        let mut content = Walk { tree: &walk.tree[..inside.end], at: inside.start };
        let mut made = Vec::new();
        match code {
            ARRAY | SCALAR | ON_GPU => {
                let count = content.list()?;
                header(&mut made, count, 0x90, 15, [0xdc, 0xdd])?;
                let place = content.number()?;
                let array = usize::try_from(place).ok().and_then(|place| from.get(place));
                write_number(&mut made, to.len() as u64);
                to.push(array.ok_or(MessageError::NoArray(place, from.len()))?.clone());
                made.extend_from_slice(&content.tree[content.at..]);
            }
            TUPLE..=FROZEN_SET => copy(&mut content, &mut made, (from, to), depth)?,
            _ => made.extend_from_slice(&content.tree[content.at..]),
        }
        write_extension(out, code, &made)?;
        walk.at = inside.end;
        return Ok(());
    }
    let begin = walk.at;
    let children = walk.one()?;
    out.extend_from_slice(&walk.tree[begin..walk.at]);
    for _ in 0..children {
        copy(walk, out, (from, to), depth)?;
    }
    Ok(())
}

fn header(out: &mut Vec<u8>, count: usize, small: u8, most: usize, [two, four]: [u8; 2]) -> Result<()> {
    if count <= most {
        out.push(small | count as u8);
    } else if let Ok(count) = u16::try_from(count) {
        out.push(two);
        out.extend_from_slice(&count.to_be_bytes());
    } else {
        out.push(four);
        out.extend_from_slice(&u32::try_from(count).map_err(|_| MessageError::Large)?.to_be_bytes());
    }
    Ok(())
}

fn write_number(out: &mut Vec<u8>, number: u64) {
    if number < 0x80 {
        out.push(number as u8);
    } else {
        out.push(0xcf);
        out.extend_from_slice(&number.to_be_bytes());
    }
}

fn write_extension(out: &mut Vec<u8>, code: i8, content: &[u8]) -> Result<()> {
    let size = u32::try_from(content.len()).map_err(|_| MessageError::Large)?;
    out.push(0xc9);
    out.extend_from_slice(&size.to_be_bytes());
    out.push(code as u8);
    out.extend_from_slice(content);
    Ok(())
}

/// Goes through msgpack.
#[derive(Clone)]
struct Walk<'m> {
    tree: &'m [u8],
    at: usize,
}

impl<'m> Walk<'m> {
    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn take(&mut self, count: usize) -> Result<&'m [u8]> {
        let end = self.at.checked_add(count).ok_or(MessageError::Short)?;
        let taken = self.tree.get(self.at..end).ok_or(MessageError::Short)?;
        self.at = end;
        Ok(taken)
    }

    /// A number of so many bytes, big-endian.
    fn size(&mut self, bytes: usize) -> Result<usize> {
        let number = self.take(bytes)?.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        usize::try_from(number).map_err(|_| MessageError::Large)
    }

    /// Passes one value by but for those in it, which come next: how many they are.
    fn one(&mut self) -> Result<usize> {
        let rest = match self.byte()? {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => 0,
            byte @ 0x80..=0x8f => return Ok(2 * usize::from(byte & 15)),
            byte @ 0x90..=0x9f => return Ok(usize::from(byte & 15)),
            byte @ 0xa0..=0xbf => usize::from(byte & 31),
            0xc4 | 0xd9 => self.size(1)?,
            0xc5 | 0xda => self.size(2)?,
            0xc6 | 0xdb => self.size(4)?,
            0xc7 => self.size(1)? + 1,
            0xc8 => self.size(2)? + 1,
            0xc9 => self.size(4)? + 1,
            0xcc | 0xd0 => 1,
            0xcd | 0xd1 => 2,
            0xca | 0xce | 0xd2 => 4,
            0xcb | 0xcf | 0xd3 => 8,
            byte @ 0xd4..=0xd8 => (1 << (byte - 0xd4)) + 1,
            0xdc => return self.size(2),
            0xdd => return self.size(4),
            0xde => return Ok(2 * self.size(2)?),
            0xdf => return Ok(2 * self.size(4)?),
            byte @ 0xc1 => return Err(MessageError::Unknown(byte)),
        };
        self.take(rest)?;
        Ok(0)
    }

    fn skip(&mut self, depth: usize) -> Result<()> {
        let depth = depth.checked_sub(1).ok_or(MessageError::Deep)?;
        for _ in 0..self.one()? {
            self.skip(depth)?;
        }
        Ok(())
    }

    /// How many elements of a list come next.
    fn list(&mut self) -> Result<usize> {
        match self.byte()? {
            byte @ 0x90..=0x9f => Ok(usize::from(byte & 15)),
            0xdc => self.size(2),
            0xdd => self.size(4),
            _ => Err(MessageError::Other("a list")),
        }
    }

    /// How many pairs come next.
    fn map(&mut self) -> Result<usize> {
        match self.byte()? {
            byte @ 0x80..=0x8f => Ok(usize::from(byte & 15)),
            0xde => self.size(2),
            0xdf => self.size(4),
            _ => Err(MessageError::Other("a dictionary")),
        }
    }

    fn text(&mut self) -> Result<&'m [u8]> {
        let length = match self.byte()? {
            byte @ 0xa0..=0xbf => usize::from(byte & 31),
            0xd9 => self.size(1)?,
            0xda => self.size(2)?,
            0xdb => self.size(4)?,
            _ => return Err(MessageError::Other("a text")),
        };
        self.take(length)
    }

    fn number(&mut self) -> Result<u64> {
        Ok(match self.byte()? {
            byte @ 0x00..=0x7f => byte.into(),
            0xcc => self.size(1)? as u64,
            0xcd => self.size(2)? as u64,
            0xce => self.size(4)? as u64,
            0xcf => self.size(8)? as u64,
            _ => return Err(MessageError::Other("a number")),
        })
    }

    /// The code of an extension, and where its content is; none if something else comes.
    fn extension(&mut self) -> Result<Option<(i8, Range<usize>)>> {
        let length = match self.byte()? {
            0xc7 => self.size(1)?,
            0xc8 => self.size(2)?,
            0xc9 => self.size(4)?,
            byte @ 0xd4..=0xd8 => 1 << (byte - 0xd4),
            _ => return Ok(None),
        };
        let code = self.byte()? as i8;
        let begin = self.at;
        self.take(length)?;
        Ok(Some((code, begin..self.at)))
    }
}
