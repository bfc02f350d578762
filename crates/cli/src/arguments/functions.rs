//! Functions, and models that are made to some.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCandidates;

use super::time::seconds;
use crate::completion;

/// A file of functions.
#[derive(Debug, Args)]
pub struct AppArguments {
    /// The Python file that has the app, or a manifest that ends in .toml.
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub file: PathBuf,
    /// The interpreter that functions run in. It must have the package `rekindle`.
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    pub python: String,
    /// The tenant whose services they are, in place of the one that the file names; none: nobody's.
    #[arg(long, value_name = "TENANT|none", add = ArgValueCandidates::new(completion::tenants))]
    pub tenant: Option<String>,
    /// Start from no framework image, and make none, but for functions that name one.
    #[arg(long)]
    pub no_base: bool,
}

/// A call of a function or a workflow.
#[derive(Debug, Args)]
pub struct CallArguments {
    /// The service of the function or class, APP-NAME, or the workflow.
    #[arg(value_name = "NAME", add = ArgValueCandidates::new(completion::services))]
    pub name: String,
    /// The method, where there are several, and then its arguments, each in JSON: a text is '"text"'. -: the next argument is read
    /// from standard input.
    #[arg(value_name = "METHOD|JSON", allow_negative_numbers = true)]
    pub words: Vec<String>,
    /// How long to wait for the result, in seconds; as long as it takes if none is given.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<f64>,
    /// The tenant whose service it is; none: nobody's. If none is given, as where functions are called (REKINDLE_TENANT).
    #[arg(long, value_name = "TENANT|none", add = ArgValueCandidates::new(completion::tenants))]
    pub tenant: Option<String>,
    /// A token of that tenant, which others may read here; REKINDLE_TOKEN is for one that they may not.
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// Where the service is, on another machine: https://HOST:PORT or http://HOST:PORT. If none is given, this machine's daemon is
    /// asked.
    #[arg(long, value_name = "URL", value_hint = clap::ValueHint::Url)]
    pub url: Option<String>,
    /// A file in PEM of the authorities that are trusted where the URL is https. If none is given, that of REKINDLE_CA, or else the
    /// system's.
    #[arg(long, value_name = "FILE", requires = "url", value_hint = clap::ValueHint::FilePath)]
    pub ca: Option<String>,
    /// The interpreter that has the package `rekindle`.
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    pub python: String,
}

/// A model, and the app that is made of it.
#[derive(Debug, Args)]
pub struct ConvertArguments {
    /// A .pt2 or .onnx file, or a directory with config.json and safetensors.
    #[arg(value_name = "MODEL", value_hint = clap::ValueHint::AnyPath)]
    pub model: PathBuf,
    /// The new directory of the app.
    #[arg(long, short, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub output: PathBuf,
    /// The name of the app and of the model; that of the file if none is given.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Where the weights will lie: s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY, http(s)://HOST/PATH or file:///PATH. In DIR
    /// if none is given.
    #[arg(long, value_name = "URL")]
    pub data_url: Option<String>,
    /// The interpreter that converts it. It must have the package `rekindle`, and torch.
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    pub python: String,
}
