//! DAX devices: memory devices without a file system, such as `/dev/dax0.0`.
//!
//! A program can map such a device, and nothing else: it has no length of its own, cannot be cut or
//! made longer, and takes mappings in whole units of its alignment only. `/sys` gives its size and
//! alignment.

use std::fs;
use std::path::Path;

use super::region::{WORDS_AT, not_a_region};
use crate::FabricError;

/// Root of the system's information on devices.
pub(super) const SYS: &str = "/sys";

/// Properties of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dax {
    /// Bytes that can be mapped.
    pub(super) bytes: u64,
    align: u64,
}

impl Dax {
    /// Reads the properties of the character device `rdev` at `path`; `sys` is the root of the system's
    /// information.
    ///
    /// # Errors
    /// [`FabricError::NotARegion`] for a device that is no memory, or whose information is invalid;
    /// [`FabricError::Config`] for a device that is too small.
    pub(super) fn look(sys: &Path, path: &Path, rdev: u64) -> Result<Dax, FabricError> {
        let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
        let folder = sys.join(format!("dev/char/{major}:{minor}"));
        let subsystem = fs::canonicalize(folder.join("subsystem")).ok();
        if subsystem.is_none_or(|subsystem| subsystem.file_name() != Some("dax".as_ref())) {
            let why = "it is a device, but not a memory device (DAX): give a file, or a device such as /dev/dax0.0";
            return Err(not_a_region(path, why));
        }
        let number = |name: &str| {
            let file = folder.join(name);
            let told = fs::read_to_string(&file).map_err(|error| format!("{error}"));
            let read = told.and_then(|text| {
                text.trim().parse::<u64>().map_err(|_| format!("it says \"{}\"", text.trim()))
            });
            read.map_err(|why| {
                let why = format!("cannot read its {name} from {}: {why}", file.display());
                not_a_region(path, why)
            })
        };
        // Before Linux 5.10 the alignment stood with the region from which the device was cut.
        let align = number("align").or_else(|error| {
            number("device/dax_region/align").or(number("dax_region/align")).map_err(|_| error)
        })?;
        Dax { bytes: number("size")?, align }.check(path)
    }

    fn check(self, path: &Path) -> Result<Dax, FabricError> {
        let Dax { bytes, align } = self;
        if !align.is_power_of_two() || align < 4096 {
            let why =
                format!("an alignment of {align} bytes is not a power of two of at least 4096");
            return Err(not_a_region(path, why));
        }
        let bytes = bytes / align * align;
        if bytes <= WORDS_AT {
            return Err(FabricError::Config(format!(
                "{} has {bytes} bytes that can be mapped, of which a memory server takes {WORDS_AT} for \
                 itself: make it larger (daxctl reconfigure-device, ndctl create-namespace)",
                path.display()
            )));
        }
        Ok(Dax { bytes, align })
    }

    /// A device with these properties.
    #[cfg(test)]
    pub(super) fn of(bytes: u64, align: u64) -> Dax {
        Dax { bytes, align }
    }

    /// Returns the bytes of the region to make on it: those that are `wanted`, else all.
    ///
    /// # Errors
    /// [`FabricError::Config`] if there is not enough room.
    pub(super) fn region_bytes(
        &self,
        path: &Path,
        wanted: Option<u64>,
    ) -> Result<u64, FabricError> {
        let room = self.bytes - WORDS_AT;
        match wanted {
            Some(wanted) if wanted > room => Err(FabricError::Config(format!(
                "{} has room for {room} bytes (in whole units of {}, without {WORDS_AT} of a memory \
                 server's own), not for {wanted}: leave the size out to take all",
                path.display(),
                self.align
            ))),
            wanted => Ok(wanted.unwrap_or(room)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A made-up `/sys` with the device 252:1.
    struct Sys(PathBuf);

    impl Sys {
        fn new(name: &str, subsystem: &str, files: &[(&str, &str)]) -> Sys {
            let sys = std::env::temp_dir().join(format!("farleaf-{name}-{}", std::process::id()));
            let device = sys.join("devices/dax0.1");
            fs::create_dir_all(&device).expect("a folder");
            fs::create_dir_all(sys.join("dev/char")).expect("a folder");
            fs::create_dir_all(sys.join("bus").join(subsystem)).expect("a folder");
            symlink(&device, sys.join("dev/char/252:1")).expect("a link");
            symlink(sys.join("bus").join(subsystem), device.join("subsystem")).expect("a link");
            for (name, text) in files {
                let file = device.join(name);
                fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
                fs::write(file, text).expect("a file");
            }
            Sys(sys)
        }

        fn look(&self) -> Result<Dax, FabricError> {
            Dax::look(&self.0, Path::new("/dev/dax0.1"), rustix::fs::makedev(252, 1))
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn size_and_alignment_are_those_that_the_system_tells() {
        let size = ("size", "1073741824\n");
        let sys = Sys::new("dax-new", "dax", &[size, ("align", "2097152\n")]);
        let dax = sys.look().expect("a device");
        assert_eq!(dax, Dax { bytes: 1 << 30, align: 2 * MIB });
        let path = Path::new("/dev/dax0.1");
        assert_eq!(dax.region_bytes(path, None).expect("all"), (1 << 30) - 2 * MIB);
        assert_eq!(dax.region_bytes(path, Some(MIB)).expect("a part"), MIB);
        let why = dax.region_bytes(path, Some(1 << 30)).expect_err("too much").to_string();
        assert!(why.contains("/dev/dax0.1 has room for 1071644672 bytes"), "{why}");
        let sys = Sys::new("dax-old", "dax", &[size, ("dax_region/align", "4096")]);
        assert_eq!(sys.look().expect("a device").align, 4096);
        // The rest behind the last whole unit cannot be mapped.
        let odd = [("size", "5242880"), ("align", "2097152")];
        assert_eq!(Sys::new("dax-odd", "dax", &odd).look().expect("a device").bytes, 4 * MIB);
    }

    #[test]
    fn a_device_that_is_no_memory_is_refused_with_a_reason() {
        let why = |subsystem: &str, files: &[(&str, &str)]| {
            let sys = Sys::new("dax-refused", subsystem, files);
            sys.look().expect_err("refused").to_string()
        };
        let align = ("align", "2097152");
        let told = why("tty", &[("size", "4194304"), align]);
        assert!(told.contains("not a memory device (DAX)"), "{told}");
        let told = why("dax", &[align]);
        assert!(told.contains("cannot read its size from"), "{told}");
        let told = why("dax", &[("size", "a lot"), align]);
        assert!(told.contains("it says \"a lot\""), "{told}");
        let told = why("dax", &[("size", "4194304")]);
        assert!(told.contains("cannot read its align from"), "{told}");
        let told = why("dax", &[("size", "4194304"), ("align", "3000000")]);
        assert!(told.contains("an alignment of 3000000 bytes"), "{told}");
        // An unconfigured device has no bytes, and one unit may be too small.
        for size in ["0", "2097152"] {
            let told = why("dax", &[("size", size), align]);
            assert!(told.contains("make it larger"), "{told}");
        }
        let nowhere = Path::new("/nowhere");
        let told = Dax::look(nowhere, Path::new("/dev/x"), rustix::fs::makedev(252, 1));
        assert!(told.expect_err("no /sys").to_string().contains("not a memory device"));
    }
}
