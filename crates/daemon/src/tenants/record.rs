//! What is kept on disk of a tenant.

use std::borrow::Cow;

use rekindle_gateway::Token;
use rekindle_protocol::tenant::Quota;
use serde::{Deserialize, Serialize};

use crate::host::records::StoredRecord;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRecord {
    pub name: String,
    pub quota: Quota,
    pub tokens: Vec<Token>,
}

impl StoredRecord for TenantRecord {
    const KIND: &'static str = "tenant";

    fn key(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn records_are_nobody_else_s_and_broken_ones_are_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let (token, told) = Token::make("now".into()).unwrap();
        let quota = Quota { memory_bytes: Some(1), rate: "2/s".parse().ok(), ..Quota::default() };
        let record = TenantRecord { name: "a".into(), quota, tokens: vec![token] };
        record.save(directory.path()).unwrap();
        let file = directory.path().join("a.json");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!fs::read_to_string(&file).unwrap().contains(told.rsplit('-').next().unwrap()));
        fs::write(directory.path().join("b.json"), "{").unwrap();
        fs::copy(&file, directory.path().join("c.json")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", directory.path().join("d.json")).unwrap();
        assert_eq!(TenantRecord::load_all(directory.path()).unwrap(), std::slice::from_ref(&record));
        assert!(
            TenantRecord::is_there(directory.path(), "b") && !TenantRecord::is_there(directory.path(), "e")
        );
        TenantRecord::remove(directory.path(), "a").unwrap();
        assert!(TenantRecord::load_all(directory.path()).unwrap().is_empty());
    }
}
