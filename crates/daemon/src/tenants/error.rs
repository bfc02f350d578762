//! What can go wrong with tenants and their tokens.

#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    #[error("there is no tenant named {tenant:?}; `rekindle tenant ls` lists them")]
    Unknown { tenant: String },

    #[error(
        "there is a tenant named {tenant:?} already; change it by `rekindle tenant set`, or choose another name"
    )]
    Exists { tenant: String },

    #[error(
        "the tenant {tenant:?} has services ({}); remove them by `rekindle unserve` first", services.join(", ")
    )]
    HasServices { tenant: String, services: Vec<String> },

    #[error("the tenant {tenant:?} has no token {id:?}; `rekindle tenant ls` lists them")]
    UnknownToken { tenant: String, id: String },

    #[error(
        "the tenant {tenant:?} has {most} tokens, as many as it may; revoke one by `rekindle tenant token {tenant} --revoke ID`"
    )]
    TooManyTokens { tenant: String, most: usize },
}
