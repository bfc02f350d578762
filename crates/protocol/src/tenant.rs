//! Tenants: whose services are whose, and how much of the machine each tenant's services have.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// In place of a tenant's name: nobody. No tenant is called so.
pub const NOBODY: &str = "none";

/// The most that all services of a tenant have together; none: as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// GPU memory of all instances, bytes.
    pub memory_bytes: Option<u64>,
    pub instances: Option<NonZeroU32>,
    pub rate: Option<Rate>,
}

/// So many requests in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate {
    pub requests: NonZeroU32,
    pub per: RatePeriod,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RatePeriod {
    Second,
    Minute,
    Hour,
}

/// What is to become of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitChange<T> {
    AtMost(T),
    None,
}

/// What is asked of a quota; what is not stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaRequest {
    pub memory: Option<LimitChange<u64>>,
    pub instances: Option<LimitChange<NonZeroU32>>,
    pub rate: Option<LimitChange<Rate>>,
}

impl QuotaRequest {
    pub fn applied_to(self, quota: Quota) -> Quota {
        fn one<T>(request: Option<LimitChange<T>>, kept: Option<T>) -> Option<T> {
            match request {
                Some(LimitChange::AtMost(most)) => Some(most),
                Some(LimitChange::None) => None,
                None => kept,
            }
        }
        Quota {
            memory_bytes: one(self.memory, quota.memory_bytes),
            instances: one(self.instances, quota.instances),
            rate: one(self.rate, quota.rate),
        }
    }
}

impl RatePeriod {
    pub fn time(self) -> Duration {
        Duration::from_secs(match self {
            RatePeriod::Second => 1,
            RatePeriod::Minute => 60,
            RatePeriod::Hour => 3600,
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per = match self.per {
            RatePeriod::Second => "s",
            RatePeriod::Minute => "m",
            RatePeriod::Hour => "h",
        };
        write!(to, "{}/{per}", self.requests)
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let parsed = text.split_once('/').and_then(|(number, per)| {
            let per = match per {
                "s" => RatePeriod::Second,
                "m" => RatePeriod::Minute,
                "h" => RatePeriod::Hour,
                _ => return None,
            };
            Some(Rate { requests: number.parse().ok()?, per })
        });
        parsed.ok_or_else(|| {
            "expected a number of requests in a time, such as 10/s, 600/m or 1000/h".to_string()
        })
    }
}

impl TryFrom<String> for Rate {
    type Error = String;

    fn try_from(text: String) -> Result<Rate, String> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> String {
        rate.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_they_are_written() {
        for text in ["1/s", "600/m", "4294967295/h"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        for wrong in ["", "10", "0/s", "-1/s", "1/d", "1.5/s", "/s", "1/", "4294967296/s"] {
            assert!(wrong.parse::<Rate>().unwrap_err().contains("10/s"), "{wrong}");
        }
    }

    #[test]
    fn what_is_not_asked_stays_as_it_is() {
        let quota = Quota { memory_bytes: Some(1), instances: NonZeroU32::new(2), rate: "3/s".parse().ok() };
        assert_eq!(QuotaRequest::default().applied_to(quota), quota);
        let request = QuotaRequest {
            memory: Some(LimitChange::None),
            rate: Some(LimitChange::AtMost("4/m".parse().unwrap())),
            ..QuotaRequest::default()
        };
        let kept = Quota { memory_bytes: None, rate: "4/m".parse().ok(), ..quota };
        assert_eq!(request.applied_to(quota), kept);
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<QuotaRequest>(&text).unwrap(), request);
    }
}
