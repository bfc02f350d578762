//! What can go wrong when GPUs are given back and got again.

#[derive(Debug, thiserror::Error)]
pub enum SleepError {
    #[error("the GPU half of {name:?} sleeps already (level {level}); `rekindle wake` wakes it")]
    AlreadyAsleep { name: String, level: &'static str },

    #[error("the GPU half of {name:?} is awake")]
    NotAsleep { name: String },

    #[error("no process of {name:?} uses a GPU through Rekindle, so that there is nothing to put to sleep")]
    NothingToSleep { name: String },

    #[error(
        "{name:?} cannot sleep at level {level}: that takes {needed} MB and {free} MB are free; free some or choose another level"
    )]
    NoRoomToSleep { name: String, level: &'static str, needed: u64, free: u64 },

    #[error(
        "{name:?} shares its context with other programs and cannot be put to sleep; stop it and restore it instead"
    )]
    SharesContext { name: String },

    #[error("the GPU half of {name:?} was wanted while it was to go down a level")]
    CalledOff { name: String },

    #[error("the GPU half of {name:?} sleeps on at level {from}: {reason}")]
    CannotGoDown { name: String, from: &'static str, reason: String, missing: Option<u64> },

    #[error("the GPU half of {name:?} could not be woken and sleeps on: {reason}")]
    CannotWake { name: String, reason: String, missing: Option<u64> },
}
