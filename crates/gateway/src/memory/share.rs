//! What the services of a tenant may have together, on all GPUs.

use std::collections::BTreeMap;

use rekindle_protocol::tenant::Quota;

/// None: as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantLimit {
    pub bytes: Option<u64>,
    pub instances: Option<usize>,
}

/// What they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantUsage {
    pub bytes: u64,
    pub instances: usize,
    /// How much of it is about to be free.
    pub leaving_bytes: u64,
    pub leaving: usize,
}

/// How much is too much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Excess {
    pub bytes: u64,
    pub instances: usize,
}

/// Which services are whose, and what each tenant may have.
#[derive(Default)]
pub struct TenantLimits {
    tenants: BTreeMap<u64, String>,
    shares: BTreeMap<String, TenantLimit>,
}

impl From<Quota> for TenantLimit {
    fn from(quota: Quota) -> TenantLimit {
        let instances = quota.instances.and_then(|instances| instances.get().try_into().ok());
        TenantLimit { bytes: quota.memory_bytes, instances }
    }
}

impl TenantLimit {
    /// What there would be too much with so much more, if all that is about to be free were.
    pub fn excess(&self, tally: &TenantUsage, more: Excess) -> Excess {
        let TenantUsage { bytes, instances, .. } = tally;
        let bytes = self.bytes.map_or(0, |most| (bytes + more.bytes).saturating_sub(most));
        let instances = self.instances.map_or(0, |most| (instances + more.instances).saturating_sub(most));
        Excess { bytes, instances }
    }
}

impl Excess {
    pub fn is_none(&self) -> bool {
        *self == Excess::default()
    }

    /// What is still too much once all has left that is about to.
    pub fn without_leaving(self, tally: &TenantUsage) -> Excess {
        Excess {
            bytes: self.bytes.saturating_sub(tally.leaving_bytes),
            instances: self.instances.saturating_sub(tally.leaving),
        }
    }
}

impl TenantLimits {
    /// A service is a tenant's.
    pub fn join(&mut self, service: u64, tenant: &str) {
        self.tenants.insert(service, tenant.to_string());
    }

    pub fn leave(&mut self, service: u64) {
        self.tenants.remove(&service);
    }

    /// Has a tenant's services have so much from now on.
    pub fn set(&mut self, tenant: &str, share: TenantLimit) {
        match share == TenantLimit::default() {
            true => self.shares.remove(tenant),
            false => self.shares.insert(tenant.to_string(), share),
        };
    }

    pub fn tenant_of(&self, service: u64) -> Option<&str> {
        self.tenants.get(&service).map(String::as_str)
    }

    /// The tenant of a service whose services may not have all that there is.
    pub fn of(&self, service: u64) -> Option<(&str, TenantLimit)> {
        let tenant = self.tenant_of(service)?;
        Some((tenant, *self.shares.get(tenant)?))
    }

    pub fn all(&self) -> impl Iterator<Item = (&str, TenantLimit)> {
        self.shares.iter().map(|(tenant, share)| (tenant.as_str(), *share))
    }

    pub fn bounds_bytes(&self) -> bool {
        self.shares.values().any(|share| share.bytes.is_some())
    }
}
