//! Page files being written: where in them each area goes.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::files::Files;
use super::{PageFile, TAIL};

/// Areas lie at the same place within one of these in memory and in the file, as large pages want it.
const ALIGNMENT: u64 = 2 << 20;

/// The first place from `next` on that an area may have.
pub fn place_after(next: u64, span: &Range<u64>) -> u64 {
    let offset = next / ALIGNMENT * ALIGNMENT + span.start % ALIGNMENT;
    if offset < next { offset + ALIGNMENT } else { offset }
}

/// The page files of one process, each made when it is first needed.
pub struct Writers {
    out: PathBuf,
    pid: u32,
    all: Vec<Writer>,
}

pub struct Writer {
    kind: &'static str,
    name: String,
    pub id: u64,
    pub file: File,
    /// Where its last area ends.
    end: u64,
    /// Where its next area may begin: beyond the last one's hole.
    next: u64,
}

impl Writers {
    pub fn new(out: &Path, pid: u32) -> Writers {
        Writers { out: out.to_path_buf(), pid, all: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The file of a kind and the place in it for an area.
    pub fn place(
        &mut self,
        kind: &'static str,
        files: &mut Files,
        span: &Range<u64>,
    ) -> io::Result<(&Writer, u64)> {
        let known = self.all.iter().position(|writer| writer.kind == kind);
        let index = match known {
            Some(index) => index,
            None => {
                let name = format!("{kind}{}", self.pid);
                let mut options = OpenOptions::new();
                let file = options.write(true).create_new(true).mode(0o400).open(self.out.join(&name))?;
                let id = files.add(&name);
                self.all.push(Writer { kind, name, id, file, end: 0, next: 0 });
                self.all.len() - 1
            }
        };
        let writer = &mut self.all[index];
        let offset = place_after(writer.next, span);
        writer.end = offset + (span.end - span.start);
        writer.next = writer.end + (span.end - span.start);
        Ok((writer, offset))
    }

    pub fn finish(self) -> io::Result<Vec<PageFile>> {
        let mut out = Vec::new();
        for writer in self.all {
            writer.file.set_len(writer.end + TAIL)?;
            let path = self.out.join(&writer.name);
            out.push(PageFile { name: writer.name, path, bytes: writer.end });
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::pages::ANONYMOUS;

    #[test]
    fn areas_keep_their_place_within_large_pages_and_a_hole_after_them() {
        let directory = tempfile::tempdir().unwrap();
        let mut files_image = b"headhead".to_vec();
        files_image.extend([4, 0, 0, 0, 8, 1, 16, 5]);
        fs::write(directory.path().join("files.img"), files_image).unwrap();
        let mut files = Files::read(&directory.path().join("files.img")).unwrap();
        let mut writers = Writers::new(directory.path(), 7);
        let spans = [0x7f00_0001_0000..0x7f00_0101_0000, 0x7f80_0000_3000..0x7f80_0001_3000];
        let mut last: u64 = 0;
        for span in &spans {
            let (writer, offset) = writers.place(ANONYMOUS, &mut files, span).unwrap();
            assert_eq!(writer.id, 6);
            assert_eq!(offset % ALIGNMENT, span.start % ALIGNMENT);
            assert!(offset >= last);
            last = offset + 2 * (span.end - span.start);
        }
        let made = writers.finish().unwrap();
        assert_eq!((made.len(), made[0].name.as_str()), (1, "anon-7"));
        assert_eq!(fs::metadata(&made[0].path).unwrap().len(), made[0].bytes + TAIL);
        assert_eq!(files.path(6), Some(Path::new("/run/rekindle/pages/anon-7")));
    }
}
