//! What the user can set of the emulated GPUs, as one line of text: `devices=2,memory=8G,bandwidth=12G`. Numbers alone say
//! which of the machine's emulated GPUs they are, in their order: `1` is the second of them, `2,0` the third and the first.

use std::path::PathBuf;

use crate::Error;

/// The environment variable that [`Config::from_env`] reads.
pub const VARIABLE: &str = "REKINDLE_EMULATED";

/// So many GPUs a machine has at most, those of several configurations together.
pub(crate) const MOST_DEVICES: u32 = 16;

/// The emulated machine: how many GPUs, and what each of them has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The numbers of the first devices in the machine, 0 to 7: devices of other numbers are other GPUs. Further devices follow
    /// the last of these; without any the first is 0.
    pub numbers: Vec<u32>,
    /// 1 to 8, and at least as many as there are numbers.
    pub devices: u32,
    /// Bytes of memory of each device.
    pub memory: u64,
    /// Bytes a second of each copy direction; 0 is as fast as it goes.
    pub bandwidth: u64,
    /// Multiprocessors of each device; kernels see the number, speed does not depend on it.
    pub multiprocessors: u32,
    /// Whether they can be divided, by green contexts: older drivers cannot.
    pub green: bool,
    /// Host threads that one device's kernels run on; 0 is one a core.
    pub threads: u32,
    /// Where processes note what they have of the memory and of the link, so that all have them together, as of a real GPU;
    /// none: each process has all by itself.
    pub common: Option<PathBuf>,
    /// Bytes of a device's memory that a process's context takes, as long as the process lives.
    pub context: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            numbers: Vec::new(),
            devices: 1,
            memory: 4 << 30,
            bandwidth: 0,
            multiprocessors: 16,
            green: true,
            threads: 0,
            common: None,
            context: 0,
        }
    }
}

impl Config {
    /// Reads `key=value` pairs with commas between; what is not named keeps its default, as does all of an empty text.
    pub fn parse(text: &str) -> Result<Config, Error> {
        let mut config = Config::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            if pair.bytes().all(|byte| byte.is_ascii_digit()) {
                config.numbers.push(count("number", pair, 0, 7)?);
                continue;
            }
            let (key, value) = pair.split_once('=').ok_or_else(|| Error::Pair(pair.to_owned()))?;
            let (key, value) = (key.trim(), value.trim());
            match key {
                "devices" => config.devices = count(key, value, 1, 8)?,
                "memory" => config.memory = size(key, value, 64 << 20)?,
                "bandwidth" => config.bandwidth = size(key, value, 0)?,
                "multiprocessors" | "sms" => config.multiprocessors = count(key, value, 1, 1024)?,
                "green" => config.green = switch(key, value)?,
                "context" => config.context = size(key, value, 0)?,
                "common" => config.common = Some(directory(key, value)?),
                "threads" => config.threads = count(key, value, 0, 1024)?,
                _ => return Err(Error::Key(key.to_owned())),
            }
        }
        config.devices = config.devices.max(config.numbers.len() as u32);
        config.check_numbers()?;
        Ok(config)
    }

    /// As [`Config::parse`], of the variable `REKINDLE_EMULATED`; the default where it is not set.
    pub fn from_env() -> Result<Config, Error> {
        match std::env::var(VARIABLE) {
            Ok(text) => Config::parse(&text),
            Err(_) => Ok(Config::default()),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        for number in &self.numbers {
            count("number", &number.to_string(), 0, 7)?;
        }
        count("devices", &self.devices.to_string(), self.numbers.len().max(1) as u32, 8)?;
        self.check_numbers()?;
        count("multiprocessors", &self.multiprocessors.to_string(), 1, 1024)?;
        count("threads", &self.threads.to_string(), 0, 1024)?;
        size("memory", &self.memory.to_string(), 64 << 20)?;
        Ok(())
    }

    /// The number in the machine of the device at this place.
    pub(crate) fn number(&self, place: u32) -> u32 {
        match (self.numbers.get(place as usize), self.numbers.last()) {
            (Some(number), _) => *number,
            (None, Some(last)) => last + 1 + place - self.numbers.len() as u32,
            (None, None) => place,
        }
    }

    fn check_numbers(&self) -> Result<(), Error> {
        let numbers: Vec<u32> = (0..self.devices).map(|place| self.number(place)).collect();
        let is_again = |(place, number): (usize, &u32)| numbers[..place].contains(number);
        match numbers.iter().enumerate().find(|(place, number)| is_again((*place, *number))) {
            Some((_, number)) => Err(Error::Twice { number: *number }),
            None => Ok(()),
        }
    }

    pub(crate) fn compute_threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads as usize,
        }
    }
}

fn count(key: &str, value: &str, least: u32, most: u32) -> Result<u32, Error> {
    let found = value.parse::<u32>().ok().filter(|count| (least..=most).contains(count));
    found.ok_or_else(|| Error::Value {
        key: key.to_owned(),
        found: value.to_owned(),
        expected: format!("a number from {least} to {most}"),
    })
}

fn switch(key: &str, value: &str) -> Result<bool, Error> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(Error::Value {
            key: key.to_owned(),
            found: value.to_owned(),
            expected: "on or off".to_owned(),
        }),
    }
}

fn directory(key: &str, value: &str) -> Result<PathBuf, Error> {
    let found = Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    found.ok_or_else(|| Error::Value {
        key: key.to_owned(),
        found: value.to_owned(),
        expected: "a directory that begins at the root".to_owned(),
    })
}

fn size(key: &str, value: &str, least: u64) -> Result<u64, Error> {
    let digits = value.trim_end_matches(['B', 'b']).trim_end_matches("/s");
    let digits = digits.trim_end_matches(['i', 'B']);
    let (digits, shift) = match digits.chars().last().map(|c| c.to_ascii_uppercase()) {
        Some('K') => (&digits[..digits.len() - 1], 10),
        Some('M') => (&digits[..digits.len() - 1], 20),
        Some('G') => (&digits[..digits.len() - 1], 30),
        Some('T') => (&digits[..digits.len() - 1], 40),
        _ => (digits, 0),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    // Beyond the device's range of addresses no memory could be mapped.
    bytes.filter(|bytes| (least..=8 << 40).contains(bytes)).ok_or_else(|| Error::Value {
        key: key.to_owned(),
        found: value.to_owned(),
        expected: format!("bytes from {least} to 8T, such as 512M or 8G"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_sets_what_it_names() {
        let config = Config::parse(
            "devices=2, memory=8G,bandwidth=12G,sms=4,green=off,threads=3,common=/tmp,context=5M",
        )
        .unwrap();
        assert_eq!(
            config,
            Config {
                numbers: Vec::new(),
                devices: 2,
                memory: 8 << 30,
                bandwidth: 12 << 30,
                multiprocessors: 4,
                green: false,
                threads: 3,
                common: Some("/tmp".into()),
                context: 5 << 20,
            }
        );
        let numbers = |text| {
            let config = Config::parse(text).unwrap();
            (0..config.devices).map(|place| config.number(place)).collect::<Vec<_>>()
        };
        assert_eq!(numbers("1,memory=8G"), [1]);
        assert_eq!(numbers("2,0"), [2, 0]);
        assert_eq!(numbers("1,devices=3"), [1, 2, 3]);
        assert_eq!(numbers("devices=2"), [0, 1]);
        assert_eq!(Config::parse("").unwrap(), Config::default());
        assert_eq!(Config::parse("memory=512MiB").unwrap().memory, 512 << 20);
    }

    #[test]
    fn a_wrong_line_is_refused_with_what_is_wrong() {
        assert!(Config::parse("devices=9").unwrap_err().to_string().contains("from 1 to 8"));
        assert!(Config::parse("memory=lots").unwrap_err().to_string().contains("`lots`"));
        assert!(Config::parse("colour=red").unwrap_err().to_string().contains("colour"));
        assert!(Config::parse("common=here").unwrap_err().to_string().contains("root"));
        assert!(Config::parse("green=maybe").unwrap_err().to_string().contains("on or off"));
        assert!(Config::parse("memory").is_err());
        assert!(Config::parse("9").unwrap_err().to_string().contains("from 0 to 7"));
        assert!(Config::parse("2,2").unwrap_err().to_string().contains("GPU 2 is named twice"));
        assert!(Config::parse("1,0,devices=3").unwrap_err().to_string().contains("GPU 1 is named twice"));
        assert!(Config::parse("memory=99999999999999999G").is_err());
    }
}
