//! What is here goes to another node.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rekindle_protocol::data::{Problem, ProblemKind};
use rekindle_protocol::worker::ask;

use super::{COPY_LIMIT, PIECE, of_node};
use crate::daemon::Daemon;
use crate::data::Loan;
use crate::error::{Error, Result};
use crate::fault;
use crate::nodes::message::{ArrayAnswer, ArrayAsk};
use crate::peers::{Link, MESSAGE_LIMIT};
use crate::sandboxes::record;

/// Sends an array to the node that asks for it.
pub fn give(daemon: &Daemon, link: &mut Link, owner: &str, id: &str) -> Result<()> {
    let loan = match check(daemon, link, owner, id).and_then(|()| daemon.data.lend(owner, id)) {
        Ok(loan) => loan,
        Err(problem) => return link.send(&ArrayAnswer::Failed(problem)),
    };
    link.send(&ArrayAnswer::Here(loan.array))?;
    let ArrayAsk::Send = link.receive(MESSAGE_LIMIT)?;
    fault::pass("array-wanted");
    let memory = match bring_to_host(daemon, &loan) {
        Ok(memory) => memory,
        Err(error) => {
            log::error!("an array that node {:?} wants: {error}", link.peer.name);
            let sentence = format!("the array {id} could not be copied to the host: {error}");
            return link.send(&ArrayAnswer::Failed(Problem::new(ProblemKind::Gpu, sentence)));
        }
    };
    link.send(&ArrayAnswer::Ready)?;
    let hash = send(link, memory, loan.array.bytes)?;
    link.send(&ArrayAnswer::Sent { hash })?;
    log::info!("sent {} bytes of an array to node {:?}", loan.array.bytes, link.peer.name);
    Ok(())
}

/// The node that asks needs an array no more.
pub fn drop_here(daemon: &Daemon, link: &mut Link, owner: &str, id: &str, use_only: bool) -> Result<()> {
    let dropped = check(daemon, link, owner, id).and_then(|()| daemon.data.drop_array(owner, id, use_only));
    link.send(&dropped.map_or_else(ArrayAnswer::Failed, |()| ArrayAnswer::Done))
}

/// Whether arrays go to that node at all, and this one from here.
fn check(daemon: &Daemon, link: &Link, owner: &str, id: &str) -> std::result::Result<(), Problem> {
    if !link.peer.arrays {
        let sentence =
            "it hands no arrays on with the node that asks; `rekindle node add --arrays` there has it do so";
        return Err(of_node(sentence));
    }
    if !record::is_of_several(owner) {
        return Err(Problem::new(ProblemKind::Access, "a program's own arrays go to no other node"));
    }
    match id.starts_with(&daemon.peers.name().map_err(of_node)?) {
        true => Ok(()),
        false => Err(of_node(format!("the array {id} was put at another node"))),
    }
}

/// The array in memory of the host, where a worker copies it if it lies on a GPU.
fn bring_to_host<'a>(daemon: &Daemon, loan: &'a Loan) -> Result<&'a File> {
    let [from, rest @ ..] = &loan.memories[..] else { return Err(lost()) };
    let Some(gpu) = &loan.gpu else { return Ok(from) };
    let [to] = rest else { return Err(lost()) };
    let worker = daemon.pool.spares.start(&gpu.choice, Box::new(|_| ()))?;
    let request = ask::CopyArray { gpu: gpu.uuid.clone(), bytes: loan.array.bytes, room: loan.array.room };
    let memories = [from.as_fd(), to.as_fd()];
    let copied = worker.ask_within("copy an array to the host", request, &memories, Some(COPY_LIMIT));
    worker.kill();
    copied.map(|()| to)
}

fn lost() -> Error {
    Error::system("have an array's memory", std::io::ErrorKind::NotFound)
}

/// Says the hash of what it has sent.
fn send(link: &mut Link, memory: &File, bytes: u64) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE.min(bytes) as usize];
    let mut at = 0;
    while at < bytes {
        let piece = &mut piece[..PIECE.min(bytes - at) as usize];
        let read = memory.read_exact_at(piece, at);
        read.map_err(|source| Error::system("read an array", source))?;
        hasher.update(piece);
        if fault::point("array-spoilt").is_err() {
            piece[0] ^= 1;
        }
        let mut stream = link.stream()?;
        let sent = stream.write_all(piece).and_then(|()| stream.flush());
        sent.map_err(|source| Error::system("send an array", source))?;
        drop(stream);
        at += piece.len() as u64;
        fault::pass("array-sending");
    }
    Ok(hasher.finalize().to_hex().to_string())
}
