//! Functions, and models that are made to some.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCandidates;

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
