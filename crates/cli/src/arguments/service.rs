//! What is said of a service.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCandidates;
use jiff::SignedDuration;
use rekindle_protocol::data_slot::DataSlot;
use rekindle_protocol::network::Port;
use rekindle_protocol::service::{ServiceRequest, SleepStage, TlsFiles, TlsRequest};

use crate::arguments::choices::LevelArgument;
use crate::arguments::sandbox::{PortionArguments, ShareMemoryArgument};
use crate::completion;

/// What is not said of a service that is there stays as it is.
#[derive(Debug, Args)]
pub struct ServiceArguments {
    /// Where clients come: a TCP port of this machine's, at all its addresses or one. PORT 0 is one that is free.
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = address)]
    port: Option<Port>,
    /// The port that the program listens on; the one that was published when the image was taken if none is given, or
    /// else the clients'.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    to: Option<u16>,
    /// What an instance answers with success once it is ready, such as /healthz; that it listens is enough if none is given.
    #[arg(long, value_name = "PATH", value_parser = path)]
    ready: Option<String>,
    /// The GPU: emulated[:SETTINGS] or nvidia[:INDEX]; the image's if none is given. May be given again: each instance is on one
    /// of these, where a request's arrays lie if there is room.
    #[arg(long, value_name = "GPU")]
    gpu: Vec<String>,
    /// The tenant whose service it is (`rekindle tenant create`): its clients need a token of that tenant. Each tenant has
    /// names of its own. none: nobody's. If none is given, it is nobody's service of this name if there is one, else the only
    /// tenant's, else a new one of nobody's.
    #[arg(long, value_name = "TENANT|none", add = ArgValueCandidates::new(completion::tenants))]
    tenant: Option<String>,
    /// Have instances share GPU contexts with the other programs that share by this name; those of a tenant's service with
    /// instances of the tenant's services alone. The image's program must have been started
    /// with `run --share`, and instances do not sleep. none: with nobody any more.
    #[arg(long, value_name = "TENANT|none")]
    share: Option<String>,
    #[command(flatten)]
    portion: PortionArguments,
    #[command(flatten)]
    memory_at: ShareMemoryArgument,
    /// A further image of the same program, taken from a start of its own, of which instances are made too: those of
    /// different images fit in one GPU context. With --share; may be given again.
    #[arg(long, value_name = "IMAGE")]
    variant: Vec<String>,
    #[command(flatten)]
    scale: ScaleArguments,
    /// How many requests an instance has at once (8).
    #[arg(long, value_name = "REQUESTS")]
    concurrency: Option<u32>,
    /// How many requests may wait; further ones are refused (100).
    #[arg(long, value_name = "REQUESTS")]
    queue: Option<u32>,
    /// How long a request may wait for an instance, and an instance take until it listens (60s).
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<u64>,
    /// How long an instance without a request keeps its GPU (30s).
    #[arg(long, value_name = "TIME", value_parser = duration)]
    idle: Option<u64>,
    /// How long one that has given its GPU back is there until it ends, and the image alone is left (5m).
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "stages")]
    idle_end: Option<u64>,
    /// Where the GPU memory of such an instance goes (host).
    #[arg(long, conflicts_with = "stages")]
    level: Option<LevelArgument>,
    #[command(flatten)]
    stages: StagesArgument,
    /// An object that instances are about to want (s3://BUCKET/KEY, gs://, az://, http://, https:// or file:///PATH): it is
    /// brought to this host while one is started. May be given again; none: no more.
    #[arg(long, value_name = "URL|none")]
    data: Vec<String>,
    /// What of its data a request can name, and another object for it whose URL begins so: NAME, or NAME=BEGINNING, such as
    /// weights=s3://BUCKET/. May be given again, for one name too; none: no more.
    #[arg(long, value_name = "NAME[=BEGINNING]|none", value_parser = data_slot)]
    data_slot: Vec<String>,
    /// The latest version of calls' messages that the image's program understands, as it says where it is deployed (1). Said of an
    /// image, not of the service: another one is not told.
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u32).range(1..))]
    message: Option<u32>,
    /// Have so many of the requests go to the image, such as 10%, and the others where they go: until the image is served
    /// without this, or the other one is.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    canary: Option<u32>,
    #[command(flatten)]
    tls: TlsArguments,
}

/// Whether clients speak TLS.
#[derive(Debug, Args)]
pub struct TlsArguments {
    /// Have clients speak TLS, with this certificate and those above it (PEM). It is read again when the file changes.
    #[arg(long, value_name = "FILE", value_parser = absolute, requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// The private key of that certificate (PEM).
    #[arg(long, value_name = "FILE", value_parser = absolute, requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Have clients speak without TLS.
    #[arg(long, conflicts_with = "tls_certificate")]
    no_tls: bool,
}

impl TlsArguments {
    pub fn wanted(self) -> Option<TlsRequest> {
        match (self.no_tls, self.tls_certificate, self.tls_key) {
            (false, Some(certificate), Some(key)) => Some(TlsRequest::With(TlsFiles { certificate, key })),
            (is_off, ..) => is_off.then_some(TlsRequest::Off),
        }
    }
}

/// What is said of a workflow beside its graph.
#[derive(Debug, Args)]
pub struct WorkflowArguments {
    /// Where clients come: a TCP port of this machine's, at all its addresses or one; where they do already, or one of
    /// 127.0.0.1 that is free, if none is given.
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = address)]
    pub port: Option<Port>,
    #[command(flatten)]
    pub tenant: TenantArgument,
    #[command(flatten)]
    pub tls: TlsArguments,
}

/// Whose service is meant.
#[derive(Debug, Args)]
pub struct TenantArgument {
    /// The tenant whose service it is; none: nobody's. If none is given, it is nobody's service of this name if there is one,
    /// else the only tenant's.
    #[arg(long, value_name = "TENANT|none", add = ArgValueCandidates::new(completion::tenants))]
    pub tenant: Option<String>,
}

/// How instances sleep.
#[derive(Clone, Debug, Args)]
pub struct StagesArgument {
    /// Have an idle instance go down level by level instead, and how long it sleeps at each before it goes on, or ends after
    /// the last: such as gpu=1m,host=10m,disk=1h. A level that is left out, or has 0s, is passed by; none: one level alone.
    /// context=TIME before them has a worker wait for it that long from when it falls asleep, its context ready.
    #[arg(long, value_name = "[context=TIME,]LEVEL=TIME,...|none", value_parser = stages)]
    stages: Option<Stages>,
}

impl StagesArgument {
    /// The levels, and how long a context is kept, in milliseconds.
    pub fn wanted(self) -> (Option<Vec<SleepStage>>, Option<u64>) {
        match self.stages {
            Some(Stages { levels, context_ms }) => (Some(levels), Some(context_ms)),
            None => (None, None),
        }
    }
}

/// How many instances there are.
#[derive(Clone, Copy, Debug, Args)]
pub struct ScaleArguments {
    /// How many instances stay awake, whether there are requests or not (0).
    #[arg(long, value_name = "INSTANCES")]
    pub min: Option<u32>,
    /// The most instances (4).
    #[arg(long, value_name = "INSTANCES")]
    pub max: Option<u32>,
}

impl ServiceArguments {
    pub fn request(self) -> ServiceRequest {
        let (stages, context_ms) = self.stages.wanted();
        ServiceRequest {
            port: self.port,
            to: self.to,
            ready: self.ready,
            gpus: self.gpu,
            tenant: self.tenant,
            share: self.share,
            link_weight: self.portion.link_weight,
            sm_share: self.portion.sm_share,
            sm_weight: self.portion.sm_weight,
            sm_most: self.portion.sm_most,
            share_memory: self.memory_at.wanted(),
            variants: self.variant,
            level: self.level.map(LevelArgument::wanted),
            min: self.scale.min,
            max: self.scale.max,
            concurrency: self.concurrency,
            queue: self.queue,
            idle_ms: self.idle,
            idle_end_ms: self.idle_end,
            timeout_ms: self.timeout,
            stages,
            context_ms,
            canary: self.canary,
            message: self.message,
            tls: self.tls.wanted(),
            data: (!self.data.is_empty())
                .then(|| self.data.into_iter().filter(|url| url != "none").collect()),
            data_slots: (!self.data_slot.is_empty()).then(|| {
                let named = self.data_slot.iter().filter(|slot| *slot != "none");
                named.filter_map(|slot| slot.parse().ok()).collect()
            }),
        }
    }
}

/// A port of the machine's alone.
fn address(text: &str) -> Result<Port, String> {
    format!("{text}:1")
        .parse()
        .map_err(|_| "expected [ADDRESS:]PORT, such as 8000 or 127.0.0.1:8000".to_string())
}

fn data_slot(text: &str) -> Result<String, String> {
    text.parse::<DataSlot>().map(|slot| slot.to_string())
}

/// Of ten thousand.
fn share(text: &str) -> Result<u32, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    let share =
        percent.map(|percent| (percent * 100.0).round()).filter(|share| (1.0..10_000.0).contains(share));
    share.map(|share| share as u32).ok_or_else(|| "expected a share such as 10% or 0.5%".to_string())
}

/// As the daemon finds it.
fn absolute(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(text).map_err(|_| "expected a file".to_string())
}

fn path(text: &str) -> Result<String, String> {
    let is_plain = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    is_plain.then(|| text.to_string()).ok_or_else(|| "expected a path such as /healthz".to_string())
}

/// All levels, or none, and how long a context is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Stages {
    levels: Vec<SleepStage>,
    context_ms: u64,
}

/// Levels in their order, each once.
fn stages(text: &str) -> Result<Stages, String> {
    if text == "none" {
        return Ok(Stages::default());
    }
    let stage = |text: &str| {
        let (level, time) = text.split_once('=')?;
        let level = LevelArgument::from_str(level, false).ok()?.wanted();
        Some(SleepStage { level, ms: duration(time).ok()? })
    };
    let (context, levels) = match text.strip_prefix("context=").and_then(|rest| rest.split_once(',')) {
        Some((time, levels)) => (duration(time).ok(), levels),
        None => (Some(0), text),
    };
    let all: Option<Vec<SleepStage>> = levels.split(',').map(stage).collect();
    let goes_down = |all: &Vec<SleepStage>| {
        all.is_sorted_by(|one, next| one.level < next.level) && all.iter().any(|stage| stage.ms > 0)
    };
    all.filter(goes_down)
        .zip(context)
        .map(|(levels, context_ms)| Stages { levels, context_ms })
        .ok_or_else(|| {
            "expected levels from gpu over host to disk, with times of which one is above 0s, such as gpu=1m,host=10m,disk=1h, \
             perhaps with context=30s before them, or none"
                .to_string()
        })
}

/// In milliseconds.
pub fn duration(text: &str) -> Result<u64, String> {
    let parsed = text.parse::<SignedDuration>().ok().filter(|time| !time.is_negative());
    parsed
        .and_then(|time| u64::try_from(time.as_millis()).ok())
        .ok_or_else(|| "expected a time such as 500ms, 30s, 10m or 1h30m".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_go_down_each_once() {
        use rekindle_protocol::daemon::Level;
        let stage = |level, ms| SleepStage { level, ms };
        let all = vec![stage(Level::Gpu, 60_000), stage(Level::Host, 600_000), stage(Level::Disk, 3_600_000)];
        let levels = |levels| Ok(Stages { levels, context_ms: 0 });
        assert_eq!(stages("gpu=1m,host=10m,disk=1h"), levels(all));
        let last = vec![stage(Level::Gpu, 0), stage(Level::Disk, 1000)];
        assert_eq!(stages("gpu=0s,disk=1s"), levels(last.clone()));
        let kept = Stages { levels: last, context_ms: 30_000 };
        assert_eq!(stages("context=30s,gpu=0s,disk=1s"), Ok(kept));
        assert_eq!(stages("none"), levels(Vec::new()));
        for wrong in [
            "",
            "gpu",
            "gpu=1",
            "moon=1s",
            "host=1s,gpu=1s",
            "gpu=1s,gpu=1s",
            "gpu=1s,",
            "gpu=0s",
            "none,gpu=1s",
            "context=30s",
            "context=30s,gpu=0s",
            "context=soon,gpu=1s",
            "gpu=1s,context=30s",
        ] {
            assert!(stages(wrong).unwrap_err().contains("gpu=1m"), "{wrong}");
        }
    }

    #[test]
    fn times_and_addresses_say_what_they_should_be() {
        let times = [("0s", 0), ("500ms", 500), ("30s", 30_000), ("1h30m", 5_400_000)];
        for (text, milliseconds) in times {
            assert_eq!(duration(text), Ok(milliseconds));
        }
        for wrong in ["", "30", "-1s", "1h ago", "soon"] {
            assert!(duration(wrong).unwrap_err().contains("30s"), "{wrong}");
        }
        assert_eq!(path("/healthz?a=b"), Ok("/healthz?a=b".to_string()));
        for wrong in ["", "healthz", "/a b", "/a\n", "/a#b", "http://a/b"] {
            assert!(path(wrong).unwrap_err().contains("/healthz"), "{wrong}");
        }
        assert_eq!(share("10%"), Ok(1000));
        assert_eq!(share("0.5%"), Ok(50));
        for wrong in ["10", "0%", "100%", "-1%", "NaN%", "%", "0.001%"] {
            assert!(share(wrong).unwrap_err().contains("10%"), "{wrong}");
        }
        assert_eq!(address("8000").map(|port| (port.address, port.port)), Ok((None, 8000)));
        assert_eq!(address("[::1]:80").map(|port| port.port), Ok(80));
        for wrong in ["", "80:", "a:80", "65536", "80/tcp"] {
            assert!(address(wrong).unwrap_err().contains("127.0.0.1:8000"), "{wrong}");
        }
    }
}
