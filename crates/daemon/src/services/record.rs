//! What is kept on disk of a service.

use rekindle_gateway::{Plan, Source};
use rekindle_protocol::network::Port;
use rekindle_protocol::service::{ServiceRequest, TlsFiles};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::host::records::{RecordError, StoredRecord};
use crate::services::ServiceError;
use crate::services::canary::CanaryRecord;

/// The longest name of a service.
const LONGEST_NAME: usize = 64;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceRecord {
    pub name: String,
    /// Whose it is, if it is somebody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Where clients come.
    pub port: Port,
    pub source: Source,
    pub plan: Plan,
    /// What clients speak TLS with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsFiles>,
    /// The image that some requests go to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanaryRecord>,
    /// How many it has had.
    #[serde(default)]
    pub canaries: u64,
    /// It takes no more requests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}

/// A name is that of a file too.
pub fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    match begins_well && name.len() <= LONGEST_NAME && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(ServiceError::BadName { name: name.chars().take(LONGEST_NAME).collect() }.into()),
    }
}

impl StoredRecord for ServiceRecord {
    const KIND: &'static str = "service";

    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> std::result::Result<(), RecordError> {
        self.plan.check().map_err(|error| RecordError::Refused(error.into()))
    }
}

impl ServiceRecord {
    /// A service stays whose it is: its instances know what its clients have said.
    pub fn check_tenant(&self, request: &ServiceRequest) -> Result<()> {
        let Some(wanted) = request.tenant.as_ref().filter(|wanted| self.tenant.as_ref() != Some(wanted))
        else {
            return Ok(());
        };
        let name = &self.name;
        let own = self.tenant.as_ref().map_or("no tenant".to_string(), |own| format!("the tenant {own:?}"));
        Err(ServiceError::OfAnother { name: name.clone(), own, wanted: wanted.clone() }.into())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn records_come_back_and_broken_ones_are_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let plan =
            Plan { min: 0, max: 1, concurrency: 1, idle_ms: 1, idle_end_ms: 1, queue: 1, timeout_ms: 1 };
        let source = Source { image: "i".into(), id: "0".into(), to: 80, ..Source::default() };
        let port = "127.0.0.1:8080:80".parse().unwrap();
        let record = ServiceRecord {
            name: "a.b".into(),
            tenant: Some("t".into()),
            port,
            source,
            plan,
            tls: None,
            canary: None,
            canaries: 0,
            draining: false,
        };
        record.save(directory.path()).unwrap();
        let broken = ServiceRecord {
            name: "c".into(),
            plan: Plan { max: 0, ..record.plan.clone() },
            ..record.clone()
        };
        broken.save(directory.path()).unwrap();
        fs::write(directory.path().join("d.json"), "{").unwrap();
        fs::copy(directory.path().join("a.b.json"), directory.path().join("e.json")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", directory.path().join("f.json")).unwrap();
        assert_eq!(ServiceRecord::load_all(directory.path()).unwrap(), std::slice::from_ref(&record));
        ServiceRecord::remove(directory.path(), "a.b").unwrap();
        assert!(ServiceRecord::load_all(directory.path()).unwrap().is_empty());
    }

    #[test]
    fn names_are_those_of_files() {
        for name in ["a", "0.b-c_D"] {
            check_name(name).unwrap();
        }
        let long = "a".repeat(65);
        for name in ["", ".", "..", "-a", "a/b", "a b", "ä", "a\n", long.as_str()] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
