//! Special registers.

use std::cmp::Ordering;

use super::function::FunctionLowering;
use crate::Error;
use crate::ast::Instruction;
use crate::program::{Op, Special};
use crate::types::Type;

fn decode(name: &str, member: Option<u8>) -> Option<(Special, Type)> {
    let axis = |make: fn(u8) -> Special| member.filter(|axis| *axis < 3).map(|axis| (make(axis), Type::B32));
    match name {
        "%tid" => return axis(Special::Thread),
        "%ntid" => return axis(Special::BlockSize),
        "%ctaid" => return axis(Special::Block),
        "%nctaid" => return axis(Special::GridSize),
        "%clusterid" => return axis(Special::Cluster),
        "%nclusterid" => return axis(Special::Clusters),
        "%cluster_ctaid" => return axis(Special::ClusterBlock),
        "%cluster_nctaid" => return axis(Special::ClusterSize),
        _ if member.is_some() => return None,
        _ => {}
    }
    let narrow = match name {
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%smid" => Special::Multiprocessor,
        "%nsmid" => Special::Multiprocessors,
        "%lanemask_eq" => Special::LaneMask(Ordering::Equal, true),
        "%lanemask_lt" => Special::LaneMask(Ordering::Less, false),
        "%lanemask_le" => Special::LaneMask(Ordering::Less, true),
        "%lanemask_gt" => Special::LaneMask(Ordering::Greater, false),
        "%lanemask_ge" => Special::LaneMask(Ordering::Greater, true),
        "%clock" => Special::Clock,
        "%clock_hi" => Special::ClockHigh,
        "%globaltimer_lo" => Special::GlobalTimer,
        "%globaltimer_hi" => Special::GlobalTimerHigh,
        "%total_smem_size" | "%aggr_smem_size" => Special::StaticAndDynamicShared,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%cluster_ctarank" => Special::ClusterRank,
        "%cluster_nctarank" => Special::ClusterBlocks,
        "%is_explicit_cluster" => return Some((Special::ExplicitCluster, Type::Pred)),
        "%gridid" => return Some((Special::GridId, Type::B64)),
        "%clock64" => return Some((Special::Clock64, Type::B64)),
        "%globaltimer" => return Some((Special::GlobalTimer, Type::B64)),
        "%envreg1" => Special::WorkspaceHigh,
        "%envreg2" => Special::Workspace,
        _ => {
            let environment = name.strip_prefix("%envreg").and_then(|number| number.parse::<u8>().ok());
            let counter = name.strip_prefix("%pm").and_then(|number| number.parse::<u8>().ok());
            let known = environment.is_some_and(|n| n < 32)
                || counter.is_some_and(|n| n < 8)
                || matches!(
                    name,
                    "%reserved_smem_offset_begin" | "%reserved_smem_offset_end" | "%reserved_smem_offset_cap"
                );
            return known.then_some((Special::Zero, Type::B32));
        }
    };
    Some((narrow, Type::B32))
}

impl FunctionLowering<'_, '_> {
    /// Reads a special register into a row of its own.
    pub fn special(
        &mut self,
        instruction: &Instruction,
        name: &str,
        member: Option<u8>,
    ) -> Result<u32, Error> {
        let Some((special, ty)) = decode(name, member) else {
            return Err(self.error(instruction, format!("`{name}` is not declared")));
        };
        let row = self.temporary(ty);
        let (guard, negated) = (self.guard, self.negated);
        self.clear_guard();
        self.emit(Op::Special(special), &[row], &[]);
        (self.guard, self.negated) = (guard, negated);
        Ok(row)
    }
}
