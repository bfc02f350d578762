use rekindle_cuda::*;
use rekindle_device::{Copy3D, GraphNode, MemorySet, NodeWork, Stream};

use crate::support::{MIB, PTX, buffer, download, function, machine, parameters, shape, upload};

#[test]
fn a_capture_forks_and_joins_over_streams() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let increment = function(gpu, PTX, "increment");
    let device = buffer(gpu.as_ref(), 2 * MIB);
    let at = device.address;
    let (a, b) = (gpu.stream_create(1, 0).unwrap(), gpu.stream_create(1, 0).unwrap());
    let (fork, join) = (gpu.event_create(2).unwrap(), gpu.event_create(2).unwrap());

    gpu.capture_begin(a, 0).unwrap();
    assert_eq!(gpu.capture(a).unwrap().status, 1);
    gpu.launch(increment, &shape(1, 4), a, &parameters(&[at])).unwrap();
    gpu.event_record(fork, a, 0).unwrap();
    gpu.stream_wait_event(b, fork, 0).unwrap();
    assert_eq!(gpu.capture(b).unwrap(), gpu.capture(a).unwrap());
    gpu.copy(at + 64, at, 16, b).unwrap();
    gpu.launch(increment, &shape(1, 4), b, &parameters(&[at + 64])).unwrap();
    gpu.copy(at + 128, at, 16, a).unwrap();
    gpu.event_record(join, b, 0).unwrap();
    gpu.stream_wait_event(a, join, 0).unwrap();
    gpu.copy(at + 192, at + 64, 16, a).unwrap();
    let graph = gpu.capture_end(a).unwrap();
    assert_eq!(gpu.capture(b).unwrap().status, 0);

    let kinds: Vec<u32> =
        gpu.graph_nodes(graph).unwrap().iter().map(|node| gpu.graph_node_kind(*node).unwrap().0).collect();
    assert_eq!(kinds, [0, 1, 0, 1, 1]);
    assert_eq!(download(gpu, at, 1), [0], "a capture runs nothing");

    let exec = gpu.graph_instantiate(graph, 0).unwrap();
    gpu.graph_destroy(graph).unwrap();
    upload(gpu, at, &[10, 20, 30, 40]);
    for _ in 0..50 {
        gpu.graph_launch(exec, a).unwrap();
    }
    gpu.stream_synchronize(a).unwrap();
    assert_eq!(download(gpu, at, 4), [60, 70, 80, 90]);
    assert_eq!(download(gpu, at + 128, 4), [60, 70, 80, 90]);
    assert_eq!(download(gpu, at + 192, 4), [61, 71, 81, 91]);
    gpu.graph_exec_destroy(exec).unwrap();
    assert_eq!(gpu.graph_launch(exec, a), Err(CUDA_ERROR_INVALID_HANDLE));
}

#[test]
fn a_graph_by_hand_keeps_its_dependencies() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let device = buffer(gpu.as_ref(), 2 * MIB);
    let at = device.address;
    let graph = gpu.graph_create().unwrap();
    let fill = MemorySet { address: at, pitch: 0, value: 3, element: 4, width: 4, height: 1 };
    let first = gpu.graph_add(graph, &[], NodeWork::Set(&fill)).unwrap();
    let middle = gpu.graph_add(graph, &[first], NodeWork::Empty).unwrap();
    let copies: Vec<GraphNode> = (1..5)
        .map(|i| {
            gpu.graph_add(graph, &[middle], NodeWork::Copy(&Copy3D::linear(at + i * 64, at, 16))).unwrap()
        })
        .collect();
    let last = MemorySet { value: 9, ..fill };
    gpu.graph_add(graph, &copies, NodeWork::Set(&last)).unwrap();
    assert_eq!(gpu.graph_add(graph, &[GraphNode(9999)], NodeWork::Set(&last)), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(gpu.graph_nodes(graph).unwrap().len(), 7);
    let exec = gpu.graph_instantiate(graph, 0).unwrap();
    for _ in 0..20 {
        gpu.graph_launch(exec, Stream::LEGACY).unwrap();
    }
    for i in 1..5 {
        assert_eq!(download(gpu, at + i * 64, 4), [3; 4]);
    }
    assert_eq!(download(gpu, at, 4), [9; 4]);

    let stream = gpu.stream_create(1, 0).unwrap();
    gpu.capture_begin(stream, 2).unwrap();
    gpu.graph_launch(exec, stream).unwrap();
    let outer = gpu.capture_end(stream).unwrap();
    let nodes = gpu.graph_nodes(outer).unwrap();
    assert_eq!(gpu.graph_node_kind(nodes[0]).unwrap().0, 4, "a graph in a graph");
    upload(gpu, at + 64, &[0; 4]);
    let outer = gpu.graph_instantiate(outer, 0).unwrap();
    gpu.graph_launch(outer, stream).unwrap();
    gpu.stream_synchronize(stream).unwrap();
    assert_eq!(download(gpu, at + 64, 4), [3; 4]);
}

#[test]
fn what_a_capture_forbids_has_its_code() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let device = buffer(gpu.as_ref(), 2 * MIB);
    let fill = MemorySet { address: device.address, pitch: 0, value: 1, element: 4, width: 1, height: 1 };
    let stream = |flags| gpu.stream_create(flags, 0).unwrap();
    let event = || gpu.event_create(2).unwrap();

    assert_eq!(gpu.capture_begin(Stream::LEGACY, 0), Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    let a = stream(1);
    assert_eq!(gpu.capture_end(a), Err(CUDA_ERROR_ILLEGAL_STATE));
    gpu.capture_begin(a, 0).unwrap();
    assert_eq!(gpu.capture_begin(a, 0), Err(CUDA_ERROR_ILLEGAL_STATE));
    assert_eq!(gpu.stream_synchronize(a), Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!(gpu.capture(a).unwrap().status, 2);
    assert_eq!(gpu.set(&fill, a), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    assert_eq!(gpu.capture_end(a), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    gpu.set(&fill, a).unwrap();

    gpu.capture_begin(a, 0).unwrap();
    assert_eq!(gpu.synchronize(), Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    assert!(gpu.capture_end(a).is_err());

    let blocking = stream(0);
    gpu.capture_begin(blocking, 2).unwrap();
    assert_eq!(gpu.capture(Stream::LEGACY), Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
    assert_eq!(gpu.set(&fill, Stream::LEGACY), Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
    assert!(gpu.capture_end(blocking).is_err());

    let (b, inside, outside) = (stream(1), event(), event());
    gpu.event_record(outside, b, 0).unwrap();
    gpu.capture_begin(a, 2).unwrap();
    assert_eq!(gpu.stream_wait_event(a, outside, 0), Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION));
    assert!(gpu.capture_end(a).is_err());

    gpu.capture_begin(a, 2).unwrap();
    gpu.set(&fill, a).unwrap();
    gpu.event_record(inside, a, 0).unwrap();
    gpu.stream_wait_event(b, inside, 0).unwrap();
    gpu.set(&fill, b).unwrap();
    assert_eq!(gpu.capture_end(b), Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED));
    assert!(gpu.capture_end(a).is_err());

    gpu.capture_begin(a, 2).unwrap();
    gpu.set(&fill, a).unwrap();
    gpu.event_record(inside, a, 0).unwrap();
    gpu.stream_wait_event(b, inside, 0).unwrap();
    gpu.set(&fill, b).unwrap();
    assert_eq!(gpu.capture_end(a), Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
    gpu.set(&fill, b).unwrap();
    gpu.synchronize().unwrap();

    gpu.capture_begin(a, 2).unwrap();
    gpu.capture_begin(b, 2).unwrap();
    gpu.event_record(inside, a, 0).unwrap();
    assert_eq!(gpu.event_query(inside), Err(CUDA_ERROR_CAPTURED_EVENT));
    assert!(gpu.capture_end(a).is_err());
    gpu.capture_begin(a, 2).unwrap();
    gpu.event_record(inside, a, 0).unwrap();
    assert_eq!(gpu.stream_wait_event(b, inside, 0), Err(CUDA_ERROR_STREAM_CAPTURE_MERGE));
    assert!(gpu.capture_end(a).is_err() && gpu.capture_end(b).is_err());
}

#[test]
fn a_thread_that_is_bound_to_another_device_launches_nothing_and_may_copy() {
    let machine = machine("devices=2");
    let gpu = &machine.gpu;
    let other = machine.platform.open(1).unwrap();
    gpu.bind().unwrap();
    let increment = function(gpu, PTX, "increment");
    let at = buffer(gpu.as_ref(), 2 * MIB).address;
    let (stream, event) = (gpu.stream_create(1, 0).unwrap(), gpu.event_create(2).unwrap());
    let graph = gpu.graph_create().unwrap();
    let exec = gpu.graph_instantiate(graph, 0).unwrap();
    let launch = || gpu.launch(increment, &shape(1, 4), stream, &parameters(&[at]));
    other.bind().unwrap();
    assert_eq!(launch(), Err(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(gpu.graph_launch(exec, stream), Err(CUDA_ERROR_INVALID_HANDLE));
    gpu.copy(at + 64, at, 16, stream).unwrap();
    gpu.event_record(event, stream, 0).unwrap();
    gpu.bind().unwrap();
    launch().unwrap();
    gpu.graph_launch(exec, stream).unwrap();
    gpu.stream_synchronize(stream).unwrap();
    assert_eq!(download(gpu, at, 4), [1; 4]);
}
