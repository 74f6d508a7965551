//! Arguments that concern images and registries.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Pull an image from a registry
    Pull {
        /// Platform, as os/architecture [default: the host's]
        #[arg(long)]
        platform: Option<String>,
        /// Speak plain HTTP to this registry
        #[arg(long)]
        insecure_http: bool,
        /// Certificate authorities to trust for this registry, PEM
        #[arg(long, value_name = "FILE")]
        ca: Option<PathBuf>,
        /// Such as docker.io/library/python:3.12
        reference: String,
    },
    /// Load a 'docker save' tar, an OCI layout tar or an OCI layout directory
    Load {
        /// Tar, directory, or - for a tar on standard input
        path: PathBuf,
    },
    /// Make an image of the tar of a root file system
    Import {
        /// Tar, or - for standard input
        path: PathBuf,
        /// Name for the image
        name: String,
    },
    /// List images
    Ls {
        /// Only their names, one in a line
        #[arg(short, long)]
        quiet: bool,
    },
    /// Remove images
    Rm {
        /// Names or digests
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Remove all images that nothing uses
    Prune,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RegistryCommand {
    /// Store credentials. The password is asked for, or read from standard input
    Login {
        /// User name
        #[arg(short, long)]
        username: String,
        /// Read the password from standard input
        #[arg(long)]
        password_stdin: bool,
        /// Registry, such as ghcr.io or localhost:5000
        host: String,
    },
    /// List registries with stored credentials
    Ls,
    /// Forget the credentials of a registry
    Logout {
        /// Registry
        host: String,
    },
}
