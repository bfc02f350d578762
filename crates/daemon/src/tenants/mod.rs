//! Tenants: whose services are whose, by which tokens they are asked, and what each tenant's services have together.
//!
//! The [gateway](rekindle_gateway) knows them while the daemon runs; here is what is kept for the next one. A change is kept
//! before it is so, and all of them are made one after the other.

mod error;
mod record;

use std::sync::{Arc, PoisonError};

use rekindle_gateway::{Membership, Tenant, Token};
use rekindle_protocol::tenant::{Quota, QuotaRequest};
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::host::clock;
use crate::host::records::StoredRecord;
use crate::lifecycle::slices;
use record::TenantRecord;

pub use error::TenantError;

/// The most tokens of one.
const MOST_TOKENS: usize = 100;

/// Has the tenants of an earlier daemon again.
pub fn resume(daemon: &Daemon) -> Result<()> {
    for record in TenantRecord::load_all(&daemon.paths.tenants())? {
        daemon.gateway.tenants().put(&record.name, record.quota, record.tokens);
    }
    Ok(())
}

/// Makes a tenant, and tells its first token.
pub fn create(daemon: &Daemon, name: &str, request: QuotaRequest) -> Result<Value> {
    slices::check_name(name)?;
    let _changing = daemon.tenants.lock().unwrap_or_else(PoisonError::into_inner);
    if TenantRecord::is_there(&daemon.paths.tenants(), name) {
        return Err(TenantError::Exists { tenant: name.to_string() }.into());
    }
    let (token, told) = make_token()?;
    let id = token.id.clone();
    let tenant = put(daemon, name, request.applied_to(Quota::default()), vec![token])?;
    log::info!("there is a tenant {name:?}");
    Ok(with_token(shown(daemon, &tenant), &id, &told))
}

pub fn list(daemon: &Daemon) -> Value {
    daemon
        .gateway
        .all()
        .iter()
        .filter(|service| service.tenant().is_some())
        .for_each(|service| service.measure());
    let all = daemon.gateway.tenants().all();
    let all: Vec<Value> = all.iter().map(|tenant| shown(daemon, tenant)).collect();
    json!({ "tenants": all })
}

/// Changes how much a tenant has, from now on.
pub fn set(daemon: &Daemon, name: &str, request: QuotaRequest) -> Result<Value> {
    let _changing = daemon.tenants.lock().unwrap_or_else(PoisonError::into_inner);
    let tenant = find(daemon, name)?;
    put(daemon, name, request.applied_to(tenant.quota()), tenant.tokens())?;
    Ok(shown(daemon, &tenant))
}

/// Makes a further token, and tells it.
pub fn add_token(daemon: &Daemon, name: &str) -> Result<Value> {
    let _changing = daemon.tenants.lock().unwrap_or_else(PoisonError::into_inner);
    let tenant = find(daemon, name)?;
    let mut tokens = tenant.tokens();
    if tokens.len() >= MOST_TOKENS {
        return Err(TenantError::TooManyTokens { tenant: name.to_string(), most: MOST_TOKENS }.into());
    }
    let (token, told) = make_token()?;
    let id = token.id.clone();
    tokens.push(token);
    put(daemon, name, tenant.quota(), tokens)?;
    Ok(with_token(shown(daemon, &tenant), &id, &told))
}

/// Revokes a token.
pub fn revoke(daemon: &Daemon, name: &str, id: &str) -> Result<Value> {
    let _changing = daemon.tenants.lock().unwrap_or_else(PoisonError::into_inner);
    let tenant = find(daemon, name)?;
    let mut tokens = tenant.tokens();
    let before = tokens.len();
    tokens.retain(|token| token.id != id);
    if tokens.len() == before {
        return Err(TenantError::UnknownToken { tenant: name.to_string(), id: id.to_string() }.into());
    }
    put(daemon, name, tenant.quota(), tokens)?;
    log::info!("the token {id:?} of the tenant {name:?} is revoked");
    Ok(shown(daemon, &tenant))
}

/// Forgets a tenant that has no service.
pub fn remove(daemon: &Daemon, name: &str) -> Result<Value> {
    let _changing = daemon.tenants.lock().unwrap_or_else(PoisonError::into_inner);
    let tenant = find(daemon, name)?;
    let last = shown(daemon, &tenant);
    daemon
        .gateway
        .tenants()
        .remove(name)
        .map_err(|services| TenantError::HasServices { tenant: name.to_string(), services })?;
    if let Err(error) = TenantRecord::remove(&daemon.paths.tenants(), name) {
        // It is there as before.
        daemon.gateway.tenants().put(name, tenant.quota(), tenant.tokens());
        return Err(error);
    }
    log::info!("the tenant {name:?} is removed");
    Ok(last)
}

/// Has a service be a tenant's, for as long as what this gives is there.
pub fn join(daemon: &Daemon, name: &str, service: &str) -> Result<Membership> {
    find(daemon, name)?.join(service).ok_or_else(|| TenantError::Unknown { tenant: name.to_string() }.into())
}

pub fn find(daemon: &Daemon, name: &str) -> Result<Arc<Tenant>> {
    daemon.gateway.tenants().get(name).ok_or_else(|| TenantError::Unknown { tenant: name.to_string() }.into())
}

fn put(daemon: &Daemon, name: &str, quota: Quota, tokens: Vec<Token>) -> Result<Arc<Tenant>> {
    let record = TenantRecord { name: name.to_string(), quota, tokens };
    record.save(&daemon.paths.tenants())?;
    daemon.gateway.tenants().put(name, quota, record.tokens);
    find(daemon, name)
}

fn make_token() -> Result<(Token, String)> {
    Token::make(clock::now()).map_err(|source| Error::system("read random bytes", source))
}

fn shown(daemon: &Daemon, tenant: &Tenant) -> Value {
    let (instances, memory_bytes) = daemon.gateway.memory().used_by(&tenant.name);
    let tokens = tenant.tokens();
    let tokens: Vec<Value> =
        tokens.iter().map(|token| json!({ "id": token.id, "created": token.created })).collect();
    json!({
        "name": tenant.name,
        "quota": tenant.quota(),
        "used": { "memory_bytes": memory_bytes, "instances": instances },
        "services": tenant.services(),
        "too_often": tenant.too_often(),
        "tokens": tokens,
    })
}

fn with_token(mut shown: Value, id: &str, told: &str) -> Value {
    shown["token"] = json!({ "id": id, "token": told });
    shown
}
