//! Prints the list of the driver's functions: `cargo run -p rekindle-cuda --example functions > docs/functions.md`.

fn main() {
    print!("{}", rekindle_cuda::listing());
}
