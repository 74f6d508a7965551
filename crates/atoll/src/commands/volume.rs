//! Volumes.

use std::os::fd::AsFd as _;

use atoll_api::{CreateVolume, Volume};
use atoll_client::{Client, Download};
use atoll_core::exec::OutputStream;
use atoll_core::{Code, Error};
use tokio::io::AsyncWriteExt as _;
use tokio_util::io::ReaderStream;

use crate::cli::VolumeCommand;
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, fields, table};
use crate::units::format_bytes;

/// `atoll volume …`
pub(super) async fn volume(client: &Client, printer: Printer, command: VolumeCommand) -> Result<()> {
    match command {
        VolumeCommand::Create { size, name } => {
            make(client, printer, CreateVolume { name, size_bytes: size, ..CreateVolume::default() }).await
        }
        VolumeCommand::Clone { from, name } => {
            make(client, printer, CreateVolume { name, from: Some(from), ..CreateVolume::default() }).await
        }
        VolumeCommand::Snapshot { from, name } => {
            let create = CreateVolume { name, from: Some(from), read_only: true, ..CreateVolume::default() };
            make(client, printer, create).await
        }
        VolumeCommand::Ls { quiet } => {
            let list = client.list_volumes().await?;
            let header = ["NAME", "SIZE", "USED BY", "KIND", "AGE"];
            let names = quiet.then(|| list.items.iter().map(|volume| volume.name.as_str()));
            printer.names_or(&list, names, || table(header, list.items.iter().map(row)))
        }
        VolumeCommand::Show { volume } => show(client, printer, &volume).await,
        VolumeCommand::Rm { volumes } => {
            for volume in &volumes {
                match inside(volume) {
                    Some((volume, path)) => client.remove_volume_file(volume, path, true).await?,
                    None => client.delete_volume(volume).await?,
                }
            }
            printer.removed(&volumes)
        }
        VolumeCommand::Cp { source, destination } => match (inside(&source), inside(&destination)) {
            (None, Some((volume, path))) => upload(client, &source, volume, path).await,
            (Some((volume, path)), None) => {
                let download = client.read_volume_file(volume, path).await?;
                save(printer, download, &destination).await
            }
            _ => Err(Failure::Usage("one of the two must be VOLUME:/PATH, the other a local file".into())),
        },
    }
}

async fn make(client: &Client, printer: Printer, create: CreateVolume) -> Result<()> {
    let volume = client.create_volume(&create).await?;
    printer.result(&volume, || volume.name.clone())
}

fn row(volume: &Volume) -> [String; 5] {
    [
        volume.name.clone(),
        format_bytes(volume.size_bytes),
        volume.used_by.len().to_string(),
        kind(volume),
        age(volume.created_at_ms),
    ]
}

fn kind(volume: &Volume) -> String {
    match (&volume.from, volume.read_only) {
        (Some(from), true) => format!("snapshot of {from}"),
        (Some(from), false) => format!("clone of {from}"),
        (None, _) => "volume".to_owned(),
    }
}

/// `NAME:/path`, if it is one.
fn inside(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').filter(|(volume, path)| {
        !volume.is_empty() && !volume.contains('/') && !volume.starts_with('.') && path.starts_with('/')
    })
}

async fn show(client: &Client, printer: Printer, text: &str) -> Result<()> {
    if let Some((volume, path)) = inside(text) {
        let list = client.list_volume_files(volume, path).await?;
        return printer.result(&list, || {
            let rows = list.items.iter().map(|file| {
                let owner = format!("{}:{}", file.uid, file.gid);
                [file.mode.clone(), owner, format_bytes(file.size_bytes), file.path.clone()]
            });
            table(["MODE", "OWNER", "SIZE", "NAME"], rows)
        });
    }
    let volume = client.get_volume(text).await?;
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), format_bytes);
    printer.result(&volume, || {
        fields([
            ("volume", format!("{} ({})", volume.name, volume.id)),
            ("kind", kind(&volume)),
            ("space", format!("{} of {}", size(volume.used_bytes), size(volume.total_bytes))),
            ("on the host", size(volume.stored_bytes)),
            ("used by", volume.used_by.join(" ")),
            ("age", age(volume.created_at_ms)),
        ])
    })
}

async fn upload(client: &Client, source: &str, volume: &str, path: &str) -> Result<()> {
    let wrong = |error| Failure::io(format!("cannot read {source}"), error);
    let file = if source == "-" {
        std::fs::File::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(wrong)?)
    } else {
        std::fs::File::open(source).map_err(wrong)?
    };
    if source != "-" && file.metadata().map_err(wrong)?.is_dir() {
        let error =
            Error::new(Code::InvalidArgument, format!("{source} is a directory: this copies one file"));
        let inside = format!("atoll create -v {volume}:/v', 'atoll cp {source} SANDBOX:/v{path}");
        return Err(Failure::Plain(error.hint(format!("with a sandbox that has the volume: '{inside}'"))));
    }
    let content = ReaderStream::new(tokio::fs::File::from_std(file));
    client.write_volume_file(volume, path, content).await?;
    Ok(())
}

async fn save(printer: Printer, mut download: Download, destination: &str) -> Result<()> {
    if destination == "-" {
        while let Some(piece) = download.next().await {
            printer.exec_output(OutputStream::Stdout, piece?).await?;
        }
        return Ok(());
    }
    let wrong = |error| Failure::io(format!("cannot write {destination}"), error);
    let mut target = tokio::fs::File::create(destination).await.map_err(wrong)?;
    while let Some(piece) = download.next().await {
        target.write_all(&piece?).await.map_err(wrong)?;
    }
    target.flush().await.map_err(wrong)
}
