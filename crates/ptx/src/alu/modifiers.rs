//! The dotted words after an instruction's name, taken one by one as they are understood.

use crate::types::Type;

pub(crate) struct Modifiers<'a> {
    words: &'a [String],
    taken: u64,
}

impl<'a> Modifiers<'a> {
    pub fn new(words: &'a [String]) -> Self {
        Self { words, taken: 0 }
    }

    /// Takes back everything.
    pub fn reset(&mut self) {
        self.taken = 0;
    }

    fn free(&self) -> impl Iterator<Item = (usize, &'a str)> {
        let taken = self.taken;
        // No instruction has more than 64 modifiers; what lies beyond stays untaken.
        self.words
            .iter()
            .take(64)
            .enumerate()
            .filter(move |(i, _)| taken >> i & 1 == 0)
            .map(|(i, word)| (i, &**word))
    }

    pub fn has(&self, name: &str) -> bool {
        self.free().any(|(_, word)| word == name)
    }

    pub fn take(&mut self, name: &str) -> bool {
        let found = self.free().find(|(_, word)| *word == name);
        if let Some((i, _)) = found {
            self.taken |= 1 << i;
        }
        found.is_some()
    }

    pub fn take_any(&mut self, names: &[&str]) {
        for name in names {
            self.take(name);
        }
    }

    /// Takes the first of the words that is there.
    pub fn one_of<T: Copy>(&mut self, choices: &[(&str, T)]) -> Option<T> {
        choices.iter().find(|(name, _)| self.take(name)).map(|(_, choice)| *choice)
    }

    /// Takes the first untaken word of any kind.
    pub fn take_first(&mut self) -> Option<&'a str> {
        let (i, word) = self.free().next()?;
        self.taken |= 1 << i;
        Some(word)
    }

    /// Takes the first untaken word that `accept` takes.
    pub fn take_with<T>(&mut self, accept: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (i, found) = self.free().find_map(|(i, word)| Some((i, accept(word)?)))?;
        self.taken |= 1 << i;
        Some(found)
    }

    pub fn peek_type(&self) -> Option<Type> {
        self.free().find_map(|(_, word)| Type::parse(word))
    }

    pub fn take_type(&mut self) -> Option<Type> {
        self.take_with(Type::parse)
    }

    pub fn all_taken(&self) -> bool {
        self.words.len() <= 64 && self.free().next().is_none()
    }
}
