//! Programs that move, and the nodes that they move between.

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use rekindle_protocol::network::Port;

use super::service;
use crate::completion;

/// A program that moves, and where to.
#[derive(Debug, Args)]
pub struct MigrateArguments {
    #[arg(value_name = "SANDBOX", add = ArgValueCandidates::new(completion::running))]
    pub name: String,
    /// The GPU that it is to move to: nvidia:INDEX or emulated:INDEX. With --to that of the other node; its usual one if
    /// nothing is said.
    ///
    /// Of a program with several GPUs as many, each at the place of the one that it replaces: nvidia:2,3. The other node
    /// chooses those with most memory free if nothing is said.
    #[arg(long, value_name = "GPU", required_unless_present_any = ["to", "take_back"])]
    pub gpu: Option<String>,
    /// The node that it is to move to, by the name that `rekindle node add` has given it.
    #[arg(long, value_name = "NODE", conflicts_with = "take_back", add = ArgValueCandidates::new(completion::nodes))]
    pub to: Option<String>,
    /// Have its memory go through the host's, and be copied so often at most while it runs; 0 has it stand still for all.
    ///
    /// Without this the other GPU copies it by itself, or where it cannot, it is 4. To another node it is sent at least
    /// once while it runs.
    #[arg(long, value_name = "N")]
    pub rounds: Option<u32>,
    /// With --to: ports of the other machine's that are to lead to it, in place of those that it has here.
    #[arg(short, long, value_name = "[ADDRESS:]PORT:TO", requires = "to")]
    pub publish: Vec<Port>,
    /// With --to: have its ports here lead there for so long, such as 30m; `rekindle rm` ends that.
    #[arg(long, value_name = "TIME", value_parser = service::duration, requires = "to")]
    pub forward: Option<u64>,
    /// Have a program go on here that waits for another node to say whether it has it.
    ///
    /// That node may run it: be sure that it does not, and never will.
    #[arg(long, conflicts_with_all = ["gpu", "rounds"])]
    pub take_back: bool,
}

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Say this node's public key, which other nodes are told, and where it is heard.
    Id,
    /// Add a node that this one knows. It has to know this one too.
    Add {
        /// What it is called here.
        name: String,
        /// Where it is heard: HOST:PORT, the port being that of its daemon's --node-port.
        address: String,
        /// What `rekindle node id` prints there.
        key: String,
        /// Have functions of apps and tenants with the same names there and here get each other's arrays.
        #[arg(long)]
        arrays: bool,
    },
    /// List the nodes that are known.
    Ls,
    /// Forget a node.
    Rm {
        #[arg(add = ArgValueCandidates::new(completion::nodes))]
        name: String,
    },
}
