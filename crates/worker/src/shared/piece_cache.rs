//! Pieces of code that a context has, each once for all clients that use it with the same settings.
//!
//! ```text
//!   client a ─┐  kernel, code, settings         ┌─ users: a, b
//!   client b ─┴──────── same key ──▶ PieceCache ┤
//!   client b ── set(attribute) ──▶ another key  └─ users: b
//! ```
//!
//! Those that nobody uses any more stay loaded for whoever comes next, up to [`IDLE_BYTES`].

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::CUDA_ERROR_INVALID_HANDLE;
use rekindle_device::{
    Device, Function, KernelSetting, KernelSettings, LoadError, Module, Piece, Result, load_piece,
};

/// Of code that no client uses.
const IDLE_BYTES: u64 = 64 << 20;

#[derive(Default)]
pub(crate) struct PieceCache(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    modules: HashMap<Module, Entry>,
    keys: HashMap<Key, Module>,
    /// How many times one was taken: the order of last use.
    clock: u64,
    idle_bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    /// Of the code.
    hash: blake3::Hash,
    kernel: String,
    options: Vec<(i32, u64)>,
    settings: KernelSettings,
}

struct Entry {
    function: Function,
    key: Key,
    piece: Piece,
    users: usize,
    used_at: u64,
}

impl PieceCache {
    /// The piece with these settings, loaded if the context does not have it yet, for one user more.
    pub(super) fn take(
        &self,
        device: &dyn Device,
        kernel: &str,
        piece: &Piece,
        settings: &KernelSettings,
    ) -> std::result::Result<(Module, Function), LoadError> {
        let key = Key {
            hash: blake3::hash(piece.code.bytes()),
            kernel: kernel.to_string(),
            options: piece.options.clone(),
            settings: settings.clone(),
        };
        self.entries().take(device, key, piece)
    }

    /// One with a setting more, for the user that has this one. Where nobody else has it, it is the same; else another, for
    /// one user more, and the user has both.
    pub(super) fn set(
        &self,
        device: &dyn Device,
        loaded: (Module, Function),
        setting: KernelSetting,
    ) -> std::result::Result<(Module, Function), LoadError> {
        let failed = |code| LoadError { code, log: String::new() };
        let mut entries = self.entries();
        let entry = entries.modules.get(&loaded.0).ok_or_else(|| failed(CUDA_ERROR_INVALID_HANDLE))?;
        let mut key = entry.key.clone();
        key.settings.set(setting);
        if key == entry.key {
            return Ok(loaded);
        }
        if entry.users > 1 || entries.keys.contains_key(&key) {
            let piece = entry.piece.clone();
            return entries.take(device, key, &piece);
        }
        setting.apply(device, loaded.1).map_err(failed)?;
        entries.rename(loaded.0, key);
        Ok(loaded)
    }

    /// One user less. None of its launches is waiting to be given to the device.
    pub(super) fn give(&self, device: &dyn Device, module: Module) -> Result<()> {
        self.entries().give(device, module)
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn take(
        &mut self,
        device: &dyn Device,
        key: Key,
        piece: &Piece,
    ) -> std::result::Result<(Module, Function), LoadError> {
        self.clock += 1;
        if let Some(module) = self.keys.get(&key) {
            let entry = self.modules.get_mut(module).expect("each key has its module");
            if entry.users == 0 {
                self.idle_bytes -= entry.bytes();
            }
            (entry.users, entry.used_at) = (entry.users + 1, self.clock);
            return Ok((*module, entry.function));
        }
        let (module, function) = load_piece(device, &key.kernel, piece, &key.settings)?;
        self.keys.insert(key.clone(), module);
        let entry = Entry { function, key, piece: piece.clone(), users: 1, used_at: self.clock };
        self.modules.insert(module, entry);
        Ok((module, function))
    }

    fn rename(&mut self, module: Module, key: Key) {
        let entry = self.modules.get_mut(&module).expect("it was found before");
        self.keys.remove(&entry.key);
        self.keys.insert(key.clone(), module);
        entry.key = key;
    }

    fn give(&mut self, device: &dyn Device, module: Module) -> Result<()> {
        let entry = self.modules.get_mut(&module).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        entry.users -= 1;
        if entry.users > 0 {
            return Ok(());
        }
        self.idle_bytes += entry.bytes();
        while self.idle_bytes > IDLE_BYTES {
            let idle = self.modules.iter().filter(|(_, entry)| entry.users == 0);
            let Some((&oldest, _)) = idle.min_by_key(|(_, entry)| entry.used_at) else { break };
            let entry = self.modules.remove(&oldest).expect("it was found");
            self.keys.remove(&entry.key);
            self.idle_bytes -= entry.bytes();
            device.module_unload(oldest)?;
        }
        Ok(())
    }
}

impl Entry {
    fn bytes(&self) -> u64 {
        self.piece.code.bytes().len() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rekindle_device::{Code, FunctionInfo};
    use rekindle_emulated::Config;

    use super::*;
    use crate::shared::ClientDevice;
    use crate::shared::memory_pool::MemoryPool;

    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
    const DYNAMIC_SHARED: i32 = 8;
    const LARGER: KernelSetting = KernelSetting::Attribute(DYNAMIC_SHARED, 60_000);

    struct Bench {
        gpu: Arc<dyn Device>,
        cache: PieceCache,
    }

    impl Bench {
        fn new() -> Bench {
            let platform = rekindle_emulated::platform(&Config::default()).unwrap();
            let gpu = platform.open(0).unwrap();
            gpu.bind().unwrap();
            Bench { gpu, cache: PieceCache::default() }
        }

        fn take(&self, piece: &Piece, settings: &KernelSettings) -> (Module, Function) {
            self.cache.take(&*self.gpu, "k", piece, settings).unwrap()
        }

        fn info(&self, function: Function) -> FunctionInfo {
            self.gpu.function_info(function).unwrap()
        }

        fn dynamic_shared(&self, function: Function) -> i32 {
            self.info(function).attributes[DYNAMIC_SHARED as usize]
        }

        fn loaded(&self, modules: &[Module]) -> Vec<bool> {
            modules.iter().map(|module| self.gpu.function_names(*module).is_ok()).collect()
        }
    }

    /// A kernel, and so many bytes of words beside it.
    fn piece(number: usize, bytes: usize) -> Piece {
        let text = format!(
            "//{number}{}\n.version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() {{ ret; }}\n",
            " ".repeat(bytes)
        );
        Piece { code: Code::new(text.into_bytes()), options: Vec::new(), is_sharable: true }
    }

    #[test]
    fn the_same_piece_is_loaded_once() {
        let bench = Bench::new();
        let first = bench.take(&piece(1, 0), &KernelSettings::default());
        assert_eq!(bench.take(&piece(1, 0), &KernelSettings::default()), first);
        assert_ne!(bench.take(&piece(2, 0), &KernelSettings::default()).0, first.0);
        let mut larger = KernelSettings::default();
        larger.set(LARGER);
        let other = bench.take(&piece(1, 0), &larger);
        assert_ne!(other.0, first.0);
        assert_eq!(bench.dynamic_shared(other.1), 60_000);
    }

    #[test]
    fn what_one_user_sets_is_not_seen_by_others() {
        let bench = Bench::new();
        let none = KernelSettings::default();
        let (a, b) = (bench.take(&piece(1, 0), &none), bench.take(&piece(1, 0), &none));
        let before = bench.dynamic_shared(a.1);
        let a = bench.cache.set(&*bench.gpu, a, LARGER).unwrap();
        assert_eq!((bench.dynamic_shared(a.1), bench.dynamic_shared(b.1)), (60_000, before));
        // The next one that sets the same has the same.
        assert_eq!(bench.cache.set(&*bench.gpu, b, LARGER).unwrap(), a);
        // One that nobody else has stays where it is, and whoever comes then has one as it was.
        let alone = bench.take(&piece(3, 0), &none);
        assert_eq!(bench.cache.set(&*bench.gpu, alone, LARGER).unwrap(), alone);
        let fresh = bench.take(&piece(3, 0), &none);
        assert_ne!(fresh.0, alone.0);
        assert_eq!(bench.dynamic_shared(fresh.1), before);
        let refused = bench.cache.set(&*bench.gpu, fresh, KernelSetting::Attribute(DYNAMIC_SHARED, 1 << 30));
        assert!(refused.is_err());
        assert_eq!(bench.take(&piece(3, 0), &none), fresh, "what was refused changes nothing");
    }

    #[test]
    fn clients_of_a_context_have_a_piece_together_until_they_end() {
        let Bench { gpu, cache } = Bench::new();
        let pieces = Arc::new(cache);
        let pool = MemoryPool::new(gpu.clone(), Arc::default(), None);
        let client =
            || ClientDevice::new(gpu.clone(), None, pieces.clone(), pool.clone(), Arc::default()).unwrap();
        let (first, second) = (client(), client());
        let load = |client: &ClientDevice, piece: &Piece| {
            client.piece_load("k", piece, &KernelSettings::default()).unwrap()
        };
        let shared = load(&first, &piece(1, 0));
        assert_eq!(load(&second, &piece(1, 0)), shared);
        let own = Piece { is_sharable: false, ..piece(1, 0) };
        assert_ne!(load(&first, &own).0, load(&second, &own).0);
        let users = || pieces.entries().modules[&shared.0].users;
        assert_eq!(users(), 2);
        second.module_unload(shared.0).unwrap();
        assert_eq!(users(), 1);
        let set = first.piece_set(shared, LARGER).unwrap();
        assert_eq!(set, shared);
        assert!(first.close(Duration::from_secs(10)) && second.close(Duration::from_secs(10)));
        assert_eq!(users(), 0);
        assert!(gpu.function_names(shared.0).is_ok(), "it stays for whoever comes next");
    }

    #[test]
    fn what_nobody_uses_stays_as_long_as_there_is_room() {
        let bench = Bench::new();
        let none = KernelSettings::default();
        let large = IDLE_BYTES as usize / 2;
        let all: Vec<_> = (0..3).map(|number| bench.take(&piece(number, large), &none).0).collect();
        let twice = bench.take(&piece(0, large), &none).0;
        for module in &all {
            bench.cache.give(&*bench.gpu, *module).unwrap();
        }
        assert_eq!(
            bench.loaded(&all),
            [true, false, true],
            "the first has a user, the second was used before the third"
        );
        assert_eq!(bench.take(&piece(2, large), &none).0, all[2]);
        bench.cache.give(&*bench.gpu, twice).unwrap();
        assert_eq!(bench.loaded(&all), [true, false, true]);
    }
}
