//! A GPU half that the driver itself takes and brings back: which processes have one, where it may come back to.

use std::time::Duration;

use rekindle_driver::{Gpu, Helper, Hold, UuidPair, candidates, is_here, plan};
use rekindle_protocol::worker::Phase;
use rekindle_sandbox::pages::Wanted;
use rekindle_sandbox::{Cpu, Criu, Sandbox as CpuHalf, amd};
use rekindle_store::{GpuKind, Image, Mode, PartKind};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::images::ImageError;
use crate::images::metadata::ImageMetadata;
use crate::timeline::{GPU, Timeline};

/// What an image keeps of it; the contents are in the processes' memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DriverHalf {
    /// The processes, as the program knows them.
    pub pids: Vec<i32>,
    pub gpus: Vec<Gpu>,
}

/// Whether one of these processes may use a GPU.
pub fn is_used(pids: impl IntoIterator<Item = i32>) -> bool {
    let found = candidates(pids);
    // The driver's library alone does nothing where there is no driver.
    found.iter().any(|candidate| candidate.device.is_some()) || (!found.is_empty() && is_here())
}

/// Takes the GPU halves of all processes that have one; none where none has.
pub fn hold<'a>(
    driver: &'a Helper,
    id: &str,
    cpu: &Cpu<'_>,
    wait: Duration,
    timeline: &Timeline,
) -> Result<Option<Hold<'a>>> {
    let Some(root) = cpu.root_pid().filter(|_| is_used(cpu.pids().into_values())) else { return Ok(None) };
    let start_us = timeline.elapsed_us();
    let hold = driver.hold(id, root, wait)?;
    timeline.lane(GPU).merge(start_us, hold.held.phases.clone());
    if hold.held.pids.is_empty() {
        hold.forget();
        return Ok(None);
    }
    Ok(Some(hold))
}

/// The processes that use an AMD GPU, as the program knows them, and a CRIU that can take those.
pub fn amd(cpu: &Cpu<'_>, criu: &Criu) -> Result<(Vec<i32>, Criu)> {
    let pids = cpu.pids();
    let users = amd::users(pids.values().copied());
    let Some(pid) = users.first() else { return Ok((Vec::new(), criu.clone())) };
    let criu = amd_criu(criu, || format!("process {pid} uses an AMD GPU"))?;
    let inside = pids.into_iter().filter(|(_, host)| users.contains(host));
    Ok((inside.map(|(inside, _)| inside).collect(), criu))
}

/// The CRIU that brings a program of AMD GPUs back.
pub fn amd_criu(criu: &Criu, what: impl FnOnce() -> String) -> Result<Criu> {
    amd::with_plugin(criu).map_err(|tried| {
        let places = tried.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ");
        ImageError::NoAmdPlugin { what: what(), places }.into()
    })
}

/// Where the driver has put what was on GPUs.
pub fn areas(hold: Option<&Hold<'_>>) -> Vec<Wanted> {
    let areas = hold.iter().flat_map(|hold| &hold.held.areas);
    areas.map(|area| Wanted { host_pid: area.pid, span: area.start..area.end }).collect()
}

/// Brings the held processes back to running.
pub fn release(hold: Hold<'_>, timeline: &Timeline) -> Result<()> {
    let start_us = timeline.elapsed_us();
    let phases: Vec<Phase> = hold.release()?;
    timeline.lane(GPU).merge(start_us, phases);
    Ok(())
}

impl DriverHalf {
    pub fn of(hold: &Hold<'_>, cpu: &Cpu<'_>) -> DriverHalf {
        let pids = cpu.pids().into_iter().filter(|(_, host)| hold.held.pids.contains(host));
        DriverHalf { pids: pids.map(|(inside, _)| inside).collect(), gpus: hold.held.gpus.clone() }
    }

    /// How much of the GPUs' memory lies in the processes' own.
    pub fn bytes(&self) -> u64 {
        self.gpus.iter().map(|gpu| gpu.used_bytes).sum()
    }

    /// As the manifest shows them.
    pub fn shown_gpus(&self) -> Vec<rekindle_store::Gpu> {
        let shown = |(gpu, index): (&Gpu, u32)| rekindle_store::Gpu {
            kind: GpuKind::Nvidia,
            model: gpu.model.clone(),
            uuid: gpu.uuid.clone(),
            memory_bytes: gpu.memory_bytes,
            driver_version: gpu.driver_version.clone(),
            index,
        };
        self.gpus.iter().zip(0..).map(shown).collect()
    }

    /// Brings the GPU half of a program that CRIU has restored back onto GPUs.
    pub fn bring_back(
        &self,
        driver: &Helper,
        id: &str,
        cpu: &CpuHalf,
        pairs: &[UuidPair],
        timeline: &Timeline,
    ) -> Result<()> {
        let missing = |pid: &i32| Error::System {
            action: "bring the GPU half back",
            source: std::io::Error::other(format!("process {pid} of the program did not come back")),
        };
        let pids = self.pids.iter().map(|pid| cpu.host_pid(*pid).ok_or_else(|| missing(pid)));
        let pids = pids.collect::<Result<Vec<_>>>()?;
        let start_us = timeline.elapsed_us();
        let phases = driver.restore(id, pids, pairs.to_vec())?;
        timeline.lane(GPU).merge(start_us, phases);
        Ok(())
    }
}

/// Checks that an image's GPU half is all there and can come back here, before anything is touched.
pub fn check<'a>(
    driver: &Helper,
    criu: impl FnOnce() -> Result<&'a Criu>,
    image: &Image,
    metadata: &ImageMetadata,
    given: &[String],
) -> Result<Vec<UuidPair>> {
    let refused =
        |reason: String| ImageError::CannotRestore { image: image.manifest().name.clone(), reason }.into();
    let driver_mode = image.manifest().mode == Mode::Driver;
    if !metadata.amd.is_empty() {
        if !amd::is_here() {
            return Err(refused(
                "it was taken on an AMD GPU and there is none; use such a machine".to_string(),
            ));
        }
        amd_criu(criu()?, || format!("the image {:?} has an AMD GPU half", image.manifest().name))?;
    }
    let Some(half) = &metadata.driver else {
        if driver_mode && !image.manifest().gpus.is_empty() {
            return Err(refused("it says that it was taken on GPUs, and has nothing of them".to_string()));
        }
        if !given.is_empty() {
            return Err(refused(
                "it has no GPU half of mode driver, so that --gpu-map has no meaning".to_string(),
            ));
        }
        return Ok(Vec::new());
    };
    if !driver_mode || image.manifest().gpus.len() != half.gpus.len() {
        return Err(refused("what it says of its GPUs contradicts itself".to_string()));
    }
    // A container's may be in its archive.
    let is_beside = metadata.container.as_ref().is_none_or(|container| container.memory_beside);
    for pid in half.pids.iter().filter(|_| is_beside) {
        for name in [format!("core-{pid}.img"), format!("mm-{pid}.img"), format!("pagemap-{pid}.img")] {
            if image.part(PartKind::CpuFile, &name).is_none() {
                return Err(refused(format!("its part {name}, of a process that uses the GPU, is missing")));
            }
        }
    }
    let present = driver.gpus().map_err(|error| refused(error.to_string()))?;
    plan(&half.gpus, &present, given).map_err(|reasons| refused(reasons.join("; ")))
}
