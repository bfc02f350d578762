//! A graph as text for Graphviz.

use std::fmt::Write;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM};

use crate::abi::{Handle, Result, Text};
use crate::arena;
use crate::export::exports;

use super::parameters::{CHILD, KERNEL};
use super::{Graph, inside, read};

/// By `CUgraphNodeType`.
const NAMES: [&str; 14] = [
    "KERNEL",
    "MEMCPY",
    "MEMSET",
    "HOST",
    "GRAPH",
    "EMPTY",
    "WAIT_EVENT",
    "EVENT_RECORD",
    "EXT_SEMAS_SIGNAL",
    "EXT_SEMAS_WAIT",
    "MEM_ALLOC",
    "MEM_FREE",
    "BATCH_MEM_OP",
    "CONDITIONAL",
];

fn cluster(text: &mut String, handle: Handle, depth: usize) -> Result<()> {
    let graph = arena::get::<Graph>(handle)?;
    let entries = graph.entries(handle)?;
    let id = graph.id;
    let mut line =
        |line: String| writeln!(text, "{}{line}", "  ".repeat(depth)).map_err(|_| CUDA_ERROR_INVALID_VALUE);
    line(format!("subgraph cluster_{id} {{"))?;
    line(format!("  label=\"graph_{id}\";"))?;
    for (number, entry) in &entries {
        let kind = NAMES.get(entry.kind as usize).unwrap_or(&"UNKNOWN");
        let kernel = if entry.kind == KERNEL { read::kernel_name(entry.handle).ok() } else { None };
        let name = kernel.map_or((*kind).to_string(), |name| format!("{kind}\\n{name}"));
        line(format!("  \"graph_{id}_node_{number}\" [shape=\"rectangle\" label=\"{number}\\n{name}\"];"))?;
        for before in &entry.after {
            line(format!("  \"graph_{id}_node_{before}\" -> \"graph_{id}_node_{number}\";"))?;
        }
    }
    for (_, entry) in entries.iter().filter(|(_, entry)| entry.kind == CHILD) {
        cluster(text, inside::graph_in(entry.handle)?, depth + 1)?;
    }
    writeln!(text, "{}}}", "  ".repeat(depth)).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

exports! {
    call fn cuGraphDebugDotPrint(graph: Handle, path: Text, _flags: u32) {
        let path = path.get()?;
        let mut text = "digraph dot {\n".to_owned();
        cluster(&mut text, graph, 1)?;
        text.push_str("}\n");
        std::fs::write(path, text).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)
    }
}
