//! Images.

use std::io;
use std::path::{Path, PathBuf};

use atoll_api::{Image, ImagePlace, PullImage};
use atoll_build::Ignore;
use atoll_client::{Client, ClientError};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use indicatif::ProgressBar;

use crate::archive;
use crate::cli::ImageCommand;
use crate::failure::{Failure, Result};
use crate::output::{Printer, table};
use crate::progress;
use crate::units::format_bytes;

/// Largest file of certificate authorities, bytes.
const CA_MAX_BYTES: u64 = 1 << 20;
const COLUMNS: [&str; 5] = ["NAME", "DIGEST", "ARCHITECTURE", "LAYERS", "SIZE"];
/// Bytes read from a file at once.
const READ_BYTES: usize = 256 << 10;

/// `atoll image …`
pub(super) async fn image(client: &Client, printer: Printer, command: ImageCommand) -> Result<()> {
    match command {
        ImageCommand::Pull { platform, insecure_http, ca, reference } => {
            let ca_pem = ca.map(|path| read_ca(&path)).transpose()?;
            let pull = PullImage { reference, credentials: None, platform, insecure_http, ca_pem };
            let progress = client.pull_image(&pull).await?;
            ready(printer, &progress::image(printer, progress).await?)
        }
        ImageCommand::Load { path } => {
            load(client, printer, &path).await.map_err(|failure| not_an_archive(failure, &path))
        }
        ImageCommand::Import { path, name } => {
            let upload = Upload::open(printer, &path).await?;
            let (content, bar, source) = upload.split();
            let progress = source.explain(client.import_image(&name, None, content).await).await?;
            bar.finish_and_clear();
            ready(printer, &progress::image(printer, progress).await?)
        }
        ImageCommand::Ls { quiet } => {
            let list = client.list_images().await?;
            let names = quiet.then(|| list.items.iter().map(name));
            printer.names_or(&list, names, || {
                // The place of an image is shown only where servers share images.
                if list.items.iter().all(|image| image.place.is_none()) {
                    return table(COLUMNS, list.items.iter().flat_map(rows));
                }
                let [name, digest, architecture, layers, size] = COLUMNS;
                let placed = |image| rows(image).into_iter().map(|row| with_place(row, image));
                table([name, digest, architecture, layers, size, "PLACE"], list.items.iter().flat_map(placed))
            })
        }
        ImageCommand::Rm { images } => {
            let mut results = Vec::new();
            for image in images {
                results.push(client.remove_image(&image).await?);
            }
            let freed = results.iter().map(|result| result.freed_bytes).sum();
            printer.list(&results, || format!("freed {}", format_bytes(freed)))
        }
        ImageCommand::Prune => {
            let pruned = client.prune_images().await?;
            printer.result(&pruned, || {
                let mut lines: Vec<_> = pruned.removed.clone();
                lines.push(format!("freed {}", format_bytes(pruned.freed_bytes)));
                lines.join("\n")
            })
        }
    }
}

/// What an image is called, or its digest when it has no name.
fn name(image: &Image) -> &str {
    image.names.first().unwrap_or(&image.digest)
}

/// A root file system is an archive, too, but none of images.
fn not_an_archive(failure: Failure, path: &Path) -> Failure {
    match failure {
        Failure::Client(ClientError::Api { error, request_id })
            if error.message.contains("neither index.json") =>
        {
            let hint =
                format!("of a root file system 'atoll image import {} NAME' makes an image", path.display());
            Failure::Client(ClientError::Api { error: error.hint(hint), request_id })
        }
        other => other,
    }
}

async fn load(client: &Client, printer: Printer, path: &Path) -> Result<()> {
    let upload = Upload::open(printer, path).await?;
    let (content, bar, source) = upload.split();
    let progress = source.explain(client.load_image(content).await).await?;
    bar.finish_and_clear();
    for image in progress::images(printer, progress).await? {
        ready(printer, &image)?;
    }
    Ok(())
}

/// The last word on an image. With `--json` the stream has said it already.
fn ready(printer: Printer, image: &Image) -> Result<()> {
    if printer.is_json() { Ok(()) } else { printer.line(&image.digest) }
}

fn with_place([name, digest, architecture, layers, size]: [String; 5], image: &Image) -> [String; 6] {
    let place = match image.place {
        None | Some(ImagePlace::Here) => "this node",
        Some(ImagePlace::Shared) => "every node",
        Some(ImagePlace::Elsewhere) => "elsewhere",
    };
    [name, digest, architecture, layers, size, place.to_owned()]
}

fn rows(image: &Image) -> Vec<[String; 5]> {
    let names = if image.names.is_empty() { vec!["<none>".to_owned()] } else { image.names.clone() };
    let row = |name| {
        [
            name,
            progress::short(&image.digest),
            image.architecture.clone(),
            image.layers.to_string(),
            format_bytes(image.size_bytes),
        ]
    };
    names.into_iter().map(row).collect()
}

fn read_ca(path: &Path) -> Result<String> {
    use std::io::Read as _;
    let what = || format!("cannot read {}", path.display());
    let file = std::fs::File::open(path).map_err(|error| Failure::io(what(), error))?;
    let mut text = String::new();
    file.take(CA_MAX_BYTES).read_to_string(&mut text).map_err(|error| Failure::io(what(), error))?;
    Ok(text)
}

type Content = futures::stream::BoxStream<'static, io::Result<Bytes>>;

/// A file, standard input or a packed directory on its way to the server.
pub(super) struct Upload {
    content: Content,
    bar: ProgressBar,
    source: Source,
}

/// Where an upload comes from: when it fails, the reason may lie here.
pub(super) struct Source(Option<tokio::task::JoinHandle<io::Result<Vec<PathBuf>>>>);

impl Source {
    /// Prefers the reason on this side: the server's is only that the upload broke off.
    pub(super) async fn explain<T>(self, result: Result<T, ClientError>) -> Result<T> {
        if result.is_err()
            && let Some(task) = self.0
            && let Ok(Err(error)) = task.await
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            return Err(Failure::io("cannot read", error));
        }
        Ok(result?)
    }
}

impl Upload {
    /// A tar: the file at `path`, standard input for `-`, or the content of the directory `path`.
    pub(super) async fn open(printer: Printer, path: &Path) -> Result<Self> {
        let what = || format!("cannot read {}", path.display());
        if path == Path::new("-") {
            return Self::stdin(printer);
        }
        let meta = tokio::fs::metadata(path).await.map_err(|error| Failure::io(what(), error))?;
        if meta.is_dir() {
            return Ok(Self::directory(printer, path.to_owned(), PathBuf::new()));
        }
        Self::file(printer, path).await
    }

    /// The file at `path`.
    pub(super) async fn file(printer: Printer, path: &Path) -> Result<Self> {
        let what = || format!("cannot read {}", path.display());
        let file = tokio::fs::File::open(path).await.map_err(|error| Failure::io(what(), error))?;
        let meta = file.metadata().await.map_err(|error| Failure::io(what(), error))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self::reader(printer, &name, meta.is_file().then_some(meta.len()), file))
    }

    /// Standard input.
    pub(super) fn stdin(printer: Printer) -> Result<Self> {
        let stdin = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)
            .map_err(|errno| Failure::io("cannot read standard input", errno))?;
        let stdin = tokio::fs::File::from_std(std::fs::File::from(stdin));
        Ok(Self::reader(printer, "standard input", None, stdin))
    }

    /// Anything that can be read.
    fn reader(
        printer: Printer,
        what: &str,
        total: Option<u64>,
        reader: impl tokio::io::AsyncRead + Unpin + Send + 'static,
    ) -> Self {
        let content = futures::stream::try_unfold(reader, |mut reader| async move {
            use tokio::io::AsyncReadExt as _;
            let mut piece = bytes::BytesMut::with_capacity(READ_BYTES);
            let read = reader.read_buf(&mut piece).await?;
            Ok((read > 0).then(|| (piece.freeze(), reader)))
        });
        Self::new(progress::bytes_bar(printer, what, total), content, Source(None))
    }

    /// A tar of the content of a directory, without the paths that `ignore` leaves out.
    pub(super) fn context(printer: Printer, path: PathBuf, ignore: Ignore) -> Self {
        Self::packed(printer, path, PathBuf::new(), ignore)
    }

    /// A tar of a directory, whose members begin with `name`.
    pub(super) fn directory(printer: Printer, path: PathBuf, name: PathBuf) -> Self {
        Self::packed(printer, path, name, Ignore::default())
    }

    fn packed(printer: Printer, path: PathBuf, name: PathBuf, ignore: Ignore) -> Self {
        let bar = progress::bytes_bar(printer, &path.file_name().unwrap_or_default().to_string_lossy(), None);
        let (mut writer, content) = archive::writer();
        let task = tokio::task::spawn_blocking(move || {
            let packed = archive::pack(&path, &name, &mut writer, &ignore);
            match packed {
                Ok(skipped) => {
                    for path in &skipped {
                        printer
                            .warn(&format!("left out {}: neither file, directory nor link", path.display()));
                    }
                    Ok(skipped)
                }
                Err(error) => {
                    writer.fail(&error);
                    Err(error)
                }
            }
        });
        Self::new(bar, content, Source(Some(task)))
    }

    fn new(
        bar: ProgressBar,
        content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        source: Source,
    ) -> Self {
        let counter = bar.clone();
        let content = content.inspect(move |piece| {
            if let Ok(piece) = piece {
                counter.inc(piece.len() as u64);
            }
        });
        Self { content: content.boxed(), bar, source }
    }

    pub(super) fn split(self) -> (Content, ProgressBar, Source) {
        (self.content, self.bar, self.source)
    }
}

/// Pulls an image that a sandbox is to be made of. With `--json` its progress is not shown: what is asked for is the sandbox.
pub(super) async fn pull_missing(client: &Client, printer: Printer, reference: &str) -> Result<()> {
    let pull = PullImage {
        reference: reference.to_owned(),
        credentials: None,
        platform: None,
        insecure_http: false,
        ca_pem: None,
    };
    progress::image(printer.quiet(), client.pull_image(&pull).await?).await.map(drop)
}
