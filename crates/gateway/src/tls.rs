//! The certificate of a port, read again whenever its files change.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rekindle_protocol::service::TlsFiles;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::limits;

/// The longest file that is read, bytes.
const LONGEST: u64 = 1 << 20;
/// What is spoken behind it, the better first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is no regular file", path.display())]
    NoFile { path: PathBuf },
    #[error("{} has more than {LONGEST} bytes, which no certificate or key has", path.display())]
    TooLong { path: PathBuf },
    #[error("{} cannot be understood: {source}", path.display())]
    Certificate { path: PathBuf, source: pem::Error },
    #[error("{} has no certificate; expected one in PEM, and those above it behind it", path.display())]
    NoCertificate { path: PathBuf },
    #[error("{} has no private key in PEM: {source}", path.display())]
    Key { path: PathBuf, source: pem::Error },
    #[error("the certificate {} cannot be used with the key {}: {source}", certificate.display(), key.display())]
    Pair { certificate: PathBuf, key: PathBuf, source: rustls::Error },
}

pub struct Tls {
    files: TlsFiles,
    state: Mutex<State>,
}

struct State {
    config: Arc<ServerConfig>,
    seen: Seen,
    /// Why what the files have by now cannot be used.
    problem: Option<String>,
}

/// What tells that a file is another one, or another's contents: of both files, if they are there.
type Seen = [Option<(u64, u64, i64, i64)>; 2];

impl Tls {
    pub fn load(files: TlsFiles) -> Result<Arc<Tls>, TlsError> {
        let seen = look(&files);
        let state = State { config: read(&files)?, seen, problem: None };
        Ok(Arc::new(Tls { files, state: Mutex::new(state) }))
    }

    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// Why the certificate is not the one that lies in its files, if it is not.
    pub fn problem(&self) -> Option<String> {
        self.lock().problem.clone()
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.lock().config.clone()
    }

    /// Reads the files again if they have changed. What cannot be used leaves all as it is.
    fn look_again(&self) {
        let seen = look(&self.files);
        if self.lock().seen == seen {
            return;
        }
        let read = read(&self.files);
        let mut state = self.lock();
        match read {
            Ok(config) => {
                log::info!("the certificate {} is in use as it is now", self.files.certificate.display());
                (state.config, state.seen, state.problem) = (config, seen, None);
            }
            // They may be in the middle of being replaced: the next look tries again.
            Err(why) => state.problem = Some(format!("{why}; the one that was there before stays in use")),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks again and again, for as long as a port has it.
pub async fn keep_looking(tls: Weak<Tls>) {
    loop {
        sleep(limits::CERTIFICATE_TIME).await;
        let Some(tls) = tls.upgrade() else { return };
        let _ = spawn_blocking(move || tls.look_again()).await;
    }
}

fn look(files: &TlsFiles) -> Seen {
    let told = |found: Metadata| (found.ino(), found.size(), found.mtime(), found.mtime_nsec());
    [&files.certificate, &files.key].map(|path| path.metadata().ok().map(told))
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let TlsFiles { certificate, key } = files;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&contents(certificate)?).collect();
    let chain = chain.map_err(|source| TlsError::Certificate { path: certificate.clone(), source })?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { path: certificate.clone() });
    }
    let secret = PrivateKeyDer::from_pem_slice(&contents(key)?)
        .map_err(|source| TlsError::Key { path: key.clone(), source })?;
    let unusable = |source| TlsError::Pair { certificate: certificate.clone(), key: key.clone(), source };
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(unusable)?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(Arc::new(config))
}

fn contents(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(failed)?;
    // A pipe would have whoever reads wait for somebody who writes.
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(TlsError::NoFile { path: path.to_path_buf() });
    }
    let mut contents = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut contents).map_err(failed)?;
    match contents.len() as u64 <= LONGEST {
        true => Ok(contents),
        false => Err(TlsError::TooLong { path: path.to_path_buf() }),
    }
}
