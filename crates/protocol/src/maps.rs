//! The areas of a process's memory, from `/proc/PID/maps`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// What the kernel adds to the name of a file that is deleted.
const GONE: &[u8] = b" (deleted)";

/// One area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// Addresses, bytes.
    pub span: Range<u64>,
    /// As `mprotect` takes it.
    pub protection: i32,
    pub is_shared: bool,
    /// Where in its file it begins, bytes.
    pub offset: u64,
    /// Of its file; 0 without one.
    pub inode: u64,
    /// A path, a name in brackets, or nothing; as the kernel writes it.
    pub name: Vec<u8>,
}

impl Area {
    /// The path of its file, if that still has the name.
    pub fn path(&self) -> Option<PathBuf> {
        let has_path = self.inode != 0 && self.name.starts_with(b"/") && !self.is_deleted();
        has_path.then(|| PathBuf::from(OsString::from_vec(unescaped(&self.name))))
    }

    pub fn is_deleted(&self) -> bool {
        self.name.ends_with(GONE)
    }

    /// Private memory without a file.
    pub fn is_anonymous(&self) -> bool {
        !self.is_shared && self.inode == 0
    }

    pub fn may(&self, protection: i32) -> bool {
        self.protection & protection == protection
    }

    fn parse(line: &[u8]) -> Option<Area> {
        let mut fields = Fields(line);
        let (start, end) = fields.text()?.split_once('-')?;
        let rights = fields.text()?.as_bytes();
        let bits = [(b'r', libc::PROT_READ), (b'w', libc::PROT_WRITE), (b'x', libc::PROT_EXEC)];
        let protection = bits.iter().filter(|(flag, _)| rights.contains(flag)).map(|(_, bit)| bit).sum();
        let offset = number(fields.text()?)?;
        let _device = fields.text()?;
        let inode = fields.text()?.parse().ok()?;
        let span = number(start)?..number(end)?;
        Some(Area {
            span,
            protection,
            is_shared: rights.get(3) == Some(&b's'),
            offset,
            inode,
            name: fields.rest(),
        })
    }
}

/// Words between spaces.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn text(&mut self) -> Option<&'a str> {
        self.0 = self.0.trim_ascii_start();
        let end = self.0.iter().position(|&byte| byte == b' ').unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        std::str::from_utf8(word).ok().filter(|word| !word.is_empty())
    }

    /// A name may have spaces, at its end too.
    fn rest(self) -> Vec<u8> {
        self.0.trim_ascii_start().to_vec()
    }
}

fn number(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

/// The kernel writes a newline in a path as `\012`.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        if rest.starts_with(b"\\012") {
            out.push(b'\n');
            rest = &rest[4..];
        } else {
            out.push(byte);
            rest = after;
        }
    }
    out
}

/// All areas of a process, in order.
pub fn of(pid: i32) -> io::Result<Vec<Area>> {
    fs::read(format!("/proc/{pid}/maps")).map(|text| parse(&text))
}

/// Those of this process.
pub fn own() -> io::Result<Vec<Area>> {
    fs::read("/proc/self/maps").map(|text| parse(&text))
}

/// As [`of`]; none of a process that is gone or may not be looked at.
pub fn if_there(pid: i32) -> Vec<Area> {
    of(pid).unwrap_or_default()
}

/// The areas in the contents of a `maps` file.
pub fn parse(text: &[u8]) -> Vec<Area> {
    text.split(|&byte| byte == b'\n').filter_map(Area::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_has_all_that_its_line_says() {
        let text = b"7f00-8f00 r-xs 00001000 00:01 7  /memfd:a b (deleted)\n\
            55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0 [heap]\n\
            7f52591db000-7f5370000000 rw-p 00000000 00:00 0 \n\
            7f00-7f01 rw-p 00000000 fe:00 78   /tmp/a\\012b \n\
            nonsense\n7f00 rw-p 0 0 0\n";
        let found = parse(text);
        assert_eq!(found.len(), 4);
        let first = Area {
            span: 0x7f00..0x8f00,
            protection: libc::PROT_READ | libc::PROT_EXEC,
            is_shared: true,
            offset: 0x1000,
            inode: 7,
            name: b"/memfd:a b (deleted)".to_vec(),
        };
        assert_eq!(found[0], first);
        assert!(found[0].is_deleted() && found[0].path().is_none() && !found[0].is_anonymous());
        assert!(found[1].is_anonymous() && found[1].name == b"[heap]" && found[1].path().is_none());
        assert!(found[2].name.is_empty() && found[2].may(libc::PROT_READ | libc::PROT_WRITE));
        assert_eq!(found[3].path(), Some(PathBuf::from("/tmp/a\nb ")));
    }

    #[test]
    fn this_process_has_its_code_in_its_file() {
        let here = this_process_has_its_code_in_its_file as *const () as u64;
        let areas = of(std::process::id() as i32).unwrap();
        let area = areas.iter().find(|area| area.span.contains(&here)).unwrap();
        assert!(area.may(libc::PROT_EXEC) && area.path() == std::env::current_exe().ok());
        assert!(if_there(i32::MAX).is_empty());
    }
}
