//! From the bytes that a program loads to the PTX in them.

use std::borrow::Cow;

use rekindle_code::fatbin::{is_fatbin, size};
use rekindle_cuda::{
    CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_NO_BINARY_FOR_GPU,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
};
use rekindle_device::LoadError;
use rekindle_ptx as ptx;

use crate::attributes::CAPABILITY;
use crate::{cooperative, fatbin};

/// The newest major version of PTX. Minor versions only add instructions, and an unknown one is refused by its name.
const NEWEST_PTX: u32 = 9;

/// The PTX texts that together make the module in `bytes`.
pub(crate) fn texts(bytes: &[u8]) -> Result<Vec<Cow<'_, [u8]>>, LoadError> {
    if is_fatbin(bytes) {
        return choose(fatbin::read(bytes).map_err(damaged)?);
    }
    if bytes.starts_with(b"\x7fELF") {
        return Err(machine_code("the code is a cubin", &[]));
    }
    if is_text(bytes) {
        return Ok(vec![Cow::Borrowed(bytes)]);
    }
    let start = &bytes[..bytes.len().min(4)];
    Err(LoadError {
        code: CUDA_ERROR_INVALID_IMAGE,
        log: format!(
            "the code starts with {start:02x?}, which is neither PTX text nor a fatbin; load one of these"
        ),
    })
}

/// The texts in a library or host object: those of every fatbin that lies in it. What is not for this GPU is passed over.
pub(crate) fn texts_inside(bytes: &[u8]) -> Result<Vec<Cow<'_, [u8]>>, LoadError> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = bytes[at..].windows(4).position(is_fatbin) {
        at += next;
        match fatbin::read(&bytes[at..]) {
            Ok(fatbin) => {
                at += size(&bytes[at..]).unwrap_or_default().max(4);
                found.extend(choose(fatbin).unwrap_or_default());
            }
            Err(_) => at += 4,
        }
    }
    Ok(found)
}

fn choose(fatbin: fatbin::Fatbin<'_>) -> Result<Vec<Cow<'_, [u8]>>, LoadError> {
    if !fatbin.linked.is_empty() {
        return Ok(fatbin.linked);
    }
    let most = CAPABILITY.0 * 10 + CAPABILITY.1;
    let fits = fatbin.ptx.iter().filter(|(architecture, _)| *architecture <= most).max_by_key(|row| row.0);
    match fits {
        Some((architecture, _)) => {
            let architecture = *architecture;
            let texts = fatbin.ptx.into_iter().filter(|row| row.0 == architecture).map(|row| row.1);
            Ok(texts.take(1).collect())
        }
        None if fatbin.ptx.is_empty() => Err(machine_code("the fatbin has no PTX", &fatbin.machine)),
        None => {
            let found: Vec<u32> = fatbin.ptx.iter().map(|row| row.0).collect();
            Err(LoadError {
                code: CUDA_ERROR_NO_BINARY_FOR_GPU,
                log: format!(
                    "the fatbin's PTX is for {found:?}, and this GPU is {most}; compile for compute_{most} or less"
                ),
            })
        }
    }
}

fn machine_code(what: &str, architectures: &[u32]) -> LoadError {
    let of = if architectures.is_empty() { String::new() } else { format!(" of {architectures:?}") };
    LoadError {
        code: CUDA_ERROR_NO_BINARY_FOR_GPU,
        log: format!(
            "{what}: it holds only NVIDIA machine code{of}, and the emulated GPU runs PTX; compile with PTX inside (nvcc \
             -gencode arch=compute_90,code=compute_90)"
        ),
    }
}

fn damaged(damage: rekindle_code::Error) -> LoadError {
    LoadError { code: CUDA_ERROR_INVALID_IMAGE, log: damage.to_string() }
}

/// PTX is text that a NUL may end; there are no control characters in it.
fn is_text(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(256)];
    let end = head.iter().position(|byte| *byte == 0).unwrap_or(head.len());
    end > 0 && head[..end].iter().all(|byte| !byte.is_ascii_control() || byte.is_ascii_whitespace())
}

/// Parses one text; a NUL ends it.
pub(crate) fn parse(text: &[u8]) -> Result<ptx::Module, LoadError> {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    let invalid = |log: String| LoadError { code: CUDA_ERROR_INVALID_PTX, log };
    let text = String::from_utf8_lossy(&text[..end]);
    let module = ptx::Module::parse(&text).map_err(|error| invalid(format!("ptx: {error}")))?;
    let version = module.version();
    if version.0 > NEWEST_PTX {
        return Err(LoadError {
            code: CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            log: format!(
                "the PTX is of version {}.{}; up to {NEWEST_PTX}.x is supported: compile with CUDA 13 or older",
                version.0, version.1
            ),
        });
    }
    let target = module.target();
    let digits: String =
        target.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    if digits.parse::<u32>().is_ok_and(|found| found > CAPABILITY.0 * 10 + CAPABILITY.1) {
        return Err(LoadError {
            code: CUDA_ERROR_NO_BINARY_FOR_GPU,
            log: format!("the PTX is for {target}, and this GPU is sm_{}{}", CAPABILITY.0, CAPABILITY.1),
        });
    }
    Ok(module)
}

/// Parses the texts and links them where they are several.
pub(crate) fn module(texts: &[Cow<'_, [u8]>]) -> Result<ptx::Module, LoadError> {
    let mut modules = texts.iter().map(|text| parse(text)).collect::<Result<Vec<_>, _>>()?;
    let link = |modules: &[ptx::Module]| {
        ptx::Module::link(modules)
            .map_err(|error| LoadError { code: CUDA_ERROR_INVALID_PTX, log: format!("link: {error}") })
    };
    let mut module = match modules.len() {
        1 => modules.swap_remove(0),
        _ => link(&modules)?,
    };
    if module.unresolved().iter().any(|name| cooperative::NAMES.contains(&name.as_str())) {
        module = link(&[module, parse(cooperative::PTX.as_bytes())?])?;
    }
    let unresolved = module.unresolved();
    if unresolved.is_empty() {
        return Ok(module);
    }
    Err(LoadError {
        code: CUDA_ERROR_INVALID_PTX,
        log: format!("undefined references: `{}`; link the code that defines them", unresolved.join("`, `")),
    })
}

#[cfg(test)]
mod tests {
    use rekindle_code::fatbin::MAGIC;

    use super::*;

    #[test]
    fn code_that_is_not_ptx_is_named() {
        let elf = texts(b"\x7fELF\x02\x01\x01").unwrap_err();
        assert_eq!(elf.code, CUDA_ERROR_NO_BINARY_FOR_GPU);
        assert!(elf.log.contains("runs PTX"), "{}", elf.log);
        assert_eq!(texts(b"\x01\x02\x03\x04").unwrap_err().code, CUDA_ERROR_INVALID_IMAGE);
        assert_eq!(texts(b"").unwrap_err().code, CUDA_ERROR_INVALID_IMAGE);
        assert_eq!(texts(&MAGIC.to_le_bytes()).unwrap_err().code, CUDA_ERROR_INVALID_IMAGE);
    }

    #[test]
    fn fatbins_inside_a_library_are_found() {
        let mut library = b"!<arch>\nsomething".to_vec();
        library.extend(fatbin::write(&[b"one"], 0));
        library.extend(b"between");
        library.extend(fatbin::write(&[b"two", b"three"], 0));
        library.extend(MAGIC.to_le_bytes());
        assert_eq!(texts_inside(&library).unwrap().len(), 3);
    }
}
