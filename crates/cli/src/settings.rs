//! The settings of a daemon as a file: `rekindled.toml`.
//!
//! Each setting is also a variable, which wins over the file; an option of the command line wins over both. The table below
//! is all that there is to know of them.

use std::env;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use rekindle_daemon::parse_bytes;
use rekindle_protocol::tuning;
use toml::{Table, Value};

use crate::error::{Error, Result};

/// Names the file.
pub const VARIABLE: &str = "REKINDLE_CONFIG";

/// What a setting may be.
#[derive(Debug)]
enum Kind {
    /// A path that begins at the root.
    Path,
    Number,
    /// A number of bytes, or a text with K, M, G or T after it.
    Bytes,
    Text,
    Words(&'static [&'static str]),
    /// A truth whose variable is set to this word if it is true, and to nothing else.
    True(&'static str),
    /// One whose variable is set to this word if it is false.
    False(&'static str),
}

#[derive(Debug)]
struct Setting {
    /// With its section before a dot, if it has one.
    name: &'static str,
    /// [`tuning::VARIABLE`] has it among others, under its name.
    variable: &'static str,
    kind: Kind,
}

const fn setting(name: &'static str, variable: &'static str, kind: Kind) -> Setting {
    Setting { name, variable, kind }
}

const fn switch(name: &'static str, kind: Kind) -> Setting {
    Setting { name, variable: tuning::VARIABLE, kind }
}

impl Setting {
    /// What the environment says of it.
    fn said(&self) -> Option<String> {
        match self.variable {
            tuning::VARIABLE => tuning::word(self.name),
            variable => env::var(variable).ok(),
        }
    }
}

static SETTINGS: [Setting; 46] = [
    setting("socket", rekindle_daemon::SOCKET_VARIABLE, Kind::Path),
    setting("state", rekindle_daemon::STATE_VARIABLE, Kind::Path),
    setting("run-dir", rekindle_daemon::RUNS_VARIABLE, Kind::Path),
    setting("log", "REKINDLE_LOG", Kind::Text),
    setting("log-max", "REKINDLE_LOG_MAX", Kind::Bytes),
    setting("publish-wait", "REKINDLE_PUBLISH_WAIT", Kind::Number),
    setting("pool.workers", "REKINDLE_POOL", Kind::Number),
    setting("pool.limit", "REKINDLE_POOL_LIMIT", Kind::Number),
    setting("pool.window", "REKINDLE_POOL_WINDOW", Kind::Number),
    setting("contexts.keep", "REKINDLE_CONTEXT_KEEP", Kind::Number),
    setting("cache.host", "REKINDLE_HOST_CACHE", Kind::Bytes),
    setting("cache.gpu", "REKINDLE_GPU_CACHE", Kind::Bytes),
    switch(tuning::SHARE, Kind::False("off")),
    setting("exchange.gpu", "REKINDLE_EXCHANGE_GPU", Kind::Bytes),
    setting("exchange.host", "REKINDLE_EXCHANGE_HOST", Kind::Bytes),
    setting("services.memory", "REKINDLE_SERVICE_MEMORY", Kind::Bytes),
    setting("nodes.port", "REKINDLE_NODE_PORT", Kind::Text),
    setting("services.access-log", "REKINDLE_ACCESS_LOG", Kind::Text),
    setting("services.otlp-endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT", Kind::Text),
    setting("services.trusted-proxies", "REKINDLE_TRUSTED_PROXIES", Kind::Text),
    setting("page.port", "REKINDLE_PAGE_PORT", Kind::Text),
    setting("page.names", "REKINDLE_PAGE_NAMES", Kind::Text),
    setting("data.memory", "REKINDLE_DATA_MEMORY", Kind::Bytes),
    setting("data.files", "REKINDLE_DATA_FILES", Kind::Path),
    setting("data.write", "REKINDLE_DATA_WRITE", Kind::Text),
    setting("data.patience", "REKINDLE_DATA_PATIENCE", Kind::Number),
    setting("checkpoint.prove", "REKINDLE_PROVE", Kind::True("on")),
    switch(tuning::LOAD_ORDER, Kind::Words(&["profile", "default", "worst", "none"])),
    switch(tuning::PRECOPY, Kind::False("off")),
    switch(tuning::ASSIST, Kind::False("off")),
    switch(tuning::INCREMENT, Kind::Number),
    switch(tuning::MAP_PAGES, Kind::False("off")),
    setting("gpu.emulated", "REKINDLE_EMULATED", Kind::Text),
    switch(tuning::CODE, Kind::Words(&["whole", "pieces"])),
    setting("gpu.link", "REKINDLE_LINK", Kind::Text),
    switch(tuning::SHADOW, Kind::False("off")),
    switch(tuning::BEHIND, Kind::Words(&["off"])),
    switch(tuning::GUARD, Kind::False("off")),
    switch(tuning::UNUSED, Kind::Words(&["keep"])),
    switch(tuning::MOMENT, Kind::False("off")),
    setting("gpu.hash", "REKINDLE_GPU_HASH", Kind::Words(&["on", "off"])),
    setting("gpu.libcuda", "REKINDLE_LIBCUDA", Kind::Path),
    switch(tuning::HUGE_PAGES, Kind::False("off")),
    switch(tuning::PEERS, Kind::True("allow")),
    setting("criu.directory", "REKINDLE_CRIU_DIR", Kind::Path),
    setting("criu.plugins", "REKINDLE_CRIU_PLUGINS", Kind::Path),
];

/// What a file says.
#[derive(Debug, Default)]
pub struct Settings {
    file: Option<PathBuf>,
    values: Vec<(&'static Setting, String)>,
}

impl Settings {
    /// Those of the file that is named, else of the usual one if it is there.
    pub fn load(named: Option<&Path>) -> Result<Settings> {
        let file = match named.map(Path::to_path_buf).or_else(|| env::var_os(VARIABLE).map(PathBuf::from)) {
            Some(file) => file,
            None => match usual().filter(|file| file.exists()) {
                Some(file) => file,
                None => return Ok(Settings::default()),
            },
        };
        let read = std::fs::read_to_string(&file);
        let text = read.map_err(|source| Error::File { action: "read", path: file.clone(), source })?;
        let values = parse(&text).map_err(|reason| Error::Settings { file: file.clone(), reason })?;
        Ok(Settings { file: Some(file), values })
    }

    /// A place that the file names, unless a variable or an option does.
    pub fn place(&self, given: Option<PathBuf>, variable: &str) -> Option<PathBuf> {
        given.or_else(|| self.value(variable).map(PathBuf::from))
    }

    fn value(&self, variable: &str) -> Option<&str> {
        self.values.iter().find(|(setting, _)| setting.variable == variable).map(|(_, value)| value.as_str())
    }

    /// Sets the variables that are not set, and switches that are not.
    ///
    /// # Safety
    /// No other thread may run.
    pub unsafe fn into_environment(self) {
        for (variable, value) in variables(self.values) {
            let value = match (variable, env::var(variable)) {
                // Of two words for a switch the last one counts.
                (tuning::VARIABLE, Ok(said)) => format!("{value},{said}"),
                (_, Err(env::VarError::NotPresent)) => value,
                _ => continue,
            };
            // SAFETY: the caller's promise.
            unsafe { env::set_var(variable, value) };
        }
    }

    /// Every setting on a line, with where it comes from.
    pub fn shown(&self) -> String {
        let file =
            self.file.as_ref().map_or("there is no file".to_string(), |file| file.display().to_string());
        let mut text = format!("# {file}\n");
        for setting in &SETTINGS {
            let in_file = self.values.iter().find(|(known, _)| known.name == setting.name);
            let (value, from) = match (setting.said(), in_file) {
                (Some(value), _) => (value, format!("the variable {}", setting.variable)),
                (_, Some((_, value))) => (value.clone(), "the file".to_string()),
                _ => continue,
            };
            let _ = writeln!(text, "{} = {value:?} # from {from}", setting.name);
        }
        text.trim_end().to_string()
    }
}

fn usual() -> Option<PathBuf> {
    if nix::unistd::Uid::effective().is_root() {
        return Some(PathBuf::from("/etc/rekindle/rekindled.toml"));
    }
    let configuration = env::var_os("XDG_CONFIG_HOME").filter(|value| !value.is_empty()).map(PathBuf::from);
    let configuration = configuration.or_else(|| Some(env::home_dir()?.join(".config")));
    Some(configuration?.join("rekindle/rekindled.toml"))
}

/// Variables with what they are to be: all switches have one together.
fn variables(values: Vec<(&'static Setting, String)>) -> Vec<(&'static str, String)> {
    let mut words = Vec::new();
    let mut all = Vec::new();
    for (setting, value) in values {
        match setting.variable {
            tuning::VARIABLE => words.push(format!("{}={value}", setting.name)),
            variable => all.push((variable, value)),
        }
    }
    if !words.is_empty() {
        all.push((tuning::VARIABLE, words.join(",")));
    }
    all
}

/// Settings with what their variables are to be; why not, in a sentence.
fn parse(text: &str) -> std::result::Result<Vec<(&'static Setting, String)>, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        // Of its drawing of the place nothing fits into a sentence.
        let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let line = line.map(|line| format!(" in line {line}")).unwrap_or_default();
        format!("it is no TOML: {}{line}", error.message())
    })?;
    let mut all = Vec::new();
    for (name, value) in &table {
        match value {
            Value::Table(section) => {
                all.extend(section.iter().map(|(inner, value)| (format!("{name}.{inner}"), value)));
            }
            value => all.push((name.clone(), value)),
        }
    }
    let mut values = Vec::new();
    for (name, value) in all {
        let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else {
            let known: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
            return Err(format!("there is no setting {name:?}; there are {}", known.join(", ")));
        };
        let wrong = |expected: &str| format!("{name} is {value}, expected {expected}");
        if let Some(text) = setting.kind.text(value).map_err(|expected| wrong(&expected))? {
            values.push((setting, text));
        }
    }
    Ok(values)
}

impl Kind {
    /// What the variable is to be, if anything; else what was expected.
    fn text(&self, value: &Value) -> std::result::Result<Option<String>, String> {
        let (text, number) = (value.as_str(), value.as_integer().filter(|number| *number >= 0));
        let found = match self {
            Kind::Path => text.filter(|text| text.starts_with('/')).map(str::to_string),
            Kind::Text => text.map(str::to_string),
            Kind::Number => number.map(|number| number.to_string()),
            Kind::Bytes => match text {
                Some(text) => parse_bytes(text).is_ok().then(|| text.to_string()),
                None => number.map(|number| number.to_string()),
            },
            Kind::Words(words) => text.filter(|text| words.contains(text)).map(str::to_string),
            Kind::True(word) | Kind::False(word) => {
                let is_said = matches!(self, Kind::True(_));
                let value = value.as_bool().ok_or("true or false")?;
                return Ok((value == is_said).then(|| word.to_string()));
            }
        };
        found.map(Some).ok_or_else(|| match self {
            Kind::Path => "a path in quotes that begins with /".to_string(),
            Kind::Text => "a text in quotes".to_string(),
            Kind::Number => "a number that is not negative".to_string(),
            Kind::Bytes => "a number of bytes, or one in quotes with K, M, G or T after it".to_string(),
            Kind::Words(words) => format!("one of {words:?}"),
            Kind::True(_) | Kind::False(_) => "true or false".to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_variables() {
        let text = "state = '/var/lib/rekindle'\nlog-max = \"1G\"\n[pool]\nworkers = 2\n\
                    [cache]\nshare = false\n[checkpoint]\nprove = true\n[driver]\nhuge-pages = true\npeers = false\n\
                    [gpu]\ncode = 'whole'\n[contexts]\nkeep = 0\n";
        let mut values = variables(parse(text).unwrap());
        values.sort();
        let expected = [
            ("REKINDLE_CONTEXT_KEEP", "0"),
            ("REKINDLE_LOG_MAX", "1G"),
            ("REKINDLE_POOL", "2"),
            ("REKINDLE_PROVE", "on"),
            ("REKINDLE_STATE", "/var/lib/rekindle"),
            ("REKINDLE_TUNING", "cache.share=off,gpu.code=whole"),
        ];
        assert_eq!(values, expected.map(|(name, value)| (name, value.to_string())));
        assert!(variables(parse("").unwrap()).is_empty());
    }

    #[test]
    fn what_is_wrong_is_said_in_a_sentence() {
        for (text, expected) in [
            ("stat = '/x'", "no setting \"stat\"; there are socket, state"),
            ("[pool]\nworker = 1", "no setting \"pool.worker\""),
            ("[pool]\nworkers = -1", "pool.workers is -1, expected a number"),
            ("[pool]\nworkers = '1'", "expected a number"),
            ("state = 'relative'", "begins with /"),
            ("log-max = '1X'", "K, M, G or T"),
            ("[restore]\norder = 'random'", "profile"),
            ("[checkpoint]\nprove = 'on'", "true or false"),
            ("log = 'info'\nlog = 'debug'", "in line 2"),
            ("[pool", "it is no TOML"),
        ] {
            let said = parse(text).map(variables).unwrap_err();
            assert!(said.contains(expected) && !said.contains('\n'), "{text}: {said}");
        }
    }

    #[test]
    fn names_and_variables_stand_once() {
        for (at, one) in SETTINGS.iter().enumerate() {
            let later = &SETTINGS[at + 1..];
            let is_same = |other: &Setting| {
                other.name == one.name || other.variable == one.variable && one.variable != tuning::VARIABLE
            };
            assert!(!later.iter().any(is_same));
        }
    }
}
