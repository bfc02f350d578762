//! Which store a URL is of, and what its failures mean.

use std::collections::HashMap;
use std::error::Error as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, Error, ObjectStore, RetryConfig};
use rekindle_protocol::data::{Problem, ProblemKind};
use url::Url;

use crate::cloud::Cloud;
use crate::dump::ReplaceLock;
use crate::transport::{Connector, SILENCE_LIMIT};

/// The longest reason of a store's that is passed on.
const LONGEST_REASON: usize = 300;

/// An object of a store.
#[derive(Clone)]
pub struct ObjectLocation {
    pub store: Arc<dyn ObjectStore>,
    pub path: Path,
    pub way: StoreAccess,
    /// Of those who replace files.
    pub replace_lock: ReplaceLock,
}

/// How it is written.
#[derive(Clone)]
pub enum StoreAccess {
    Cloud(Cloud),
    Http { client: reqwest::Client, url: String },
    File(PathBuf),
}

/// The stores that were used, with their connections.
pub struct Stores {
    known: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
    patience: Duration,
    connector: Connector,
    files: Option<PathBuf>,
    /// How the URLs begin that programs may write to.
    writable: Vec<String>,
    client: reqwest::Client,
    replace_lock: ReplaceLock,
}

impl Stores {
    /// What fails is tried again for so long; files are given that lie below this directory; objects are written whose URLs
    /// begin so.
    pub fn new(patience: Duration, files: Option<PathBuf>, writable: Vec<String>) -> Stores {
        // What programs name is looked for where it really lies.
        let files = files.map(|files| files.canonicalize().unwrap_or(files));
        let writable = writable.into_iter().filter(|one| !one.is_empty()).collect();
        // Fails only where somebody has chosen one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (client, replace_lock) = (reqwest::Client::new(), ReplaceLock::default());
        let connector = Connector { silence: SILENCE_LIMIT };
        Stores { known: Mutex::default(), patience, connector, files, writable, client, replace_lock }
    }

    /// Gives up connections by which nothing comes for so long, and asks by others.
    #[cfg(test)]
    pub fn with_silence(self, silence: Duration) -> Stores {
        Stores { connector: Connector { silence }, ..self }
    }

    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Whether programs may write to it.
    pub fn check_write(&self, name: &str, location: &ObjectLocation) -> Result<(), Problem> {
        // What the path really is, whatever was escaped in the name.
        let origin = Url::parse(name).map(|url| url[..url::Position::BeforePath].to_string());
        let real = format!("{}/{}", origin.unwrap_or_default(), location.path.as_ref());
        let begins = |prefix: &String| {
            let rest = real.strip_prefix(prefix.as_str());
            rest.is_some_and(|rest| rest.is_empty() || prefix.ends_with('/') || rest.starts_with('/'))
        };
        if self.writable.iter().any(begins) {
            return Ok(());
        }
        let sentence = match self.writable.is_empty() {
            true => format!(
                "{name} may not be written: rekindled has programs write to no store; start it with --data-write URL, which is \
                 how the names of what they may write begin"
            ),
            false => format!(
                "{name} may not be written: it does not begin with {}, as rekindled demands; write there, or start rekindled with \
                 another --data-write",
                self.writable.join(" or ")
            ),
        };
        Err(Problem::new(ProblemKind::Access, sentence))
    }

    pub fn find(&self, name: &str) -> Result<ObjectLocation, Problem> {
        let bad = |why: String| {
            let sentence = format!(
                "{name} names no object: {why}; write s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY, http(s)://HOST/PATH or \
                 file:///PATH"
            );
            Problem::new(ProblemKind::Name, sentence)
        };
        let url = Url::parse(name).map_err(|error| bad(error.to_string()))?;
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("it has a query or a fragment".to_string()));
        }
        let (way, path) = match url.scheme() {
            "file" => {
                let path = url.to_file_path().map_err(|()| bad("it has no absolute path".to_string()))?;
                let path = self.real(name, &path)?;
                (StoreAccess::File(path.clone()), Path::from_absolute_path(path))
            }
            "http" | "https" => {
                let way = StoreAccess::Http { client: self.client.clone(), url: url.to_string() };
                (way, Path::from_url_path(url.path()))
            }
            scheme => match Cloud::of(scheme) {
                Some(cloud) => (StoreAccess::Cloud(cloud), Path::from_url_path(url.path())),
                None => return Err(bad(format!("there are no stores of {scheme:?}"))),
            },
        };
        let path = path.map_err(|error| bad(error.to_string()))?;
        if path.as_ref().is_empty() {
            return Err(bad("it has no path".to_string()));
        }
        let key = url[..url::Position::BeforePath].to_string();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = known.get(&key) {
            return Ok(ObjectLocation {
                store: store.clone(),
                path,
                way,
                replace_lock: self.replace_lock.clone(),
            });
        }
        let store = self.open(&url).map_err(|error| unopened(name, &error))?;
        known.insert(key, store.clone());
        Ok(ObjectLocation { store, path, way, replace_lock: self.replace_lock.clone() })
    }

    /// Where a file really lies, if programs may have it: they may be of users who may read less than we.
    fn real(&self, name: &str, path: &std::path::Path) -> Result<PathBuf, Problem> {
        // One that is not there yet lies where its directory does.
        let beside = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
        let real = path.canonicalize().ok().or_else(beside).unwrap_or_else(|| path.to_path_buf());
        let sentence = match &self.files {
            Some(files) if real.starts_with(files) => return Ok(real),
            Some(files) => format!(
                "{name} may not be read: it does not lie in {}, whose files alone rekindled gives to programs; put it there, or \
                 start rekindled with another --data-files",
                files.display()
            ),
            None => format!(
                "{name} may not be read: rekindled gives no files to programs; start it with --data-files DIRECTORY, and put it there"
            ),
        };
        Err(Problem::new(ProblemKind::Access, sentence))
    }

    fn open(&self, url: &Url) -> object_store::Result<Arc<dyn ObjectStore>> {
        let retry = RetryConfig {
            backoff: BackoffConfig { max_backoff: Duration::from_secs(3), ..BackoffConfig::default() },
            retry_timeout: self.patience,
            ..RetryConfig::default()
        };
        if let Some(cloud) = Cloud::of(url.scheme()) {
            return cloud.open(url, self.connector, retry);
        }
        Ok(match url.scheme() {
            "file" => Arc::new(LocalFileSystem::new()),
            _ => {
                let options = ClientOptions::new().with_allow_http(true);
                let origin = &url[..url::Position::BeforePath];
                let builder = HttpBuilder::new().with_url(origin).with_client_options(options);
                Arc::new(builder.with_http_connector(self.connector).with_retry(retry).build()?)
            }
        })
    }
}

/// A store's failure, in a sentence about the object.
pub fn problem(name: &str, error: &Error) -> Problem {
    let why = reason(error);
    let (kind, sentence) = match (error, without_credentials(name, error)) {
        (Error::NotFound { .. }, _) => (
            ProblemKind::NotFound,
            format!("{name} is not there ({why}); put the object there, or declare another one"),
        ),
        (Error::Precondition { .. } | Error::NotModified { .. }, _) => (ProblemKind::Changed, changed(name)),
        (Error::PermissionDenied { .. } | Error::Unauthenticated { .. }, _) => (
            ProblemKind::Access,
            format!("{name} may not be read ({why}); give rekindled credentials that may read it"),
        ),
        (_, Some(cloud)) => (
            ProblemKind::Access,
            format!(
                "there are no credentials for {name} ({why}); set {}, or another source of credentials, in the environment \
                 of rekindled",
                cloud.variables()
            ),
        ),
        (_, None) => (
            ProblemKind::Unavailable,
            format!(
                "{name} cannot be read ({why}); look whether its store works and can be reached from here"
            ),
        ),
    };
    Problem::new(kind, sentence)
}

/// As [`problem`], of an object that is written.
pub fn unwritten(name: &str, error: &Error) -> Problem {
    let why = reason(error);
    let (kind, sentence) = match error {
        Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotModified { .. } => (
            ProblemKind::Changed,
            format!(
                "{name} became another object since it was loaded, and was left as it is; load it again, and write that"
            ),
        ),
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => (
            ProblemKind::Access,
            format!("{name} may not be written ({why}); give rekindled credentials that may write it"),
        ),
        Error::NotFound { .. } => (
            ProblemKind::NotFound,
            format!("there is no place for {name} ({why}); make its bucket or directory"),
        ),
        _ if without_credentials(name, error).is_some() => return problem(name, error),
        _ => (
            ProblemKind::Unavailable,
            format!(
                "{name} cannot be written ({why}); look whether its store works and can be reached from here"
            ),
        ),
    };
    Problem::new(kind, sentence)
}

pub fn changed(name: &str) -> String {
    format!("{name} became another object while it was read; load it again once it is not written any more")
}

/// The cloud that there are no credentials for, so that it was the machine that was asked for some.
fn without_credentials(name: &str, error: &Error) -> Option<Cloud> {
    let cloud = cloud_of(name)?;
    cloud.asked_the_machine(&chain(error)).then_some(cloud)
}

fn cloud_of(name: &str) -> Option<Cloud> {
    Cloud::of(name.split_once("://")?.0)
}

/// A store that cannot even be asked.
fn unopened(name: &str, error: &Error) -> Problem {
    let set = cloud_of(name).map_or("what its store needs", Cloud::variables);
    let sentence = format!(
        "{name} cannot be asked for ({}); set {set}, or another source of credentials, in the environment of rekindled",
        reason(error)
    );
    Problem::new(ProblemKind::Access, sentence)
}

fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push('\n');
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

/// The innermost reason, on one line.
fn reason(error: &Error) -> String {
    innermost(error)
}

/// As [`reason`], of any error.
pub fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let line = innermost.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST_REASON) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_object_is_refused_in_a_sentence() {
        let stores = Stores::new(Duration::ZERO, Some("/".into()), Vec::new());
        for name in ["", "weights", "s3://bucket", "ftp://host/x", "file://host/x", "http://host/x?signed"] {
            let problem = stores.find(name).err().unwrap();
            assert_eq!(problem.kind, ProblemKind::Name, "{name}");
            assert!(problem.sentence.starts_with(&format!("{name} names no object: ")), "{problem:?}");
        }
        assert_eq!(stores.find("file:///tmp/a%20b").unwrap().path.as_ref(), "tmp/a b");
        let none = Stores::new(Duration::ZERO, None, Vec::new());
        assert_eq!(none.find("file:///tmp/a").err().unwrap().kind, ProblemKind::Access);
    }

    #[test]
    fn what_may_be_written_begins_as_was_said() {
        let writable = vec!["http://host/out".to_string(), "file:///tmp/".to_string()];
        let stores = Stores::new(Duration::ZERO, Some("/".into()), writable);
        let may = |name: &str| stores.check_write(name, &stores.find(name).unwrap()).is_ok();
        assert!(may("http://host/out/a") && may("http://host/out") && may("file:///tmp/a"));
        for name in [
            "http://host/outer",
            "http://host/in/a",
            "http://other/out/a",
            "http://host/out/../in",
            "file:///etc/a",
        ] {
            assert!(!may(name), "{name}");
        }
        assert!(
            stores.find("http://host/out/%2e%2e%2fin").map_or(true, |_| !may("http://host/out/%2e%2e%2fin"))
        );
    }
}
