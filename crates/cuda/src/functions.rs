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
    pub implemented: bool,
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
         is not implemented returns `CUDA_ERROR_NOT_SUPPORTED` and is named once on standard error. With `_ptds` and \
         `_ptsz` where the header has them.\n",
    );
    for (title, implemented) in [("Implemented", true), ("Not implemented", false)] {
        let listed: Vec<&Function> = functions().iter().filter(|f| f.implemented == implemented).collect();
        let _ = write!(text, "\n## {title} ({})\n\n", listed.len());
        for function in listed {
            let _ = write!(text, "- `{}`", function.symbol);
            if function.since != 0 {
                let _ = write!(text, ", CUDA {}.{}", function.since / 1000, function.since % 1000 / 10);
            }
            text.push('\n');
        }
    }
    text
}

fn parse(line: &'static str) -> Option<Function> {
    let mut words = line.split(' ');
    Some(Function {
        symbol: words.next()?,
        base: words.next()?,
        since: words.next()?.parse().ok()?,
        threads: words.next().filter(|word| *word != "-"),
        implemented: words.next()? == "yes",
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
