//! Which GPUs a worker uses, and opening their driver.

use std::sync::Arc;

use rekindle_cuda::CuResult;
use rekindle_device::Platform;
use rekindle_protocol::tuning;

/// As written on command lines: `emulated`, `emulated:devices=2,memory=8G`, `nvidia`, `nvidia:1`, `nvidia:0,1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpu {
    /// Without a configuration, the environment has it. The program sees all devices.
    Emulated { config: Option<String> },
    /// The program sees these GPUs, in this order.
    Nvidia { indices: Vec<usize> },
}

/// A driver, and the GPUs of it that the program sees, in its order.
pub struct OpenedDriver {
    pub platform: Arc<dyn Platform>,
    pub gpus: Vec<usize>,
    /// The real driver library, where there is one.
    pub real_driver: Option<String>,
    /// Modules are taken apart where that can be, and loaded a kernel at a time.
    pub in_pieces: bool,
}

/// Why a GPU's driver cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the emulated GPU does not start: {0}")]
    Emulated(#[from] rekindle_emulated::Error),
    #[error(transparent)]
    Nvidia(#[from] rekindle_nvidia::OpenError),
    #[error("there is no NVIDIA GPU {index}: the driver has {found}")]
    NoGpu { index: usize, found: usize },
    #[error("the GPU's context cannot be made: {0}")]
    Context(#[source] CuResult),
    #[error("{variable} is {value:?}; {expected}")]
    Setting { variable: &'static str, value: String, expected: &'static str },
}

impl std::fmt::Display for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Gpu::Emulated { config: None } => write!(f, "emulated"),
            Gpu::Emulated { config: Some(config) } => write!(f, "emulated:{config}"),
            Gpu::Nvidia { indices } => {
                let indices: Vec<_> = indices.iter().map(usize::to_string).collect();
                write!(f, "nvidia:{}", indices.join(","))
            }
        }
    }
}

impl Gpu {
    pub fn parse(text: &str) -> Option<Gpu> {
        let (kind, detail) = text.split_once(':').map_or((text, None), |(kind, detail)| (kind, Some(detail)));
        match kind {
            "emulated" => Some(Gpu::Emulated { config: detail.map(str::to_string) }),
            "nvidia" => {
                let indices = detail.unwrap_or("0").split(',').map(|index| index.parse().ok());
                Some(Gpu::Nvidia { indices: indices.collect::<Option<_>>()? })
            }
            _ => None,
        }
    }

    pub fn open(&self) -> Result<OpenedDriver, OpenError> {
        match self {
            Gpu::Emulated { config } => {
                let config = match config {
                    Some(text) => rekindle_emulated::Config::parse(text),
                    None => rekindle_emulated::Config::from_env(),
                };
                let platform = config.and_then(|config| rekindle_emulated::platform(&config))?;
                let gpus = (0..platform.devices().len()).collect();
                Ok(OpenedDriver { platform, gpus, real_driver: None, in_pieces: in_pieces()? })
            }
            Gpu::Nvidia { indices } => {
                let platform = rekindle_nvidia::NvidiaPlatform::open()?;
                let found = platform.devices().len();
                if let Some(index) = indices.iter().copied().find(|index| *index >= found) {
                    return Err(OpenError::NoGpu { index, found });
                }
                let platform = platform.of_one_program(indices);
                let real_driver = Some(platform.library().to_string_lossy().into_owned());
                let gpus = indices.clone();
                Ok(OpenedDriver { platform: Arc::new(platform), gpus, real_driver, in_pieces: in_pieces()? })
            }
        }
    }
}

/// Whether modules are loaded in `pieces`, or `whole`.
fn in_pieces() -> Result<bool, OpenError> {
    match tuning::word(tuning::CODE).as_deref() {
        None | Some("" | "pieces") => Ok(true),
        Some("whole") => Ok(false),
        Some(other) => Err(OpenError::Setting {
            variable: tuning::CODE,
            value: other.to_string(),
            expected: "set it to whole or pieces",
        }),
    }
}
