//! This node's key, made when it is first needed, and how keys are written: the 32 bytes of an Ed25519 key as 64 hexadecimal
//! digits.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::host::replace::{Outlasting, PRIVATE, replace};

/// Comes before the key's bytes where it is written as TLS has it (RFC 8410).
const PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const BYTES: usize = 32;
/// In the directory of what is known of nodes.
const FILE: &str = "key";

/// A node's public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PublicKey([u8; BYTES]);

impl PublicKey {
    /// As TLS has it; none if it is no such key.
    pub fn from_der(der: &[u8]) -> Option<PublicKey> {
        Some(PublicKey(der.strip_prefix(&PREFIX)?.try_into().ok()?))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> String {
        key.to_string()
    }
}

impl TryFrom<String> for PublicKey {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<PublicKey, String> {
        text.parse()
    }
}

impl FromStr for PublicKey {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<PublicKey, String> {
        let wrong = || {
            format!("{text:?} is no key of a node; `rekindle node id` there prints it: 64 hexadecimal digits")
        };
        if text.len() != 2 * BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; BYTES];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
        }
        Ok(PublicKey(bytes))
    }
}

/// This node's key.
pub struct Key {
    pub public: PublicKey,
    /// As TLS has it.
    pub certified: Arc<CertifiedKey>,
}

impl Key {
    /// That of the directory, which is made if there is none.
    pub fn load(directory: &Path) -> Result<Key> {
        let path = directory.join(FILE);
        let read = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(&path),
            read => read,
        };
        let pkcs8 = read.map_err(|source| Error::io("read this node's key in", &path, source))?;
        let damaged = || {
            let source = io::Error::other(
                "it is no key; remove it, and a new one is made, which other nodes have to be told",
            );
            Error::io("read this node's key in", &path, source)
        };
        let signing: Arc<dyn SigningKey> =
            any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8)).map_err(|_| damaged())?;
        let der = signing.public_key().ok_or_else(damaged)?;
        let public = PublicKey::from_der(&der).ok_or_else(damaged)?;
        let shown = CertificateDer::from(der.to_vec());
        Ok(Key { public, certified: Arc::new(CertifiedKey::new(vec![shown], signing)) })
    }
}

/// Makes a key and keeps it, for nobody else to read.
fn make(path: &Path) -> io::Result<Vec<u8>> {
    let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
    let made = made.map_err(|_| io::Error::other("the system gave no random bytes"))?;
    replace(path, made.as_ref(), PRIVATE, Outlasting::Name)?;
    Ok(made.as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_is_nobody_elses_to_read() {
        let directory = tempfile::tempdir().unwrap();
        let first = Key::load(directory.path()).unwrap().public;
        assert_eq!(Key::load(directory.path()).unwrap().public, first);
        assert_eq!(first.to_string().parse(), Ok(first));
        let path = directory.path().join(FILE);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        fs::write(&path, "x").unwrap();
        assert!(Key::load(directory.path()).is_err());
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for text in ["", "ab", &"g".repeat(64), &"a".repeat(65), &"é".repeat(32)] {
            assert!(text.parse::<PublicKey>().is_err(), "{text}");
        }
    }
}
