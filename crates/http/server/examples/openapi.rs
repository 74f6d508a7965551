//! Writes the OpenAPI document: `cargo run -p atoll-server --example openapi`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../openapi/atoll.json");
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(file, atoll_server::openapi())
}
