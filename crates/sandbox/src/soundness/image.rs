//! One of CRIU's images: magic numbers, then entries, each with its length before it and its fields after that.

use super::Result;
use crate::pages::image::{COMMON, HEAD, take_entry};
use crate::proto::{Value, field};

/// How an image is read through.
pub enum Form {
    Entries,
    /// Entries, each with so many bytes behind it as its field 2 says.
    Payloads,
    /// By what it belongs to.
    Apart,
}

/// A kind of image.
pub struct ImageKind {
    stem: &'static str,
    /// Whether a number follows the stem.
    numbered: bool,
    magic: u32,
    pub form: Form,
}

impl ImageKind {
    const fn one(stem: &'static str, magic: u32, form: Form) -> ImageKind {
        ImageKind { stem, numbered: false, magic, form }
    }

    const fn many(stem: &'static str, magic: u32, form: Form) -> ImageKind {
        ImageKind { stem, numbered: true, magic, form }
    }

    pub fn is(&self, name: &str) -> bool {
        let rest = name.strip_suffix(".img").and_then(|name| name.strip_prefix(self.stem));
        match rest {
            Some(rest) if self.numbered => {
                let number = rest.strip_prefix('-').unwrap_or_default();
                !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_hexdigit())
            }
            rest => rest == Some(""),
        }
    }
}

/// As CRIU's `image-desc.c` and `magic.h` have them.
pub const KNOWN: [ImageKind; 33] = [
    ImageKind::one("inventory", 0x5831_3116, Form::Apart),
    ImageKind::one("pstree", 0x5027_3030, Form::Apart),
    ImageKind::one("files", 0x5630_3138, Form::Apart),
    ImageKind::one("remap-fpath", 0x5913_3954, Form::Apart),
    ImageKind::many("fdinfo", 0x5621_3732, Form::Apart),
    ImageKind::many("pagemap", 0x5608_4025, Form::Apart),
    ImageKind::many("pagemap-shmem", 0x5608_4025, Form::Apart),
    ImageKind::many("pagemap-populate", 0x5608_4025, Form::Apart),
    ImageKind::many("core", 0x5505_3847, Form::Apart),
    ImageKind::many("ids", 0x5443_2030, Form::Apart),
    ImageKind::many("mm", 0x5749_2820, Form::Apart),
    ImageKind::many("fs", 0x5140_3912, Form::Apart),
    ImageKind::many("ghost-file", 0x5258_3605, Form::Apart),
    ImageKind::one("eventpoll-tfd", 0x4443_3746, Form::Entries),
    ImageKind::one("pipes-data", 0x5645_3709, Form::Payloads),
    ImageKind::one("fifo-data", 0x5933_3054, Form::Payloads),
    ImageKind::one("sk-queues", 0x5626_4026, Form::Payloads),
    ImageKind::one("tty-info", 0x5945_3036, Form::Entries),
    ImageKind::one("filelocks", 0x5432_3616, Form::Entries),
    ImageKind::one("inotify-wd", 0x5420_2009, Form::Entries),
    ImageKind::one("fanotify-mark", 0x5650_6035, Form::Entries),
    ImageKind::one("cgroup", 0x5938_3330, Form::Entries),
    ImageKind::one("seccomp", 0x6441_3049, Form::Entries),
    ImageKind::one("cpuinfo", 0x6140_4013, Form::Entries),
    ImageKind::many("utsns", 0x5447_3203, Form::Entries),
    ImageKind::many("ipcns-var", 0x5311_5007, Form::Entries),
    ImageKind::many("mountpoints", 0x5556_3928, Form::Entries),
    ImageKind::many("netdev", 0x5737_3951, Form::Entries),
    ImageKind::many("netns", 0x5593_3752, Form::Entries),
    ImageKind::many("userns", 0x5547_4906, Form::Entries),
    ImageKind::many("timens", 0x4311_4433, Form::Entries),
    ImageKind::many("pidns", 0x6115_7326, Form::Entries),
    ImageKind::many("rlimit", 0x5711_3925, Form::Entries),
];

/// The entries of an image whose magic numbers are right.
pub fn entries<'a>(name: &'a str, text: &'a [u8]) -> Result<Entries<'a>> {
    let known = KNOWN.iter().find(|known| known.is(name));
    let known = known.ok_or_else(|| format!("{name} is no image of CRIU's that is known"))?;
    let word =
        |at: usize| text.get(at..at + 4).and_then(|word| Some(u32::from_le_bytes(word.try_into().ok()?)));
    // The inventory says whether the others have the common number.
    let head = if known.stem == "inventory" { 4 } else { HEAD };
    let is_right = (head < HEAD || word(0) == Some(COMMON)) && word(head - 4) == Some(known.magic);
    if !is_right {
        return Err(format!("{name} does not begin as such an image of CRIU's does"));
    }
    Ok(Entries { name, rest: &text[head..], payloads: matches!(known.form, Form::Payloads), number: 0 })
}

pub struct Entries<'a> {
    name: &'a str,
    rest: &'a [u8],
    payloads: bool,
    number: usize,
}

impl<'a> Entries<'a> {
    /// The next entry's bytes, and what is behind it.
    fn take(&mut self) -> Option<Entry<'a>> {
        let text = take_entry(&mut self.rest)?;
        self.number += 1;
        Some(Entry { name: self.name, number: self.number, text })
    }

    /// The bytes after the last entry that was taken.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn skip_payload(&mut self, entry: &Entry<'_>) -> Result<Option<()>> {
        const LENGTH: u64 = 2;
        let length = usize::try_from(entry.number(LENGTH)?.unwrap_or(0)).unwrap_or(usize::MAX);
        let Some(rest) = self.rest.get(length..) else { return Ok(None) };
        self.rest = rest;
        Ok(Some(()))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let (name, number) = (self.name, self.number + 1);
        let cut = || format!("{name} ends in the middle of entry {number}");
        let read = self.take().ok_or_else(cut).and_then(|entry| {
            entry.read_through()?;
            match self.payloads {
                true => self.skip_payload(&entry)?.ok_or_else(cut).map(|()| entry),
                false => Ok(entry),
            }
        });
        if read.is_err() {
            self.rest = &[];
        }
        Some(read)
    }
}

/// One entry, or a message within one.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    name: &'a str,
    number: usize,
    pub text: &'a [u8],
}

impl<'a> Entry<'a> {
    fn strange(&self) -> String {
        format!("entry {} of {} is no protocol buffer", self.number, self.name)
    }

    fn read_through(&self) -> Result<()> {
        self.each(|_, _| Ok(()))
    }

    /// Calls `take` with each field.
    pub fn each(&self, mut take: impl FnMut(u64, Value<'a>) -> Result<()>) -> Result<()> {
        let mut rest = self.text;
        while !rest.is_empty() {
            let (number, value) = field(&mut rest).ok_or_else(|| self.strange())?;
            take(number, value)?;
        }
        Ok(())
    }

    /// The number in a field, the last if there are several, as readers of protocol buffers have it.
    pub fn number(&self, of: u64) -> Result<Option<u64>> {
        Ok(self.numbers([of])?[0])
    }

    /// The numbers in fields.
    pub fn numbers<const N: usize>(&self, of: [u64; N]) -> Result<[Option<u64>; N]> {
        let mut found = [None; N];
        self.each(|number, value| {
            if let Some(at) = of.iter().position(|of| *of == number) {
                match value {
                    Value::Number(value) => found[at] = Some(value),
                    _ => return Err(self.strange()),
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The numbers in fields that must be there.
    pub fn needed<const N: usize>(&self, of: [u64; N]) -> Result<[u64; N]> {
        let found = self.numbers(of)?;
        let mut all = [0; N];
        for (at, value) in found.into_iter().enumerate() {
            all[at] = value.ok_or_else(|| {
                format!("entry {} of {} lacks its field {}", self.number, self.name, of[at])
            })?;
        }
        Ok(all)
    }

    /// The message in a field.
    pub fn message(&self, of: u64) -> Result<Option<Entry<'a>>> {
        let found = self.bytes(of)?;
        let message = found.map(|text| Entry { text, ..*self });
        message.iter().try_for_each(Entry::read_through)?;
        Ok(message)
    }

    /// The bytes in a field.
    pub fn bytes(&self, of: u64) -> Result<Option<&'a [u8]>> {
        let mut found = None;
        self.each(|number, value| {
            if number == of {
                match value {
                    Value::Bytes(text) => found = Some(text),
                    _ => return Err(self.strange()),
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// A message in a field that was met.
    pub fn within(&self, text: &'a [u8]) -> Entry<'a> {
        Entry { text, ..*self }
    }
}
