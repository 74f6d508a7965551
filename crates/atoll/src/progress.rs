//! Progress bars, on standard error and only on a terminal.

use std::collections::BTreeMap;

use atoll_api::{Image, ImageProgress, LayerPhase};
use atoll_client::ClientError;
use futures::{Stream, StreamExt as _};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Result;
use crate::output::{Printer, clean};

/// Most layers that get a bar of their own.
const BARS_MAX_COUNT: usize = 64;
/// Characters of a digest that are shown.
const DIGEST_CHARS: usize = 12;

fn style(template: &str) -> ProgressStyle {
    // The templates are constants of this file, and a test reads them.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

const BYTES: &str =
    "{msg:16} [{bar:30}] {binary_bytes:>11} / {binary_total_bytes:<11} {binary_bytes_per_sec}";
const BYTES_OPEN: &str = "{msg:16} {spinner} {binary_bytes:>11} {binary_bytes_per_sec}";

/// A bar for bytes; `total` is not always known.
pub(crate) fn bytes_bar(printer: Printer, what: &str, total: Option<u64>) -> ProgressBar {
    if !printer.draws() {
        return ProgressBar::hidden();
    }
    let bar = match total {
        Some(total) => ProgressBar::new(total).with_style(style(BYTES)),
        None => ProgressBar::new_spinner().with_style(style(BYTES_OPEN)),
    };
    bar.with_message(clean(what))
}

/// Shows the progress of one image until it is ready.
pub(crate) async fn image(
    printer: Printer,
    stream: impl Stream<Item = Result<ImageProgress, ClientError>> + Unpin,
) -> Result<Image> {
    let mut images = images(printer, stream).await?;
    images.pop().ok_or_else(|| broken_off().into())
}

fn broken_off() -> ClientError {
    ClientError::Protocol("the progress ended before the work did".to_owned())
}

/// Shows the progress of images until all are ready: there is one at least.
pub(crate) async fn images(
    printer: Printer,
    mut stream: impl Stream<Item = Result<ImageProgress, ClientError>> + Unpin,
) -> Result<Vec<Image>> {
    let mut ready = Vec::new();
    let bars = MultiProgress::with_draw_target(if printer.draws() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    });
    let mut layers: BTreeMap<String, ProgressBar> = BTreeMap::new();
    while let Some(progress) = stream.next().await {
        let progress = progress?;
        if printer.is_json() {
            printer.stream_item(&progress)?;
        }
        match progress {
            ImageProgress::Layer { digest, phase, done_bytes, total_bytes } => {
                if layers.len() >= BARS_MAX_COUNT && !layers.contains_key(&digest) {
                    continue;
                }
                let bar = layers.entry(digest).or_insert_with_key(|digest| {
                    bars.add(
                        ProgressBar::new(total_bytes).with_style(style(BYTES)).with_prefix(short(digest)),
                    )
                });
                let verb = match phase {
                    LayerPhase::Download => "",
                    LayerPhase::Unpack => " +",
                    LayerPhase::Done => " ok",
                };
                bar.set_message(format!("{}{verb}", bar.prefix()));
                bar.set_length(total_bytes.max(done_bytes));
                bar.set_position(done_bytes);
                if phase == LayerPhase::Done {
                    bar.abandon();
                }
            }
            // One for each image, all at the end.
            ImageProgress::Done { image } => ready.push(image),
            ImageProgress::Error { error } => {
                let request_id = error.request_id.clone();
                return Err(ClientError::Api { error: error.into(), request_id }.into());
            }
        }
    }
    if ready.is_empty() { Err(broken_off().into()) } else { Ok(ready) }
}

/// The beginning of a digest.
pub(crate) fn short(digest: &str) -> String {
    let hex = digest.split_once(':').map_or(digest, |(_, hex)| hex);
    clean(hex).chars().take(DIGEST_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_well_formed() {
        for template in [BYTES, BYTES_OPEN] {
            ProgressStyle::with_template(template).unwrap();
        }
        assert_eq!(short("sha256:0123456789abcdef"), "0123456789ab");
    }
}
