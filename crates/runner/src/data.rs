//! Declared data: loaded once in a process, for all instances.

use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use rekindle_function::driver::{PROBLEMS_OF_DATA, driver, kind_of};
use rekindle_function::{Error, dtype};

/// `NAME=DTYPE:SHAPE:URL`, such as `weights=float32:512x512:s3://models/weights`.
#[derive(Debug, Clone)]
pub struct Declared {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    url: String,
    bytes: u64,
    address: Arc<Mutex<Option<u64>>>,
}

impl FromStr for Declared {
    type Err = String;

    fn from_str(text: &str) -> Result<Declared, String> {
        let wrong = || {
            format!(
                "{text:?} declares no data; give NAME=DTYPE:SHAPE:URL, such as w=float32:512x512:s3://b/k"
            )
        };
        let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
        let mut parts = rest.splitn(3, ':');
        let (Some(kind), Some(shape), Some(url)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(wrong());
        };
        let shape: Vec<u64> =
            shape.split('x').map(|size| size.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
        let bytes = dtype::bytes(kind, &shape).filter(|bytes| *bytes > 0).ok_or_else(wrong)?;
        let (name, dtype, url) = (name.to_string(), kind.to_string(), url.to_string());
        Ok(Declared { name, dtype, shape, url, bytes, address: Arc::default() })
    }
}

impl Declared {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it lies. What cannot be had is asked for anew the next time.
    pub fn load(&self, wait: bool) -> Result<u64, Error> {
        let driver = driver()?;
        let mut known = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        let address = match *known {
            Some(address) => address,
            None => *known.insert(driver.load_data(&self.url, self.bytes)?),
        };
        // Others need not wait for who waits.
        drop(known);
        let Some((number, sentence)) = driver.data_state(address, wait)? else { return Ok(address) };
        let mut known = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        if *known == Some(address) {
            *known = None;
        }
        Err(Error::new(kind_of(&PROBLEMS_OF_DATA, number, "DataError").unwrap_or("DataError"), sentence))
    }
}
