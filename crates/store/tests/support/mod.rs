//! What the store's tests share.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::fs;
use std::path::{Path, PathBuf};

use rekindle_store::{Image, Part, Store};
use tempfile::TempDir;

/// A fresh store in `store` of a directory that goes when it is dropped.
pub fn store() -> (TempDir, Store) {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(&root.path().join("store")).unwrap();
    (root, store)
}

/// Bytes that do not compress.
pub fn noise(seed: u8, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut out);
    out
}

/// All of a part.
pub fn contents(image: &Image, part: &Part) -> Vec<u8> {
    let mut data = vec![1; part.bytes as usize];
    image.read_part_parallel(part, &mut data, 3).unwrap();
    data
}

/// Calls `visit` with everything below a directory, and with it.
pub fn walk(path: &Path, visit: &mut dyn FnMut(&Path)) {
    visit(path);
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            walk(&entry.unwrap().path(), visit);
        }
    }
}

/// The files below a directory.
pub fn files(path: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    walk(path, &mut |path| files.extend(path.is_file().then(|| path.to_path_buf())));
    files.sort();
    files
}

/// The chunk files of the store that [`store`] made.
pub fn chunk_files(root: &Path) -> Vec<PathBuf> {
    files(&root.join("store/chunks"))
}
