//! The order of the copies that a checkpoint makes of GPU memory and of what the program has its GPUs do, where these [work on
//! meanwhile](super::behind).
//!
//! ```text
//!  GPU 0   ═ work ═ work ═ work ═┐      ┌ copy ═┐      ┌═ work
//!                                ├ all ─┤       ├ all ─┤
//!  GPU 1   ═ work ═┄┄┄┄┄┄┄┄┄┄┄┄┄┄┘      └ copy ═┘      └═ work
//! ```
//!
//! It is one cut for all GPUs of a program, for each of them may write to the memory of another. In a context that several clients
//! share it is one client's: its streams alone come before its copy and after it.

use rekindle_device::{Event, Result, Stream};

use super::{Client, DISABLE_TIMING};

impl Client {
    /// Has the copies of all GPUs, on their first streams of copies, come after all that any of them was given by now.
    pub(crate) fn have_copies_follow_work(&mut self) -> Result<()> {
        for index in self.open_devices() {
            let stream = self.copies_of(index)?;
            self.come_after_all(index, stream)?;
        }
        self.have_copies_meet()
    }

    /// Has all that any GPU is given from now on come after the copies of all. No memory goes before.
    pub(crate) fn have_work_follow_copies(&mut self) -> Result<()> {
        self.have_copies_meet()?;
        for index in self.open_devices() {
            let (stream, gpu) = (self.copies_of(index)?, self.context(index)?.device.clone());
            self.bind(index)?;
            let copied = gpu.event_create(DISABLE_TIMING)?;
            gpu.event_record(copied, stream, 0)?;
            self.heap(index)?.note_copy(copied);
            self.begin_all_behind(index, copied)?;
        }
        Ok(())
    }

    /// What a GPU is given whose context is new comes after the copies of the others that are under way.
    pub(super) fn begin_behind_copies(&mut self, new: usize) -> Result<()> {
        let copied =
            |index: &usize| *index != new && self.contexts[*index].as_ref().is_some_and(|it| it.copies_first);
        let others: Vec<usize> = self.open_devices().filter(copied).collect();
        if others.is_empty() {
            return Ok(());
        }
        for other in others {
            let event = self.mark_copies(other)?;
            self.have_copies_wait(new, (other, event))?;
            self.give_event(other, event);
        }
        let event = self.mark_copies(new)?;
        self.begin_all_behind(new, event)?;
        self.give_event(new, event);
        Ok(())
    }

    /// Has what comes next on the streams of copies of several GPUs come after what each of these has.
    fn have_copies_meet(&mut self) -> Result<()> {
        let all: Vec<usize> = self.open_devices().collect();
        if all.len() < 2 {
            return Ok(());
        }
        let marks =
            all.iter().map(|index| Ok((*index, self.mark_copies(*index)?))).collect::<Result<Vec<_>>>()?;
        for index in all {
            for mark in marks.iter().filter(|(of, _)| *of != index) {
                self.have_copies_wait(index, *mark)?;
            }
        }
        marks.into_iter().for_each(|(index, mark)| self.give_event(index, mark));
        Ok(())
    }

    /// An event behind what a GPU's stream of copies has.
    fn mark_copies(&mut self, index: usize) -> Result<Event> {
        let stream = self.copies_of(index)?;
        self.record(index, stream)
    }

    /// Has the stream of copies of a GPU wait for an event of another one.
    fn have_copies_wait(&mut self, index: usize, (other, event): (usize, Event)) -> Result<()> {
        self.context(other)?.device.event_issue(event)?;
        let stream = self.copies_of(index)?;
        let gpu = self.on(index)?;
        gpu.stream_wait_event(stream, event, 0)?;
        gpu.stream_issue(stream)
    }

    fn copies_of(&self, index: usize) -> Result<Stream> {
        Ok(self.context(index)?.gpu.copies.first().copied().unwrap_or(Stream::LEGACY))
    }
}
