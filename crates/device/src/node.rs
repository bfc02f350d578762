//! What nodes of graphs do.

use crate::{Array, ArrayCopy, Copy3D, Event, Function, Graph, GraphCall, Launch, MemorySet, ValueOperation};

/// What a node does, but for conditional ones ([`graph_add_conditional`](crate::Device::graph_add_conditional)).
pub enum NodeWork<'a> {
    Kernel {
        function: Function,
        launch: &'a Launch,
        parameters: &'a [u8],
    },
    Copy(&'a Copy3D),
    /// From or to arrays.
    CopyArray(&'a ArrayCopy<Array>),
    Set(&'a MemorySet),
    Empty,
    /// The graph takes a copy of the child as it is.
    Child(Graph),
    /// The device keeps the call as long as the graph, or something made of it, has the node.
    Call(GraphCall),
    Record(Event),
    Wait(Event),
    /// Done one after the other.
    Values(&'a [ValueOperation]),
}
