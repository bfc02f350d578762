//! An image that is sound, made in memory, and every defect put into it.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Source, faults_of};
use crate::pages::TAIL;
use crate::pages::image::{COMMON, Entries, with_length};
use crate::proto::{Encoder, Message};

const ANONYMOUS: [u64; 2] = [0x22, 0x201];
const FILE: [u64; 2] = [0x2, 0x41];
const ANON_SHARED: [u64; 2] = [0x21, 0x101];

#[derive(Clone, Default)]
struct Memory {
    images: BTreeMap<String, Vec<u8>>,
    page_files: BTreeMap<String, u64>,
}

impl Source for Memory {
    fn names(&self) -> Vec<String> {
        self.images.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, String> {
        self.images.get(name).cloned().ok_or_else(|| format!("{name} is missing"))
    }

    fn length(&self, name: &str) -> Option<u64> {
        self.images.get(name).map(|image| image.len() as u64)
    }

    fn page_file(&self, name: &str) -> Option<u64> {
        self.page_files.get(name).copied()
    }
}

fn numbers(fields: &[(u32, u64)]) -> Vec<u8> {
    let mut out = Encoder::default();
    for (field, value) in fields {
        out.number(*field, *value);
    }
    out.0
}

/// Numbers in fields 1 and so on.
fn row(values: &[u64]) -> Vec<u8> {
    numbers(&(1..).zip(values.iter().copied()).collect::<Vec<_>>())
}

fn with(mut message: Vec<u8>, field: u32, text: &[u8]) -> Vec<u8> {
    let mut out = Encoder::default();
    out.bytes(field, text);
    message.extend(out.0);
    message
}

fn area(start: u64, end: u64, offset: u64, object: u64, kind: [u64; 2]) -> Vec<u8> {
    row(&[start, end, offset, object, 3, kind[0], kind[1], 1])
}

impl Memory {
    fn put(&mut self, name: &str, magic: u32, entries: &[Vec<u8>]) {
        let mut out = Vec::new();
        if name != "inventory.img" {
            out.extend(COMMON.to_le_bytes());
        }
        out.extend(magic.to_le_bytes());
        for entry in entries {
            out.extend(with_length(entry));
        }
        self.images.insert(name.to_string(), out);
    }

    fn sound() -> Memory {
        let mut made = Memory::default();
        made.put("inventory.img", 0x5831_3116, &[row(&[2, 1])]);
        let mut process = row(&[1000, 0, 1000, 1000]);
        process.extend(numbers(&[(5, 1000), (5, 1001)]));
        made.put(
            "pstree.img",
            0x5027_3030,
            &[process, numbers(&[(1, 1002), (2, 1000), (3, 1000), (4, 1000)])],
        );
        let thread = |state: Option<u64>| {
            let core = with(with(numbers(&[(1, 1)]), 2, &row(&[7])), 5, &row(&[0, 0]));
            match state {
                Some(state) => with(core, 3, &with(row(&[state, 0, 0, 0, 0]), 6, b"name")),
                None => core,
            }
        };
        made.put("core-1000.img", 0x5505_3847, &[thread(Some(1))]);
        made.put("core-1001.img", 0x5505_3847, &[thread(None)]);
        // It has ended, and nobody has waited for it.
        made.put("core-1002.img", 0x5505_3847, &[thread(Some(6))]);
        made.put("ids-1000.img", 0x5443_2030, &[row(&[1, 5, 1, 1])]);
        let regular = |id: u64, name: &str| {
            let about = with(with(row(&[id, 0, 0]), 5, &[]), 6, name.as_bytes());
            with(row(&[1, id]), 3, &about)
        };
        let files = [
            regular(1, "/bin/program"),
            regular(2, "/"),
            regular(3, "/run/rekindle/pages/anon-1000"),
            regular(4, "/tmp/deleted"),
            with(row(&[2, 5]), 18, &row(&[5, 5, 0])),
        ];
        made.put("files.img", 0x5630_3138, &files);
        made.put("fdinfo-5.img", 0x5621_3732, &[row(&[5, 0, 2, 1]), row(&[2, 0, 1, 3])]);
        made.put("fs-1000.img", 0x5140_3912, &[row(&[2, 2])]);
        made.put("remap-fpath.img", 0x5913_3954, &[row(&[4, 9, 1])]);
        made.put("ghost-file-9.img", 0x5258_3605, &[row(&[0, 0, 0o100_600])]);
        made.put("pipes-data.img", 0x5645_3709, &[row(&[5, 3])]);
        made.images.get_mut("pipes-data.img").unwrap().extend(b"abc");
        let areas = [
            area(0x10_000, 0x20_000, 0, 0, ANONYMOUS),
            area(0x20_000, 0x30_000, 0x4000, 3, FILE),
            area(0x40_000, 0x42_000, 0, 77, ANON_SHARED),
            area(0x50_000, 0x52_000, 0, 1, FILE),
            area(0x11_000, 0x12_000, 0, 0, [0x22, 0x10001]),
        ];
        let mut memory = row(&[0; 11]);
        memory.extend(numbers(&[(12, 1)]));
        let memory = areas.iter().fold(memory, |memory, area| with(memory, 14, area));
        made.put("mm-1000.img", 0x5749_2820, &[memory]);
        let pages = |start: u64, count: u64| numbers(&[(1, start), (2, count), (4, 4), (5, count)]);
        made.put("pagemap-1000.img", 0x5608_4025, &[row(&[1]), pages(0x18_000, 2), pages(0x1f_000, 3)]);
        made.images.insert("pages-1.img".into(), vec![1; 5 * 4096]);
        made.put("pagemap-shmem-77.img", 0x5608_4025, &[row(&[2]), pages(0x1000, 1)]);
        made.images.insert("pages-2.img".into(), vec![1; 4096]);
        made.page_files.insert("anon-1000".into(), 0x14_000 + TAIL);
        made
    }

    /// Changes the entries of an image.
    fn edit(&mut self, name: &str, change: impl FnOnce(&mut Vec<Message>)) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &self.images[name]).unwrap();
        let mut entries = Entries::read(file.path()).unwrap();
        change(&mut entries.entries);
        entries.write(file.path()).unwrap();
        self.images.insert(name.into(), std::fs::read(file.path()).unwrap());
    }

    /// Changes the areas of the process.
    fn areas(&mut self, change: impl FnOnce(&mut Vec<Message>)) {
        self.edit("mm-1000.img", |entries| {
            let mut areas: Vec<_> =
                entries[0].all_bytes(14).map(|area| Message::read(area).unwrap()).collect();
            change(&mut areas);
            entries[0].set_all_bytes(14, areas.iter().map(Message::write));
        });
    }
}

#[test]
fn a_sound_image_has_no_faults() {
    assert_eq!(faults_of(&Memory::sound()), Vec::<String>::new());
}

/// Puts a defect in, and sees that the words are in what is said of it.
fn caught(words: &str, defect: impl FnOnce(&mut Memory)) {
    let mut broken = Memory::sound();
    defect(&mut broken);
    let faults = faults_of(&broken);
    assert!(faults.iter().any(|fault| fault.contains(words)), "{words:?} is not in {faults:?}");
}

#[test]
fn areas_are_in_order_and_apart() {
    caught("not in order", |image| image.areas(|areas| areas.swap(0, 1)));
    // What was left behind when areas had become fewer.
    caught("after a guard", |image| image.areas(|areas| areas.push(areas[0].clone())));
    caught("lie over each other at 0x1f000", |image| {
        image.areas(|areas| {
            areas[1].set(1, 0x1f_000);
        });
    });
    caught("goes from 0x10000 to 0x20001", |image| {
        image.areas(|areas| {
            areas[0].set(2, 0x20_001);
        });
    });
    caught("goes from 0x20000 to 0x20000", |image| {
        image.areas(|areas| {
            areas[0].set(1, 0x20_000);
        });
    });
    caught("lies in no area", |image| {
        image.areas(|areas| {
            areas[4].set(2, 0x33_000);
        });
    });
    caught("has no memory", |image| image.areas(Vec::clear));
}

#[test]
fn areas_are_of_a_kind_that_can_be_made() {
    let set = |at: usize, field: u64, to: u64| {
        move |image: &mut Memory| {
            image.areas(|areas| {
                areas[at].set(field, to);
            });
        }
    };
    caught("cannot make", set(0, 7, 0x8000_0201));
    caught("several kinds or of none", set(0, 7, 0x241));
    caught("several kinds or of none", set(0, 7, 1));
    caught("flags", set(0, 6, 0x2));
    caught("flags", set(1, 6, 0x22));
    caught("flags", set(2, 6, 0x22));
    caught("within a page", set(3, 3, 0x123));
    caught("lacks its field 6", |image| {
        image.areas(|areas| {
            areas[0].remove(6);
        });
    });
}

#[test]
fn files_that_are_referred_to_are_there() {
    caught("area of process 1000 at 0x50000 refers to file 0x63", |image| {
        image.areas(|areas| {
            areas[3].set(4, 99);
        });
    });
    caught("program of process 1000", |image| {
        image.edit("mm-1000.img", |entries| {
            entries[0].set(12, 99);
        });
    });
    caught("descriptor 1 of process 1000", |image| {
        image.edit("files.img", |entries| {
            entries.pop();
        });
    });
    caught("working directory", |image| {
        image.edit("fs-1000.img", |entries| {
            entries[0].set(1, 99);
        })
    });
    caught("two files with the number", |image| {
        image.edit("files.img", |entries| entries.push(entries[0].clone()));
    });
    caught("has no name", |image| {
        image.edit("files.img", |entries| {
            let mut about = Message::read(entries[0].all_bytes(3).next().unwrap()).unwrap();
            about.set_bytes(6, Vec::new());
            entries[0].set_bytes(3, about.write());
        });
    });
    caught("does not say what file", |image| {
        image.edit("files.img", |entries| {
            entries[4].remove(18);
        })
    });
    caught("ghost-file-9.img is missing", |image| {
        image.images.remove("ghost-file-9.img");
    });
    caught("a file that has another name", |image| {
        image.edit("remap-fpath.img", |entries| {
            entries[0].set(3, 0);
        });
    });
    caught("the page file anon-1000 is missing", |image| {
        image.page_files.clear();
    });
    caught("beyond the end of the page file", |image| {
        image.page_files.insert("anon-1000".into(), 0x13_fff);
    });
}

#[test]
fn every_page_is_there() {
    let edit = |at: usize, field: u64, to: u64| {
        move |image: &mut Memory| {
            image.edit("pagemap-1000.img", |entries| {
                entries[at].set(field, to);
            });
        }
    };
    caught("not in order", |image| image.edit("pagemap-1000.img", |entries| entries.swap(1, 2)));
    caught("in no area", edit(2, 1, 0x2f_000));
    caught("in no area", edit(2, 1, 0x40_000));
    caught("not in order", edit(2, 1, 0x1e_001));
    caught("3 by one number and 2 by the other", edit(2, 2, 2));
    caught("earlier image", edit(1, 4, 1));
    caught("earlier image", edit(1, 3, 1));
    caught("by pagemap-1000.img it has 16384", |image| {
        image.edit("pagemap-1000.img", |entries| {
            entries[2].set(2, 2).set(5, 2);
        })
    });
    caught("pages-1.img has 20479 bytes", |image| {
        image.images.get_mut("pages-1.img").unwrap().pop();
    });
    caught("pages-1.img is missing", |image| {
        image.images.remove("pages-1.img");
    });
    caught("pagemap-1000.img is missing", |image| {
        image.images.remove("pagemap-1000.img");
    });
    caught("of no process", |image| {
        let map = image.images["pagemap-1000.img"].clone();
        image.images.insert("pagemap-1005.img".into(), map);
    });
    caught("pagemap-shmem-77.img", |image| {
        image.edit("pagemap-shmem-77.img", |entries| {
            entries[1].set(1, 0x2000);
        })
    });
}

#[test]
fn processes_and_threads_are_whole() {
    for name in [
        "core-1000.img",
        "core-1001.img",
        "core-1002.img",
        "ids-1000.img",
        "mm-1000.img",
        "fdinfo-5.img",
        "fs-1000.img",
        "inventory.img",
        "pstree.img",
        "files.img",
    ] {
        caught(&format!("{name} is missing"), |image| {
            image.images.remove(name);
        });
    }
    caught("does not come before", |image| image.edit("pstree.img", |entries| entries.swap(0, 1)));
    caught("have the number 1001", |image| {
        image.edit("pstree.img", |entries| {
            entries[1].set(1, 1001);
        })
    });
    caught("several first processes", |image| {
        image.edit("pstree.img", |entries| {
            entries[1].set(2, 0);
        })
    });
    caught("no registers", |image| {
        image.edit("core-1001.img", |entries| {
            entries[0].remove(2);
        })
    });
    caught("does not say what state", |image| {
        image.edit("core-1000.img", |entries| {
            entries[0].remove(3);
        })
    });
    caught("of a version", |image| image.put("inventory.img", 0x5831_3116, &[row(&[3, 1])]));
}

#[test]
fn images_are_whole() {
    let names: Vec<_> =
        Memory::sound().images.into_keys().filter(|name| !name.starts_with("pages-")).collect();
    for name in names {
        caught("", |image| {
            image.images.get_mut(&name).unwrap().pop();
        });
        caught("does not begin", |image| image.images.get_mut(&name).unwrap()[1] ^= 1);
    }
}

proptest! {
    #[test]
    fn no_change_makes_it_panic(name in 0..16usize, at: prop::sample::Index, to: u8, cut: bool) {
        let mut image = Memory::sound();
        let names = image.names();
        let bytes = image.images.get_mut(&names[name % names.len()]).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        if cut {
            bytes.truncate(at);
        }
        faults_of(&image);
    }

    #[test]
    fn whatever_order_areas_have_but_their_own_is_seen(order in Just([0, 1, 2, 3]).prop_shuffle()) {
        let mut image = Memory::sound();
        image.areas(|areas| {
            let mixed: Vec<_> = order.iter().map(|at| areas[*at].clone()).chain([areas[4].clone()]).collect();
            *areas = mixed;
        });
        prop_assert_eq!(faults_of(&image).is_empty(), order == [0, 1, 2, 3]);
    }
}
