//! Memory that CRIU makes of the parent's.
//!
//! An area of a child that lies exactly where its parent has one of the same kind is the parent's area for CRIU, so that
//! pages which are the same stay one. But it makes it with the parent's protection, and sets the child's own only where
//! that does not allow writing: a child that may write where its parent may do something else gets what the parent has.
//! CRIU looks for such areas only where both run the same program file by number. So a child that would get a wrong
//! protection has a number of its own for its program's file, and memory of its own.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use crate::descriptors::FILES;
use crate::pages::image::Entries;
use crate::proto::Message;

/// Which process is whose parent.
pub const TREE: &str = "pstree.img";
/// Of `mm_entry`.
const PROGRAM: u64 = 12;
const AREAS: u64 = 14;
/// Of an area.
const START: u64 = 1;
const END: u64 = 2;
const OBJECT: u64 = 4;
const PROTECTION: u64 = 5;
const FLAGS: u64 = 6;
const STATUS: u64 = 7;

const WRITE: u64 = 2;
const ANONYMOUS: u64 = 0x20;
const GROWS_DOWN: u64 = 0x100;
const HUGE: u64 = 0x40000;
const PLAIN: u64 = 1 << 0;
const PRIVATE: u64 = 1 << 6 | 1 << 9;
const GUARD: u64 = 1 << 16;

/// Where an area is, and what it must have in common with another to be taken for the same.
type Key = (u64, u64, u64, u64);
/// The protection that CRIU gives areas when it makes them.
type Made = HashMap<Key, u64>;

struct Memory {
    program: u64,
    made: Made,
}

/// Changes the dump in `images` so that every process gets its own protections.
pub fn part(images: &Path) -> io::Result<()> {
    let read = |name: &str| Entries::read(&images.join(name)).map_err(io::Error::other);
    let tree = read(TREE)?.entries;
    if tree.len() < 2 {
        return Ok(());
    }
    let mut known: HashMap<u64, Memory> = HashMap::new();
    let mut files = None;
    for process in &tree {
        let (Some(pid), parent) = (process.number(1), process.number(2).unwrap_or(0)) else { continue };
        let name = format!("mm-{pid}.img");
        // One that has ended has none.
        if !images.join(&name).exists() {
            continue;
        }
        let mut entries = read(&name)?;
        let [memory] = &mut entries.entries[..] else { continue };
        let program = memory.number(PROGRAM).unwrap_or(0);
        let above = known.get(&parent).filter(|parent| parent.program == program);
        let (mut made, is_wrong) = inherit(memory, above.map(|above| &above.made));
        let mut now = program;
        if is_wrong {
            let files = match &mut files {
                Some(files) => files,
                None => files.insert(read(FILES)?),
            };
            now = another(files, program)
                .ok_or_else(|| io::Error::other(format!("{FILES} lacks the program of process {pid}")))?;
            memory.set(PROGRAM, now);
            made = inherit(memory, None).0;
            entries.write(&images.join(&name))?;
        }
        known.insert(pid, Memory { program: now, made });
    }
    files.map_or(Ok(()), |files| files.write(&images.join(FILES)))
}

/// The protections that CRIU would make a process's areas with, and whether it would leave a wrong one.
fn inherit(memory: &Message, above: Option<&Made>) -> (Made, bool) {
    let (mut made, mut is_wrong) = (Made::new(), false);
    for area in memory.all_bytes(AREAS).filter_map(Message::read) {
        let number = |field| area.number(field).unwrap_or(0);
        let (flags, status, wanted) = (number(FLAGS), number(STATUS), number(PROTECTION));
        if status & PLAIN == 0 || status & PRIVATE == 0 || status & GUARD != 0 || flags & HUGE != 0 {
            continue;
        }
        let object = if flags & ANONYMOUS != 0 { 0 } else { number(OBJECT) };
        let key = (number(START), number(END), flags & (ANONYMOUS | GROWS_DOWN), object);
        let given = above.and_then(|above| above.get(&key)).copied().unwrap_or(wanted | WRITE);
        is_wrong |= wanted & WRITE != 0 && given != wanted;
        made.insert(key, given);
    }
    (made, is_wrong)
}

/// A further number for a file.
fn another(files: &mut Entries, of: u64) -> Option<u64> {
    const ID: u64 = 2;
    const REGULAR: u64 = 3;
    const REGULAR_ID: u64 = 1;
    let new = files.entries.iter().filter_map(|file| file.number(ID)).max()?.checked_add(1)?;
    let mut file = files.entries.iter().find(|file| file.number(ID) == Some(of))?.clone();
    let mut regular = Message::read(file.all_bytes(REGULAR).next()?)?;
    regular.set(REGULAR_ID, new);
    file.set(ID, new).set_bytes(REGULAR, regular.write());
    files.entries.push(file);
    Some(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Encoder;

    fn area(start: u64, protection: u64) -> Vec<u8> {
        let mut out = Encoder::default();
        out.number(1, start).number(2, start + 0x1000).number(3, 0).number(4, 0).number(5, protection);
        out.number(6, 0x22).number(7, 0x201).number(8, 1);
        out.0
    }

    fn memory(areas: &[(u64, u64)]) -> Message {
        let mut memory = Message::default();
        memory
            .set(PROGRAM, 1)
            .set_all_bytes(AREAS, areas.iter().map(|(start, wanted)| area(*start, *wanted)));
        memory
    }

    #[test]
    fn a_wrong_protection_is_seen() {
        let wrong = |above: u64, below: u64| {
            let (made, _) = inherit(&memory(&[(0x1000, above)]), None);
            inherit(&memory(&[(0x1000, below)]), Some(&made)).1
        };
        assert!(wrong(0, 3) && wrong(5, 3) && wrong(3, 7));
        // The same, or set by CRIU.
        assert!(!wrong(3, 3) && !wrong(1, 3) && !wrong(7, 5) && !wrong(7, 0));
        let (made, _) = inherit(&memory(&[(0x1000, 0)]), None);
        assert!(!inherit(&memory(&[(0x2000, 3)]), Some(&made)).1, "it lies elsewhere");
        // A grandchild's comes from the first.
        let (between, _) = inherit(&memory(&[(0x1000, 1)]), Some(&made));
        assert!(inherit(&memory(&[(0x1000, 3)]), Some(&between)).1);
    }

    #[test]
    fn a_child_gets_a_program_of_its_own_and_others_keep_theirs() {
        let directory = tempfile::tempdir().unwrap();
        let put = |name: &str, entries: Vec<Message>| {
            let mut all = Entries::default();
            all.entries = entries;
            let path = directory.path().join(name);
            all.write(&path).unwrap();
            let text = [&[0; 8][..], &std::fs::read(&path).unwrap()].concat();
            std::fs::write(path, text).unwrap();
        };
        let process = |pid: u64, parent: u64| {
            let mut process = Message::default();
            process.set(1, pid).set(2, parent);
            process
        };
        put(TREE, vec![process(10, 0), process(11, 10), process(12, 10)]);
        put("mm-10.img", vec![memory(&[(0x1000, 0), (0x4000, 3)])]);
        put("mm-11.img", vec![memory(&[(0x1000, 3), (0x4000, 3)])]);
        put("mm-12.img", vec![memory(&[(0x1000, 0), (0x4000, 3)])]);
        let mut regular = Message::default();
        regular.set(1, 1).set_bytes(6, b"/bin/program".to_vec());
        let mut file = Message::default();
        file.set(1, 1).set(2, 1).set_bytes(3, regular.write());
        put(FILES, vec![file]);
        part(directory.path()).unwrap();
        let read = |name: &str| Entries::read(&directory.path().join(name)).unwrap().entries;
        let program = |pid: u64| read(&format!("mm-{pid}.img"))[0].number(PROGRAM);
        assert_eq!([program(10), program(11), program(12)], [Some(1), Some(2), Some(1)]);
        let files = read(FILES);
        assert_eq!((files.len(), files[1].number(2)), (2, Some(2)));
        assert_eq!(Message::read(files[1].all_bytes(3).next().unwrap()).unwrap().number(1), Some(2));
    }
}
