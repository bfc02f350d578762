//! The client's mark: a word in its data by which it learns that it was restored from page files.

/// What precedes the word. The client has the same.
pub const MAGIC: &[u8; 24] = b"rekindle client mark 1\0\n";
/// The client takes part: its functions are those that the process calls.
pub const LIVE: u32 = 1;
/// Its memory was converted.
pub const CONVERTED: u32 = 2;

/// Where in a page the word lies, and what it says.
pub fn find(page: &[u8]) -> Option<(usize, u32)> {
    let first = MAGIC[0];
    let mut at = 0;
    while let Some(found) = page[at..].iter().position(|&byte| byte == first) {
        let start = at + found;
        let word = start + MAGIC.len();
        match page.get(start..word + 4) {
            Some(bytes) if bytes.starts_with(MAGIC) => {
                let word_bytes = [bytes[24], bytes[25], bytes[26], bytes[27]];
                return Some((word, u32::from_le_bytes(word_bytes)));
            }
            Some(_) => at = start + 1,
            None => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_found_anywhere_in_a_page() {
        for at in [0, 64, 4096 - 28] {
            let mut page = vec![b'r'; 4096];
            page[at..at + 24].copy_from_slice(MAGIC);
            page[at + 24..at + 28].copy_from_slice(&LIVE.to_le_bytes());
            assert_eq!(find(&page), Some((at + 24, LIVE)));
        }
        assert_eq!(find(&[b'r'; 4096]), None);
        assert_eq!(find(&[0; 4096]), None);
    }
}
