//! What is said of tenants.

use std::num::NonZeroU32;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use rekindle_daemon::parse_bytes;
use rekindle_protocol::tenant::{LimitChange, QuotaRequest, Rate};

use crate::completion;

#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// Make a tenant, and print its first token. It is shown only once.
    Create {
        name: String,
        #[command(flatten)]
        quota: QuotaArguments,
    },
    /// List tenants: what they have, and may have.
    Ls,
    /// Change how much a tenant has, from now on. What is not said stays as it is.
    Set {
        #[arg(add = ArgValueCandidates::new(completion::tenants))]
        name: String,
        #[command(flatten)]
        quota: QuotaArguments,
    },
    /// Make a further token of a tenant, and print it. It is shown only once.
    Token {
        #[arg(add = ArgValueCandidates::new(completion::tenants))]
        name: String,
        /// Revoke the token with this ID, in place of making one. `tenant ls` shows them.
        #[arg(long, value_name = "ID")]
        revoke: Option<String>,
    },
    /// Remove a tenant that has no services.
    Rm {
        #[arg(add = ArgValueCandidates::new(completion::tenants))]
        name: String,
    },
}

/// What all services of a tenant have together.
#[derive(Clone, Copy, Debug, Args)]
#[group(multiple = true)]
pub struct QuotaArguments {
    /// The most GPU memory of all instances, such as 40G; none: as much as there is.
    #[arg(long, value_name = "SIZE|none", value_parser = bound(parse_bytes))]
    memory: Option<LimitChange<u64>>,
    /// The most instances; none: as many as there can be.
    #[arg(long, value_name = "N|none", value_parser = bound(instances))]
    instances: Option<LimitChange<NonZeroU32>>,
    /// The most requests in a second, a minute or an hour, such as 10/s, 600/m or 1000/h; none: as many as come.
    #[arg(long, value_name = "N/s|none", value_parser = bound(str::parse::<Rate>))]
    rate: Option<LimitChange<Rate>>,
}

impl QuotaArguments {
    pub fn request(self) -> QuotaRequest {
        QuotaRequest { memory: self.memory, instances: self.instances, rate: self.rate }
    }
}

fn bound<T>(
    parse: impl Fn(&str) -> Result<T, String> + Clone,
) -> impl Fn(&str) -> Result<LimitChange<T>, String> + Clone {
    move |text| if text == "none" { Ok(LimitChange::None) } else { parse(text).map(LimitChange::AtMost) }
}

fn instances(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| "expected a number of instances, at least 1".to_string())
}
