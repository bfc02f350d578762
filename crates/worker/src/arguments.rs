//! `rekindled worker --listen SOCKET --gpu GPU [--spare | --shared TENANT --keep SECONDS]`

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::gpu::Gpu;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The socket to make, for the daemon.
    pub listen: PathBuf,
    pub gpu: Gpu,
    pub purpose: Purpose,
}

/// Whom a worker is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// One program.
    Program,
    /// As yet nobody. It waits in a pool: it ends with the daemon's connection unless it was taken.
    Spare,
    /// Programs of this tenant, which share its contexts. So long these are kept without any.
    Shared { tenant: String, keep: Duration },
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsError {
    #[error(
        "unknown argument {0:?}; a worker takes --listen SOCKET, --gpu GPU, --spare, --shared TENANT and --keep SECONDS"
    )]
    Unknown(OsString),
    #[error("{0} needs a value")]
    NoValue(&'static str),
    #[error("{0} is missing; a worker takes --listen SOCKET and --gpu GPU, and --keep SECONDS with --shared")]
    Missing(&'static str),
    #[error("--keep {0:?} is no time; expected a number of seconds")]
    Keep(String),
    #[error("{0:?} names no GPU; expected emulated, emulated:KEY=VALUE,..., nvidia or nvidia:INDEX,...")]
    Gpu(String),
}

impl Arguments {
    pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Arguments, ArgumentsError> {
        let (mut listen, mut gpu, mut is_spare) = (None, None, false);
        let (mut tenant, mut keep) = (None, None);
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            match argument.to_str() {
                Some("--listen") => {
                    let value = arguments.next().ok_or(ArgumentsError::NoValue("--listen"))?;
                    listen = Some(PathBuf::from(value));
                }
                Some("--gpu") => {
                    let value = arguments.next().ok_or(ArgumentsError::NoValue("--gpu"))?;
                    let value = value.to_string_lossy();
                    gpu = Some(Gpu::parse(&value).ok_or_else(|| ArgumentsError::Gpu(value.into_owned()))?);
                }
                Some("--spare") => is_spare = true,
                Some("--shared") => {
                    let value = arguments.next().ok_or(ArgumentsError::NoValue("--shared"))?;
                    tenant = Some(value.to_string_lossy().into_owned());
                }
                Some("--keep") => {
                    let value = arguments.next().ok_or(ArgumentsError::NoValue("--keep"))?;
                    let value = value.to_string_lossy();
                    let seconds = value.parse().map_err(|_| ArgumentsError::Keep(value.into_owned()))?;
                    keep = Some(Duration::from_secs(seconds));
                }
                _ => return Err(ArgumentsError::Unknown(argument)),
            }
        }
        let purpose = match (tenant, is_spare) {
            (Some(tenant), _) => {
                Purpose::Shared { tenant, keep: keep.ok_or(ArgumentsError::Missing("--keep"))? }
            }
            (None, true) => Purpose::Spare,
            (None, false) => Purpose::Program,
        };
        Ok(Arguments {
            listen: listen.ok_or(ArgumentsError::Missing("--listen"))?,
            gpu: gpu.ok_or(ArgumentsError::Missing("--gpu"))?,
            purpose,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, ArgumentsError> {
        Arguments::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn a_worker_is_told_where_to_listen_and_what_to_use() {
        let parsed = parse("--gpu nvidia:3 --listen /run/w.sock").unwrap();
        let gpu = Gpu::Nvidia { indices: vec![3] };
        assert_eq!(parsed, Arguments { listen: "/run/w.sock".into(), gpu, purpose: Purpose::Program });
        let several = parse("--gpu nvidia:1,0 --listen /a").unwrap().gpu;
        assert_eq!(
            (several.to_string(), several),
            ("nvidia:1,0".to_string(), Gpu::Nvidia { indices: vec![1, 0] })
        );
        let purpose = |line: &str| parse(line).unwrap().purpose;
        assert_eq!(purpose("--spare --gpu nvidia --listen /run/w.sock"), Purpose::Spare);
        let shared = Purpose::Shared { tenant: "me".to_string(), keep: Duration::from_secs(5) };
        assert_eq!(purpose("--gpu nvidia --listen /a --shared me --keep 5"), shared);
        let unkept = parse("--gpu nvidia --listen /a --shared me");
        assert_eq!(unkept, Err(ArgumentsError::Missing("--keep")));
        assert_eq!(parse("--keep -1"), Err(ArgumentsError::Keep("-1".to_string())));
        assert_eq!(parse("--listen /a --gpu emulated").unwrap().gpu, Gpu::Emulated { config: None });
        assert_eq!(parse("--gpu emulated"), Err(ArgumentsError::Missing("--listen")));
        assert_eq!(parse("--listen"), Err(ArgumentsError::NoValue("--listen")));
        assert!(matches!(parse("--listen /a --gpu voodoo"), Err(ArgumentsError::Gpu(_))));
        assert!(matches!(parse("--listen /a --gpu nvidia:0,x"), Err(ArgumentsError::Gpu(_))));
        assert!(matches!(parse("run"), Err(ArgumentsError::Unknown(_))));
    }
}
