//! What a context can be asked and told: flags, limits, caches, peers, and to wait.

use std::sync::atomic::Ordering;

use rekindle_cuda::{
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, CUDA_ERROR_UNSUPPORTED_LIMIT,
};
use rekindle_protocol::operation::{ContextAwait, ContextSynchronize, LimitGet, LimitSet};

use crate::abi::{Handle, Out, Result};
use crate::context::{self, Context};
use crate::export::exports;
use crate::{lane, session};

/// Waits for all work of the device; asynchronous errors come out here.
pub fn synchronize(device: u8) -> Result<()> {
    lane::wait_for(&ContextAwait { device }, &ContextSynchronize { device })?;
    session::get()?.take_error(device)
}

/// Waits for a context's work: of a green one, that of its streams.
fn wait(context: &Context) -> Result<()> {
    match context.green() {
        Some(green) => green.synchronize(),
        None => synchronize(context.device),
    }
}

/// `CU_LIMIT_MAX`.
const LIMITS: u32 = 10;

fn peer(handle: Handle) -> Result<(&'static Context, &'static Context)> {
    let (mine, peer) = (context::current()?, context::find(handle)?);
    if mine.device == peer.device {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    Ok((mine, peer))
}

exports! {
    call fn cuCtxSynchronize() { wait(context::current()?) }
    call fn cuCtxSynchronize_v2(handle: Handle) {
        let context = if handle.is_null() { context::current()? } else { context::find(handle)? };
        context.usable()?;
        wait(context)
    }
    ready fn cuCtxGetFlags(out: Out<u32>) { out.put(context::current()?.flags.load(Ordering::Relaxed)) }
    ready fn cuCtxSetFlags(flags: u32) {
        context::current()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }
    call fn cuCtxGetLimit(out: Out<usize>, limit: u32) {
        out.check()?;
        if limit >= LIMITS {
            return Err(CUDA_ERROR_UNSUPPORTED_LIMIT);
        }
        out.put(lane::ask(&LimitGet { device: context::device()?, limit })? as usize)
    }
    call fn cuCtxSetLimit(limit: u32, value: usize) {
        if limit >= LIMITS {
            return Err(CUDA_ERROR_UNSUPPORTED_LIMIT);
        }
        lane::ask(&LimitSet { device: context::device()?, limit, value: value as u64 })
    }
    ready fn cuCtxGetCacheConfig(out: Out<u32>) { out.put(context::current()?.cache.load(Ordering::Relaxed)) }
    ready fn cuCtxSetCacheConfig(config: u32) {
        if config > 3 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        context::current()?.cache.store(config, Ordering::Relaxed);
        Ok(())
    }
    ready fn cuCtxGetSharedMemConfig(out: Out<u32>) { out.put(context::current()?.banks.load(Ordering::Relaxed).max(1)) }
    ready fn cuCtxSetSharedMemConfig(config: u32) {
        context::current()?.banks.store(config, Ordering::Relaxed);
        Ok(())
    }
    ready fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        let (low, high) = session::get()?.device(context::device()?.into())?.stream_priorities;
        least.offer(low);
        greatest.offer(high);
        Ok(())
    }
    ready fn cuCtxResetPersistingL2Cache() { context::current().map(drop) }
    ready fn cuCtxGetExecAffinity(_out: Handle, _kind: u32) { Err(rekindle_cuda::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY) }
    ready fn cuCtxEnablePeerAccess(handle: Handle, flags: u32) {
        let (mine, peer) = peer(handle)?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if !crate::device::can_reach(mine.device, peer.device)? {
            return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        match mine.peers.fetch_or(1 << peer.device, Ordering::Relaxed) & 1 << peer.device {
            0 => Ok(()),
            _ => Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
        }
    }
    ready fn cuCtxDisablePeerAccess(handle: Handle) {
        let (mine, peer) = peer(handle)?;
        match mine.peers.fetch_and(!(1 << peer.device), Ordering::Relaxed) & 1 << peer.device {
            0 => Err(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED),
            _ => Ok(()),
        }
    }
    free fn cuProfilerStart() { Ok(()) }
    free fn cuProfilerStop() { Ok(()) }
}
