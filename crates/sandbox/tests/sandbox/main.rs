//! Sandboxes with real programs and a real CRIU. Needs root; without it each test says so and passes.

mod checkpoint;
mod lifecycle;
mod support;
mod tree;
