//! What graphs and their instances hold: user objects, and what their nodes use in this process.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::Handle;
use crate::{capture, context_state};

use super::user_object::Resource;

/// What a node uses: a function, staging of a copy.
pub type NodeResource = Arc<dyn Any + Send + Sync>;

/// Nodes are changed so often before the GPU is waited for, to let go of what they used before.
const MOST_REPLACED: usize = 64;

/// What is let go of when nothing is captured any more, and on which device.
static LATER: Mutex<Vec<(u8, NodeResource)>> = Mutex::new(Vec::new());

#[derive(Clone, Default)]
pub struct GraphResources {
    /// User objects, by handle, and how many references.
    pub objects: Vec<(Handle, Arc<Resource>, u32)>,
    /// By the number of the node; none for those of graphs in nodes.
    kept: Vec<(Option<u32>, NodeResource)>,
    /// Work under way may use it.
    replaced: Vec<NodeResource>,
}

impl GraphResources {
    pub fn extend(&mut self, other: GraphResources) {
        self.objects.extend(other.objects);
        self.kept.extend(other.kept.into_iter().map(|(_, kept)| (None, kept)));
    }

    /// As [`GraphResources::extend`], for nodes that are of the same graph.
    pub fn join(&mut self, other: GraphResources) {
        self.objects.extend(other.objects);
        self.kept.extend(other.kept);
    }

    /// What a node uses from now on. The answer is to be let go of when the device's work is done.
    pub fn keep(&mut self, node: u32, kept: Option<NodeResource>) -> GraphResources {
        let replaced = self.kept.extract_if(.., |(of, _)| *of == Some(node));
        self.replaced.extend(replaced.map(|(_, kept)| kept));
        self.kept.extend(kept.map(|kept| (Some(node), kept)));
        if self.replaced.len() < MOST_REPLACED {
            return GraphResources::default();
        }
        GraphResources { replaced: std::mem::take(&mut self.replaced), ..GraphResources::default() }
    }

    /// What a captured node uses, whose number is not known yet.
    pub fn keep_captured(&mut self, kept: Option<NodeResource>) {
        self.kept.extend(kept.map(|kept| (None, kept)));
    }

    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.kept.is_empty() && self.replaced.is_empty()
    }

    /// Lets go of everything, once the device's work that may use it is done.
    pub fn let_go(mut self, device: u8) {
        if self.is_empty() {
            return;
        }
        let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
        if capture::any() {
            // The device cannot be waited for now.
            later.extend(self.kept.drain(..).map(|(_, kept)| (device, kept)));
            later.extend(self.replaced.drain(..).map(|kept| (device, kept)));
            return;
        }
        let earlier: Vec<NodeResource> =
            later.extract_if(.., |(of, _)| *of == device).map(|(_, kept)| kept).collect();
        drop(later);
        // A device that has failed uses nothing any more.
        let _ = context_state::synchronize(device);
        drop(earlier);
    }
}
