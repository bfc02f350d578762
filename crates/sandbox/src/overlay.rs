//! Overlays: directories over which a sandbox has a layer of its own.
//!
//! ```text
//!  program ── writes ──▶ layer      in memory, of this sandbox alone, no larger than was said
//!     └────── reads ───▶ layer, and where that has nothing: the machine's directory, which nobody here changes
//! ```
//!
//! The layer is a tmpfs that is mounted nowhere: init holds it, and it goes with the sandbox. A dump packs it among the
//! images ([`pack`]), and a restore fills another one with that before it is mounted, so each restored program has its own.

mod pack;

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rekindle_protocol::mounts::Overlay;

use crate::init::RUN_PATH;

pub use pack::LayerFiles;

const UPPER: &str = "upper";
const WORK: &str = "work";
/// Files have numbers of one device, and keep them when they are written to first. Handles can be had of them, by which
/// CRIU finds what is watched. What moves is copied, so that a layer means the same over another directory.
const OPTIONS: &str = "xino=on,index=on,nfs_export=on,redirect_dir=off,metacopy=off";

/// A directory, and what holds its layer.
#[derive(Debug)]
struct Layer {
    directory: PathBuf,
    memory: File,
}

/// Those of a sandbox.
#[derive(Debug, Default)]
pub struct Layers(Vec<Layer>);

impl Layers {
    /// Mounts all, empty, or with what the images have of them.
    pub fn mount(overlays: &[Overlay], images: Option<&Path>) -> Result<Self, String> {
        let layers = overlays.iter().enumerate().map(|(number, overlay)| {
            let image = images.map(|images| images.join(image_name(number))).filter(|image| image.exists());
            Layer::mount(overlay, image.as_deref()).map_err(|error| {
                let directory = overlay.directory.display();
                match error.raw_os_error() {
                    Some(libc::ENODEV) => {
                        format!("mounting a layer over {directory}: the kernel has no overlayfs (`modprobe overlay`)")
                    }
                    _ => format!("mounting a layer over {directory}: {error}"),
                }
            })
        });
        layers.collect::<Result<_, _>>().map(Self)
    }

    /// Puts what they hold among the images. Nobody writes to them meanwhile.
    pub fn keep(&self, images: &Path) -> Result<(), String> {
        self.0.iter().enumerate().try_for_each(|(number, layer)| {
            let upper = layer.place().join(UPPER);
            pack::pack(&layer.directory, &upper, &images.join(image_name(number)))
                .map_err(|error| format!("keeping the layer over {}: {error}", layer.directory.display()))
        })
    }
}

/// What the images of a dump have of layers.
pub fn kept(images: &Path) -> io::Result<Vec<LayerFiles>> {
    let files = (0..).map(|number| images.join(image_name(number))).take_while(|path| path.exists());
    files.map(|path| LayerFiles::read(&path)).collect()
}

fn image_name(number: usize) -> String {
    format!("layer-{number}.img")
}

impl Layer {
    fn mount(overlay: &Overlay, image: Option<&Path>) -> io::Result<Self> {
        let directory = &overlay.directory;
        let lower =
            OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(directory)?;
        // A mount is made of what has a name; this one has it for that long.
        let place = Path::new(RUN_PATH).join("layer");
        DirBuilder::new().recursive(true).mode(0o700).create(&place)?;
        let inert = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        let limit = format!("mode=700,size={}", overlay.bytes);
        mount(Some("rekindle"), &place, Some("tmpfs"), inert, Some(&*limit))?;
        let mounted = File::open(&place).and_then(|memory| {
            let upper = place.join(UPPER);
            fs::create_dir(&upper)?;
            fs::create_dir(place.join(WORK))?;
            match image {
                Some(image) => pack::unpack(image, directory, &upper)?,
                None => be_alike(&fs::metadata(directory)?, &upper)?,
            }
            let options = format!(
                "lowerdir=/proc/self/fd/{},upperdir={},workdir={},{OPTIONS}",
                lower.as_raw_fd(),
                upper.display(),
                place.join(WORK).display()
            );
            mount(Some("rekindle"), directory, Some("overlay"), MsFlags::empty(), Some(&*options))?;
            Ok(Self { directory: directory.clone(), memory })
        });
        umount2(&place, MntFlags::MNT_DETACH)?;
        fs::remove_dir(&place)?;
        mounted
    }

    fn place(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.memory.as_raw_fd()).into()
    }
}

/// The directory itself shows what its layer has of owner and mode.
fn be_alike(directory: &fs::Metadata, upper: &Path) -> io::Result<()> {
    chown(upper, Some(directory.uid()), Some(directory.gid()))?;
    fs::set_permissions(upper, Permissions::from_mode(directory.mode() & 0o7777))
}
