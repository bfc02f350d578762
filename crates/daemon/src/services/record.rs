//! What is kept on disk of a service.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use rekindle_gateway::{Plan, Source};
use rekindle_protocol::network::Port;
use rekindle_protocol::service::TlsFiles;
use rekindle_protocol::service_name::ServiceName;
use rekindle_store::bounded;
use serde::{Deserialize, Serialize};

use super::naming;
use crate::error::{Error, Result};
use crate::host::records::{LONGEST, RecordError, StoredRecord};
use crate::lifecycle::slices;
use crate::services::canary::CanaryRecord;

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

impl StoredRecord for ServiceRecord {
    const KIND: &'static str = "service";

    fn key(&self) -> Cow<'_, str> {
        Cow::Owned(self.service().word())
    }

    fn check(&self) -> std::result::Result<(), RecordError> {
        self.plan.check().map_err(|error| RecordError::Refused(error.into()))
    }
}

impl ServiceRecord {
    pub fn service(&self) -> ServiceName {
        ServiceName::new(self.tenant.as_deref(), &self.name)
    }
}

/// Names files anew that an earlier version has named by the service alone, whosever that was.
pub fn rename_earlier(directory: &Path) -> Result<()> {
    let failed = |source| Error::io("list", directory, source);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let place = entry.map_err(failed)?.path();
        let stem = place.file_name().and_then(|file| file.to_str()?.strip_suffix(".json"));
        let Some(record) = stem.and_then(|stem| earlier(&place, stem)) else { continue };
        let new = directory.join(format!("{}.json", record.key()));
        // The newer one is right.
        if !ServiceRecord::is_there(directory, &record.key()) {
            fs::rename(&place, &new).map_err(|source| Error::io("rename the record", &place, source))?;
        }
    }
    Ok(())
}

/// What the file has, if that is a tenant's service of the name that the file has.
fn earlier(place: &Path, stem: &str) -> Option<ServiceRecord> {
    let record: ServiceRecord = serde_json::from_slice(&bounded::read(place, LONGEST).ok()?).ok()?;
    let is_plain =
        naming::check(&record.name).is_ok() && slices::check_name(record.tenant.as_deref()?).is_ok();
    (is_plain && record.name == stem).then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tenant: Option<&str>, name: &str) -> ServiceRecord {
        let plan = Plan {
            max: 1,
            concurrency: 1,
            idle_ms: 1,
            idle_end_ms: 1,
            queue: 1,
            timeout_ms: 1,
            ..Plan::default()
        };
        ServiceRecord {
            name: name.into(),
            tenant: tenant.map(str::to_string),
            port: "127.0.0.1:8080:80".parse().unwrap(),
            source: Source { image: "i".into(), id: "0".into(), to: 80, ..Source::default() },
            plan,
            tls: None,
            canary: None,
            canaries: 0,
            draining: false,
        }
    }

    #[test]
    fn records_come_back_and_broken_ones_are_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let record = record(Some("t"), "a.b");
        record.save(directory.path()).unwrap();
        let broken = ServiceRecord {
            name: "c".into(),
            plan: Plan { max: 0, ..record.plan.clone() },
            ..record.clone()
        };
        broken.save(directory.path()).unwrap();
        fs::write(directory.path().join("d.json"), "{").unwrap();
        fs::copy(directory.path().join("t@a.b.json"), directory.path().join("e.json")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", directory.path().join("f.json")).unwrap();
        assert_eq!(ServiceRecord::load_all(directory.path()).unwrap(), std::slice::from_ref(&record));
        ServiceRecord::remove(directory.path(), "t@a.b").unwrap();
        assert!(ServiceRecord::load_all(directory.path()).unwrap().is_empty());
    }

    #[test]
    fn files_of_an_earlier_version_are_found_and_named_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = |file: &str| directory.path().join(file);
        let (nobody, a, b) = (record(None, "web"), record(Some("a"), "other"), record(Some("b"), "both"));
        for one in [&nobody, &a, &b] {
            fs::write(path(&format!("{}.json", one.name)), serde_json::to_vec_pretty(one).unwrap()).unwrap();
        }
        // Both are there if a later version has served it, and an earlier one again.
        let later = ServiceRecord { canaries: 1, ..b.clone() };
        later.save(directory.path()).unwrap();
        fs::write(path("d.json"), "{").unwrap();
        let odd = ServiceRecord { tenant: Some("../a".into()), ..record(None, "odd") };
        fs::write(path("odd.json"), serde_json::to_vec_pretty(&odd).unwrap()).unwrap();
        for _ in 0..2 {
            rename_earlier(directory.path()).unwrap();
            let mut all = ServiceRecord::load_all(directory.path()).unwrap();
            all.sort_by_key(ServiceRecord::service);
            assert_eq!(all, [later.clone(), a.clone(), nobody.clone()]);
        }
        assert!(path("a@other.json").exists() && !path("other.json").exists() && path("web.json").exists());
        assert_eq!(ServiceRecord::load(directory.path(), "a@other").unwrap(), a);
    }

    #[test]
    fn services_of_one_name_have_a_file_each() {
        let directory = tempfile::tempdir().unwrap();
        let all = [None, Some("a"), Some("b")].map(|tenant| record(tenant, "web"));
        all.iter().for_each(|one| one.save(directory.path()).unwrap());
        ServiceRecord::remove(directory.path(), "a@web").unwrap();
        let mut left = ServiceRecord::load_all(directory.path()).unwrap();
        left.sort_by_key(ServiceRecord::service);
        assert_eq!(left, [all[0].clone(), all[2].clone()]);
        // A file of one tenant's is not another's.
        fs::rename(directory.path().join("b@web.json"), directory.path().join("a@web.json")).unwrap();
        assert!(ServiceRecord::load(directory.path(), "a@web").is_err());
    }
}
