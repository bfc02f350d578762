//! Tenants: who may ask which services, and how much the services of each have.
//!
//! ```text
//!  request ─▶ token ── none, unknown ─▶ 401    rate ── used up ─▶ 429
//!               │ └── another tenant's ─▶ 403   ▲  └─▶ the service's queue
//!               └── the tenant's own ───────────┘
//! ```
//!
//! Here are tokens and rates. How much GPU memory and how many instances a tenant has is known where [memory](crate::memory)
//! is granted.

mod token;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, RateLimiter};
use hyper::header::{AUTHORIZATION, HeaderMap};
use rekindle_protocol::tenant::{Quota, Rate};

use crate::memory::Memory;
use token::PresentedToken;

pub use token::Token;

/// All tenants.
pub struct Tenants {
    all: Mutex<BTreeMap<String, Arc<Tenant>>>,
    memory: Arc<Memory>,
}

pub struct Tenant {
    pub name: String,
    state: Mutex<State>,
    /// Requests that came too often, since the daemon started.
    too_often: AtomicU64,
}

#[derive(Default)]
struct State {
    tokens: Vec<Token>,
    quota: Quota,
    rate: Option<DefaultDirectRateLimiter>,
    services: BTreeSet<String>,
    /// It has no further services.
    removed: bool,
}

/// That a service is a tenant's, which cannot be removed for as long.
pub struct Membership {
    pub tenant: Arc<Tenant>,
    service: String,
}

/// Why a request is not let in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Denial {
    /// It shows no token.
    NoToken,
    /// It shows one that nobody has.
    UnknownToken,
    ForeignToken,
    /// The tenant's requests come too often; not before so long.
    TooOften(Duration),
}

impl Tenants {
    pub(crate) fn new(memory: Arc<Memory>) -> Tenants {
        Tenants { all: Mutex::default(), memory }
    }

    pub fn get(&self, name: &str) -> Option<Arc<Tenant>> {
        self.lock().get(name).cloned()
    }

    /// All, by their names.
    pub fn all(&self) -> Vec<Arc<Tenant>> {
        self.lock().values().cloned().collect()
    }

    /// Has a tenant be so from now on.
    pub fn put(&self, name: &str, quota: Quota, tokens: Vec<Token>) {
        let make = || {
            Arc::new(Tenant { name: name.to_string(), state: Mutex::default(), too_often: AtomicU64::new(0) })
        };
        let tenant = self.lock().entry(name.to_string()).or_insert_with(make).clone();
        let mut state = tenant.lock();
        if state.quota.rate != quota.rate {
            state.rate = quota.rate.map(limiter);
        }
        (state.quota, state.tokens) = (quota, tokens);
        drop(state);
        self.memory.share(name, quota);
    }

    /// Forgets a tenant that has no service; else which it has.
    pub fn remove(&self, name: &str) -> Result<(), Vec<String>> {
        let mut all = self.lock();
        if let Some(tenant) = all.get(name) {
            let mut state = tenant.lock();
            if !state.services.is_empty() {
                return Err(state.services.iter().cloned().collect());
            }
            state.removed = true;
        }
        all.remove(name);
        drop(all);
        self.memory.share(name, Quota::default());
        Ok(())
    }

    /// Lets a request to a service of the tenant's in, or says why not. It shows its token to nobody else.
    pub(crate) fn admit(&self, tenant: &Tenant, headers: &mut HeaderMap) -> Result<(), Denial> {
        let admitted = match PresentedToken::of(headers) {
            None => {
                Err(if headers.contains_key(AUTHORIZATION) { Denial::UnknownToken } else { Denial::NoToken })
            }
            Some(shown) if tenant.has(&shown) => tenant.take_turn(),
            Some(shown) if self.all().iter().any(|other| other.has(&shown)) => Err(Denial::ForeignToken),
            Some(_) => Err(Denial::UnknownToken),
        };
        headers.remove(AUTHORIZATION);
        admitted
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Tenant>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenant {
    /// A service is the tenant's for as long as this is there; none if the tenant was removed.
    pub fn join(self: &Arc<Self>, service: &str) -> Option<Membership> {
        let mut state = self.lock();
        if state.removed {
            return None;
        }
        state.services.insert(service.to_string());
        Some(Membership { tenant: self.clone(), service: service.to_string() })
    }

    pub fn quota(&self) -> Quota {
        self.lock().quota
    }

    pub fn tokens(&self) -> Vec<Token> {
        self.lock().tokens.clone()
    }

    pub fn services(&self) -> Vec<String> {
        self.lock().services.iter().cloned().collect()
    }

    /// How many requests came too often, since the daemon started.
    pub fn too_often(&self) -> u64 {
        self.too_often.load(Ordering::Relaxed)
    }

    fn has(&self, shown: &PresentedToken<'_>) -> bool {
        self.lock().tokens.iter().any(|token| token.is(shown))
    }

    fn take_turn(&self) -> Result<(), Denial> {
        let state = self.lock();
        let Some(early) = state.rate.as_ref().and_then(|rate| rate.check().err()) else { return Ok(()) };
        self.too_often.fetch_add(1, Ordering::Relaxed);
        Err(Denial::TooOften(early.wait_time_from(DefaultClock::default().now())))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.tenant.lock().services.remove(&self.service);
    }
}

/// A bucket that holds as many requests as the rate has, and fills evenly.
fn limiter(Rate { requests, per }: Rate) -> DefaultDirectRateLimiter {
    let between = per.time() / requests.get();
    let quota = governor::Quota::with_period(between).unwrap_or(governor::Quota::per_second(NonZeroU32::MAX));
    RateLimiter::direct(quota.allow_burst(requests))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn tenants() -> (Tenants, [String; 2]) {
        let tenants = Tenants::new(Arc::new(Memory::new(None)));
        let told = ["a", "b"].map(|name| {
            let (token, told) = Token::make("now".into()).unwrap();
            tenants.put(name, Quota { rate: "3/h".parse().ok(), ..Quota::default() }, vec![token]);
            told
        });
        (tenants, told)
    }

    fn ask(tenants: &Tenants, tenant: &str, token: Option<&str>) -> Result<(), Denial> {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).unwrap());
        }
        let answer = tenants.admit(&tenants.get(tenant).unwrap(), &mut headers);
        assert!(headers.is_empty(), "the program does not see it");
        answer
    }

    #[test]
    fn only_a_token_of_the_tenant_s_lets_in() {
        let (tenants, [a, b]) = tenants();
        assert_eq!(ask(&tenants, "a", Some(&a)), Ok(()));
        assert_eq!(ask(&tenants, "a", Some(&b)), Err(Denial::ForeignToken));
        assert_eq!(ask(&tenants, "a", None), Err(Denial::NoToken));
        for wrong in ["x", &a[..a.len() - 1], &a.to_uppercase()] {
            assert_eq!(ask(&tenants, "a", Some(wrong)), Err(Denial::UnknownToken));
        }
        // Once it is taken away it is nobody's.
        tenants.put("a", Quota::default(), Vec::new());
        assert_eq!(ask(&tenants, "a", Some(&a)), Err(Denial::UnknownToken));
        assert_eq!(ask(&tenants, "b", Some(&a)), Err(Denial::UnknownToken));
    }

    #[test]
    fn a_rate_is_a_tenant_s_own_and_is_used_by_its_tokens_alone() {
        let (tenants, [a, b]) = tenants();
        for _ in 0..5 {
            assert!(ask(&tenants, "a", None).is_err() && ask(&tenants, "a", Some(&b)).is_err());
        }
        for _ in 0..3 {
            assert_eq!(ask(&tenants, "a", Some(&a)), Ok(()));
        }
        let Err(Denial::TooOften(wait)) = ask(&tenants, "a", Some(&a)) else { panic!("it is used up") };
        assert!(wait > Duration::from_secs(1000) && wait <= Duration::from_secs(1200), "{wait:?}");
        assert_eq!(ask(&tenants, "b", Some(&b)), Ok(()));
        // What else is changed of the tenant gives no requests back.
        let tenant = tenants.get("a").unwrap();
        tenants.put("a", Quota { memory_bytes: Some(1), ..tenant.quota() }, tenant.tokens());
        assert!(ask(&tenants, "a", Some(&a)).is_err());
        assert_eq!(tenant.too_often(), 2);
        tenants.put("a", Quota { rate: None, ..tenant.quota() }, tenant.tokens());
        assert_eq!(ask(&tenants, "a", Some(&a)), Ok(()));
    }

    #[test]
    fn a_tenant_with_services_is_not_removed_and_a_removed_one_gets_none() {
        let (tenants, _) = tenants();
        let tenant = tenants.get("a").unwrap();
        let both = ["y", "x"].map(|service| tenant.join(service).unwrap());
        assert_eq!(tenants.remove("a"), Err(vec!["x".to_string(), "y".to_string()]));
        drop(both);
        assert_eq!(tenants.remove("a"), Ok(()));
        assert!(tenant.join("x").is_none() && tenants.get("a").is_none());
        assert_eq!(tenants.all().len(), 1);
    }
}
