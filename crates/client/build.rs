//! From the table of functions: the exports that nobody implements, and the addresses that `cuGetProcAddress` gives.
//! Also how the library is linked: under the driver's name, bound to its own functions.

use std::fmt::Write;
use std::path::Path;

use rekindle_cuda::{DEBUGGER_FUNCTIONS, DEBUGGER_VARIABLES, functions};

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");

    let mut exports = String::new();
    let mut rows = String::new();
    let refuse = |symbol: &str, reason: &str, exports: &mut String| {
        let _ = writeln!(
            exports,
            "#[unsafe(no_mangle)] pub extern \"C\" fn {symbol}() -> i32 {{ refuse(\"{symbol}\", {reason:?}) }}"
        );
    };
    let mut externs = String::new();
    for function in functions() {
        let variant = function.threads.map(|suffix| format!("{}_{suffix}", function.symbol));
        for symbol in [Some(function.symbol.to_owned()), variant.clone()].into_iter().flatten() {
            match function.missing {
                None => {
                    let _ = writeln!(externs, "    pub fn {symbol}();");
                }
                Some(reason) => refuse(&symbol, reason, &mut exports),
            }
        }
        let module = if function.implemented() { "implemented" } else { "refused" };
        let address = |symbol: &str| {
            if function.implemented() {
                format!("{module}::{symbol} as *const ()")
            } else {
                format!("{symbol} as *const ()")
            }
        };
        let variant = variant.map_or("None".to_owned(), |v| format!("Some(Address({}))", address(&v)));
        let _ = writeln!(
            rows,
            "    Row {{ symbol: \"{}\", base: \"{}\", since: {}, address: Address({}), variant: {variant} }},",
            function.symbol,
            function.base,
            function.since,
            address(function.symbol)
        );
    }
    for symbol in DEBUGGER_FUNCTIONS {
        refuse(symbol, "it is for debuggers, which find no driver here", &mut exports);
    }
    for symbol in DEBUGGER_VARIABLES {
        let _ = writeln!(exports, "#[unsafe(no_mangle)] pub static {symbol}: [u64; 2] = [0; 2];");
    }
    let text = format!(
        "mod implemented {{ unsafe extern \"C\" {{\n{externs}}} }}\n\
         {exports}\n\
         pub static ROWS: &[Row] = &[\n{rows}];\n"
    );
    let directory = std::env::var("OUT_DIR").map_err(std::io::Error::other)?;
    std::fs::write(Path::new(&directory).join("exports.rs"), text)
}
