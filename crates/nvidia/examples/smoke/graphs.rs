//! Graphs, captured and built.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rekindle_cuda::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
use rekindle_device::{Copy3D, MemorySet, NodeWork, ValueOperation};

use crate::gpu::{Gpu, Outcome, ensure, shape};

const THREAD_LOCAL: u32 = 1;
const CAPTURING: u32 = 1;

pub fn captured(gpu: &Gpu) -> Outcome {
    let buffer = gpu.buffer(2 << 20)?;
    gpu.device.capture_begin(gpu.stream, THREAD_LOCAL)?;
    let state = gpu.device.capture(gpu.stream)?;
    gpu.store(buffer.address, 11)?;
    let refused = gpu.device.host_call(gpu.stream, Box::new(|| {}));
    gpu.device.copy(gpu.host as u64, buffer.address, 4, gpu.stream)?;
    let graph = gpu.device.capture_end(gpu.stream)?;
    ensure!(state.status == CAPTURING && state.id != 0, "the stream's state was {state:?}");
    ensure!(refused == Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED), "a host call in a capture: {refused:?}");
    ensure!(gpu.device.capture(gpu.stream)?.status == 0, "the stream still captures");
    let exec = gpu.device.graph_instantiate(graph, 0)?;
    gpu.set_host_words([0]);
    for _ in 0..2 {
        gpu.device.graph_launch(exec, gpu.stream)?;
    }
    gpu.device.stream_synchronize(gpu.stream)?;
    ensure!(gpu.host_words(1)[0] == 11, "the graph's copy brought {}", gpu.host_words(1)[0]);
    gpu.device.graph_exec_destroy(exec)?;
    gpu.device.graph_destroy(graph)?;
    gpu.free(buffer)?;
    Ok("kernel and copy".into())
}

/// memset, then a kernel that bumps, then a copy to the host, then nothing.
pub fn built(gpu: &Gpu) -> Outcome {
    let buffer = gpu.buffer(2 << 20)?;
    let graph = gpu.device.graph_create()?;
    let set = MemorySet { address: buffer.address, pitch: 0, value: 0x21, element: 4, width: 4, height: 1 };
    let set = gpu.device.graph_add(graph, &[], NodeWork::Set(&set))?;
    let parameters = [(buffer.address + 4).to_le_bytes().as_slice(), &12u32.to_le_bytes()].concat();
    let store = gpu.function("store")?;
    let launch = rekindle_device::Launch { cooperative: true, ..shape(1, 1) };
    let kernel = gpu.device.graph_add(
        graph,
        &[set],
        NodeWork::Kernel { function: store, launch: &launch, parameters: &parameters },
    )?;
    let copy = Copy3D::linear(gpu.host as u64, buffer.address, 16);
    let copy = gpu.device.graph_add(graph, &[kernel], NodeWork::Copy(&copy))?;
    let empty = gpu.device.graph_add(graph, &[copy], NodeWork::Empty)?;
    let nodes = gpu.device.graph_nodes(graph)?;
    ensure!(nodes.len() == 4 && nodes.contains(&empty), "the graph has {} nodes", nodes.len());
    let kinds: Vec<_> = [kernel, copy, set, empty]
        .iter()
        .map(|node| gpu.device.graph_node_kind(*node).map(|kind| kind.0))
        .collect::<Result<_, _>>()?;
    ensure!(kinds == [0, 1, 2, 5], "the nodes' kinds are {kinds:?}");
    let exec = gpu.device.graph_instantiate(graph, 0)?;
    gpu.device.graph_destroy(graph)?;
    gpu.device.graph_launch(exec, gpu.stream)?;
    gpu.device.stream_synchronize(gpu.stream)?;
    let words = gpu.host_words(4);
    ensure!(words == [0x21, 12, 0x21, 0x21], "the graph left {words:x?}");
    gpu.device.graph_exec_destroy(exec)?;
    gpu.free(buffer)?;
    Ok("memset, cooperative kernel, copy, empty".into())
}

/// A call of the host, an event, values, and two choices, of which one is taken.
pub fn others(gpu: &Gpu) -> Outcome {
    let buffer = gpu.buffer(2 << 20)?;
    let fill = |at: u64, value: u32| {
        let address = buffer.address + at;
        MemorySet { address, pitch: 0, value, element: 4, width: 1, height: 1 }
    };
    let graph = gpu.device.graph_create()?;
    let first = gpu.device.graph_add(graph, &[], NodeWork::Set(&MemorySet { width: 4, ..fill(0, 0) }))?;
    let (count, event) = (Arc::new(AtomicU32::new(0)), gpu.device.event_create(0)?);
    let counted = count.clone();
    let call = Arc::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let call = gpu.device.graph_add(graph, &[first], NodeWork::Call(call))?;
    let record = gpu.device.graph_add(graph, &[call], NodeWork::Record(event))?;
    let (address, value, width) = (buffer.address, 5, 4);
    let values = [
        ValueOperation::Write { address, value, width, flags: 0 },
        ValueOperation::Wait { address, value, width, flags: 1 },
    ];
    let mut last = gpu.device.graph_add(graph, &[record], NodeWork::Values(&values))?;
    let mut kinds = vec![call, record, last];
    for (at, default) in [(4, 1), (8, 0)] {
        let condition = gpu.device.graph_condition(graph, Some(default))?;
        let (node, bodies) = gpu.device.graph_add_conditional(graph, &[last], condition, 0, 1)?;
        ensure!(bodies.len() == 1, "a choice of one has {} bodies", bodies.len());
        gpu.device.graph_add(bodies[0], &[], NodeWork::Set(&fill(at, 0x33)))?;
        kinds.push(node);
        last = node;
    }
    let kinds: Vec<_> = kinds
        .iter()
        .map(|node| gpu.device.graph_node_kind(*node).map(|kind| kind.0))
        .collect::<Result<_, _>>()?;
    ensure!(kinds == [3, 7, 12, 13, 13], "the nodes' kinds are {kinds:?}");
    let exec = gpu.device.graph_instantiate(graph, 0)?;
    gpu.device.graph_destroy(graph)?;
    for _ in 0..2 {
        gpu.device.graph_launch(exec, gpu.stream)?;
    }
    gpu.device.stream_synchronize(gpu.stream)?;
    let (calls, words) = (count.load(Ordering::Relaxed), gpu.words(buffer.address, 3)?);
    ensure!(calls == 2 && words == [5, 0x33, 0], "{calls} calls, and the graph left {words:x?}");
    ensure!(gpu.device.event_query(event)?, "the event was not recorded");
    gpu.device.graph_exec_destroy(exec)?;
    gpu.device.event_destroy(event)?;
    gpu.free(buffer)?;
    Ok("call, event, values, conditions".into())
}
