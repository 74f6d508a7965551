//! Arguments that concern volumes.

use atoll_core::volume::VolumeMountDraft;
use clap::Subcommand;

use crate::units::parse_bytes;

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Make an empty volume
    Create {
        /// Its size [default: 10GiB]
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
        size: Option<u64>,
        /// Its name
        name: String,
    },
    /// List volumes
    Ls {
        /// Only their names, one in a line
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show a volume with its space, or a directory in it
    Show {
        /// VOLUME, or VOLUME:/PATH
        volume: String,
    },
    /// Delete volumes, or a file or directory in one
    Rm {
        /// VOLUME, or VOLUME:/PATH
        #[arg(required = true, value_name = "VOLUME")]
        volumes: Vec<String>,
    },
    /// Copy a file into or out of a volume, without a sandbox
    Cp {
        /// VOLUME:/PATH, a local file, or - for standard input
        #[arg(id = "from", value_name = "SOURCE")]
        source: String,
        /// VOLUME:/PATH, a local file, or - for standard output
        #[arg(id = "to", value_name = "DESTINATION")]
        destination: String,
    },
    /// Make a volume that begins with what another holds at this moment
    Clone {
        /// The other volume
        from: String,
        /// Name of the new one
        name: String,
    },
    /// Keep what a volume holds at this moment: a volume that cannot be written to
    Snapshot {
        /// The volume
        from: String,
        /// Name of the snapshot
        name: String,
    },
}

/// Reads `NAME:/path`, `NAME/directory:/path`, each also with `:ro`.
pub(crate) fn parse_mount(text: &str) -> Result<VolumeMountDraft, String> {
    let wrong = || format!("'{text}' is not VOLUME[/DIRECTORY]:/PATH[:ro]");
    if text.starts_with(['/', '.', '~']) {
        return Err(
            "no directory of this machine is mounted into a sandbox: 'atoll cp' copies it, and VOLUME:/PATH \
             mounts a volume of 'atoll volume create'"
                .to_owned(),
        );
    }
    let (volume, rest) = text.split_once(':').ok_or_else(wrong)?;
    let (path, read_only) = match rest.rsplit_once(':') {
        None => (rest, false),
        Some((path, "ro")) => (path, true),
        Some((path, "rw")) => (path, false),
        Some(_) => return Err(wrong()),
    };
    let (volume, subpath) = match volume.split_once('/') {
        None => (volume, None),
        Some((volume, subpath)) => (volume, Some(subpath.to_owned())),
    };
    if volume.is_empty() || !path.starts_with('/') {
        return Err(wrong());
    }
    Ok(VolumeMountDraft { volume: volume.to_owned(), path: path.to_owned(), read_only, subpath })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts() {
        let mount = |path: &str, read_only, subpath: Option<&str>| VolumeMountDraft {
            volume: "data".into(),
            path: path.into(),
            read_only,
            subpath: subpath.map(str::to_owned),
        };
        assert_eq!(parse_mount("data:/srv"), Ok(mount("/srv", false, None)));
        assert_eq!(parse_mount("data:/srv:ro"), Ok(mount("/srv", true, None)));
        assert_eq!(parse_mount("data/a/b:/srv:ro"), Ok(mount("/srv", true, Some("a/b"))));
        let read = parse_mount;
        for bad in ["data", ":/srv", "/a:/srv", "data:srv", "data:/srv:x"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
