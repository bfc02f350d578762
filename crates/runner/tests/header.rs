//! `rekindle.h` says what `rekindle_function::abi` says: a C compiler compares them.

use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use rekindle_function::abi;

macro_rules! fields {
    ($checks:ident, $kind:ty, $name:literal, $($field:ident),*) => {
        let _ = writeln!($checks, "_Static_assert(sizeof({}) == {}, \"size\");", $name, size_of::<$kind>());
        $(let _ = writeln!(
            $checks,
            "_Static_assert(offsetof({}, {}) == {}, \"{}\");",
            $name, stringify!($field), offset_of!($kind, $field), stringify!($field)
        );)*
    };
}

fn checks() -> String {
    let mut checks = "#include <rekindle.h>\n".to_string();
    fields!(
        checks,
        abi::Value,
        "rekindle_value",
        kind,
        integer,
        real,
        imaginary,
        data,
        size,
        items,
        count,
        dtype,
        dimensions,
        shape
    );
    fields!(checks, abi::Function, "rekindle_function", name, setup, enter, call, leave, teardown);
    fields!(checks, abi::Library, "rekindle_library_table", version, count, functions);
    fields!(
        checks,
        abi::Api,
        "rekindle_api",
        size,
        stream,
        log,
        fail,
        message,
        reply,
        arguments,
        keyword,
        give,
        put,
        get,
        drop,
        data,
        problem,
        message_in,
        span_begin,
        span_end
    );
    fields!(checks, abi::Call, "struct rekindle_call", api);
    for (name, value) in [
        ("REKINDLE_VERSION", abi::VERSION as i32),
        ("REKINDLE_DONE", abi::DONE),
        ("REKINDLE_FAILED", abi::FAILED),
        ("REKINDLE_BROKEN", abi::BROKEN),
        ("REKINDLE_NONE", abi::Kind::None as i32),
        ("REKINDLE_BOOLEAN", abi::Kind::Boolean as i32),
        ("REKINDLE_INTEGER", abi::Kind::Integer as i32),
        ("REKINDLE_REAL", abi::Kind::Real as i32),
        ("REKINDLE_COMPLEX", abi::Kind::Complex as i32),
        ("REKINDLE_TEXT", abi::Kind::Text as i32),
        ("REKINDLE_BYTES", abi::Kind::Bytes as i32),
        ("REKINDLE_DATE", abi::Kind::Date as i32),
        ("REKINDLE_LIST", abi::Kind::List as i32),
        ("REKINDLE_TUPLE", abi::Kind::Tuple as i32),
        ("REKINDLE_SET", abi::Kind::Set as i32),
        ("REKINDLE_FROZEN_SET", abi::Kind::FrozenSet as i32),
        ("REKINDLE_DICTIONARY", abi::Kind::Dictionary as i32),
        ("REKINDLE_ARRAY", abi::Kind::Array as i32),
        ("REKINDLE_SCALAR", abi::Kind::Scalar as i32),
        ("REKINDLE_REFERENCE", abi::Kind::Reference as i32),
        ("REKINDLE_DEVICE", abi::Kind::Device as i32),
    ] {
        let _ = writeln!(checks, "_Static_assert({name} == {value}, \"{name}\");");
    }
    checks
}

fn compiles(compiler: &str, name: &str, text: &str) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(name);
    std::fs::write(&file, text).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let done = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
        .args([&include, &file])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn the_header_says_what_the_runner_does() {
    compiles("cc", "check.c", &checks());
}

#[test]
fn a_header_that_says_something_else_is_found() {
    let wrong = checks().replace("REKINDLE_DEVICE == 16", "REKINDLE_DEVICE == 17");
    let found = std::panic::catch_unwind(|| compiles("cc", "wrong.c", &wrong));
    assert!(found.is_err());
}

#[test]
fn the_header_is_good_for_the_c_standards_that_it_is_for() {
    compiles(
        "cc",
        "plain.c",
        "#include <rekindle.h>\nint main(void) { return rekindle_value_of(REKINDLE_NONE).kind; }\n",
    );
}
