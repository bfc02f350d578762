//! Which service a command means, that names one.

use rekindle_protocol::service_name::ServiceName;
use rekindle_protocol::tenant::NOBODY;

use crate::daemon::Daemon;
use crate::error::Result;
use crate::services::ServiceError;

/// The longest name of a service.
const LONGEST: usize = 64;

/// A name is that of a file too.
pub fn check(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    match begins_well && name.len() <= LONGEST && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(ServiceError::BadName { name: name.chars().take(LONGEST).collect() }.into()),
    }
}

/// Whose is meant by a tenant's name; none: nobody's.
pub fn whose(tenant: &str) -> Option<&str> {
    Some(tenant).filter(|tenant| *tenant != NOBODY)
}

/// The service of this name that is meant, whether there is one or not.
pub fn meant(daemon: &Daemon, name: &str, tenant: Option<&str>) -> Result<ServiceName> {
    let all = daemon.gateway.names();
    choose(all.iter(), name, tenant).map_err(|tenants| {
        let name = name.to_string();
        ServiceError::Ambiguous { name, tenants }.into()
    })
}

/// Without a tenant it is nobody's service if there is one, else the only one; else these tenants have one each. `all` are in
/// their order.
fn choose<'a>(
    all: impl Iterator<Item = &'a ServiceName>,
    name: &str,
    tenant: Option<&str>,
) -> std::result::Result<ServiceName, Vec<String>> {
    if let Some(tenant) = tenant {
        return Ok(ServiceName::new(whose(tenant), name));
    }
    let found: Vec<&ServiceName> = all.filter(|service| service.name == name).collect();
    match found.as_slice() {
        [] => Ok(ServiceName::new(None, name)),
        [one] => Ok((*one).clone()),
        [first, ..] if first.tenant.is_none() => Ok((*first).clone()),
        several => Err(several.iter().filter_map(|service| service.tenant.clone()).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files() {
        for name in ["a", "0.b-c_D"] {
            check(name).unwrap();
        }
        let long = "a".repeat(65);
        for name in ["", ".", "..", "-a", "a/b", "a b", "ä", "a\n", "a@b", long.as_str()] {
            assert!(check(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_plain_name_is_nobody_s_service_or_the_only_tenant_s() {
        let [a, b] = ["a", "b"].map(|tenant| ServiceName::new(Some(tenant), "web"));
        let nobody = ServiceName::new(None, "web");
        let other = ServiceName::new(Some("c"), "other");
        let of = |all: &[&ServiceName], tenant| choose(all.iter().copied(), "web", tenant);
        assert_eq!(of(&[&other], None), Ok(nobody.clone()), "it would be a new one");
        assert_eq!(of(&[&other, &a], None), Ok(a.clone()));
        assert_eq!(of(&[&other, &nobody, &a, &b], None), Ok(nobody.clone()));
        assert_eq!(of(&[&a, &b], None), Err(vec!["a".to_string(), "b".to_string()]));
        for all in [&[][..], &[&nobody, &a, &b]] {
            assert_eq!(of(all, Some("b")), Ok(b.clone()));
            assert_eq!(of(all, Some(NOBODY)), Ok(nobody.clone()));
        }
    }
}
