//! Small ELF files and fatbins for the tests of other crates. It is a crate of its own so that those are built for their tests
//! with the same features as otherwise, and once.

const MAGIC: u32 = 0xba55_ed50;
const CONTAINER_HEADER: usize = 16;
const ENTRY_HEADER: usize = 64;
const COMPRESSED_LZ4: u64 = 0x2000;
const COMPRESSED_ZSTD: u64 = 0x8000;

const SECTION_HEADER: usize = 64;
const SYMBOL: usize = 24;
const SECTION_SYMBOLS: u32 = 2;
const SECTION_NO_BITS: u32 = 8;

/// What an entry of a fatbin holds.
pub enum Content {
    Ptx,
    Cubin,
}

/// How an entry of a fatbin is compressed.
pub enum Packing {
    Plain,
    Lz4,
    Zstd,
}

/// A fatbin of (what it is, compute capability, contents, compression).
pub fn container(rows: &[(Content, u32, &[u8], Packing)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (content, capability, contents, packing) in rows {
        let (payload, flags) = match packing {
            Packing::Plain => (contents.to_vec(), 0),
            Packing::Lz4 => (lz4_flex::block::compress(contents), COMPRESSED_LZ4),
            Packing::Zstd => (zstd::bulk::compress(contents, 3).unwrap_or_default(), COMPRESSED_ZSTD),
        };
        let padded = payload.len().next_multiple_of(8);
        let mut header = [0u8; ENTRY_HEADER];
        header[0] = match content {
            Content::Ptx => 1,
            Content::Cubin => 2,
        };
        header[4] = ENTRY_HEADER as u8;
        header[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
        header[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        header[28..32].copy_from_slice(&capability.to_le_bytes());
        header[40..48].copy_from_slice(&flags.to_le_bytes());
        header[56..64].copy_from_slice(&(contents.len() as u64).to_le_bytes());
        body.extend_from_slice(&header);
        body.extend_from_slice(&payload);
        body.resize(body.len() + padded - payload.len(), 0);
    }
    let mut file = MAGIC.to_le_bytes().to_vec();
    file.extend_from_slice(&[1, 0, CONTAINER_HEADER as u8, 0]);
    file.extend_from_slice(&(body.len() as u64).to_le_bytes());
    file.extend_from_slice(&body);
    file
}

/// An ELF file with one symbol table: (name, section index, kind, size), sections named by `sections` from 1 on.
pub fn synthetic(sections: &[&str], symbols: &[(&str, u16, u8, u64)]) -> Vec<u8> {
    let mut names = vec![0];
    let mut offsets = Vec::new();
    for name in sections.iter().chain(&[".names", ".strtab", ".symtab"]) {
        offsets.push(names.len() as u32);
        names.extend_from_slice(name.as_bytes());
        names.push(0);
    }
    let mut strings = vec![0];
    let mut table = vec![0; SYMBOL];
    for (name, section, kind, size) in symbols {
        table.extend_from_slice(&(strings.len() as u32).to_le_bytes());
        table.extend_from_slice(&[*kind, 0]);
        table.extend_from_slice(&section.to_le_bytes());
        table.extend_from_slice(&0u64.to_le_bytes());
        table.extend_from_slice(&size.to_le_bytes());
        strings.extend_from_slice(name.as_bytes());
        strings.push(0);
    }
    let first = sections.len() as u32 + 1;
    let mut file = vec![0u8; 64];
    let mut headers = vec![0u8; SECTION_HEADER];
    let mut add = |name: u32, kind: u32, link: u32, contents: &[u8], file: &mut Vec<u8>| {
        let mut header = [0u8; SECTION_HEADER];
        header[0..4].copy_from_slice(&name.to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[24..32].copy_from_slice(&(file.len() as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(contents.len() as u64).to_le_bytes());
        header[40..44].copy_from_slice(&link.to_le_bytes());
        headers.extend_from_slice(&header);
        file.extend_from_slice(contents);
    };
    for offset in &offsets[..sections.len()] {
        add(*offset, SECTION_NO_BITS, 0, &[], &mut file);
    }
    add(offsets[sections.len()], 3, 0, &names, &mut file);
    add(offsets[sections.len() + 1], 3, 0, &strings, &mut file);
    add(offsets[sections.len() + 2], SECTION_SYMBOLS, first + 1, &table, &mut file);
    let start = file.len() as u64;
    file.extend_from_slice(&headers);
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    file[40..48].copy_from_slice(&start.to_le_bytes());
    file[58..60].copy_from_slice(&(SECTION_HEADER as u16).to_le_bytes());
    file[60..62].copy_from_slice(&(first as u16 + 3).to_le_bytes());
    file[62..64].copy_from_slice(&(first as u16).to_le_bytes());
    file
}
