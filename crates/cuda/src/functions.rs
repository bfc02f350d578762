//! The table of the driver's functions: every name that its library exports, and what the client does with it.
//!
//! `functions.txt` is the table. From it come the client's exports, `cuGetProcAddress` and `docs/functions.md`.

use std::fmt::Write;
use std::sync::LazyLock;

/// One exported function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    pub symbol: &'static str,
    /// The name without version and thread suffix.
    pub base: &'static str,
    /// The CUDA version (13000 is 13.0) from which the base name means this symbol; 0: never.
    pub since: i32,
    /// Suffix of the variant for a default stream per thread: `ptds` or `ptsz`.
    pub threads: Option<&'static str>,
    /// Why it is not implemented.
    pub missing: Option<&'static str>,
}

impl Function {
    pub fn implemented(&self) -> bool {
        self.missing.is_none()
    }
}

/// Why functions are not implemented: a word of the table, what they are about, and the reason.
const REASONS: &[(&str, &str, &str)] = &[
    (
        "references",
        "Texture and surface references of modules",
        "CUDA 12 has taken them out of its compilers; texture and surface objects do the same",
    ),
    (
        "sparse",
        "Sparse arrays",
        "arrays have all of their memory from the beginning; none are given that memory is mapped into later",
    ),
    (
        "graphics",
        "OpenGL, EGL and VDPAU",
        "buffers of a display driver belong to a connection with it that no image can hold",
    ),
    (
        "external",
        "Memory and semaphores of other interfaces",
        "what Vulkan, Direct3D or NvSci made belongs to another driver, of which an image holds nothing",
    ),
    (
        "rdma",
        "GPUDirect RDMA",
        "what other devices read and write in GPU memory they know by descriptors of the kernel, which no image can hold",
    ),
    (
        "multicast",
        "Multicast objects",
        "multicast over NVLink (NVLS) has not been tried and is left out; NCCL does without",
    ),
    (
        "checkpoint",
        "The driver's own checkpoint",
        "a program in a sandbox is checkpointed from outside (`rekindle checkpoint`), and has no driver state of its own",
    ),
    (
        "narrow",
        "Forms of functions from before CUDA 3.2",
        "addresses have 32 bits there, and device memory lies above; programs built since mean the later form",
    ),
    (
        "later",
        "Of later GPUs",
        "it describes copies that GPUs of compute capability 10.0 and newer make, and those have not been tried",
    ),
    (
        "engine",
        "The decompression engine",
        "it is a part of GPUs that have not been tried; kernels can decompress",
    ),
    (
        "several",
        "Cooperative launches over several GPUs",
        "their kernels meet at a barrier of several GPUs, which CUDA's own runtime has no more since 13.0",
    ),
    ("profiler", "The profiler of the command line", "it ended with CUDA 11; there is nothing to set up"),
    ("undocumented", "Without documentation", "no header or manual says what it does"),
];

fn reason(word: &str) -> Option<&'static str> {
    REASONS.iter().find(|(known, _, _)| *known == word).map(|(_, _, reason)| *reason)
}

/// Base names that newer programs mean by another symbol: (base, since, symbol).
pub const RENAMED: &[(&str, i32, &str)] = &[("cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags")];

/// Functions and variables that debuggers look for; the variables are always zero.
pub const DEBUGGER_FUNCTIONS: &[&str] =
    &["cudbgApiAttach", "cudbgApiDetach", "cudbgApiInit", "cudbgGetAPI", "cudbgGetAPIVersion", "cudbgMain"];
pub const DEBUGGER_VARIABLES: &[&str] = &[
    "cudbgApiClientPid",
    "cudbgApiClientRevision",
    "cudbgAttachHandlerAvailable",
    "cudbgDebuggerCapabilities",
    "cudbgDebuggerInitialized",
    "cudbgDetachSuspendedDevicesMask",
    "cudbgEnableIntegratedMemcheck",
    "cudbgEnableLaunchBlocking",
    "cudbgEnablePreemptionDebugging",
    "cudbgInjectionPath",
    "cudbgIpcFlag",
    "cudbgReportDriverApiError",
    "cudbgReportDriverApiErrorFlags",
    "cudbgReportDriverInternalError",
    "cudbgReportedDriverApiErrorCode",
    "cudbgReportedDriverApiErrorFuncNameAddr",
    "cudbgReportedDriverApiErrorFuncNameSize",
    "cudbgReportedDriverApiErrorNameAddr",
    "cudbgReportedDriverApiErrorNameSize",
    "cudbgReportedDriverApiErrorSource",
    "cudbgReportedDriverApiErrorStringAddr",
    "cudbgReportedDriverApiErrorStringSize",
    "cudbgReportedDriverInternalErrorCode",
    "cudbgResumeForAttachDetach",
    "cudbgRpcEnabled",
    "cudbgSessionId",
    "cudbgUseExternalDebugger",
];

static TABLE: LazyLock<Vec<Function>> = LazyLock::new(|| {
    include_str!("functions.txt").lines().filter(|line| !line.starts_with('#')).filter_map(parse).collect()
});

/// Every row of the table, in the order of the driver's documentation; versions of one base ascend.
pub fn functions() -> &'static [Function] {
    &TABLE
}

/// The table as a document: which functions work, which answer `CUDA_ERROR_NOT_SUPPORTED`.
pub fn listing() -> String {
    let mut text = String::from(
        "# Functions of the driver API\n\n\
         Made from `crates/cuda/src/functions.txt`. Every function that CUDA 13.0's driver exports is there; one that \
         is not implemented returns `CUDA_ERROR_NOT_SUPPORTED` and is named once on standard error, with the reason that \
         stands here. With `_ptds` and `_ptsz` where the header has them.\n",
    );
    let missing = functions().iter().filter(|function| !function.implemented()).count();
    let _ = write!(text, "\n## Implemented ({})\n\n", functions().len() - missing);
    list(&mut text, Function::implemented);
    let _ = writeln!(text, "\n## Not implemented ({missing})");
    for (_, title, reason) in REASONS {
        let is_here = |function: &Function| function.missing == Some(reason);
        if functions().iter().any(is_here) {
            let _ = write!(text, "\n### {title}\n\nWhy: {reason}.\n\n");
            list(&mut text, is_here);
        }
    }
    text
}

fn list(text: &mut String, which: impl Fn(&Function) -> bool) {
    for function in functions().iter().filter(|function| which(function)) {
        let _ = write!(text, "- `{}`", function.symbol);
        if function.since != 0 {
            let _ = write!(text, ", CUDA {}.{}", function.since / 1000, function.since % 1000 / 10);
        }
        text.push('\n');
    }
}

fn parse(line: &'static str) -> Option<Function> {
    let mut words = line.split(' ');
    Some(Function {
        symbol: words.next()?,
        base: words.next()?,
        since: words.next()?.parse().ok()?,
        threads: words.next().filter(|word| *word != "-"),
        missing: match words.next()? {
            "yes" => None,
            _ => Some(reason(words.next()?)?),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_line_is_a_function_and_names_are_unique() {
        let lines = include_str!("functions.txt").lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(functions().len(), lines);
        let names: HashSet<&str> = functions().iter().map(|f| f.symbol).collect();
        assert_eq!(names.len(), lines);
    }

    #[test]
    fn every_reason_is_needed_and_told_once() {
        for (word, title, reason) in REASONS {
            let needed = functions().iter().any(|function| function.missing == Some(reason));
            assert!(needed, "{word} stands behind no function; take it out");
            assert_eq!(listing().matches(title).count(), 1, "{title}");
        }
    }

    #[test]
    fn the_document_is_what_the_table_says() {
        let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/functions.md");
        let found = std::fs::read_to_string(document).unwrap();
        assert_eq!(
            found,
            listing(),
            "write it again: cargo run -p rekindle-cuda --example functions > docs/functions.md"
        );
    }

    #[test]
    fn with_thread_variants_and_debugger_names_there_are_707() {
        let variants = functions().iter().filter(|f| f.threads.is_some()).count();
        let count = functions().len() + variants + DEBUGGER_FUNCTIONS.len() + DEBUGGER_VARIABLES.len();
        assert_eq!(count, 707);
    }
}
