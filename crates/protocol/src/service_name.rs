//! Names of services: each tenant has its own, and what is nobody's has others.

use std::fmt;

/// The name of a service, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName {
    pub name: String,
    /// None: nobody's.
    pub tenant: Option<String>,
}

impl ServiceName {
    pub fn new(tenant: Option<&str>, name: &str) -> ServiceName {
        ServiceName { name: name.to_string(), tenant: tenant.map(str::to_string) }
    }

    /// Both as one word, which no other service has: neither part has an `@`.
    pub fn word(&self) -> String {
        match &self.tenant {
            Some(tenant) => format!("{tenant}@{}", self.name),
            None => self.name.clone(),
        }
    }
}

/// As sentences have it.
impl fmt::Display for ServiceName {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:?}", self.name)?;
        match &self.tenant {
            Some(tenant) => write!(to, " of the tenant {tenant:?}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_services_have_the_same_word() {
        let all = [
            ServiceName::new(None, "web"),
            ServiceName::new(Some("a"), "web"),
            ServiceName::new(Some("b"), "web"),
            ServiceName::new(None, "a.web"),
            ServiceName::new(None, "a-web"),
            ServiceName::new(Some("a-web"), "web"),
            ServiceName::new(Some("a"), "web-web"),
        ];
        let words: BTreeSet<String> = all.iter().map(ServiceName::word).collect();
        assert_eq!(words.len(), all.len());
        assert!(words.contains("web") && words.contains("a@web"));
    }

    #[test]
    fn nobody_s_is_the_first_of_its_name() {
        let [b, nobody, a, other] =
            [Some("b"), None, Some("a"), None].map(|tenant| ServiceName::new(tenant, "web"));
        let z = ServiceName { name: "z".into(), ..other };
        let mut all = vec![z.clone(), b.clone(), nobody.clone(), a.clone()];
        all.sort();
        assert_eq!(all, [nobody.clone(), a.clone(), b, z]);
        assert_eq!(nobody.to_string(), r#""web""#);
        assert_eq!(a.to_string(), r#""web" of the tenant "a""#);
    }
}
