//! NVIDIA's driver of OpenCL, which programs are not given. It uses the GPU past the client, by memory of the driver's that no image
//! can hold. Programs that look for any GPU find it by OpenCL too; without that they take CUDA.

use std::fs;
use std::path::Path;

/// Drivers of OpenCL by their libraries, a list, and the folder of files that name others. Both are the loaders' own.
const LIBRARIES: &str = "OCL_ICD_FILENAMES";
const FOLDER: &str = "OCL_ICD_VENDORS";
const USUAL_FOLDER: &str = "/etc/OpenCL/vendors";

/// Has a program find NVIDIA's driver neither in its list nor in the usual folder, in whose place it looks into one without any.
pub fn withhold(environment: &mut Vec<(String, String)>, empty: &str) {
    withhold_from(environment, empty, Path::new(USUAL_FOLDER));
}

fn withhold_from(environment: &mut Vec<(String, String)>, empty: &str, folder: &Path) {
    if let Some((_, list)) = environment.iter_mut().find(|(name, _)| name == LIBRARIES) {
        *list = list.split(':').filter(|library| !is_nvidia(library)).collect::<Vec<_>>().join(":");
    }
    environment.retain(|(name, list)| name != LIBRARIES || !list.is_empty());
    let chosen = environment.iter().any(|(name, _)| name == FOLDER);
    let mut files = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = |file: fs::DirEntry| fs::read_to_string(file.path()).is_ok_and(|library| is_nvidia(&library));
    if !chosen && files.any(named) {
        environment.push((FOLDER.to_string(), empty.to_string()));
    }
}

fn is_nvidia(library: &str) -> bool {
    library.contains("nvidia")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_find_the_drivers_of_others_alone() {
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        let folder = tempfile::tempdir().unwrap();
        let seen = |environment: &[(String, String)]| {
            let mut environment = environment.to_vec();
            withhold_from(&mut environment, "/empty", folder.path());
            environment
        };
        fs::write(folder.path().join("pocl.icd"), "libpocl.so.2\n").unwrap();
        assert_eq!(seen(&[]), []);
        assert_eq!(seen(&[pair(LIBRARIES, "/x/libnvidia-opencl.so.1")]), []);
        let both = pair(LIBRARIES, "libpocl.so.2:libnvidia-opencl.so.1");
        assert_eq!(seen(&[both]), [pair(LIBRARIES, "libpocl.so.2")]);
        fs::write(folder.path().join("nvidia.icd"), "libnvidia-opencl.so.1\n").unwrap();
        assert_eq!(seen(&[]), [pair(FOLDER, "/empty")]);
        assert_eq!(seen(&[pair(FOLDER, "/own")]), [pair(FOLDER, "/own")]);
    }
}
