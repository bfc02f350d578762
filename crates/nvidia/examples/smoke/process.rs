//! Checks that need a second process: a fault that kills a context, and the driver's own checkpoint.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rekindle_cuda::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::{Access, Platform};
use rekindle_nvidia::NvidiaPlatform;

use crate::gpu::{Failure, Gpu, Outcome, ensure};

const SMALL: u64 = 4 << 20;
const LOCK_TIMEOUT_MS: u32 = 5000;

/// A child writes to imported memory, dies of a write to a read-only page, and the memory is as it left it.
pub fn fault(gpu: &Gpu) -> Outcome {
    let buffer = gpu.buffer(2 << 20)?;
    let descriptor = gpu.device.memory_export(buffer.memory)?;
    gpu.free(buffer)?;
    // SAFETY: a copy of an open descriptor, owned here, which exec leaves open.
    let inherited = unsafe { OwnedFd::from_raw_fd(libc::dup(descriptor.as_raw_fd())) };
    let mut child = spawn("fault", &[inherited.as_raw_fd().to_string()])?;
    drop(inherited);
    let mut lines = reader(&mut child)?;
    let mut words = String::new();
    lines.read_line(&mut words)?;
    ensure!(child.wait()?.success(), "the child failed: {words}");
    let memory = gpu.device.memory_import(descriptor.as_fd(), buffer.bytes)?;
    gpu.device.map(buffer.address, buffer.bytes, memory)?;
    gpu.device.protect(buffer.address, buffer.bytes, Access::Read)?;
    let seen = gpu.words(buffer.address, 2)?;
    gpu.device.unmap(buffer.address, buffer.bytes)?;
    gpu.device.memory_release(memory)?;
    ensure!(seen == [0xfeed, 0xbeef], "the memory holds {seen:x?}");
    Ok(words.trim().to_owned())
}

/// The child's half of [`fault`].
pub fn fault_child(descriptor: i32) -> Outcome {
    let platform = NvidiaPlatform::open()?;
    let gpu = Gpu::open(&platform, SMALL)?;
    // SAFETY: the parent left this descriptor open for us.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let bytes = 2 << 20;
    let address = gpu.addresses(bytes);
    let memory = gpu.device.memory_import(descriptor, bytes)?;
    gpu.device.map(address, bytes, memory)?;
    gpu.device.protect(address, bytes, Access::ReadWrite)?;
    gpu.store(address, 0xfeed)?;
    gpu.store(address + 4, 0xbeef)?;
    gpu.device.stream_synchronize(gpu.stream)?;
    gpu.device.protect(address, bytes, Access::Read)?;
    gpu.store(address, 1)?;
    let start = Instant::now();
    let answer = gpu.device.stream_synchronize(gpu.stream);
    ensure!(answer == Err(CUDA_ERROR_ILLEGAL_ADDRESS), "a write to a read-only page: {answer:?}");
    ensure!(gpu.device.synchronize() == Err(CUDA_ERROR_ILLEGAL_ADDRESS), "the error is not sticky");
    let sentence = gpu.device.fault().ok_or_else(|| Failure("the fault has no sentence".into()))?;
    Ok(format!("after {:.0} ms: {sentence}", start.elapsed().as_secs_f64() * 1e3))
}

/// A child that called `cuInit` alone is locked, checkpointed, restored and unlocked; then it uses the GPU.
pub fn driver_checkpoint(platform: &dyn Platform) -> Outcome {
    let mut child = spawn("hold", &[])?;
    let mut lines = reader(&mut child)?;
    let mut line = String::new();
    lines.read_line(&mut line)?;
    ensure!(line.trim() == "ready", "the child said {line:?}");
    let pid = child.id() as i32;
    let start = Instant::now();
    let mut times = Vec::new();
    let mut took = |name: &str| times.push(format!("{name} {:.1}", start.elapsed().as_secs_f64() * 1e3));
    match platform.process_lock(pid, LOCK_TIMEOUT_MS) {
        Err(CUDA_ERROR_NOT_SUPPORTED) => {
            child.kill()?;
            child.wait()?;
            return Ok("this driver has none".into());
        }
        answer => answer?,
    }
    took("locked");
    platform.process_checkpoint(pid)?;
    took("checkpointed");
    platform.process_restore(pid)?;
    took("restored");
    platform.process_unlock(pid)?;
    took("unlocked");
    child.stdin.take().ok_or_else(|| Failure("no pipe".into()))?.write_all(b"go\n")?;
    line.clear();
    lines.read_line(&mut line)?;
    ensure!(child.wait()?.success(), "the child failed afterwards: {line}");
    Ok(format!("ms since start: {}", times.join(", ")))
}

/// The child's half of [`driver_checkpoint`].
pub fn hold_child() -> Outcome {
    let platform = NvidiaPlatform::open()?;
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let gpu = Gpu::open(&platform, SMALL)?;
    gpu.store(gpu.host as u64, 13)?;
    gpu.device.stream_synchronize(gpu.stream)?;
    ensure!(gpu.host_words(1)[0] == 13, "a kernel after the restore stored {}", gpu.host_words(1)[0]);
    Ok("done".into())
}

fn spawn(mode: &str, arguments: &[String]) -> Result<Child, Failure> {
    let program = std::env::current_exe()?;
    Ok(Command::new(program)
        .arg(mode)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?)
}

fn reader(child: &mut Child) -> Result<BufReader<std::process::ChildStdout>, Failure> {
    Ok(BufReader::new(child.stdout.take().ok_or_else(|| Failure("no pipe".into()))?))
}
